//! Crash points in claiming a block, and the actions of the next plan after each (IPAM-123).

use libcalico::ipam::{
    AffinityOwner, AffinityState, Block, BlockAffinity, BlockWalk, Handle, HandleId,
};
use libcalico::net::Cidr;
use libcalico::store::{Kind, Store};

use crate::affinity::release_host_affinities;
use crate::testing::{Cluster, Fault, MemoryStore, affinity_key, assert_consistent, cidr, held};
use crate::write_gate::OpenGate;
use os::clock::Clock;

const BLOCK: &str = "10.65.166.128/26";

fn cluster() -> Cluster {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    cluster
}

fn put_affinity(cluster: &Cluster, node: &str, state: AffinityState) {
    cluster.store.put(
        &affinity_key(node, BLOCK),
        &BlockAffinity {
            state,
            ..BlockAffinity::default()
        },
    );
}

fn put_block(cluster: &Cluster, node: &str) {
    let now = time::macros::datetime!(2026-08-22 01:00:00 UTC);
    let block = Block::new(cidr(BLOCK), &AffinityOwner::Host(node.into()), now).unwrap();
    cluster.store.put(&cidr(BLOCK), &block);
}

#[tokio::test]
async fn every_unfinished_affinity_of_the_node_is_completed() {
    use AffinityState::{Confirmed, Pending, PendingDeletion, Unset};
    for state in [Pending, Confirmed, PendingDeletion, Unset] {
        for block in [false, true] {
            let cluster = cluster();
            put_affinity(&cluster, "node1", state);
            if block {
                put_block(&cluster, "node1");
            }
            let ip = cluster.one("node1", "net.a").await.unwrap();
            assert!(cidr(BLOCK).contains(ip), "{state:?}, block {block}");
            let expected = if state == Unset && block {
                Unset
            } else {
                Confirmed
            };
            assert_eq!(
                cluster.affinity("node1", BLOCK),
                Some(expected),
                "{state:?}, block {block}"
            );
        }
    }
}

