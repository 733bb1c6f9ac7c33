use std::collections::BTreeSet;
use std::net::IpAddr;

use libcalico::api::AllowedUse;
use libcalico::ipam::{AffinityState, BlockAffinity, NoPool, PoolRejection};
use libcalico::net::IpVersion;

use crate::alloc::request::AssignRequest;
use crate::error::{Exhaustion, IpamError};
use crate::testing::{Cluster, Fault, MemoryStore, affinity_key, assert_consistent, cidr};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

// Upstream's recorded data (golden: ipam-alone, dual-stack, borrow, pool-exhausted).

#[tokio::test]
async fn first_address_of_a_node_claims_upstreams_block() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    assert_eq!(
        cluster.one("node1", "net.a").await.unwrap(),
        ip("10.65.166.128")
    );
    assert_eq!(
        cluster.affinity("node1", "10.65.166.128/26"),
        Some(AffinityState::Confirmed)
    );
    let block = cluster.block("10.65.166.128/26").unwrap();
    assert_eq!(block.affinity.as_deref(), Some("host:node1"));
    assert_eq!(
        block.affinity_claim_time.as_deref(),
        Some("2026-08-22T01:02:03Z")
    );
    // A single write replaces two of upstream's and stores the numbers that two writes would have
    // left (IPAM-212).
    assert_eq!(block.sequence_number, 1_787_360_523_123_400_001);
    assert_eq!(
        block.sequence_number_for_allocation["0"],
        1_787_360_523_123_400_000
    );
    assert_eq!(block.attributes[0].handle_id.as_deref(), Some("net.a"));
    assert_eq!(
        block.attributes[0].active_owner["timestamp"],
        "2026-08-22 01:02:03.1234 +0000 UTC"
    );
    assert_eq!(
        cluster.handle("net.a").unwrap().block[&cidr("10.65.166.128/26")],
        1
    );
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn second_address_of_a_node_comes_from_the_same_block() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    cluster.one("node1", "net.a").await.unwrap();
    assert_eq!(
        cluster.one("node1", "net.b").await.unwrap(),
        ip("10.65.166.129")
    );
    let block = cluster.block("10.65.166.128/26").unwrap();
    assert_eq!(
        block.sequence_number_for_allocation["1"],
        1_787_360_523_123_400_001
    );
    assert_eq!(block.attributes.len(), 2);
}

