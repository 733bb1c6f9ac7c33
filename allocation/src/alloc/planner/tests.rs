//! The blocks that a node uses, releases and leaves alone.

mod former_sizes;

use libcalico::api::AllowedUse;
use libcalico::ipam::{AffinityOwner, AffinityState, Block, BlockAffinity, BlockWalk};
use libcalico::store::Kind;

use crate::alloc::request::Namespace;
use crate::testing::{Cluster, Fault, MemoryStore, affinity_key, assert_consistent, cidr};
use os::clock::Clock;

#[tokio::test]
async fn empty_block_of_a_deselected_pool_is_released_by_the_next_assignment() {
    let cluster = Cluster::new();
    cluster.pool_with("gold", "10.1.0.0/26", 26, |spec| {
        spec.node_selector = "tier == 'gold'".into()
    });
    cluster.node("node1", &[("tier", "gold")]);
    cluster.one("node1", "net.a").await.unwrap();
    cluster.release("net.a").await.unwrap();
    cluster.pool("any", "10.2.0.0/26", 26);
    cluster.node("node1", &[]);
    let ip = cluster.one("node1", "net.b").await.unwrap();
    assert!(cidr("10.2.0.0/26").contains(ip));
    assert_eq!(cluster.affinity("node1", "10.1.0.0/26"), None);
    assert_eq!(cluster.block("10.1.0.0/26"), None);
    assert_consistent(&cluster.store.pairs(), true);
}

/// The pool has no other block.
#[tokio::test]
async fn block_whose_deletion_was_interrupted_gives_room() {
    for store in [MemoryStore::transactional(), MemoryStore::sequential()] {
        let cluster = Cluster::on(store);
        cluster.pool("any", "10.0.0.0/26", 26);
        let owner = AffinityOwner::Host("node2".into());
        let mut block = Block::new(cidr("10.0.0.0/26"), &owner, cluster.clock.now()).unwrap();
        block.deleted = true;
        cluster.store.put(&block.cidr, &block);
        cluster.one("node1", "net.a").await.unwrap();
        assert_eq!(
            cluster.block("10.0.0.0/26").unwrap().owner(),
            Some(AffinityOwner::Host("node1".into()))
        );
        assert_consistent(&cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn used_block_of_a_deselected_pool_is_retained() {
    let cluster = Cluster::new();
    cluster.pool_with("gold", "10.1.0.0/26", 26, |spec| {
        spec.node_selector = "tier == 'gold'".into()
    });
    cluster.pool("any", "10.2.0.0/26", 26);
    cluster.node("node1", &[("tier", "gold")]);
    let mut request = cluster.request("node1", "net.a");
    request.pools4 = vec!["gold".into()];
    cluster.assign(&request).await.unwrap();
    cluster.node("node1", &[]);
    let ip = cluster.one("node1", "net.b").await.unwrap();
    assert!(cidr("10.2.0.0/26").contains(ip));
    assert_eq!(
        cluster.affinity("node1", "10.1.0.0/26"),
        Some(AffinityState::Confirmed)
    );
}

// Only a node selector that no longer matches releases empty blocks.
#[tokio::test]
async fn empty_blocks_of_unused_pools_that_select_the_node_are_retained() {
    for reason in ["use", "requested", "manual", "namespace", "disabled"] {
        let cluster = Cluster::new();
        cluster.pool("first", "10.1.0.0/26", 26);
        cluster.one("node1", "net.a").await.unwrap();
        cluster.release("net.a").await.unwrap();
        cluster.pool("second", "10.2.0.0/26", 26);
        let mut request = cluster.request("node1", "net.b");
        cluster.pool_with("first", "10.1.0.0/26", 26, |spec| match reason {
            "use" => spec.allowed_uses = vec![AllowedUse::Tunnel.into()],
            "manual" => spec.assignment_mode = Some(libcalico::api::AssignmentMode::Manual.into()),
            "namespace" => spec.namespace_selector = "team == 'red'".into(),
            "disabled" => spec.disabled = true,
            _ => request.pools4 = vec!["second".into()],
        });
        let assigned = cluster.assign(&request).await.unwrap();
        assert!(
            cidr("10.2.0.0/26").contains(assigned.addresses[0].ip),
            "{reason}"
        );
        assert_eq!(
            cluster.affinity("node1", "10.1.0.0/26"),
            Some(AffinityState::Confirmed),
            "{reason}"
        );
        assert!(cluster.block("10.1.0.0/26").is_some(), "{reason}");
    }
}

#[tokio::test]
async fn pool_reselected_for_another_node_is_used_by_that_node_only() {
    let cluster = Cluster::new();
    cluster.pool_with("gold", "10.1.0.0/26", 26, |spec| {
        spec.node_selector = "tier == 'gold'".into()
    });
    cluster.node("node1", &[("tier", "gold")]);
    cluster.one("node1", "net.a").await.unwrap();
    cluster.node("node1", &[]);
    cluster.node("node2", &[("tier", "gold")]);
    let error = cluster.one("node1", "net.b").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "no configured Calico pools for node node1"
    );
    assert!(cidr("10.1.0.0/26").contains(cluster.one("node2", "net.b").await.unwrap()));
}

#[tokio::test]
async fn pools_are_selected_by_namespace_labels() {
    let cluster = Cluster::new();
    cluster.pool_with("red", "10.1.0.0/26", 26, |spec| {
        spec.namespace_selector = "team == 'red'".into()
    });
    cluster.pool_with("rest", "10.2.0.0/26", 26, |spec| {
        spec.namespace_selector = "!has(team)".into()
    });
    let mut request = cluster.request("node1", "net.a");
    for (labels, pool) in [
        (None, "10.2.0.0/26"),
        (Some(("team", "red")), "10.1.0.0/26"),
        (Some(("a", "b")), "10.2.0.0/26"),
    ] {
        request.namespace = labels.map(|(key, value)| Namespace {
            name: "ns".into(),
            labels: [(key.to_owned(), value.to_owned())].into(),
        });
        let assigned = cluster.assign(&request).await.unwrap();
        assert!(cidr(pool).contains(assigned.addresses[0].ip), "{labels:?}");
    }
}

// The order of the pools does not decide between own blocks (IPAM-112).
#[tokio::test]
async fn own_blocks_are_tried_in_textual_order() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.0.0.0/24", 26);
    let mut request = cluster.request("node1", "net.a");
    request.num4 = 192;
    cluster.assign(&request).await.unwrap();
    let owned: Vec<_> = [
        "10.0.0.0/26",
        "10.0.0.128/26",
        "10.0.0.192/26",
        "10.0.0.64/26",
    ]
    .into_iter()
    .filter(|block| cluster.block(block).is_some())
    .collect();
    cluster.release("net.a").await.unwrap();
    let ip = cluster.one("node1", "net.b").await.unwrap();
    assert!(cidr(owned[0]).contains(ip), "{ip} is not of {owned:?}[0]");
}

// The walk skips a reserved range as a whole, because it would otherwise visit 2^58 blocks
// (IPAM-226).
#[tokio::test]
async fn reserved_immense_pool_is_skipped_at_once() {
    let cluster = Cluster::new();
    cluster.pool("pool6", "fd00::/64", 122);
    cluster.reserve(&["fd00::/64"]);
    let mut request = cluster.request("node1", "net.a");
    (request.num4, request.num6) = (0, 1);
    let assigned = cluster.assign(&request).await.unwrap();
    assert_eq!(
        assigned.shortfalls[0].refused[0].refusal,
        libcalico::ipam::PoolRejection::Reserved
    );
}

#[tokio::test]
async fn twenty_blocks_are_claimed_with_four_requests_each() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.0.0.0/22", 30);
    let mut request = cluster.request("node1", "net.a");
    request.num4 = 4 * 20;
    assert_eq!(cluster.assign(&request).await.unwrap().addresses.len(), 80);
    let (reads, writes) = cluster.store.take_counts();
    assert_eq!(writes, 20 * 2);
    assert!(reads <= 1 + 20 * 2, "{reads} reads");
}

