//! [`PoolUsage`]: the rows of the pools.

use serde::Serialize;

use super::facts::{BlockFacts, PoolFacts, PoolService};
use super::family_count::exact_number;
use super::room::PodRoom;
use crate::ipam::Reservations;
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
    /// The number of addresses that are free and not reserved, inside and outside of blocks. Requests that the pool
    /// does not serve get none of them.
    #[serde(serialize_with = "exact_number")]
    pub free: u128,
}

/// Counts the pools.
pub(super) fn count(
    pools: &[PoolFacts<'_>],
    blocks: &[BlockFacts<'_>],
    room: &PodRoom<'_>,
    reservations: &Reservations,
) -> Vec<PoolUsage> {
    let empty = pools.iter().enumerate().map(|(index, PoolFacts { pool, serves, .. })| {
        let unclaimed = room.unclaimed(index);
        PoolUsage {
            name: pool.name.clone(),
            cidr: pool.cidr,
            serves: *serves,
            capacity: pool.cidr.size(),
            used: 0,
            cooling: 0,
            reserved: reservations.within(&pool.cidr),
            blocks: 0,
            empty_blocks: 0,
            unclaimed_blocks: unclaimed.blocks,
            free: unclaimed.addresses,
        }
    });
    let mut usages: Vec<PoolUsage> = empty.collect();
    for block in blocks {
        let Some(usage) = block.pool.and_then(|index| usages.get_mut(index)) else { continue };
        usage.used += block.used;
        usage.cooling += block.cooling;
        usage.blocks += 1;
        usage.empty_blocks += u64::from(block.is_empty);
        usage.free = usage.free.saturating_add(u128::from(block.free));
    }
    usages
}