#[tokio::test]
async fn dual_stack_add_makes_a_single_write_and_a_single_handle() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    cluster.pool("pool6", "fd00:65::/64", 122);
    let mut request = cluster.request("node1", "net.a");
    request.num6 = 1;
    let assigned = cluster.assign(&request).await.unwrap();
    let found: Vec<_> = assigned
        .addresses
        .iter()
        .map(|a| (a.ip, a.prefix))
        .collect();
    assert_eq!(
        found,
        [
            (ip("10.65.166.128"), 26),
            (ip("fd00:65::c11:b42f:f17e:a680"), 122)
        ]
    );
    assert_eq!(cluster.handle("net.a").unwrap().block.len(), 2);
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn node_without_a_block_borrows_when_no_block_is_free() {
    let cluster = Cluster::new();
    cluster.pool("tiny", "10.66.0.0/29", 29);
    assert_eq!(
        cluster.one("node1", "net.a").await.unwrap(),
        ip("10.66.0.0")
    );
    assert_eq!(
        cluster.one("node2", "net.b").await.unwrap(),
        ip("10.66.0.1")
    );
    let block = cluster.block("10.66.0.0/29").unwrap();
    assert_eq!(
        block.affinity.as_deref(),
        Some("host:node1"),
        "the block stays node1's"
    );
    assert_eq!(block.attributes[1].active_owner["node"], "node2");
    assert_eq!(cluster.affinity("node2", "10.66.0.0/29"), None);
    cluster.release("net.a").await.unwrap();
    cluster.release("net.b").await.unwrap();
    let block = cluster.block("10.66.0.0/29").unwrap();
    assert_eq!(block.unallocated, [2, 3, 4, 5, 6, 7, 0, 1]);
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn passed_over_addresses_are_assigned_only_as_a_last_resort() {
    for store in [MemoryStore::sequential(), MemoryStore::transactional()] {
        let cluster = Cluster::on(store);
        cluster.pool("tiny", "10.66.0.0/30", 30);
        let skipped: BTreeSet<IpAddr> = [ip("10.66.0.0"), ip("10.66.0.2")].into();
        let mut given = Vec::new();
        for handle in ["net.1", "net.2", "net.3", "net.4"] {
            let request = AssignRequest {
                skipped: skipped.clone(),
                ..cluster.request("node1", handle)
            };
            given.push(
                cluster.assign(&request).await.unwrap().addresses[0]
                    .ip
                    .to_string(),
            );
        }
        assert_eq!(given, ["10.66.0.1", "10.66.0.3", "10.66.0.0", "10.66.0.2"]);
        assert_consistent(&cluster.store.pairs(), true);
        let request = AssignRequest {
            skipped,
            ..cluster.request("node1", "net.5")
        };
        let shortfall = &cluster.assign(&request).await.unwrap().shortfalls[0];
        assert!(
            matches!(shortfall.cause, Exhaustion::PoolsFull { .. }),
            "{shortfall:?}"
        );
    }
}

#[tokio::test]
async fn block_with_only_passed_over_addresses_makes_the_node_claim_a_new_block() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 32);
    let first = cluster.one("node1", "net.a").await.unwrap();
    cluster.release("net.a").await.unwrap();
    let request = AssignRequest {
        skipped: [first].into(),
        ..cluster.request("node1", "net.b")
    };
    assert_ne!(
        cluster.assign(&request).await.unwrap().addresses[0].ip,
        first
    );
    assert_eq!(cluster.one("node1", "net.c").await.unwrap(), first);
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn passed_over_addresses_are_respected_after_a_lost_race() {
    let cluster = Cluster::new();
    cluster.pool("tiny", "10.66.0.0/30", 30);
    cluster.one("node1", "net.a").await.unwrap();
    let request = AssignRequest {
        skipped: [ip("10.66.0.1")].into(),
        ..cluster.request("node1", "net.b")
    };
    let mut races = 2;
    cluster.store.before_each(move |_, writes, pairs| {
        for write in writes
            .into_iter()
            .flatten()
            .filter(|write| write.kind == "IPAMBlock")
        {
            if races > 0 {
                races -= 1;
                pairs.touch(&write.path);
            }
        }
        Fault::None
    });
    assert_eq!(
        cluster.assign(&request).await.unwrap().addresses[0].ip,
        ip("10.66.0.2")
    );
}

#[tokio::test]
async fn full_pool_is_reported_and_a_released_address_is_assigned_next() {
    let cluster = Cluster::new();
    cluster.pool("tiny", "10.66.0.0/30", 30);
    for (n, handle) in ["net.1", "net.2", "net.3", "net.4"].into_iter().enumerate() {
        assert_eq!(
            cluster.one("node1", handle).await.unwrap(),
            ip(&format!("10.66.0.{n}"))
        );
    }
    let before = cluster.store.pairs();
    let error = cluster.one("node1", "net.5").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to request IPv4 addresses: Assigned 0 out of 1 requested IPv4 addresses; No IPs \
         available in pools: [10.66.0.0/30]"
    );
    assert_eq!(
        error.refused_pools()[0].to_string(),
        "pool tiny (10.66.0.0/30): full: 4 of 4 in use"
    );
    assert_eq!(
        cluster.store.pairs().paths(),
        before.paths(),
        "a failed request leaves nothing"
    );
    cluster.release("net.2").await.unwrap();
    assert_eq!(
        cluster.one("node1", "net.5").await.unwrap(),
        ip("10.66.0.1")
    );
    assert_eq!(
        cluster.block("10.66.0.0/30").unwrap().allocations,
        [Some(0), Some(3), Some(1), Some(2)]
    );
}

// Requests to the datastore.

