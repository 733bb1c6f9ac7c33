//! Tests of the order in which a node looks at pools and blocks.

use std::collections::{BTreeMap, HashSet};

use time::Duration;
use time::macros::datetime;

use super::super::Block;
use super::*;
use crate::api::AllowedUse;
use crate::ipam::{BlockRequest, HandleId};

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

fn host(name: &str) -> AffinityOwner {
    AffinityOwner::Host(name.into())
}

fn block(range: &str, owner: &str, age: i64, used: usize) -> Block {
    let mut block = Block::new(cidr(range), &host(owner), NOW - Duration::seconds(age)).unwrap();
    let request = BlockRequest {
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
    let ranges = [
        "10.67.0.0/26",
        "10.67.0.64/26",
        "10.67.0.128/26",
        "10.67.0.192/26",
    ];
    ranges.map(|range| block(range, "node2", 100, 64)).into()
}

#[test]
fn first_unowned_block_of_the_walk_is_claimed() {
    assert_eq!(
        usable(&[POOL], &[], &[]),
        UsableBlock::Claim(cidr("10.67.0.128/26"))
    );
    let taken = [block("10.67.0.128/26", "node2", 100, 0)];
    assert_eq!(
        usable(&[POOL], &taken, &[]),
        UsableBlock::Claim(cidr("10.67.0.192/26"))
    );
}

#[test]
fn own_block_with_room_is_used() {
    let blocks = [block("10.67.0.128/26", "node1", 0, 63)];
    assert_eq!(
        usable(&[POOL], &blocks, &[]),
        UsableBlock::Use(cidr("10.67.0.128/26"))
    );
    let blocks = [block("10.67.0.128/26", "node1", 0, 64)];
    assert_eq!(
        usable(&[POOL], &blocks, &[]),
        UsableBlock::Claim(cidr("10.67.0.192/26"))
    );
    let blocks = [block("10.67.0.128/26", "node1", 0, 63)];
    assert_eq!(
        usable(&[POOL], &blocks, &["10.67.0.191/32"]),
        UsableBlock::Claim(cidr("10.67.0.192/26"))
    );
}

#[test]
fn reserved_blocks_are_skipped_even_in_huge_pools() {
    assert_eq!(
        usable(&[POOL], &[], &["10.67.0.128/25"]),
        UsableBlock::Claim(cidr("10.67.0.0/26"))
    );
    assert_eq!(
        usable(&[POOL], &[], &["10.67.0.128/27", "10.67.0.160/27"]),
        UsableBlock::Claim(cidr("10.67.0.192/26"))
    );
    let huge = usable(&["fd00:65::/64"], &[], &["fd00:65::/65"]);
    assert_eq!(huge, UsableBlock::Claim(cidr("fd00:65::8000:0:0:0/122")));
    assert_eq!(
        usable(&["fd00:65::/64"], &[], &["fd00::/16"]),
        UsableBlock::Reclaim(vec![])
    );
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
        let expected = claimed.map_or(UsableBlock::Reclaim(vec![]), |range| {
            UsableBlock::Claim(cidr(range))
        });
        assert_eq!(usable(&[POOL], &old, &[]), expected);
    }
}

#[test]
fn conflicting_range_is_the_first_that_shares_an_address() {
    let ranges = [
        "10.67.0.0/24",
        "10.67.0.0/26",
        "10.67.0.64/28",
        "10.67.0.80/32",
        "10.67.1.0/26",
        "fd00::/122",
    ];
    let ranges: BTreeSet<Cidr> = ranges.iter().map(|range| cidr(range)).collect();
    let more = [
        "10.66.255.0/24",
        "10.67.0.0/16",
        "10.67.0.64/26",
        "10.67.0.81/32",
        "10.67.1.64/26",
        "0.0.0.0/0",
    ];
    let more6 = ["fd00::/120", "fd00::3f/128", "fd00::40/122", "::/0"];
    for asked in ranges
        .clone()
        .into_iter()
        .chain(more.into_iter().chain(more6).map(cidr))
    {
        let first = ranges
            .iter()
            .find(|range| range.conflicts_with(&asked))
            .copied();
        assert_eq!(conflicting_range(&ranges, &asked), first, "{asked}");
    }
}

