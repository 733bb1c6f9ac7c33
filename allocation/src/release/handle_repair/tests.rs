use libcalico::store::{Kind, WriteOp};

use super::*;
use crate::testing::{Cluster, Fault, MemoryStore, Pairs, assert_consistent, cidr, held, take_one};
use crate::write_gate::OpenGate;

const BLOCK: &str = "10.0.0.0/29";

async fn cluster(store: MemoryStore) -> Cluster {
    let cluster = Cluster::on(store);
    cluster.pool("pool4", BLOCK, 29);
    cluster.one("node1", "net.a").await.unwrap();
    cluster
}

fn counting(counts: &[(&str, i64)]) -> Handle {
    Handle {
        block: counts.iter().map(|(block, n)| (cidr(block), *n)).collect(),
        ..Handle::default()
    }
}

async fn suspect(cluster: &Cluster, id: &str, blocks: &[&str]) -> SuspectHandle {
    let id = HandleId::new(id);
    let revision = cluster
        .store
        .get::<Handle>(&id)
        .await
        .ok()
        .map(|entry| entry.revision);
    SuspectHandle {
        id,
        revision,
        blocks: blocks.iter().map(|block| cidr(block)).collect(),
    }
}

async fn repair_suspects(cluster: &Cluster, suspects: &[SuspectHandle]) -> RepairedHandles {
    repair_handles(&cluster.store, &OpenGate, suspects)
        .await
        .unwrap()
}

#[tokio::test]
async fn handle_counts_are_corrected_to_the_allocations_in_blocks() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        let cluster = cluster(store()).await;
        let (orphan, elsewhere) = (HandleId::new("net.orphan"), HandleId::new("net.elsewhere"));
        cluster.store.put(&orphan, &counting(&[(BLOCK, 1)]));
        cluster
            .store
            .put(&elsewhere, &counting(&[("10.9.9.0/29", 1)]));
        cluster.store.put(
            &HandleId::new("net.a"),
            &counting(&[(BLOCK, 3), ("10.0.0.8/29", 1)]),
        );
        let suspects = [
            suspect(&cluster, "net.orphan", &[BLOCK]).await,
            suspect(&cluster, "net.elsewhere", &["10.9.9.0/29"]).await,
            suspect(&cluster, "net.a", &[BLOCK, "10.0.0.8/29"]).await,
        ];
        let repaired = repair_suspects(&cluster, &suspects).await;
        assert_eq!(repaired.deleted, [orphan, elsewhere]);
        assert_eq!(repaired.corrected, [HandleId::new("net.a")]);
        assert_consistent(&cluster.store.pairs(), true);
        cluster.store.take_counts();
        let fresh = suspect(&cluster, "net.a", &[BLOCK]).await;
        assert_eq!(repair_suspects(&cluster, &[fresh]).await.unchanged.len(), 1);
        assert_eq!(
            cluster.store.take_counts().1,
            0,
            "nothing is written when nothing is wrong"
        );
    }
}

#[tokio::test]
async fn missing_or_low_handle_count_is_restored() {
    let cluster = cluster(MemoryStore::sequential()).await;
    for wrong in [None, Some(counting(&[]))] {
        cluster
            .store
            .edit(|pairs| pairs.remove("/calico/ipam/v2/handle/net.a"));
        if let Some(wrong) = &wrong {
            cluster.store.put(&HandleId::new("net.a"), wrong);
        }
        let before = cluster.block(BLOCK);
        let wrong = suspect(&cluster, "net.a", &[BLOCK]).await;
        assert_eq!(repair_suspects(&cluster, &[wrong]).await.corrected.len(), 1);
        assert_consistent(&cluster.store.pairs(), true);
        assert_eq!(
            cluster.block(BLOCK),
            before,
            "a block is not written for a count that grows"
        );
    }
}

#[tokio::test]
async fn handle_written_since_the_audit_is_not_repaired() {
    let cluster = cluster(MemoryStore::sequential()).await;
    let id = HandleId::new("net.new");
    cluster.store.put(&id, &counting(&[(BLOCK, 1)]));
    let old = suspect(&cluster, "net.new", &[BLOCK]).await;
    cluster.store.put(&id, &counting(&[(BLOCK, 1)]));
    cluster.store.take_counts();
    assert_eq!(
        repair_suspects(&cluster, &[old]).await.unchanged,
        std::slice::from_ref(&id)
    );
    cluster.store.put(&id, &counting(&[("10.0.0.8/29", 1)]));
    let partly = suspect(&cluster, "net.new", &[BLOCK]).await;
    assert_eq!(repair_suspects(&cluster, &[partly]).await.unchanged, [id]);
    assert_eq!(cluster.store.take_counts().1, 0);
}