#[tokio::test]
async fn warm_assignment_costs_two_reads_and_a_single_write() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    cluster.pool("pool6", "fd00:65::/64", 122);
    cluster.one("node1", "net.a").await.unwrap();
    assert_eq!(
        cluster.store.take_counts(),
        (3, 2),
        "first address: a probe, the ranges, the confirmation"
    );
    cluster.one("node1", "net.b").await.unwrap();
    assert_eq!(cluster.store.take_counts(), (2, 1));
    cluster.release("net.b").await.unwrap();
    assert_eq!(cluster.store.take_counts(), (2, 1));
    cluster.release("net.b").await.unwrap();
    assert_eq!(cluster.store.take_counts(), (1, 0), "nothing held");

    let mut request = cluster.request("node1", "net.c");
    request.num6 = 1;
    cluster.assign(&request).await.unwrap();
    cluster.store.take_counts();
    let mut request = cluster.request("node1", "net.d");
    request.num6 = 1;
    cluster.assign(&request).await.unwrap();
    assert_eq!(
        cluster.store.take_counts(),
        (2, 1),
        "two families cost what one does"
    );
    cluster.release("net.d").await.unwrap();
    assert_eq!(cluster.store.take_counts(), (2, 1));
}

// Limits and settings.

#[tokio::test]
async fn block_limit_fails_without_borrowing() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.0.0.0/24", 26);
    cluster.configure(|config| config.max_blocks_per_host = 1);
    let mut request = cluster.request("node1", "net.a");
    request.num4 = 65;
    let assigned = cluster.assign(&request).await.unwrap();
    assert_eq!(assigned.addresses.len(), 64);
    let short = &assigned.shortfalls[0];
    assert_eq!(
        short.to_string(),
        "cannot allocate new block due to per host block limit"
    );
    assert_eq!(short.cause, Exhaustion::BlockLimit { limit: 1 });
    assert_eq!(
        short.refused[0].refusal,
        PoolRejection::BlockLimit { limit: 1 }
    );
    assert_eq!(
        cluster.handle("net.a").unwrap().block.values().sum::<i64>(),
        64,
        "the handle counts these addresses"
    );
}

#[tokio::test]
async fn node_is_limited_to_twenty_blocks_by_default() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.0.0.0/24", 32);
    let mut request = cluster.request("node1", "net.a");
    request.num4 = 21;
    let assigned = cluster.assign(&request).await.unwrap();
    assert_eq!(assigned.addresses.len(), 20);
    assert_eq!(
        assigned.shortfalls[0].cause,
        Exhaustion::BlockLimit { limit: 20 }
    );
    request.max_blocks = 3;
    request.handle = libcalico::ipam::HandleId::new("net.b");
    request.node = "node2".into();
    assert_eq!(cluster.assign(&request).await.unwrap().addresses.len(), 3);
}

#[tokio::test]
async fn strict_affinity_forbids_borrowing() {
    let cluster = Cluster::new();
    cluster.pool("tiny", "10.66.0.0/29", 29);
    cluster.configure(|config| config.strict_affinity = true);
    cluster.one("node1", "net.a").await.unwrap();
    let error = cluster.one("node2", "net.b").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to request IPv4 addresses: Assigned 0 out of 1 requested IPv4 addresses; No more \
         free affine blocks and strict affinity enabled"
    );
    assert_eq!(
        error.refused_pools()[0].refusal,
        PoolRejection::StrictAffinity
    );
}

#[tokio::test]
async fn without_auto_allocation_no_block_is_claimed() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.0.0.0/24", 26);
    cluster.configure(|config| config.auto_allocate_blocks = false);
    let error = cluster.one("node1", "net.a").await.unwrap_err();
    assert_eq!(error.to_string(), "failed to find or claim a block");
}

#[tokio::test]
async fn reserved_addresses_are_not_assigned() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.0.0.0/26", 26);
    cluster.reserve(&["10.0.0.0/30", "10.0.0.62", "10.0.0.63"]);
    let mut request = cluster.request("node1", "net.a");
    request.num4 = 64;
    let assigned = cluster.assign(&request).await.unwrap();
    assert_eq!(assigned.addresses.len(), 58);
    assert_eq!(assigned.addresses[0].ip, ip("10.0.0.4"));
    assert_eq!(
        assigned.shortfalls[0].refused[0].refusal,
        PoolRejection::Full {
            in_use: 64,
            capacity: 64
        }
    );
}

