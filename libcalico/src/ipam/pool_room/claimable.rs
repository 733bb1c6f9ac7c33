//! [`Claimable`]: the blocks of a pool that a node can still get.

use crate::ipam::{Pool, Reservations};
use crate::net::Cidr;

/// Blocks that a node can claim, with their free addresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::ipam) struct Claimable {
    pub(in crate::ipam) blocks: u128,
    /// Addresses that are free and not reserved.
    pub(in crate::ipam) addresses: u128,
}

impl Claimable {
    /// Adds a block with this number of free addresses.
    pub(in crate::ipam) fn add(&mut self, free: u64) {
        self.blocks += 1;
        self.addresses += u128::from(free);
    }

    /// Returns these blocks without `part`, which they contain.
    pub(in crate::ipam) fn without(&self, part: &Claimable) -> Claimable {
        Claimable {
            blocks: self.blocks - part.blocks,
            addresses: self.addresses - part.addresses,
        }
    }

    /// Takes as many blocks as `budget` permits, and subtracts them from it. Returns the largest
    /// number of addresses that these blocks can have.
    pub(in crate::ipam) fn take(&self, budget: &mut u128, block_size: u128) -> u128 {
        let taken = self.blocks.min(*budget);
        *budget -= taken;
        self.addresses.min(taken.saturating_mul(block_size))
    }
}

/// Returns the number of addresses in a block of the pool.
pub(in crate::ipam) fn block_size(pool: &Pool) -> u128 {
    1u128
        .checked_shl(u32::from(
            pool.cidr.version().bits().saturating_sub(pool.block_prefix),
        ))
        .unwrap_or(u128::MAX)
}

/// Returns the part of a pool outside of `blocks`, in whole blocks that reservations do not cover
/// completely. A smaller block takes the place of a whole one.
pub(in crate::ipam) fn unclaimed(
    pool: &Pool,
    blocks: &[Cidr],
    reservations: &Reservations,
) -> Claimable {
    if pool.check_block_size().is_err() {
        return Claimable::default();
    }
    let whole = |range: &Cidr| match range {
        range if range.covers(&pool.cidr) => Some(pool.cidr),
        range if range.prefix() <= pool.block_prefix => Some(*range),
        range => Cidr::new(range.network(), pool.block_prefix),
    };
    let places = blocks
        .iter()
        .filter(|block| block.overlaps(&pool.cidr))
        .filter_map(whole);
    let reserved = reservations
        .ranges()
        .iter()
        .filter(|range| range.overlaps(&pool.cidr));
    let covered = reserved
        .clone()
        .filter_map(whole)
        .filter(|place| reservations.covers(place));
    // A set of ranges none of which contains another.
    let taken = Reservations::new(places.chain(covered));
    let outside = pool.cidr.size().saturating_sub(taken.within(&pool.cidr));
    let partly = reserved
        .filter(|range| taken.covering(range).is_none())
        .map(Cidr::size);
    let size = block_size(pool);
    Claimable {
        blocks: outside / size,
        addresses: outside.saturating_sub(partly.fold(0, u128::saturating_add)),
    }
}
