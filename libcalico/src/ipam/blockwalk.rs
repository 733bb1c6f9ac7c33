//! [`BlockWalk`]: the order in which a node considers the blocks of a pool (IPAM-118..IPAM-120).
//!
//! The walk starts at an index drawn from the owner's name and goes once around the pool. So one node, and upstream's
//! allocator on it, tries the same blocks in the same order, while different nodes start far from each other.

use std::iter::FusedIterator;

use time::OffsetDateTime;

use super::gorand::GoRand;
use crate::net::Cidr;

/// The blocks of a pool in the order an owner considers them. Lazy: a pool may have 2^64 blocks.
#[derive(Debug, Clone)]
pub struct BlockWalk {
    pool: Cidr,
    block_prefix: u8,
    start: u128,
    blocks: u128,
    /// Steps taken so far.
    taken: u128,
}

impl BlockWalk {
    /// The walk of the owner called `owner` over `pool` in blocks of `block_prefix` bits. Blocks of a single address
    /// start at a place drawn from the clock instead. There is none when a block would not fit into the pool.
    pub fn new(pool: Cidr, block_prefix: u8, owner: &str, now: OffsetDateTime) -> Self {
        let bits = pool.version().bits();
        let fits = pool.prefix() <= block_prefix && block_prefix <= bits;
        let blocks = if fits { power_of_two(block_prefix - pool.prefix()) } else { 0 };
        let seed = if block_prefix == bits {
            // Only the low bits differ from one moment to the next.
            now.unix_timestamp_nanos() as i64
        } else {
            i64::from(fnv1(owner.as_bytes()))
        };
        BlockWalk { pool, block_prefix, start: GoRand::new(seed).below(blocks), blocks, taken: 0 }
    }

    /// Number of blocks in the pool.
    pub fn blocks(&self) -> u128 {
        self.blocks
    }

    /// How many steps from the start of the walk `block` is; `None` for what is no block of this pool.
    pub fn position(&self, block: &Cidr) -> Option<u128> {
        if block.prefix() != self.block_prefix || !self.pool.covers(block) {
            return None;
        }
        let index = self.pool.offset_of(block.network())? / block.size();
        Some(if index >= self.start { index - self.start } else { self.blocks - self.start + index })
    }

    /// Leaves out the blocks of `range`, which the walk stands in: the next block is the first behind it. Without this
    /// a walk over an IPv6 pool of which half is reserved would never end.
    pub fn skip_past(&mut self, range: &Cidr) {
        let Some(current) = self.taken.checked_sub(1) else { return };
        if range.covers(&self.pool) {
            self.taken = self.blocks;
            return;
        }
        // Ranges and pools are aligned, so the range ends at a multiple of its length.
        let per_range = power_of_two(self.block_prefix.saturating_sub(range.prefix()));
        let rest_of_range = per_range - self.index_at(current) % per_range;
        self.taken = current.saturating_add(rest_of_range).min(self.blocks);
    }

    fn index_at(&self, step: u128) -> u128 {
        let to_the_end = self.blocks - self.start;
        if step < to_the_end { self.start + step } else { step - to_the_end }
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

/// The 32-bit FNV-1 hash (not 1a).
fn fnv1(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash: u32, &byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}
