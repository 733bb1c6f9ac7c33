//! [`PoolUsage`]: the rows of the pools.

use serde::Serialize;

use super::facts::{BlockFacts, PoolFacts, PoolService, UsageInput};
use super::family_count::exact_number;
use super::room::PodRoom;
use crate::ipam::{PoolRoom, pool_room};
use crate::net::Cidr;

/// The use of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolUsage {
    /// The pool's name.
    pub name: String,
    /// The pool's range.
    pub cidr: Cidr,
    /// The requests that the pool serves.
    pub serves: PoolService,
    /// The number of addresses in the pool.
    #[serde(serialize_with = "exact_number")]
    pub capacity: u128,
    /// The number of allocated addresses.
    pub used: u64,
    /// The number of released addresses whose cooldown is not over.
    pub cooling: u64,
    /// The number of addresses that IPReservations cover, allocated or not.
    #[serde(serialize_with = "exact_number")]
    pub reserved: u128,
    /// The number of blocks.
    pub blocks: u64,
    /// The number of blocks without an allocated address, except those that Windows reserves.
    pub empty_blocks: u64,
    /// The number of blocks that can still be created.
    #[serde(serialize_with = "exact_number")]
    pub unclaimed_blocks: u128,
    /// The number of addresses that are free and not reserved, inside and outside of blocks.
    /// Requests that the pool does not serve get none of them.
    #[serde(serialize_with = "exact_number")]
    pub free: u128,
    /// The node with a block of the pool that can take the fewest addresses without borrowing;
    /// `None` if no node has a block, or the pool is out of service.
    pub fullest_node: Option<FullestNode>,
    /// The number of blocks of nodes of which not more than a quarter is allocated, including empty
    /// blocks.
    pub sparse_blocks: u64,
}

/// The node with the least room in a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FullestNode {
    /// The node's name.
    pub node: String,
    /// The number of addresses that the node can take without borrowing.
    #[serde(serialize_with = "exact_number")]
    pub addresses: u128,
}

/// Counts the pools.
pub(super) fn count(
    pools: &[PoolFacts<'_>],
    blocks: &[BlockFacts<'_>],
    room: &PodRoom<'_>,
    input: &UsageInput<'_>,
) -> Vec<PoolUsage> {
    let empty = pools
        .iter()
        .enumerate()
        .map(|(index, PoolFacts { pool, serves, .. })| {
            let of_blocks = blocks.iter().map(|block| block.room_in(index));
            let PoolRoom {
                free,
                fullest,
                sparse,
                ..
            } = pool_room(pool, of_blocks, input.reservations, input.config);
            let fullest_node = fullest.map(|(node, addresses)| FullestNode { node, addresses });
            PoolUsage {
                name: pool.name.clone(),
                cidr: pool.cidr,
                serves: *serves,
                capacity: pool.cidr.size(),
                used: 0,
                cooling: 0,
                reserved: input.reservations.within(&pool.cidr),
                blocks: 0,
                empty_blocks: 0,
                unclaimed_blocks: room.unclaimed(index).blocks,
                free,
                fullest_node: fullest_node.filter(|_| *serves != PoolService::OutOfService),
                sparse_blocks: sparse,
            }
        });
    let mut usages: Vec<PoolUsage> = empty.collect();
    for block in blocks {
        let Some(usage) = block.pool.and_then(|index| usages.get_mut(index)) else {
            continue;
        };
        usage.used += block.used;
        usage.cooling += block.cooling;
        usage.blocks += 1;
        usage.empty_blocks += u64::from(block.is_empty);
    }
    usages
}
