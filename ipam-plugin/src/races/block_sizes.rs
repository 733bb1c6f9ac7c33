//! Another process creates a block of another size while a node claims a block, and faults while a node gives up a
//! block of a former size.

use libcalico::ipam::{AffinityOwner, Block, BlockWalk};
use libcalico::net::Cidr;
use libcalico::store::Kind;

use super::faults::{break_once, faults, stores};
use crate::testing::{Cluster, Fault, MemoryStore, assert_consistent, cidr, held};
use os::clock::Clock;

const POOL: &str = "10.65.0.0/16";

/// Assigns an address on `node1`, whose pool has blocks of 16 addresses. Before the first request that `is_moment`
/// accepts, by its number and by whether it writes, `node2` creates a block of 64 over the range that `node1` tries
/// first. Returns true if two blocks overlap afterwards.
async fn overlaps(store: MemoryStore, is_moment: impl Fn(usize, bool) -> bool + Send + 'static) -> bool {
    let cluster = Cluster::on(store);
    cluster.pool("pool4", POOL, 28);
    let now = cluster.clock.now();
    let first = BlockWalk::new(cidr(POOL), 28, "node1", now).next().unwrap();
    let around = Cidr::new(first.network(), 26).unwrap();
    let block = Block::new(around, &AffinityOwner::Host("node2".into()), now).unwrap().encode().unwrap();
    let mut is_created = false;
    cluster.store.before_each(move |nth, writes, pairs| {
        if !is_created && is_moment(nth, writes.is_some()) {
            is_created = true;
            pairs.put(Block::path(&around), block.clone());
        }
        Fault::None
    });
    cluster.one("node1", "net.a").await.unwrap();
    cluster.store.end_faults();
    let blocks: Vec<Cidr> = cluster.store.pairs().list::<Block>(&None).into_iter().map(|(cidr, _)| cidr).collect();
    assert_eq!(blocks.len(), 2, "{blocks:?}");
    blocks[0].overlaps(&blocks[1])
}

#[tokio::test]
async fn block_of_another_size_created_before_the_ranges_are_read_is_avoided() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        for at in 0..2 {
            assert!(!overlaps(store(), move |nth, _| nth == at).await, "request {at}");
        }
    }
}

/// A limit: no write of a datastore fails because of a block under another name. `calico-ipam check` names such blocks.
#[tokio::test]
async fn block_of_another_size_created_at_the_moment_of_the_claim_overlaps() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        assert!(overlaps(store(), |_, is_write| is_write).await);
    }
}

#[tokio::test]
async fn add_interrupted_while_it_gives_up_a_former_block_is_completed_by_the_next() {
    for (kind, store) in stores() {
        for (fault, at) in faults().flat_map(|fault| (0..10).map(move |at| (fault, at))) {
            let context = format!("{kind} {fault:?} at request {at}");
            let cluster = Cluster::on(store());
            cluster.pool("pool4", POOL, 26);
            cluster.one("node1", "net.old").await.unwrap();
            cluster.release("net.old").await.unwrap();
            cluster.pool("pool4", POOL, 28);
            break_once(&cluster, at, fault);
            let outcome = cluster.one("node1", "net.a").await;
            cluster.store.end_faults();
            assert_consistent(&cluster.store.pairs(), false);
            assert_eq!(held(&cluster.store.pairs()).len(), usize::from(outcome.is_ok()), "{context}");
            cluster.release("net.a").await.unwrap();
            cluster.one("node1", "net.next").await.unwrap();
            let blocks = cluster.store.pairs().list::<Block>(&None);
            assert!(blocks.iter().all(|(cidr, _)| cidr.prefix() == 28), "{context}: {blocks:?}");
            assert_consistent(&cluster.store.pairs(), true);
        }
    }
}
