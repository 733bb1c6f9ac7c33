//! Selects the blocks to claim, use, reclaim or borrow from. A result can be outdated by a write of
//! another node; the compare-and-swap of the following write detects a write to the same block.
//!
//! [`BlockWalk`] is the order in which a node considers the blocks of a pool. The walk starts as
//! upstream's, and different nodes usually start at distant blocks (IPAM-119).

use std::collections::BTreeSet;
use std::iter::{self, FusedIterator};
use std::ops::Bound::{Excluded, Unbounded};

use time::OffsetDateTime;

use super::AffinityOwner;
use super::gorand::GoRand;
use super::pool::Pool;
use super::reservation::Reservations;
use super::survey::Room;
use crate::net::Cidr;

/// The way to obtain another block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UsableBlock {
    /// No block has this range, so the range can be claimed.
    Claim(Cidr),
    /// The block already belongs to the owner and has room.
    Use(Cidr),
    /// No range is left to claim. These empty blocks may be reclaimed, in this order.
    Reclaim(Vec<Cidr>),
}

/// Returns the room in the block with a range: `None` if there is no block, `Some(None)` if the
/// block must not be used.
pub type RoomOf<'a> = &'a dyn Fn(&Cidr) -> Option<Option<Room>>;

/// Returns the first block that `owner` can claim or use, or else the empty blocks that may be
/// reclaimed. Skips blocks whose addresses are all reserved. `ranges` are the ranges of the
/// existing blocks.
///
/// A range that overlaps a block of another size in `ranges` is not claimed, because both blocks
/// could assign the same address.
pub fn usable_block(
    pools: &[Pool],
    blocks: RoomOf<'_>,
    ranges: &BTreeSet<Cidr>,
    reservations: &Reservations,
    owner: &AffinityOwner,
    now: OffsetDateTime,
) -> UsableBlock {
    let mut reclaimable = Vec::new();
    for pool in pools {
        let mut in_pool = ranges.iter().filter(|range| range.overlaps(&pool.cidr));
        let has_misfits = in_pool.any(|range| range.prefix() != pool.block_prefix);
        let mut walk = BlockWalk::new(pool.cidr, pool.block_prefix, owner.name(), now);
        while let Some(cidr) = walk.next() {
            if let Some(range) = reservations.covering(&cidr) {
                walk.skip_past(&range);
                continue;
            }
            if reservations.covers(&cidr) {
                continue;
            }
            let Some(block) = blocks(&cidr) else {
                let conflicting = if has_misfits {
                    conflicting_range(ranges, &cidr)
                } else {
                    None
                };
                let Some(range) = conflicting else {
                    return UsableBlock::Claim(cidr);
                };
                if range.covers(&cidr) {
                    walk.skip_to(
                        next_within(ranges, &range, &cidr, pool.block_prefix),
                        &range,
                    );
                }
                continue;
            };
            let Some(room) = block.filter(|room| room.has_free) else {
                continue;
            };
            if room.is_own {
                return UsableBlock::Use(cidr);
            }
            if room.may_be_reclaimed {
                reclaimable.push(cidr);
            }
        }
    }
    UsableBlock::Reclaim(reclaimable)
}

/// Returns the first of `ranges` with which no block of the range `cidr` may exist
/// ([`Cidr::conflicts_with`]). The time depends little on the number of ranges, because a search in
/// a pool of former block sizes calls this for each block.
pub fn conflicting_range(ranges: &BTreeSet<Cidr>, cidr: &Cidr) -> Option<Cidr> {
    let mut outer = (0..cidr.prefix()).filter_map(|prefix| Cidr::new(cidr.network(), prefix));
    // A range sorts before the ranges inside it, and no other range sorts between them.
    let mut inner = ranges.range(*cidr..).take_while(|range| cidr.covers(range));
    outer
        .find(|range| ranges.contains(range))
        .or_else(|| inner.find(|range| *range != cidr).copied())
}

/// Returns the first of `ranges` after `cidr` that is inside `outer` and has the prefix length
/// `prefix`.
fn next_within(ranges: &BTreeSet<Cidr>, outer: &Cidr, cidr: &Cidr, prefix: u8) -> Option<Cidr> {
    let mut within = ranges
        .range((Excluded(*cidr), Unbounded))
        .take_while(|range| outer.covers(range));
    within.find(|range| range.prefix() == prefix).copied()
}

/// Returns those of the blocks `with_room` that are blocks of the pools, in the order of the pools
/// and of the walk of `owner`.
pub fn borrow_order(
    pools: &[Pool],
    with_room: &[Cidr],
    owner: &AffinityOwner,
    now: OffsetDateTime,
) -> Vec<Cidr> {
    let mut order = Vec::new();
    for pool in pools {
        let walk = BlockWalk::new(pool.cidr, pool.block_prefix, owner.name(), now);
        let mut in_pool: Vec<_> = with_room
            .iter()
            .filter_map(|cidr| Some((walk.position(cidr)?, *cidr)))
            .collect();
        in_pool.sort_unstable();
        order.extend(in_pool.into_iter().map(|(_, cidr)| cidr));
    }
    order
}

