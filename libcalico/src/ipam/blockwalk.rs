//! [`BlockWalk`]: the order in which a node considers the blocks of a pool.
//!
//! The walk starts at an index derived from the owner's name and visits every block of the pool once. A node and
//! upstream's allocator on the same node therefore try the same blocks in the same order, and different nodes start at
//! distant blocks (IPAM-119).

use std::iter::FusedIterator;

use time::OffsetDateTime;

use super::gorand::GoRand;
use crate::net::Cidr;

/// The blocks of a pool in the order in which an owner considers them. The iterator is lazy, because a pool can have
/// 2^64 blocks.
#[derive(Debug, Clone)]
pub struct BlockWalk {
    pool: Cidr,
    block_prefix: u8,
    start: u128,
    blocks: u128,
    /// The number of steps taken so far.
    taken: u128,
}

impl BlockWalk {
    /// Creates the walk of the owner named `owner` over `pool` in blocks with a prefix length of `block_prefix`. If
    /// blocks have a single address, the start is derived from the clock instead. The walk is empty if a block does
    /// not fit into the pool.
    pub fn new(pool: Cidr, block_prefix: u8, owner: &str, now: OffsetDateTime) -> Self {
        let bits = pool.version().bits();
        let fits = pool.prefix() <= block_prefix && block_prefix <= bits;
        let blocks = if fits { power_of_two(block_prefix - pool.prefix()) } else { 0 };
        let seed = if block_prefix == bits {
            // The truncation keeps the low bits, which are the ones that change between two calls.
            now.unix_timestamp_nanos() as i64
        } else {
            i64::from(fnv1(owner.as_bytes()))
        };
        BlockWalk { pool, block_prefix, start: GoRand::new(seed).below(blocks), blocks, taken: 0 }
    }

    /// Returns the number of blocks in the pool.
    pub fn blocks(&self) -> u128 {
        self.blocks
    }

    /// Returns the number of steps from the start of the walk to `block`; `None` if `block` is not a block of this
    /// pool.
    pub fn position(&self, block: &Cidr) -> Option<u128> {
        if block.prefix() != self.block_prefix || !self.pool.covers(block) {
            return None;
        }
        let index = self.pool.offset_of(block.network())? / block.size();
        Some(if index >= self.start { index - self.start } else { self.blocks - self.start + index })
    }

