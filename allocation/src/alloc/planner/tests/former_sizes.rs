//! The blocks of a node after the block size of their pool was changed.

use std::time::Duration;

use libcalico::ipam::{AffinityState, Block, BlockAffinity};
use libcalico::net::Cidr;

use crate::testing::{Cluster, MemoryStore, affinity_key, assert_consistent, cidr};

/// The first block of `node1` in the pool.
const FORMER: &str = "10.65.166.128/26";

/// Creates a cluster whose pool now has blocks of 16 addresses. `node1` has a block of 64 from
/// before, with the address of `net.old`.
async fn with_a_former_block(store: MemoryStore) -> Cluster {
    let cluster = Cluster::on(store);
    cluster.pool("pool4", "10.65.0.0/16", 26);
    assert!(cidr(FORMER).contains(cluster.one("node1", "net.old").await.unwrap()));
    cluster.pool("pool4", "10.65.0.0/16", 28);
    cluster
}

fn blocks(cluster: &Cluster) -> Vec<Cidr> {
    cluster
        .store
        .pairs()
        .list::<Block>(&None)
        .into_iter()
        .map(|(cidr, _)| cidr)
        .collect()
}

#[tokio::test]
async fn empty_block_of_a_former_size_is_released_at_the_add() {
    for store in [MemoryStore::sequential(), MemoryStore::transactional()] {
        let cluster = with_a_former_block(store).await;
        cluster.release("net.old").await.unwrap();
        let ip = cluster.one("node1", "net.a").await.unwrap();
        assert_eq!(cluster.affinity("node1", FORMER), None);
        assert_eq!(blocks(&cluster), [Cidr::new(ip, 28).unwrap()]);
        assert_consistent(&cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn empty_block_of_a_former_size_stays_with_another_node() {
    let cluster = with_a_former_block(MemoryStore::transactional()).await;
    cluster.release("net.old").await.unwrap();
    cluster.one("node2", "net.a").await.unwrap();
    assert_eq!(
        cluster.affinity("node1", FORMER),
        Some(AffinityState::Confirmed)
    );
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn former_block_with_pods_comes_after_a_claim() {
    for store in [MemoryStore::sequential(), MemoryStore::transactional()] {
        let cluster = with_a_former_block(store).await;
        let claimed = Cidr::new(cluster.one("node1", "net.a").await.unwrap(), 28).unwrap();
        assert!(!claimed.overlaps(&cidr(FORMER)));
        assert!(claimed.contains(cluster.one("node1", "net.b").await.unwrap()));
        cluster.release("net.old").await.unwrap();
        assert!(claimed.contains(cluster.one("node1", "net.c").await.unwrap()));
        assert_eq!(blocks(&cluster), [claimed]);
        assert_consistent(&cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn add_beside_a_used_former_block_costs_no_further_request() {
    let cluster = with_a_former_block(MemoryStore::transactional()).await;
    cluster.one("node1", "net.a").await.unwrap();
    cluster.store.take_counts();
    cluster.one("node1", "net.b").await.unwrap();
    assert_eq!(cluster.store.take_counts(), (2, 1));
}

#[tokio::test]
async fn former_block_that_covers_its_pool_is_used_before_all_blocks_are_searched() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.66.0.0/26", 26);
    cluster.one("node1", "net.old").await.unwrap();
    cluster.pool("pool4", "10.66.0.0/26", 28);
    cluster.store.take_counts();
    cluster.one("node1", "net.a").await.unwrap();
    assert_eq!(cluster.store.take_surveys().0, 0);
    assert_eq!(
        cluster.store.take_counts(),
        (3, 1),
        "the ranges are read, too"
    );
    assert_eq!(blocks(&cluster), [cidr("10.66.0.0/26")]);
    cluster.one("node2", "net.b").await.unwrap_err();
    for handle in ["net.old", "net.a"] {
        cluster.release(handle).await.unwrap();
    }
    let ip = cluster.one("node1", "net.c").await.unwrap();
    assert_eq!(blocks(&cluster), [Cidr::new(ip, 28).unwrap()]);
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn former_block_is_used_if_no_block_may_be_claimed() {
    let cluster = with_a_former_block(MemoryStore::transactional()).await;
    cluster.configure(|config| config.max_blocks_per_host = 1);
    assert!(cidr(FORMER).contains(cluster.one("node1", "net.a").await.unwrap()));
    cluster.configure(|config| config.auto_allocate_blocks = false);
    assert!(cidr(FORMER).contains(cluster.one("node1", "net.b").await.unwrap()));
}

#[tokio::test]
async fn affinity_of_a_former_size_without_a_block_is_deleted_unless_pending() {
    for state in [
        AffinityState::Confirmed,
        AffinityState::Pending,
        AffinityState::PendingDeletion,
    ] {
        let cluster = Cluster::new();
        cluster.pool("pool4", "10.65.0.0/16", 28);
        cluster.store.put(
            &affinity_key("node1", FORMER),
            &BlockAffinity {
                state,
                ..BlockAffinity::default()
            },
        );
        let ip = cluster.one("node1", "net.a").await.unwrap();
        assert_eq!(blocks(&cluster), [Cidr::new(ip, 28).unwrap()], "{state:?}");
        let left = Some(state).filter(|state| *state == AffinityState::Pending);
        assert_eq!(
            cluster.affinity("node1", FORMER),
            left,
            "another process may be about to create the block"
        );
    }
}

/// Nodes allocate, release and reclaim while the block size changes at random. Shows SEC-58.
#[tokio::test]
async fn no_range_overlaps_in_any_order() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let store = if seed % 2 == 0 {
            MemoryStore::sequential()
        } else {
            MemoryStore::transactional()
        };
        let cluster = Cluster::on(store);
        cluster.pool("pool4", "10.65.0.0/24", 27);
        let mut held: Vec<String> = Vec::new();
        for step in 0..60 {
            match random.u8(0..8) {
                0 => cluster.pool("pool4", "10.65.0.0/24", random.u8(25..=30)),
                1 => cluster.clock.advance(Duration::from_secs(61)),
                2..=4 if !held.is_empty() => {
                    let handle = held.swap_remove(random.usize(0..held.len()));
                    cluster.release(&handle).await.unwrap();
                }
                _ => {
                    let (node, handle) =
                        (format!("node{}", random.u8(1..=3)), format!("net.{step}"));
                    if cluster.one(&node, &handle).await.is_ok() {
                        held.push(handle);
                    }
                }
            }
            let blocks = blocks(&cluster);
            for (n, block) in blocks.iter().enumerate() {
                assert!(
                    !blocks[..n].iter().any(|other| other.overlaps(block)),
                    "seed {seed}, step {step}: {blocks:?}"
                );
            }
            assert_consistent(&cluster.store.pairs(), true);
        }
    }
}