#[tokio::test]
async fn repair_makes_a_concurrent_allocation_lose_its_block_write_only() {
    let cluster = cluster(MemoryStore::sequential()).await;
    let id = HandleId::new("net.slow");
    cluster.store.put(&id, &counting(&[(BLOCK, 1)]));
    let slow = suspect(&cluster, "net.slow", &[BLOCK]).await;
    // The allocation read the block long ago.
    let read = cluster.store.get::<Block>(&cidr(BLOCK)).await.unwrap();
    repair_suspects(&cluster, std::slice::from_ref(&slow)).await;
    let late = cluster
        .store
        .update::<Block>(&read.key, &read.value, &read.revision)
        .await;
    assert!(matches!(late, Err(StoreError::Conflict { .. })));
    // The allocation assigns its address just before the block is rewritten.
    cluster.store.put(&id, &counting(&[(BLOCK, 1)]));
    let slow = suspect(&cluster, "net.slow", &[BLOCK]).await;
    cluster.store.before_each(|_, writes, pairs| {
        let block = writes
            .into_iter()
            .flatten()
            .find(|write| write.kind == "IPAMBlock");
        block.into_iter().for_each(|write| pairs.touch(&write.path));
        Fault::None
    });
    assert_eq!(repair_suspects(&cluster, &[slow]).await.unchanged, [id]);
    assert!(cluster.handle("net.slow").is_some());
}

/// Assigns an address of the block, for an allocation whose handle counts the address already.
fn take(pairs: &mut Pairs, id: &HandleId) {
    let mut block = pairs.get::<Block>(&cidr(BLOCK)).unwrap();
    assert!(take_one(&mut block, "node1", id));
    pairs.put(Block::path(&cidr(BLOCK)), block.encode().unwrap());
}

fn lowers(writes: Option<&[Write]>) -> bool {
    let handle = writes
        .into_iter()
        .flatten()
        .find(|write| write.kind == Handle::KIND);
    handle.is_some_and(|write| matches!(write.op, WriteOp::Update(..) | WriteOp::Delete(_)))
}

#[tokio::test]
async fn allocation_between_the_two_repair_writes_retains_its_handle() {
    let id = HandleId::new("net.slow");
    for (counts, after) in [(1, 1), (1, 2), (3, 1), (3, 2)] {
        let cluster = cluster(MemoryStore::sequential()).await;
        cluster.store.put(&id, &counting(&[(BLOCK, counts)]));
        if counts > 1 {
            cluster.store.edit(|pairs| take(pairs, &id));
        }
        let slow = suspect(&cluster, id.as_str(), &[BLOCK]).await;
        let mut lowered = None;
        let slow_one = id.clone();
        cluster.store.before_each(move |nth, writes, pairs| {
            if lowers(writes) {
                lowered.get_or_insert(nth);
            }
            // The allocation acts on a read from before the handle's count was lowered.
            if lowered.is_some_and(|lowered| nth == lowered + after) {
                take(pairs, &slow_one);
            }
            Fault::None
        });
        let repaired = repair_unwatched_handles(&cluster.store, &OpenGate, &[slow])
            .await
            .unwrap();
        cluster.store.end_faults();
        let expected = RepairedHandles {
            unchanged: vec![id.clone()],
            ..RepairedHandles::default()
        };
        assert_eq!(
            repaired, expected,
            "{counts} counted, taken {after} requests later"
        );
        assert!(held(&cluster.store.pairs()).contains_key(&id));
        assert_consistent(&cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn block_read_before_the_handle_repair_can_no_longer_be_written() {
    let cluster = cluster(MemoryStore::sequential()).await;
    let (orphan, running) = (HandleId::new("net.slow"), HandleId::new("net.a"));
    cluster.store.put(&orphan, &counting(&[(BLOCK, 1)]));
    cluster.store.put(&running, &counting(&[(BLOCK, 2)]));
    for id in [&orphan, &running] {
        let suspect = suspect(&cluster, id.as_str(), &[BLOCK]).await;
        let read = std::sync::Arc::new(std::sync::Mutex::new(None));
        let reader = read.clone();
        cluster.store.before_each(move |_, writes, pairs| {
            if lowers(writes) {
                *reader.lock().unwrap() = pairs.get::<Block>(&cidr(BLOCK));
            }
            Fault::None
        });
        let repaired = repair_unwatched_handles(&cluster.store, &OpenGate, &[suspect])
            .await
            .unwrap();
        assert_eq!(
            (
                repaired.deleted.len() + repaired.corrected.len(),
                repaired.unchanged.len()
            ),
            (1, 0),
            "{id}"
        );
        let read = read.lock().unwrap().take().unwrap();
        assert!(
            cluster.block(BLOCK).unwrap().sequence_number > read.sequence_number,
            "{id}"
        );
    }
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn blocks_unwritable_after_a_handle_repair_are_reported() {
    let cluster = cluster(MemoryStore::sequential()).await;
    let id = HandleId::new("net.slow");
    cluster.store.put(&id, &counting(&[(BLOCK, 1)]));
    let slow = suspect(&cluster, id.as_str(), &[BLOCK]).await;
    let mut lowered = false;
    cluster.store.before_each(move |_, writes, _| {
        lowered |= lowers(writes);
        let is_block = writes.is_some_and(|writes| writes[0].kind == Block::KIND);
        if lowered && is_block {
            Fault::Refused
        } else {
            Fault::None
        }
    });
    let repaired = repair_unwatched_handles(&cluster.store, &OpenGate, &[slow])
        .await
        .unwrap();
    assert_eq!(
        (repaired.failed.len(), repaired.deleted, repaired.unchanged),
        (1, vec![], vec![])
    );
}
