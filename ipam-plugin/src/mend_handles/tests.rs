use super::*;
use crate::release_addresses::OpenGate;
use crate::testing::{Cluster, Fault, MemoryStore, assert_consistent, cidr};

const BLOCK: &str = "10.0.0.0/29";

/// A cluster in which `net.a` holds an address of [`BLOCK`].
async fn cluster(store: MemoryStore) -> Cluster {
    let cluster = Cluster::on(store);
    cluster.pool("pool4", BLOCK, 29);
    cluster.one("node1", "net.a").await.unwrap();
    cluster
}

fn counting(counts: &[(&str, i64)]) -> Handle {
    Handle { block: counts.iter().map(|(block, n)| (cidr(block), *n)).collect(), ..Handle::default() }
}

/// As it looks now.
async fn suspect(cluster: &Cluster, id: &str, blocks: &[&str]) -> SuspectHandle {
    let id = HandleId::new(id);
    let revision = cluster.store.get::<Handle>(&id).await.ok().map(|entry| entry.revision);
    SuspectHandle { id, revision, blocks: blocks.iter().map(|block| cidr(block)).collect() }
}

async fn mend(cluster: &Cluster, suspects: &[SuspectHandle]) -> MendedHandles {
    mend_handles(&cluster.store, &OpenGate, suspects).await.unwrap()
}

#[tokio::test]
async fn handles_count_what_blocks_hold() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        let cluster = cluster(store()).await;
        let (orphan, elsewhere) = (HandleId::new("net.orphan"), HandleId::new("net.elsewhere"));
        cluster.store.put(&orphan, &counting(&[(BLOCK, 1)]));
        cluster.store.put(&elsewhere, &counting(&[("10.9.9.0/29", 1)]));
        cluster.store.put(&HandleId::new("net.a"), &counting(&[(BLOCK, 3), ("10.0.0.8/29", 1)]));
        let suspects = [
            suspect(&cluster, "net.orphan", &[BLOCK]).await,
            suspect(&cluster, "net.elsewhere", &["10.9.9.0/29"]).await,
            suspect(&cluster, "net.a", &[BLOCK, "10.0.0.8/29"]).await,
        ];
        let mended = mend(&cluster, &suspects).await;
        assert_eq!(mended.deleted, [orphan, elsewhere]);
        assert_eq!(mended.corrected, [HandleId::new("net.a")]);
        assert_consistent(&cluster.store.pairs(), true);
        cluster.store.take_counts();
        let fresh = suspect(&cluster, "net.a", &[BLOCK]).await;
        assert_eq!(mend(&cluster, &[fresh]).await.left.len(), 1);
        assert_eq!(cluster.store.take_counts().1, 0, "nothing is written when nothing is wrong");
    }
}

#[tokio::test]
async fn a_handle_that_is_missing_or_counts_too_little_is_restored() {
    let cluster = cluster(MemoryStore::sequential()).await;
    for wrong in [None, Some(counting(&[]))] {
        cluster.store.edit(|pairs| pairs.remove("/calico/ipam/v2/handle/net.a"));
        if let Some(wrong) = &wrong {
            cluster.store.put(&HandleId::new("net.a"), wrong);
        }
        let before = cluster.block(BLOCK);
        let wrong = suspect(&cluster, "net.a", &[BLOCK]).await;
        assert_eq!(mend(&cluster, &[wrong]).await.corrected.len(), 1);
        assert_consistent(&cluster.store.pairs(), true);
        assert_eq!(cluster.block(BLOCK), before, "a block is not written for a count that grows");
    }
}

#[tokio::test]
async fn one_that_was_written_since_is_left_alone() {
    let cluster = cluster(MemoryStore::sequential()).await;
    let id = HandleId::new("net.new");
    cluster.store.put(&id, &counting(&[(BLOCK, 1)]));
    let old = suspect(&cluster, "net.new", &[BLOCK]).await;
    cluster.store.put(&id, &counting(&[(BLOCK, 1)]));
    cluster.store.take_counts();
    assert_eq!(mend(&cluster, &[old]).await.left, std::slice::from_ref(&id));
    // Nor is one that counts in a block nobody looked at.
    cluster.store.put(&id, &counting(&[("10.0.0.8/29", 1)]));
    let partly = suspect(&cluster, "net.new", &[BLOCK]).await;
    assert_eq!(mend(&cluster, &[partly]).await.left, [id]);
    assert_eq!(cluster.store.take_counts().1, 0);
}

#[tokio::test]
async fn an_allocation_that_is_under_way_loses_its_block_and_not_its_handle() {
    let cluster = cluster(MemoryStore::sequential()).await;
    let id = HandleId::new("net.slow");
    cluster.store.put(&id, &counting(&[(BLOCK, 1)]));
    let slow = suspect(&cluster, "net.slow", &[BLOCK]).await;
    // It read the block long ago.
    let read = cluster.store.get::<Block>(&cidr(BLOCK)).await.unwrap();
    mend(&cluster, std::slice::from_ref(&slow)).await;
    let late = cluster.store.update::<Block>(&read.key, &read.value, &read.revision).await;
    assert!(matches!(late, Err(StoreError::Conflict { .. })));
    // It takes its address just before the block is written: the handle stays.
    cluster.store.put(&id, &counting(&[(BLOCK, 1)]));
    let slow = suspect(&cluster, "net.slow", &[BLOCK]).await;
    cluster.store.before_each(|_, writes, pairs| {
        let block = writes.into_iter().flatten().find(|write| write.kind == "IPAMBlock");
        block.into_iter().for_each(|write| pairs.touch(&write.path));
        Fault::None
    });
    assert_eq!(mend(&cluster, &[slow]).await.left, [id]);
    assert!(cluster.handle("net.slow").is_some());
}