/// kubectl creates blocks of any size. Step by step, these walks would practically never end.
#[test]
fn large_block_of_another_size_is_passed_over_in_one_step() {
    let (pools, owner) = ([pool("fd00:65::/64")], host("node1"));
    let walk = || BlockWalk::new(pools[0].cidr, 122, "node1", NOW);
    let first: Vec<Cidr> = walk().take(8).collect();
    let search = |large: &str, full: &[Cidr]| {
        let ranges: BTreeSet<Cidr> = full.iter().copied().chain([cidr(large)]).collect();
        let room = |asked: &Cidr| -> Option<Option<Room>> { full.contains(asked).then_some(None) };
        let found = usable_block(&pools, &room, &ranges, &Reservations::none(), &owner, NOW);
        (
            found,
            walk().apart_from(&ranges).take(2).collect::<Vec<_>>(),
        )
    };
    let beyond = ["fd00:65::8000:0:0:0/122", "fd00:65::8000:0:0:40/122"].map(cidr);
    // Blocks of the pool's size are inside the large one, before and after the start of the walk.
    let none: &[Cidr] = &[];
    for full in [
        none,
        &[first[0]],
        &[first[3], first[7]],
        &[cidr("fd00:65::/122"), first[7]],
    ] {
        assert_eq!(
            search("fd00:65::/65", full),
            (UsableBlock::Claim(beyond[0]), beyond.to_vec()),
            "{full:?}"
        );
        assert_eq!(
            search("fd00:65::/60", full),
            (UsableBlock::Reclaim(vec![]), vec![]),
            "{full:?}"
        );
    }
    let small = format!("{}/128", first[0].network());
    assert_eq!(
        search(&small, &[]),
        (UsableBlock::Claim(first[1]), first[1..3].to_vec())
    );
}

/// Upstream's plugin creates such a block over one of another size.
#[test]
fn own_block_inside_a_block_of_another_size_is_used() {
    let blocks = [
        block("10.67.0.128/25", "node2", 100, 1),
        block("10.67.0.192/26", "node1", 100, 1),
    ];
    assert_eq!(
        usable(&[POOL], &blocks, &[]),
        UsableBlock::Use(cidr("10.67.0.192/26"))
    );
}

#[test]
fn excluded_block_is_neither_claimed_nor_used() {
    let (pools, existing) = ([pool(POOL)], cidr("10.67.0.128/26"));
    let room = |cidr: &Cidr| (*cidr == existing).then_some(None);
    let selected = usable_block(
        &pools,
        &room,
        &[existing].into(),
        &Reservations::none(),
        &host("node1"),
        NOW,
    );
    assert_eq!(selected, UsableBlock::Claim(cidr("10.67.0.192/26")));
}

#[test]
fn next_pool_is_searched_when_a_pool_is_full() {
    let UsableBlock::Claim(claimed) = usable(&[POOL, "10.68.0.0/24"], &full(), &[]) else {
        panic!()
    };
    assert!(cidr("10.68.0.0/24").covers(&claimed));
    assert_eq!(usable(&[POOL], &full(), &[]), UsableBlock::Reclaim(vec![]));
}

#[test]
fn empty_block_is_reclaimable_a_minute_after_its_claim() {
    for (age, reclaimed) in [
        (0, false),
        (59, false),
        (60, true),
        (3600, true),
        (-59, false),
        (-60, true),
        (-86400 * 365, true),
    ] {
        let mut blocks = full();
        blocks[0] = block("10.67.0.0/26", "node3", age, 0);
        let expected = if reclaimed {
            vec![cidr("10.67.0.0/26")]
        } else {
            vec![]
        };
        assert_eq!(
            usable(&[POOL], &blocks, &[]),
            UsableBlock::Reclaim(expected),
            "claimed {age} s ago"
        );
    }
}