#[tokio::test]
async fn fully_reserved_pool_is_reported_as_reserved() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.0.0.0/24", 26);
    cluster.reserve(&["10.0.0.0/16"]);
    let error = cluster.one("node1", "net.a").await.unwrap_err();
    assert_eq!(error.refused_pools()[0].refusal, PoolRejection::Reserved);
}

// Pools.

#[tokio::test]
async fn requested_pools_are_used_in_order_and_exclusively() {
    let cluster = Cluster::new();
    cluster.pool("a", "10.1.0.0/30", 30);
    cluster.pool("b", "10.2.0.0/30", 30);
    cluster.pool("c", "10.3.0.0/30", 30);
    let mut request = cluster.request("node1", "net.a");
    request.pools4 = vec!["10.2.0.0/30".into(), "a".into()];
    request.num4 = 9;
    let assigned = cluster.assign(&request).await.unwrap();
    let first = assigned
        .addresses
        .iter()
        .take(4)
        .all(|a| cidr("10.2.0.0/30").contains(a.ip));
    assert!(first, "{assigned:?}");
    assert_eq!(assigned.addresses.len(), 8);
    assert_eq!(
        assigned.shortfalls[0].cause,
        Exhaustion::PoolsFull {
            pools: vec![cidr("10.2.0.0/30"), cidr("10.1.0.0/30")]
        }
    );
}

#[tokio::test]
async fn missing_or_disabled_requested_pool_is_an_error() {
    let cluster = Cluster::new();
    cluster.pool("a", "10.1.0.0/24", 26);
    cluster.pool_with("off", "10.9.0.0/24", 26, |spec| spec.disabled = true);
    cluster.pool("six", "fd00::/64", 122);
    for (asked, message) in [
        (
            "no-such-pool",
            "error parsing pool \"no-such-pool\": invalid CIDR address: no-such-pool",
        ),
        (
            "10.7.0.0/24",
            "the given pool (10.7.0.0/24) does not exist, or is not enabled",
        ),
        (
            "off",
            "the given pool (10.9.0.0/24) does not exist, or is not enabled",
        ),
        ("six", "\"fd00::\" isn't a IPv4 address"),
    ] {
        let mut request = cluster.request("node1", "net.a");
        request.pools4 = vec![asked.into()];
        let error = cluster.assign(&request).await.unwrap_err();
        assert_eq!(error.to_string(), message);
        if asked == "six" {
            let details = crate::error::cni_error(&error).details;
            assert!(
                details.starts_with("`six` is not an IPv4 pool") && details.contains("/ipv4pools"),
                "{details}"
            );
        }
    }
}

#[tokio::test]
async fn missing_pool_error_has_upstreams_text_and_the_rejection_reasons() {
    let cluster = Cluster::new();
    let error = cluster.one("node1", "net.a").await.unwrap_err();
    assert_eq!(error.to_string(), "cannot find a qualified ippool");
    cluster.pool_with("gold", "10.1.0.0/24", 26, |spec| {
        spec.node_selector = "tier == 'gold'".into()
    });
    let error = cluster.one("node1", "net.a").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "no configured Calico pools for node node1"
    );
    assert_eq!(
        error.refused_pools()[0].to_string(),
        "pool gold (10.1.0.0/24): its nodeSelector `tier == 'gold'` does not match node node1"
    );
    cluster.pool_with("tunnels", "10.2.0.0/24", 26, |spec| {
        spec.allowed_uses = vec![AllowedUse::Tunnel.into()]
    });
    let error = cluster.one("node1", "net.a").await.unwrap_err();
    let IpamError::Pools(error) = error else {
        panic!("{error}")
    };
    assert_eq!(error.cause, NoPool::NoneForUse(AllowedUse::Workload));
}