    /// Skips the rest of `range`, which contains the walk's present block. The next block is the first one after the
    /// range. Without this, a walk over an IPv6 pool with a large reserved range would practically never end.
    pub fn skip_past(&mut self, range: &Cidr) {
        let Some(current) = self.taken.checked_sub(1) else { return };
        if range.covers(&self.pool) {
            self.taken = self.blocks;
            return;
        }
        // Ranges and pools are aligned, so a range ends at a multiple of its length.
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

/// Returns the 32-bit FNV-1 hash, not FNV-1a.
fn fnv1(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash: u32, &byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-08-22 01:02:03 UTC);

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    fn walk(pool: &str, block_prefix: u8, owner: &str) -> BlockWalk {
        BlockWalk::new(cidr(pool), block_prefix, owner, NOW)
    }

    #[test]
    fn owners_hash_to_upstreams_seeds() {
        for (owner, seed) in [
            ("node-a", 568266999),
            ("node-b", 568266996),
            ("host-a", 1258779341),
            ("testHost", 2118914743),
            ("ip-10-0-0-1.ec2.internal", 1440555195),
            ("load-balancer", 4270604816),
            ("node1", 3957252814),
            ("node2", 3957252813),
        ] {
            assert_eq!(fnv1(owner.as_bytes()), seed, "{owner}");
        }
    }

    #[test]
    fn walks_begin_where_upstreams_do() {
        for (pool, prefix, first, second) in [
            ("10.65.0.0/16", 26, "10.65.166.128/26", "10.65.166.192/26"),
            ("10.67.0.0/24", 26, "10.67.0.128/26", "10.67.0.192/26"),
            ("fd00:65::/64", 122, "fd00:65::c11:b42f:f17e:a680/122", "fd00:65::c11:b42f:f17e:a6c0/122"),
        ] {
            let blocks: Vec<Cidr> = walk(pool, prefix, "node1").take(2).collect();
            assert_eq!(blocks, [cidr(first), cidr(second)]);
        }
    }

    #[test]
    fn every_block_comes_once_and_lies_in_the_pool() {
        for (pool, prefix) in [
            ("10.0.0.0/16", 26),
            ("10.0.0.0/24", 32),
            ("10.0.0.0/26", 26),
            ("192.168.254.0/23", 20 + 12),
            ("fd80:24e2:f998:72d6::/112", 122),
            ("fd80:24e2:f998:72d6::/120", 128),
        ] {
            let walked: Vec<Cidr> = walk(pool, prefix, "testHost").collect();
            let distinct: HashSet<Cidr> = walked.iter().copied().collect();
            assert_eq!(walked.len(), 1 << (prefix - cidr(pool).prefix()), "{pool} by /{prefix}");
            assert_eq!(distinct.len(), walked.len());
            assert!(walked.iter().all(|block| cidr(pool).covers(block) && block.prefix() == prefix));
        }
    }

    #[test]
    fn the_walk_wraps_around() {
        let blocks: Vec<String> = walk("10.67.0.0/24", 26, "node1").map(|block| block.to_string()).collect();
        assert_eq!(blocks, ["10.67.0.128/26", "10.67.0.192/26", "10.67.0.0/26", "10.67.0.64/26"]);
    }

    #[test]
    fn single_address_blocks_start_where_the_clock_says() {
        let starts = |now| BlockWalk::new(cidr("10.0.0.0/16"), 32, "node1", now).next();
        assert_eq!(starts(NOW), starts(NOW));
        assert_ne!(starts(NOW), starts(NOW + time::Duration::NANOSECOND));
        // Larger blocks do not depend on the clock.
        let starts = |now| BlockWalk::new(cidr("10.0.0.0/16"), 31, "node1", now).next();
        assert_eq!(starts(NOW), starts(NOW + time::Duration::NANOSECOND));
    }

    #[test]
    fn a_block_that_does_not_fit_is_never_walked() {
        assert_eq!(walk("10.0.0.0/27", 26, "node1").next(), None);
        assert_eq!(walk("10.0.0.0/27", 33, "node1").next(), None);
    }

    #[test]
    fn the_largest_pools_are_walked_lazily() {
        assert_eq!(walk("fd00::/64", 128, "node1").blocks(), 1 << 64);
        assert_eq!(walk("::/0", 128, "node1").take(3).count(), 3);
        let mut whole = walk("::/0", 116, "node1");
        assert_eq!(whole.next().and_then(|block| whole.position(&block)), Some(0));
    }

    #[test]
    fn positions_count_from_the_start_of_the_walk() {
        let walked = walk("10.67.0.0/24", 26, "node1");
        for (step, block) in walked.clone().enumerate() {
            assert_eq!(walked.position(&block), Some(step as u128));
        }
        for other in ["10.67.0.0/27", "10.68.0.0/26", "fd00::/26"] {
            assert_eq!(walked.position(&cidr(other)), None, "{other}");
        }
    }

    #[test]
    fn skipping_leaves_out_exactly_the_blocks_of_the_range() {
        for range in ["10.0.0.0/18", "10.0.128.0/17", "10.0.8.0/21", "10.0.8.64/26", "10.0.0.0/16", "10.0.0.0/8"] {
            let range = cidr(range);
            let mut walked = walk("10.0.0.0/16", 26, "node1");
            let mut kept = Vec::new();
            while let Some(block) = walked.next() {
                if range.covers(&block) { walked.skip_past(&range) } else { kept.push(block) }
            }
            let expected: Vec<Cidr> = walk("10.0.0.0/16", 26, "node1").filter(|block| !range.covers(block)).collect();
            assert_eq!(kept, expected, "{range}");
        }
    }

    #[test]
    fn half_a_pool_of_2_to_the_58_blocks_is_skipped_in_one_step() {
        let mut walked = walk("fd00:65::/64", 122, "node1");
        assert_eq!(walked.next(), Some(cidr("fd00:65::c11:b42f:f17e:a680/122")));
        walked.skip_past(&cidr("fd00:65::/65"));
        assert_eq!(walked.next(), Some(cidr("fd00:65::8000:0:0:0/122")));
    }
}