#[tokio::test]
async fn full_block_with_a_pending_affinity_is_confirmed_in_passing() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.0.0.0/30", 31);
    let mut request = cluster.request("node1", "net.a");
    request.num4 = 2;
    let first = cluster.assign(&request).await.unwrap().addresses[0].ip;
    let full = if cidr("10.0.0.0/31").contains(first) {
        "10.0.0.0/31"
    } else {
        "10.0.0.2/31"
    };
    let pending = BlockAffinity {
        state: AffinityState::Pending,
        ..BlockAffinity::default()
    };
    cluster.store.put(&affinity_key("node1", full), &pending);
    let before = cluster.block(full).unwrap().sequence_number;
    cluster.one("node1", "net.b").await.unwrap();
    assert_eq!(
        cluster.affinity("node1", full),
        Some(AffinityState::Confirmed)
    );
    assert_eq!(
        cluster.block(full).unwrap().sequence_number,
        before + 1,
        "rewritten, for whoever was releasing it"
    );
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn affinity_to_a_block_of_another_node_is_deleted() {
    let cluster = cluster();
    put_block(&cluster, "node2");
    put_affinity(&cluster, "node2", AffinityState::Confirmed);
    put_affinity(&cluster, "node1", AffinityState::Pending);
    let ip = cluster.one("node1", "net.a").await.unwrap();
    assert!(!cidr(BLOCK).contains(ip));
    assert_eq!(cluster.affinity("node1", BLOCK), None);
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn own_block_without_an_affinity_gets_an_affinity() {
    let cluster = cluster();
    put_block(&cluster, "node1");
    assert!(cidr(BLOCK).contains(cluster.one("node1", "net.a").await.unwrap()));
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn corrupt_block_is_skipped_by_add_and_del() {
    let cluster = cluster();
    put_block(&cluster, "node1");
    put_affinity(&cluster, "node1", AffinityState::Confirmed);
    for broken in [
        &b"{"[..],
        br#"{"cidr":"10.65.166.128/26","allocations":[7],"unallocated":[]}"#,
    ] {
        cluster
            .store
            .edit(|pairs| pairs.put(Block::path(&cidr(BLOCK)), broken.to_vec()));
        let ip = cluster.one("node1", "net.a").await.unwrap();
        assert!(!cidr(BLOCK).contains(ip));
        cluster.release("net.a").await.unwrap();
    }
}

#[tokio::test]
async fn unreadable_blocks_are_skipped_anywhere_in_the_walk() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.0.0.0/24", 28);
    let walk: Vec<Cidr> =
        BlockWalk::new(cidr("10.0.0.0/24"), 28, "node1", cluster.clock.now()).collect();
    let (last, others) = walk.split_last().unwrap();
    for block in others {
        cluster
            .store
            .edit(|pairs| pairs.put(Block::path(block), b"{".to_vec()));
    }
    cluster.store.take_counts();
    assert!(last.contains(cluster.one("node1", "net.a").await.unwrap()));
    let (reads, writes) = cluster.store.take_counts();
    assert!(reads <= 5 && writes <= 2, "{reads} reads, {writes} writes");
}

// No list contains the unreadable affinity, and creating the affinity fails while it exists.
#[tokio::test]
async fn unreadable_affinity_costs_a_single_retry() {
    for with_block in [false, true] {
        let cluster = cluster();
        let path = BlockAffinity::path(&affinity_key("node1", BLOCK));
        cluster
            .store
            .edit(|pairs| pairs.put(path, br#"{"state":"halfway"}"#.to_vec()));
        if with_block {
            put_block(&cluster, "node1");
        }
        cluster.store.take_counts();
        let ip = cluster.one("node1", "net.a").await.unwrap();
        assert!(!cidr(BLOCK).contains(ip));
        let (reads, writes) = cluster.store.take_counts();
        assert!(reads <= 5 && writes <= 3, "{reads} reads, {writes} writes");
    }
}

// Between the deletions of the block and of the affinity, another process of the owner claims the
// block again.
#[tokio::test]
async fn release_does_not_delete_an_affinity_claimed_later() {
    let cluster = cluster();
    cluster.one("node1", "net.a").await.unwrap();
    cluster.release("net.a").await.unwrap();
    cluster.store.before_each(|_, writes, pairs| {
        let deletes_claim =
            writes.is_some_and(|writes| writes.len() == 1 && writes[0].kind == "BlockAffinity");
        if deletes_claim && pairs.get::<Block>(&cidr(BLOCK)).is_none() {
            let pending = BlockAffinity {
                state: AffinityState::Pending,
                ..BlockAffinity::default()
            };
            pairs.put(
                BlockAffinity::path(&affinity_key("node1", BLOCK)),
                pending.encode().unwrap(),
            );
            let now = time::macros::datetime!(2026-08-22 01:02:03 UTC);
            let block = Block::new(cidr(BLOCK), &AffinityOwner::Host("node1".into()), now).unwrap();
            pairs.put(Block::path(&cidr(BLOCK)), block.encode().unwrap());
            return Fault::None;
        }
        Fault::None
    });
    let affinity = cluster
        .store
        .get::<BlockAffinity>(&affinity_key("node1", BLOCK))
        .await
        .unwrap();
    let block = cluster.store.get::<Block>(&cidr(BLOCK)).await.unwrap();
    let error = crate::affinity::repair::release_affinity(&cluster.store, &affinity, &block)
        .await
        .unwrap_err();
    assert!(error.is_race(), "{error}");
    cluster.store.end_faults();
    assert_eq!(
        cluster.affinity("node1", BLOCK),
        Some(AffinityState::Pending)
    );
    assert!(cluster.block(BLOCK).is_some());
}

// An address is allocated while the block is being released as empty.
#[tokio::test]
async fn block_allocated_from_during_its_release_survives() {
    let cluster = cluster();
    cluster.one("node1", "net.a").await.unwrap();
    cluster.release("net.a").await.unwrap();
    let affinity = cluster
        .store
        .get::<BlockAffinity>(&affinity_key("node1", BLOCK))
        .await
        .unwrap();
    let block = cluster.store.get::<Block>(&cidr(BLOCK)).await.unwrap();
    let ip = cluster.one("node1", "net.b").await.unwrap();
    assert!(
        crate::affinity::repair::release_affinity(&cluster.store, &affinity, &block)
            .await
            .unwrap_err()
            .is_race()
    );
    assert_eq!(held(&cluster.store.pairs())[&HandleId::new("net.b")], [ip]);
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn del_deletes_handles_without_addresses() {
    for block in [false, true] {
        let cluster = cluster();
        if block {
            put_block(&cluster, "node1");
        }
        let mut orphan = Handle::default();
        orphan.increment(cidr(BLOCK), 3);
        cluster.store.put(&HandleId::new("net.orphan"), &orphan);
        assert_eq!(cluster.release("net.orphan").await.unwrap().addresses, 0);
        assert_eq!(cluster.handle("net.orphan"), None);
    }
}

// A DEL between upstream's two writes must not leave the address without its handle.
#[tokio::test]
async fn del_between_upstreams_two_writes_makes_the_block_write_fail() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        let cluster = Cluster::on(store());
        cluster.pool("pool4", "10.65.0.0/16", 26);
        cluster.one("node1", "net.other").await.unwrap();
        let read = cluster.store.get::<Block>(&cidr(BLOCK)).await.unwrap();
        let mut counted = Handle::default();
        counted.increment(cidr(BLOCK), 1);
        cluster.store.put(&HandleId::new("net.a"), &counted);
        cluster.release("net.a").await.unwrap();
        assert_eq!(cluster.handle("net.a"), None);
        let error = cluster
            .store
            .update::<Block>(&read.key, &read.value, &read.revision)
            .await
            .unwrap_err();
        assert!(error.is_race(), "{error}");
        assert_eq!(
            cluster.block(BLOCK).unwrap().sequence_number,
            read.value.sequence_number + 1
        );
        assert_consistent(&cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn release_for_a_deleted_host_deletes_all_its_affinities() {
    let cluster = cluster();
    cluster.one("node1", "net.a").await.unwrap();
    put_affinity(&cluster, "node2", AffinityState::Pending);
    for node in ["node1", "node2"] {
        let owner = AffinityOwner::Host(node.into());
        let outcome =
            release_host_affinities(&cluster.store, &cluster.clock, &OpenGate, &owner, false)
                .await
                .unwrap();
        assert_eq!(
            (outcome.released.len(), outcome.kept.len()),
            (1, 0),
            "{node}"
        );
        assert_eq!(cluster.affinity(node, BLOCK), None);
    }
    let block = cluster.block(BLOCK).unwrap();
    assert_eq!(
        (block.affinity, block.affinity_claim_time),
        (None, None),
        "addresses in it stay held"
    );
    cluster.release("net.a").await.unwrap();
    assert_eq!(
        cluster.block(BLOCK),
        None,
        "the last address takes an ownerless block with it"
    );
}