#[tokio::test]
async fn assignment_for_a_missing_node_is_an_error() {
    let cluster = Cluster::new();
    cluster.pool("a", "10.1.0.0/24", 26);
    let error = cluster.one("nowhere", "net.a").await.unwrap_err();
    assert_eq!(error.to_string(), "resource does not exist: Node(nowhere)");
}

// Dual stack.

#[tokio::test]
async fn all_or_nothing_with_a_family_without_pools_assigns_no_address() {
    for (v4, v6) in [(true, false), (false, true)] {
        let cluster = Cluster::new();
        if v4 {
            cluster.pool("pool4", "10.65.0.0/16", 26);
        }
        if v6 {
            cluster.pool("pool6", "fd00:65::/64", 122);
        }
        let before = cluster.store.pairs().paths();
        let mut request = cluster.request("node1", "net.a");
        request.num6 = 1;
        request.all_or_nothing = true;
        let error = cluster.assign(&request).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot find a qualified ippool");
        assert_eq!(cluster.store.pairs().paths(), before);
    }
}

#[tokio::test]
async fn all_or_nothing_with_a_full_family_assigns_no_address() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    cluster.pool("pool6", "fd00:65::/128", 128);
    let mut request = cluster.request("node1", "net.a");
    request.num6 = 1;
    request.all_or_nothing = true;
    assert_eq!(cluster.assign(&request).await.unwrap().addresses.len(), 2);
    request.handle = libcalico::ipam::HandleId::new("net.b");
    let assigned = cluster.assign(&request).await.unwrap();
    assert_eq!(assigned.addresses, []);
    assert_eq!(assigned.shortfalls[0].version, IpVersion::V6);
    assert_eq!(cluster.handle("net.b"), None);
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn smallest_and_largest_block_sizes_assign_in_both_families() {
    for (size4, size6) in [(20, 116), (26, 122), (32, 128)] {
        let cluster = Cluster::new();
        cluster.pool("pool4", "10.0.0.0/16", size4);
        cluster.pool("pool6", "fd00::/64", size6);
        let mut request = cluster.request("node1", "net.a");
        request.num6 = 1;
        let assigned = cluster.assign(&request).await.unwrap();
        assert_eq!(
            assigned
                .addresses
                .iter()
                .map(|a| a.prefix)
                .collect::<Vec<_>>(),
            [size4, size6]
        );
        assert_consistent(&cluster.store.pairs(), true);
    }
}

// Claiming blocks.

#[tokio::test]
async fn request_of_257_addresses_is_limited_to_64_blocks_and_released() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.0.0.0/24", 30);
    cluster.configure(|config| config.max_blocks_per_host = 64);
    let mut request = cluster.request("node1", "net.a");
    request.num4 = 257;
    let assigned = cluster.assign(&request).await.unwrap();
    assert_eq!(assigned.addresses.len(), 256);
    assert_eq!(
        assigned.shortfalls[0].cause,
        Exhaustion::BlockLimit { limit: 64 }
    );
    assert_consistent(&cluster.store.pairs(), true);
    assert_eq!(cluster.release("net.a").await.unwrap().addresses, 256);
    assert_eq!(cluster.handle("net.a"), None);
}

#[tokio::test]
async fn new_blocks_avoid_overlapping_blocks_of_another_size() {
    for (before, after) in [(28, 26), (26, 28), (24, 26), (32, 26)] {
        let cluster = Cluster::new();
        cluster.pool("pool4", "10.0.0.0/23", before);
        let old = cluster.one("node2", "net.old").await.unwrap();
        cluster.pool("pool4", "10.0.0.0/23", after);
        cluster.configure(|config| config.max_blocks_per_host = 1000);
        let mut request = cluster.request("node1", "net.a");
        request.num4 = 512;
        let taken = cluster.assign(&request).await.unwrap().addresses;
        let in_the_way = 1 << (32 - before.min(after));
        assert_eq!(taken.len(), 512 - in_the_way, "/{before} and /{after}");
        assert!(!taken.iter().any(|address| address.ip == old));
        let blocks: Vec<_> = cluster.store.pairs().list::<libcalico::ipam::Block>(&None);
        for (i, (cidr, _)) in blocks.iter().enumerate() {
            assert!(
                !blocks[..i].iter().any(|(other, _)| other.overlaps(cidr)),
                "{cidr}"
            );
        }
        assert_consistent(&cluster.store.pairs(), true);
    }
}