/// Creates a node with a limit of two blocks of one address each, and a cache that lacks all writes
/// after the first block.
async fn at_the_limit() -> Cluster {
    let cluster = Cluster::on(MemoryStore::sequential());
    cluster.pool("pool4", "10.0.0.0/26", 32);
    cluster.configure(|config| config.max_blocks_per_host = 2);
    cluster.one("node1", "net.a").await.unwrap();
    cluster.store.stop_cache();
    cluster
}

#[tokio::test]
async fn claim_missing_from_the_cache_counts_toward_the_block_limit() {
    let cluster = at_the_limit().await;
    cluster.one("node1", "net.b").await.unwrap();
    let error = cluster.one("node1", "net.c").await.unwrap_err();
    assert!(error.to_string().contains("limit"), "{error}");
    assert_eq!(cluster.store.pairs().list::<Block>(&None).len(), 2);
    assert_consistent(&cluster.store.pairs(), true);
}

/// While the affinities were read again, another process of the node claimed a block that was read
/// as another node's.
#[tokio::test]
async fn own_affinity_is_not_dropped_because_of_an_older_block_read() {
    let cluster = at_the_limit().await;
    let wanted = BlockWalk::new(cidr("10.0.0.0/26"), 32, "node1", cluster.clock.now())
        .nth(1)
        .unwrap();
    let block = |owner: &str| {
        Block::new(
            wanted,
            &AffinityOwner::Host(owner.into()),
            cluster.clock.now(),
        )
        .unwrap()
    };
    let (theirs, ours) = (block("node2"), block("node1"));
    let claim = |state| BlockAffinity {
        state,
        ..BlockAffinity::default()
    };
    cluster.store.put(&wanted, &theirs);
    cluster.store.put(
        &affinity_key("node2", &wanted.to_string()),
        &claim(AffinityState::Confirmed),
    );
    let mut reads = 0;
    cluster.store.before_each(move |_, writes, pairs| {
        reads += usize::from(writes.is_none());
        // The reads are: the inputs; the node's own block; the first blocks, with the affinities;
        // the rest.
        if writes.is_none() && reads == 3 {
            pairs.remove(&BlockAffinity::path(&affinity_key(
                "node2",
                &wanted.to_string(),
            )));
            let confirmed = claim(AffinityState::Confirmed).encode().unwrap();
            pairs.put(
                BlockAffinity::path(&affinity_key("node1", &wanted.to_string())),
                confirmed,
            );
        }
        if writes.is_none() && reads == 4 {
            pairs.put(Block::path(&wanted), ours.encode().unwrap());
        }
        Fault::None
    });
    _ = cluster.one("node1", "net.b").await;
    cluster.store.end_faults();
    assert_eq!(
        cluster.affinity("node1", &wanted.to_string()),
        Some(AffinityState::Confirmed)
    );
    assert_consistent(&cluster.store.pairs(), true);
}
