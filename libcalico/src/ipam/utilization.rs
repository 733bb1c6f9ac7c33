//! How full pools and blocks are (IPAM-158).

use serde::Serialize;

use super::{Block, Reservations};
use crate::net::Cidr;

/// Use of one block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockUse {
    /// The block.
    pub cidr: Cidr,
    /// `host:<node>`, if it is somebody's.
    pub owner: Option<String>,
    /// Its addresses.
    pub capacity: u128,
    /// Taken ones; resting and host-reserved ones count.
    pub in_use: u128,
    /// Addresses that IPReservations name, taken or not.
    pub reserved: u128,
    /// What automatic assignment could still hand out.
    pub available: u128,
}

/// Use of one pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolUse {
    /// The pool's name.
    pub name: String,
    /// Its range.
    pub cidr: Cidr,
    /// Its addresses.
    pub capacity: u128,
    /// Those taken in its blocks.
    pub in_use: u128,
    /// Addresses that IPReservations name.
    pub reserved: u128,
    /// What is free and not reserved, in blocks and outside.
    pub available: u128,
    /// Its blocks, by range.
    pub blocks: Vec<BlockUse>,
}

/// Use of all pools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Utilization {
    /// The pools, in the order given.
    pub pools: Vec<PoolUse>,
    /// Blocks of both families that are in no pool.
    pub orphans: Vec<BlockUse>,
}

impl BlockUse {
    /// Counts one block.
    pub fn of(block: &Block, reservations: &Reservations) -> Self {
        let capacity = block.capacity();
        BlockUse {
            cidr: block.cidr,
            owner: block.affinity.clone(),
            capacity,
            in_use: capacity.saturating_sub(block.unallocated.len() as u128),
            reserved: reservations.within(&block.cidr),
            available: block.free(reservations) as u128,
        }
    }
}

/// Counts pools, given by name and range, and the blocks in them. A block counts for the first pool that contains it.
pub fn utilization<'a>(
    pools: impl IntoIterator<Item = (&'a str, Cidr)>,
    blocks: impl IntoIterator<Item = &'a Block>,
    reservations: &Reservations,
) -> Utilization {
    let mut left: Vec<BlockUse> = blocks.into_iter().map(|block| BlockUse::of(block, reservations)).collect();
    left.sort_by_key(|block| block.cidr);
    let mut pool_uses = Vec::new();
    for (name, cidr) in pools {
        let (inside, outside) = left.into_iter().partition(|block| cidr.covers(&block.cidr));
        left = outside;
        pool_uses.push(pool_use(name, cidr, inside, reservations));
    }
    Utilization { pools: pool_uses, orphans: left }
}

fn pool_use(name: &str, cidr: Cidr, blocks: Vec<BlockUse>, reservations: &Reservations) -> PoolUse {
    let sum = |count: fn(&BlockUse) -> u128| blocks.iter().fold(0u128, |sum, block| sum.saturating_add(count(block)));
    let (capacity, reserved) = (cidr.size(), reservations.within(&cidr));
    let outside_blocks = capacity.saturating_sub(sum(|block| block.capacity));
    let reserved_outside = reserved.saturating_sub(sum(|block| block.reserved));
    let available = sum(|block| block.available).saturating_add(outside_blocks.saturating_sub(reserved_outside));
    PoolUse { name: name.to_owned(), cidr, capacity, in_use: sum(|block| block.in_use), reserved, available, blocks }
}
