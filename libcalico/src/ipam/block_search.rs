//! Selects the block to claim or to borrow from. The functions are pure. Their results can be outdated by a write of
//! another node; the compare-and-swap of the following write detects that.
//!
//! [`BlockWalk`] is the order in which a node considers the blocks of a pool. The walk starts at an index derived from
//! the owner's name and visits every block of the pool once. A node and upstream's allocator on the same node therefore
//! try the same blocks in the same order, and different nodes start at distant blocks (IPAM-119).

use std::collections::BTreeSet;
use std::iter::FusedIterator;

use time::OffsetDateTime;

use super::Owner;
use super::gorand::GoRand;
use super::pool::Pool;
use super::reservation::Reservations;
use super::survey::Room;
use crate::net::Cidr;

/// The way to obtain another block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UsableBlock {
    /// No block exists in the range: claim it.
    Claim(Cidr),
    /// The block already belongs to the owner and has room, although no affinity names it.
    Use(Cidr),
    /// No range is left to claim. These empty blocks may be reclaimed from their owners, in this order. If the list is
    /// empty, no block is available.
    Reclaim(Vec<Cidr>),
}

/// Returns the room in the block with a range: `None` if there is no block, `Some(None)` if the block must not be
/// used.
pub type RoomOf<'a> = &'a dyn Fn(&Cidr) -> Option<Option<Room>>;

