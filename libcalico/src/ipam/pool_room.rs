//! [`pool_room()`]: the free addresses of a pool, and the room of the node that has the least.
//! `usage` prints the numbers that kube-controllers publishes.

mod claimable;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub(super) use self::claimable::{Claimable, block_size, unclaimed};
use super::{IpamConfig, Pool, Reservations};
use crate::net::Cidr;

/// A block, as far as the room of a pool depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRoom<'a> {
    /// The block.
    pub cidr: Cidr,
    /// The node that owns the block.
    pub node: Option<&'a str>,
    /// The number of allocated addresses, including those that are cooling down.
    pub allocated: u64,
    /// The number of addresses that can be assigned.
    pub free: u64,
    /// True if no address is allocated, except those that Windows reserves.
    pub is_empty: bool,
    /// True if the addresses count for this pool. A block of another pool, or from which no address
    /// may be assigned, only occupies its range.
    pub counts: bool,
}

/// The room of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolRoom {
    /// The number of addresses that are free and not reserved, in and outside of blocks.
    pub free: u128,
    /// The number of addresses that are not reserved.
    pub usable: u128,
    /// Of the nodes that own a block of the pool, the one with the least room, and of several the
    /// first by name. A node takes free addresses of its blocks, claims blocks up to its limit, and
    /// reclaims empty blocks of other nodes. The number is that of the addresses which the node can
    /// still take.
    pub fullest: Option<(String, u128)>,
    /// The number of blocks that nodes own and of which not more than a quarter is allocated,
    /// including empty blocks.
    pub sparse: u64,
}

/// The blocks of a node in the pool.
#[derive(Default)]
struct NodeBlocks {
    blocks: u64,
    free: u64,
    /// The blocks that other nodes can reclaim.
    reclaimable: Claimable,
}

/// Counts the room of a pool. `blocks` contains all blocks that overlap with the pool; others are
/// passed over.
///
/// The room of a node is that of pods which name the pool: only the node's blocks in this pool
/// count for its limit (IPAM-103).
pub fn pool_room<'a>(
    pool: &Pool,
    blocks: impl IntoIterator<Item = BlockRoom<'a>>,
    reservations: &Reservations,
    config: &IpamConfig,
) -> PoolRoom {
    let blocks: Vec<BlockRoom<'a>> = blocks
        .into_iter()
        .filter(|block| block.cidr.overlaps(&pool.cidr))
        .collect();
    let ranges: Vec<Cidr> = blocks.iter().map(|block| block.cidr).collect();
    let unclaimed = unclaimed(pool, &ranges, reservations);
    let (mut free, mut sparse, mut reclaimable) = (unclaimed.addresses, 0, Claimable::default());
    let mut nodes = BTreeMap::<&str, NodeBlocks>::new();
    for block in blocks.iter().filter(|block| block.counts) {
        free = free.saturating_add(block.free.into());
        let Some(node) = block.node else { continue };
        sparse += u64::from(is_sparse(block.allocated, &block.cidr));
        let own = nodes.entry(node).or_default();
        own.blocks += 1;
        own.free += block.free;
        if block.is_empty && block.cidr.prefix() == pool.block_prefix {
            own.reclaimable.add(block.free);
            reclaimable.add(block.free);
        }
    }
    let room = |own: &NodeBlocks| {
        own.room(
            unclaimed,
            reclaimable.without(&own.reclaimable),
            block_size(pool),
            config,
        )
    };
    let rooms = nodes.iter().map(|(node, own)| (*node, room(own)));
    let fullest = rooms.min_by_key(|(_, addresses)| *addresses);
    PoolRoom {
        free,
        usable: pool
            .cidr
            .size()
            .saturating_sub(reservations.within(&pool.cidr)),
        fullest: fullest.map(|(node, addresses)| (node.to_owned(), addresses)),
        sparse,
    }
}

/// Returns true if not more than a quarter of a block is allocated.
pub(super) fn is_sparse(allocated: u64, block: &Cidr) -> bool {
    u128::from(allocated).saturating_mul(4) <= block.size()
}

impl PoolRoom {
    /// Returns the part of the usable addresses that are in use or cooling down, from 0 to 1;
    /// `None` if no address is usable.
    pub fn used_share(&self) -> Option<f64> {
        (self.usable > 0).then(|| 1.0 - self.free as f64 / self.usable as f64)
    }
}

impl NodeBlocks {
    /// Returns the number of addresses that the node can take without borrowing, if no other node
    /// takes any.
    fn room(
        &self,
        unclaimed: Claimable,
        reclaimable: Claimable,
        block_size: u128,
        config: &IpamConfig,
    ) -> u128 {
        let own = u128::from(self.free);
        if !config.auto_allocate_blocks {
            return own;
        }
        let mut budget = u128::from(config.block_limit().saturating_sub(self.blocks));
        let claimed = unclaimed.take(&mut budget, block_size);
        own.saturating_add(claimed)
            .saturating_add(reclaimable.take(&mut budget, block_size))
    }
}