/// The blocks of a pool in the order in which an owner considers them. The iterator is lazy,
/// because a pool can have 2^64 blocks.
#[derive(Debug, Clone)]
pub struct BlockWalk {
    pool: Cidr,
    block_prefix: u8,
    start: u128,
    blocks: u128,
    taken: u128,
}

impl BlockWalk {
    /// Creates the walk of `owner` over `pool`. It starts at an index derived from the owner's
    /// name, or from the clock if blocks have a single address. The walk is empty if a block does
    /// not fit into the pool.
    pub fn new(pool: Cidr, block_prefix: u8, owner: &str, now: OffsetDateTime) -> Self {
        let bits = pool.version().bits();
        let fits = pool.prefix() <= block_prefix && block_prefix <= bits;
        let blocks = if fits {
            power_of_two(block_prefix - pool.prefix())
        } else {
            0
        };
        let seed = if block_prefix == bits {
            // The low bits, which the truncation keeps, usually change between two calls.
            now.unix_timestamp_nanos() as i64
        } else {
            i64::from(fnv1(owner.as_bytes()))
        };
        BlockWalk {
            pool,
            block_prefix,
            start: GoRand::new(seed).below(blocks),
            blocks,
            taken: 0,
        }
    }

    /// Returns the number of blocks in the pool.
    pub fn blocks(&self) -> u128 {
        self.blocks
    }

    /// Returns the number of steps from the start of the walk to `block`, if it is a block of this
    /// pool.
    pub fn position(&self, block: &Cidr) -> Option<u128> {
        if block.prefix() != self.block_prefix || !self.pool.covers(block) {
            return None;
        }
        let index = self.pool.offset_of(block.network())? / block.size();
        Some(if index >= self.start {
            index - self.start
        } else {
            self.blocks - self.start + index
        })
    }

    /// Returns the rest of the walk, without the ranges that conflict with a block in `ranges`
    /// ([`conflicting_range`]).
    pub fn apart_from(mut self, ranges: &BTreeSet<Cidr>) -> impl Iterator<Item = Cidr> {
        iter::from_fn(move || {
            loop {
                let cidr = self.next()?;
                let Some(range) = conflicting_range(ranges, &cidr) else {
                    return Some(cidr);
                };
                if range.covers(&cidr) {
                    self.skip_past(&range);
                }
            }
        })
    }

    /// Skips the blocks before `next`, which is inside `range`. Without `next`, or if the walk has
    /// already passed it, skips the rest of `range`, as [`BlockWalk::skip_past`].
    fn skip_to(&mut self, next: Option<Cidr>, range: &Cidr) {
        match next
            .and_then(|block| BlockWalk::position(self, &block))
            .filter(|position| *position >= self.taken)
        {
            Some(position) => self.taken = position,
            None => self.skip_past(range),
        }
    }

    /// Skips the rest of `range`, which contains the last returned block. Without this, a walk over
    /// an IPv6 pool with a large reserved range, or a large block of another size, would
    /// practically never end.
    pub fn skip_past(&mut self, range: &Cidr) {
        let Some(current) = self.taken.checked_sub(1) else {
            return;
        };
        if range.covers(&self.pool) {
            self.taken = self.blocks;
            return;
        }
        // Ranges and pools are aligned.
        let per_range = power_of_two(self.block_prefix.saturating_sub(range.prefix()));
        let rest_of_range = per_range - self.index_at(current) % per_range;
        self.taken = current.saturating_add(rest_of_range).min(self.blocks);
    }

    fn index_at(&self, step: u128) -> u128 {
        let to_the_end = self.blocks - self.start;
        if step < to_the_end {
            self.start + step
        } else {
            step - to_the_end
        }
    }
}

impl Iterator for BlockWalk {
    type Item = Cidr;

    fn next(&mut self) -> Option<Cidr> {
        if self.taken >= self.blocks {
            return None;
        }
        let index = self.index_at(self.taken);
        self.taken += 1;
        let shift = self.pool.version().bits() - self.block_prefix;
        Cidr::new(self.pool.nth(index << shift)?, self.block_prefix)
    }
}

impl FusedIterator for BlockWalk {}

fn power_of_two(exponent: u8) -> u128 {
    1u128.checked_shl(u32::from(exponent)).unwrap_or(u128::MAX)
}

/// Returns the 32-bit FNV-1 hash, not FNV-1a.
fn fnv1(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash: u32, &byte| {
        hash.wrapping_mul(0x0100_0193) ^ u32::from(byte)
    })
}

#[cfg(test)]
mod tests;