#[test]
fn missing_claim_time_allows_a_reclaim_and_an_invalid_time_does_not() {
    for (claim_time, reclaimed) in [(None, 1), (Some("yesterday".to_owned()), 0)] {
        let mut blocks = full();
        blocks[0] = block("10.67.0.0/26", "node3", 0, 0);
        blocks[0].affinity_claim_time = claim_time.clone();
        let UsableBlock::Reclaim(candidates) = usable(&[POOL], &blocks, &[]) else {
            panic!()
        };
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
    let blocks = full()
        .iter()
        .map(|b| block(&b.cidr.to_string(), "node2", 100, 0))
        .collect::<Vec<_>>();
    let UsableBlock::Reclaim(candidates) = usable(&[POOL], &blocks, &[]) else {
        panic!()
    };
    let order: Vec<String> = candidates.iter().map(Cidr::to_string).collect();
    assert_eq!(
        order,
        [
            "10.67.0.128/26",
            "10.67.0.192/26",
            "10.67.0.0/26",
            "10.67.0.64/26"
        ]
    );
}

#[test]
fn borrowing_visits_blocks_with_room_in_walk_order() {
    let pools = [pool("10.68.0.0/24"), pool(POOL)];
    let with_room = [
        "10.67.0.64/26",
        "10.67.0.192/26",
        "10.68.0.0/26",
        "10.67.0.0/27",
        "10.69.0.0/26",
    ]
    .map(cidr);
    let order = borrow_order(&pools, &with_room, &host("node1"), NOW);
    assert_eq!(
        order,
        [
            cidr("10.68.0.0/26"),
            cidr("10.67.0.192/26"),
            cidr("10.67.0.64/26")
        ]
    );
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
        (
            "fd00:65::/64",
            122,
            "fd00:65::c11:b42f:f17e:a680/122",
            "fd00:65::c11:b42f:f17e:a6c0/122",
        ),
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
        assert_eq!(
            walked.len(),
            1 << (prefix - cidr(pool).prefix()),
            "{pool} by /{prefix}"
        );
        assert_eq!(distinct.len(), walked.len());
        assert!(
            walked
                .iter()
                .all(|block| cidr(pool).covers(block) && block.prefix() == prefix)
        );
    }
}

#[test]
fn block_walk_wraps_around_the_pool() {
    let blocks: Vec<String> = walk("10.67.0.0/24", 26, "node1")
        .map(|block| block.to_string())
        .collect();
    assert_eq!(
        blocks,
        [
            "10.67.0.128/26",
            "10.67.0.192/26",
            "10.67.0.0/26",
            "10.67.0.64/26"
        ]
    );
}

#[test]
fn walk_of_single_address_blocks_starts_at_a_clock_dependent_block() {
    let starts = |now| BlockWalk::new(cidr("10.0.0.0/16"), 32, "node1", now).next();
    assert_eq!(starts(NOW), starts(NOW));
    assert_ne!(starts(NOW), starts(NOW + time::Duration::NANOSECOND));
    // With larger blocks, the start does not depend on the clock.
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
    assert_eq!(
        whole.next().and_then(|block| whole.position(&block)),
        Some(0)
    );
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
    for range in [
        "10.0.0.0/18",
        "10.0.128.0/17",
        "10.0.8.0/21",
        "10.0.8.64/26",
        "10.0.0.0/16",
        "10.0.0.0/8",
    ] {
        let range = cidr(range);
        let mut walked = walk("10.0.0.0/16", 26, "node1");
        let mut kept = Vec::new();
        while let Some(block) = walked.next() {
            if range.covers(&block) {
                walked.skip_past(&range)
            } else {
                kept.push(block)
            }
        }
        let expected: Vec<Cidr> = walk("10.0.0.0/16", 26, "node1")
            .filter(|block| !range.covers(block))
            .collect();
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