/// Returns the next block for `owner`, in the order of the pools and of the walk over each pool. `ranges` are the
/// ranges of all existing blocks.
///
/// A range that overlaps a block of another size is not claimed, because both blocks could assign the same address.
/// Such blocks remain when a pool is deleted and created again with another block size.
pub fn usable_block(
    pools: &[Pool],
    blocks: RoomOf<'_>,
    ranges: &BTreeSet<Cidr>,
    reservations: &Reservations,
    owner: &Owner,
    now: OffsetDateTime,
) -> UsableBlock {
    let mut reclaimable = Vec::new();
    for pool in pools {
        let in_pool = ranges.iter().filter(|range| range.overlaps(&pool.cidr));
        let misfits: Vec<&Cidr> = in_pool.filter(|range| range.prefix() != pool.block_prefix).collect();
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
                if misfits.iter().any(|range| range.overlaps(&cidr)) {
                    continue;
                }
                return UsableBlock::Claim(cidr);
            };
            let Some(room) = block.filter(|room| room.has_free) else { continue };
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

/// Returns the blocks among `with_room` that `owner` may borrow from, in the order of the pools and of the walk over
/// each pool. Ranges without a block have no address to borrow, so the function does not walk the whole pool.
pub fn borrow_order(pools: &[Pool], with_room: &[Cidr], owner: &Owner, now: OffsetDateTime) -> Vec<Cidr> {
    let mut order = Vec::new();
    for pool in pools {
        let walk = BlockWalk::new(pool.cidr, pool.block_prefix, owner.name(), now);
        let mut in_pool: Vec<(u128, Cidr)> =
            with_room.iter().filter_map(|cidr| Some((walk.position(cidr)?, *cidr))).collect();
        in_pool.sort_unstable();
        order.extend(in_pool.into_iter().map(|(_, cidr)| cidr));
    }
    order
}

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
    use std::collections::{BTreeMap, HashSet};

    use time::Duration;
    use time::macros::datetime;

    use super::super::Block;
    use super::*;
    use crate::api::AllowedUse;
    use crate::ipam::{AssignRequest, HandleId};

    const NOW: OffsetDateTime = datetime!(2026-08-22 01:02:03 UTC);

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    fn pool(range: &str) -> Pool {
        Pool {
            name: range.into(),
            cidr: cidr(range),
            block_prefix: if range.contains(':') { 122 } else { 26 },
            node_selector: String::new(),
            allowed_uses: vec![AllowedUse::Workload],
        }
    }

    fn host(name: &str) -> Owner {
        Owner::Host(name.into())
    }

    /// Returns a block of `owner`, claimed `age` seconds ago, with `used` addresses in use.
    fn block(range: &str, owner: &str, age: i64, used: usize) -> Block {
        let mut block = Block::new(cidr(range), &host(owner), NOW - Duration::seconds(age)).unwrap();
        let request = AssignRequest {
            handle: Some(&HandleId::new("h")),
            attributes: &BTreeMap::new(),
            requester: &host(owner),
            check_affinity: false,
        };
        block.assign(used, &request, &Reservations::none()).unwrap();
        block
    }

    fn usable(pools: &[&str], blocks: &[Block], reserved: &[&str]) -> UsableBlock {
        let pools: Vec<Pool> = pools.iter().map(|range| pool(range)).collect();
        let ranges = blocks.iter().map(|block| block.cidr).collect();
        let reservations = Reservations::new(reserved.iter().map(|range| cidr(range)));
        let room = |cidr: &Cidr| {
            let block = blocks.iter().find(|block| block.cidr == *cidr)?;
            Some(Some(Room::of(block, &reservations, &host("node1"), NOW)))
        };
        usable_block(&pools, &room, &ranges, &reservations, &host("node1"), NOW)
    }

    // node1 walks this pool in the order .128, .192, .0, .64.
    const POOL: &str = "10.67.0.0/24";

    fn full() -> Vec<Block> {
        let ranges = ["10.67.0.0/26", "10.67.0.64/26", "10.67.0.128/26", "10.67.0.192/26"];
        ranges.map(|range| block(range, "node2", 100, 64)).into()
    }

    #[test]
    fn first_unowned_block_of_the_walk_is_claimed() {
        assert_eq!(usable(&[POOL], &[], &[]), UsableBlock::Claim(cidr("10.67.0.128/26")));
        let taken = [block("10.67.0.128/26", "node2", 100, 0)];
        assert_eq!(usable(&[POOL], &taken, &[]), UsableBlock::Claim(cidr("10.67.0.192/26")));
    }

    #[test]
    fn own_block_with_room_is_used() {
        let blocks = [block("10.67.0.128/26", "node1", 0, 63)];
        assert_eq!(usable(&[POOL], &blocks, &[]), UsableBlock::Use(cidr("10.67.0.128/26")));
        let blocks = [block("10.67.0.128/26", "node1", 0, 64)];
        assert_eq!(usable(&[POOL], &blocks, &[]), UsableBlock::Claim(cidr("10.67.0.192/26")));
        // The only free address of the block is reserved.
        let blocks = [block("10.67.0.128/26", "node1", 0, 63)];
        assert_eq!(usable(&[POOL], &blocks, &["10.67.0.191/32"]), UsableBlock::Claim(cidr("10.67.0.192/26")));
    }

    #[test]
    fn reserved_blocks_are_skipped_even_in_huge_pools() {
        assert_eq!(usable(&[POOL], &[], &["10.67.0.128/25"]), UsableBlock::Claim(cidr("10.67.0.0/26")));
        assert_eq!(
            usable(&[POOL], &[], &["10.67.0.128/27", "10.67.0.160/27"]),
            UsableBlock::Claim(cidr("10.67.0.192/26"))
        );
        let huge = usable(&["fd00:65::/64"], &[], &["fd00:65::/65"]);
        assert_eq!(huge, UsableBlock::Claim(cidr("fd00:65::8000:0:0:0/122")));
        assert_eq!(usable(&["fd00:65::/64"], &[], &["fd00::/16"]), UsableBlock::Reclaim(vec![]));
    }

    #[test]
    fn block_overlapping_a_block_of_another_size_is_not_claimed() {
        // The other block is smaller, twice as large, as large as the pool, or in another pool.
        for (old, claimed) in [
            ("10.67.0.129/32", Some("10.67.0.192/26")),
            ("10.67.0.128/25", Some("10.67.0.0/26")),
            ("10.67.0.0/24", None),
            ("10.68.0.128/25", Some("10.67.0.128/26")),
        ] {
            let old = [block(old, "node2", 0, 0)];
            let expected = claimed.map_or(UsableBlock::Reclaim(vec![]), |range| UsableBlock::Claim(cidr(range)));
            assert_eq!(usable(&[POOL], &old, &[]), expected);
        }
    }

    #[test]
    fn excluded_block_is_neither_claimed_nor_used() {
        let (pools, left) = ([pool(POOL)], cidr("10.67.0.128/26"));
        let room = |cidr: &Cidr| (*cidr == left).then_some(None);
        let found = usable_block(&pools, &room, &[left].into(), &Reservations::none(), &host("node1"), NOW);
        assert_eq!(found, UsableBlock::Claim(cidr("10.67.0.192/26")));
    }

    #[test]
    fn next_pool_is_searched_when_a_pool_is_full() {
        let UsableBlock::Claim(claimed) = usable(&[POOL, "10.68.0.0/24"], &full(), &[]) else { panic!() };
        assert!(cidr("10.68.0.0/24").covers(&claimed));
        assert_eq!(usable(&[POOL], &full(), &[]), UsableBlock::Reclaim(vec![]));
    }

    #[test]
    fn empty_block_is_reclaimable_a_minute_after_its_claim() {
        for (age, reclaimed) in
            [(0, false), (59, false), (60, true), (3600, true), (-59, false), (-60, true), (-86400 * 365, true)]
        {
            let mut blocks = full();
            blocks[0] = block("10.67.0.0/26", "node3", age, 0);
            let expected = if reclaimed { vec![cidr("10.67.0.0/26")] } else { vec![] };
            assert_eq!(usable(&[POOL], &blocks, &[]), UsableBlock::Reclaim(expected), "claimed {age} s ago");
        }
    }

    #[test]
    fn missing_claim_time_allows_a_reclaim_and_an_invalid_time_does_not() {
        for (claim_time, reclaimed) in [(None, 1), (Some("yesterday".to_owned()), 0)] {
            let mut blocks = full();
            blocks[0] = block("10.67.0.0/26", "node3", 0, 0);
            blocks[0].affinity_claim_time = claim_time.clone();
            let UsableBlock::Reclaim(candidates) = usable(&[POOL], &blocks, &[]) else { panic!() };
            assert_eq!(candidates.len(), reclaimed, "{claim_time:?}");
        }
    }

    #[test]
    fn used_or_unowned_block_is_never_reclaimed() {
        let mut blocks = full();
        blocks[0] = block("10.67.0.0/26", "node3", 100, 1);
        blocks[1] = block("10.67.0.64/26", "node3", 100, 0);
        blocks[1].clear_affinity();
        assert_eq!(usable(&[POOL], &blocks, &[]), UsableBlock::Reclaim(vec![]));
    }

    #[test]
    fn reclaim_candidates_follow_the_order_of_the_walk() {
        let blocks = full().iter().map(|b| block(&b.cidr.to_string(), "node2", 100, 0)).collect::<Vec<_>>();
        let UsableBlock::Reclaim(candidates) = usable(&[POOL], &blocks, &[]) else { panic!() };
        let order: Vec<String> = candidates.iter().map(Cidr::to_string).collect();
        assert_eq!(order, ["10.67.0.128/26", "10.67.0.192/26", "10.67.0.0/26", "10.67.0.64/26"]);
    }

    #[test]
    fn borrowing_visits_blocks_with_room_in_walk_order() {
        let pools = [pool("10.68.0.0/24"), pool(POOL)];
        // The last two blocks have another size or are in another pool.
        let with_room = ["10.67.0.64/26", "10.67.0.192/26", "10.68.0.0/26", "10.67.0.0/27", "10.69.0.0/26"].map(cidr);
        let order = borrow_order(&pools, &with_room, &host("node1"), NOW);
        assert_eq!(order, [cidr("10.68.0.0/26"), cidr("10.67.0.192/26"), cidr("10.67.0.64/26")]);
    }

    fn walk(pool: &str, block_prefix: u8, owner: &str) -> BlockWalk {
        BlockWalk::new(cidr(pool), block_prefix, owner, NOW)
    }

    #[test]
    fn owner_hash_matches_upstreams_seeds() {
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
    fn block_walk_starts_at_upstreams_block() {
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
    fn walk_yields_every_block_of_the_pool_once() {
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
    fn block_walk_wraps_around_the_pool() {
        let blocks: Vec<String> = walk("10.67.0.0/24", 26, "node1").map(|block| block.to_string()).collect();
        assert_eq!(blocks, ["10.67.0.128/26", "10.67.0.192/26", "10.67.0.0/26", "10.67.0.64/26"]);
    }

    #[test]
    fn walk_of_single_address_blocks_starts_at_a_clock_dependent_block() {
        let starts = |now| BlockWalk::new(cidr("10.0.0.0/16"), 32, "node1", now).next();
        assert_eq!(starts(NOW), starts(NOW));
        assert_ne!(starts(NOW), starts(NOW + time::Duration::NANOSECOND));
        // Larger blocks do not depend on the clock.
        let starts = |now| BlockWalk::new(cidr("10.0.0.0/16"), 31, "node1", now).next();
        assert_eq!(starts(NOW), starts(NOW + time::Duration::NANOSECOND));
    }

    #[test]
    fn block_larger_than_the_pool_is_never_walked() {
        assert_eq!(walk("10.0.0.0/27", 26, "node1").next(), None);
        assert_eq!(walk("10.0.0.0/27", 33, "node1").next(), None);
    }

    #[test]
    fn largest_pools_are_walked_lazily() {
        assert_eq!(walk("fd00::/64", 128, "node1").blocks(), 1 << 64);
        assert_eq!(walk("::/0", 128, "node1").take(3).count(), 3);
        let mut whole = walk("::/0", 116, "node1");
        assert_eq!(whole.next().and_then(|block| whole.position(&block)), Some(0));
    }

    #[test]
    fn block_position_counts_from_the_start_of_the_walk() {
        let walked = walk("10.67.0.0/24", 26, "node1");
        for (step, block) in walked.clone().enumerate() {
            assert_eq!(walked.position(&block), Some(step as u128));
        }
        for other in ["10.67.0.0/27", "10.68.0.0/26", "fd00::/26"] {
            assert_eq!(walked.position(&cidr(other)), None, "{other}");
        }
    }

    #[test]
    fn skipping_omits_exactly_the_blocks_of_the_range() {
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
    fn half_a_pool_of_2_to_the_58_blocks_is_skipped_in_a_single_step() {
        let mut walked = walk("fd00:65::/64", 122, "node1");
        assert_eq!(walked.next(), Some(cidr("fd00:65::c11:b42f:f17e:a680/122")));
        walked.skip_past(&cidr("fd00:65::/65"));
        assert_eq!(walked.next(), Some(cidr("fd00:65::8000:0:0:0/122")));
    }
}