/// The first claim of a node reads only the blocks it needs.
#[tokio::test]
async fn claims_avoid_overlapping_blocks_of_another_size() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.166.128/25", 32);
    let mut request = cluster.request("node2", "net.old");
    request.num4 = 20;
    cluster.assign(&request).await.unwrap();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    cluster.store.take_counts();
    let taken = cluster.one("node1", "net.a").await.unwrap();
    assert!(
        !cidr("10.65.166.128/26").contains(taken) || cluster.block("10.65.166.128/26").is_none(),
        "{taken}"
    );
    assert_eq!(
        cluster.store.take_counts(),
        (3, 2),
        "the ranges come with the probe, and again"
    );

    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    cluster.one("node2", "net.old").await.unwrap();
    let (old, _) = cluster.store.pairs().list::<libcalico::ipam::Block>(&None)[0].clone();
    let half = libcalico::net::Cidr::new(old.network(), 28)
        .unwrap()
        .to_string();
    let pending = BlockAffinity {
        state: AffinityState::Pending,
        ..BlockAffinity::default()
    };
    cluster.store.put(&affinity_key("node1", &half), &pending);
    let taken = cluster.one("node1", "net.a").await.unwrap();
    assert!(!old.contains(taken), "{taken}");
    assert_eq!(cluster.block(&half), None);
}

#[tokio::test]
async fn empty_foreign_blocks_are_reclaimed_only_after_a_minute() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.0.0.0/25", 26);
    cluster.configure(|config| config.strict_affinity = true);
    for (node, handle) in [("node1", "net.1"), ("node2", "net.2")] {
        cluster.one(node, handle).await.unwrap();
    }
    cluster.release("net.2").await.unwrap();
    let error = cluster.one("node3", "net.3").await.unwrap_err();
    assert_eq!(
        error.refused_pools()[0].refusal,
        PoolRejection::StrictAffinity
    );
    cluster.clock.advance(std::time::Duration::from_secs(61));
    let taken = cluster.one("node3", "net.3").await.unwrap();
    let pairs = cluster.store.pairs();
    assert_consistent(&pairs, true);
    let block = cluster
        .block("10.0.0.0/26")
        .filter(|block| block.cidr.contains(taken));
    let block = block.or_else(|| cluster.block("10.0.0.64/26")).unwrap();
    assert_eq!(block.affinity.as_deref(), Some("host:node3"));
}

#[tokio::test]
async fn last_address_is_borrowed_after_the_own_block_is_full() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.0.0.0/25", 26);
    cluster.one("node1", "net.1").await.unwrap();
    cluster.one("node2", "net.2").await.unwrap();
    let mut request = cluster.request("node1", "net.3");
    request.num4 = 64;
    let assigned = cluster.assign(&request).await.unwrap();
    assert_eq!(
        (assigned.addresses.len(), assigned.shortfalls.len()),
        (64, 0)
    );
    assert_consistent(&cluster.store.pairs(), true);
}

// A handle with a limit.

#[tokio::test]
async fn handle_at_its_limit_gets_its_present_addresses_again() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.0.0.0/24", 26);
    let mut request = cluster.request("node1", "net.vmi");
    request.max_per_handle = 1;
    let first = cluster.assign(&request).await.unwrap().addresses;
    let again = cluster.assign(&request).await.unwrap().addresses;
    assert_eq!((again[0].ip, again[0].prefix), (first[0].ip, 32));
    request.max_per_handle = 2;
    assert_ne!(
        cluster.assign(&request).await.unwrap().addresses[0].ip,
        first[0].ip
    );
    assert_eq!(cluster.assign(&request).await.unwrap().addresses.len(), 1);
    assert_eq!(cluster.handle("net.vmi").unwrap().total(IpVersion::V4), 2);
}
