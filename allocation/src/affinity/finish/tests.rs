use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use libcalico::ipam::AffinityOwner;
use libcalico::store::Kind;

use super::*;
use crate::testing::{Cluster, Fault, MemoryStore, affinity_key, assert_consistent, cidr, held};
use crate::write_gate::OpenGate;

const BLOCK: &str = "10.0.0.0/29";
const STORES: [fn() -> MemoryStore; 2] = [MemoryStore::transactional, MemoryStore::sequential];

#[derive(Debug, Clone, Copy, PartialEq)]
enum There {
    Nothing,
    Empty,
    Used,
    Nobodys,
    Anothers,
}

fn cluster(store: MemoryStore, state: AffinityState, there: There) -> Cluster {
    let cluster = Cluster::on(store);
    cluster.pool("pool4", BLOCK, 29);
    if there != There::Nothing {
        let owner = AffinityOwner::Host(
            if there == There::Anothers {
                "node2"
            } else {
                "node1"
            }
            .into(),
        );
        let mut block =
            Block::new(cidr(BLOCK), &owner, os::clock::Clock::now(&cluster.clock)).unwrap();
        if there == There::Used || there == There::Nobodys {
            let handle = libcalico::ipam::HandleId::new("net.a");
            assert!(crate::testing::take_one(&mut block, "node1", &handle));
            let mut counts = libcalico::ipam::Handle::default();
            counts.increment(cidr(BLOCK), 1);
            cluster.store.put(&handle, &counts);
        }
        if there == There::Nobodys {
            block.clear_affinity();
        }
        cluster.store.put(&cidr(BLOCK), &block);
    }
    if there == There::Anothers {
        let confirmed = BlockAffinity {
            state: AffinityState::Confirmed,
            ..BlockAffinity::default()
        };
        cluster.store.put(&affinity_key("node2", BLOCK), &confirmed);
    }
    cluster.store.put(
        &affinity_key("node1", BLOCK),
        &BlockAffinity {
            state,
            ..BlockAffinity::default()
        },
    );
    cluster
}

async fn seen(cluster: &Cluster) -> Revision {
    cluster
        .store
        .get::<BlockAffinity>(&affinity_key("node1", BLOCK))
        .await
        .unwrap()
        .revision
}

async fn finish(cluster: &Cluster, revision: &Revision) -> Result<FinishedAffinity, IpamError> {
    finish_affinity(
        &cluster.store,
        &OpenGate,
        &affinity_key("node1", BLOCK),
        revision,
    )
    .await
}

#[tokio::test]
async fn unfinished_affinity_is_confirmed_or_deleted_according_to_its_block() {
    use AffinityState::{Confirmed, Pending, PendingDeletion, Unset};
    use FinishedAffinity::{Confirmed as Done, Deleted, Released, Unchanged};
    for store in STORES {
        for (state, there, expected) in [
            (Pending, There::Nothing, Deleted),
            (Pending, There::Empty, Done),
            (Pending, There::Used, Done),
            (Pending, There::Nobodys, Deleted),
            (Pending, There::Anothers, Deleted),
            (PendingDeletion, There::Nothing, Deleted),
            (PendingDeletion, There::Empty, Released),
            (PendingDeletion, There::Used, Done),
            (PendingDeletion, There::Nobodys, Deleted),
            (PendingDeletion, There::Anothers, Deleted),
            (Confirmed, There::Nothing, Deleted),
            (Confirmed, There::Used, Unchanged),
            (Confirmed, There::Anothers, Deleted),
            (Unset, There::Nothing, Deleted),
            (Unset, There::Empty, Unchanged),
        ] {
            let cluster = cluster(store(), state, there);
            let before = (cluster.block(BLOCK), held(&cluster.store.pairs()));
            let revision = seen(&cluster).await;
            assert_eq!(
                finish(&cluster, &revision).await.unwrap(),
                expected,
                "{state:?} {there:?}"
            );
            let left = match expected {
                Done => Some(Confirmed),
                Deleted | Released => None,
                Unchanged => Some(state),
            };
            assert_eq!(
                cluster.affinity("node1", BLOCK),
                left,
                "{state:?} {there:?}"
            );
            let sequence =
                |block: &Option<Block>| block.as_ref().map(|block| block.sequence_number);
            let after = (cluster.block(BLOCK), held(&cluster.store.pairs()));
            assert_eq!(after.1, before.1, "no address changes");
            match expected {
                Released => assert_eq!(after.0, None),
                // The rewrite makes a concurrent release of the block fail.
                Done => assert_eq!(
                    sequence(&after.0),
                    sequence(&before.0).map(|number| number + 1)
                ),
                Deleted | Unchanged => assert_eq!(after.0, before.0),
            }
            assert!(
                finish(&cluster, &revision)
                    .await
                    .is_ok_and(|again| again == Unchanged),
                "done once"
            );
        }
    }
}

#[tokio::test]
async fn affinity_changed_since_the_read_is_left_unchanged() {
    for there in [There::Nothing, There::Empty] {
        let cluster = cluster(MemoryStore::sequential(), AffinityState::Pending, there);
        let revision = seen(&cluster).await;
        cluster
            .store
            .edit(|pairs| pairs.touch(&BlockAffinity::path(&affinity_key("node1", BLOCK))));
        assert_eq!(
            finish(&cluster, &revision).await.unwrap(),
            FinishedAffinity::Unchanged
        );
        assert_eq!(
            cluster.affinity("node1", BLOCK),
            Some(AffinityState::Pending)
        );
    }
}

/// Another process creates its block directly before or after the affinity is deleted.
#[tokio::test]
async fn block_created_after_the_deletion_gets_its_affinity_back() {
    for store in STORES {
        for at in 1..4 {
            let cluster = cluster(store(), AffinityState::Pending, There::Nothing);
            let revision = seen(&cluster).await;
            let late = Block::new(
                cidr(BLOCK),
                &AffinityOwner::Host("node1".into()),
                os::clock::Clock::now(&cluster.clock),
            );
            let late = late.unwrap().encode().unwrap();
            cluster.store.before_each(move |nth, _, pairs| {
                if nth == at {
                    pairs.put(Block::path(&cidr(BLOCK)), late.clone());
                }
                Fault::None
            });
            let finished = finish(&cluster, &revision).await.unwrap();
            cluster.store.end_faults();
            if at < 3 {
                assert_eq!(finished, FinishedAffinity::Confirmed, "at {at}");
                assert_consistent(&cluster.store.pairs(), true);
            }
        }
    }
}

#[tokio::test]
async fn add_between_any_two_requests_gets_an_address_and_an_affinity() {
    use AffinityState::{Confirmed, Pending, PendingDeletion};
    let mut rivals = 0;
    for store in STORES {
        for (state, there) in [
            (Pending, There::Nothing),
            (Pending, There::Empty),
            (PendingDeletion, There::Nothing),
            (PendingDeletion, There::Empty),
            (PendingDeletion, There::Used),
            (Confirmed, There::Nothing),
        ] {
            for at in 0..6 {
                let cluster = Arc::new(cluster(store(), state, there));
                let revision = seen(&cluster).await;
                let (count, rival) = (AtomicUsize::new(0), Arc::new(Mutex::new(None)));
                let (added, result) = (add_of_node(store, state, there).await, rival.clone());
                cluster.store.before_each(move |_, _, pairs| {
                    if count.fetch_add(1, Ordering::Relaxed) == at {
                        *result.lock().unwrap() = Some(added.write(pairs));
                    }
                    Fault::None
                });
                finish(&cluster, &revision).await.unwrap();
                cluster.store.end_faults();
                if *rival.lock().unwrap() == Some(true) {
                    rivals += 1;
                    let held = held(&cluster.store.pairs());
                    assert!(
                        held.contains_key(&libcalico::ipam::HandleId::new("net.rival")),
                        "{state:?} {there:?} at {at}"
                    );
                    assert_consistent(&cluster.store.pairs(), true);
                }
                cluster.one("node1", "net.next").await.unwrap();
                assert_consistent(&cluster.store.pairs(), true);
            }
        }
    }
    assert!(rivals > 20, "{rivals} were in time");
}

/// The pairs that an ADD wrote, and the block as that ADD had read it.
struct Added(Vec<(String, Vec<u8>)>, Option<Vec<u8>>);

impl Added {
    /// Writes the pairs, unless the ADD's compare-and-swap of the block would fail. Returns false
    /// then.
    fn write(&self, pairs: &mut crate::testing::Pairs) -> bool {
        let block = pairs
            .get::<Block>(&cidr(BLOCK))
            .map(|block| block.encode().unwrap());
        if block != self.1 {
            return false;
        }
        self.0
            .iter()
            .for_each(|(path, value)| pairs.put(path.clone(), value.clone()));
        true
    }
}

async fn add_of_node(store: fn() -> MemoryStore, state: AffinityState, there: There) -> Added {
    let cluster = cluster(store(), state, there);
    let before = cluster.block(BLOCK).map(|block| block.encode().unwrap());
    cluster.one("node1", "net.rival").await.unwrap();
    let key = affinity_key("node1", BLOCK);
    let claim = cluster
        .store
        .get::<BlockAffinity>(&key)
        .await
        .unwrap()
        .value;
    let id = libcalico::ipam::HandleId::new("net.rival");
    Added(
        vec![
            (
                libcalico::ipam::Handle::path(&id),
                cluster.handle("net.rival").unwrap().encode().unwrap(),
            ),
            (
                Block::path(&cidr(BLOCK)),
                cluster.block(BLOCK).unwrap().encode().unwrap(),
            ),
            (BlockAffinity::path(&key), claim.encode().unwrap()),
        ],
        before,
    )
}

#[tokio::test]
async fn interrupted_finish_is_completed_by_the_next_call() {
    use AffinityState::{Pending, PendingDeletion};
    for store in STORES {
        for (state, there) in [
            (Pending, There::Nothing),
            (Pending, There::Used),
            (PendingDeletion, There::Empty),
        ] {
            for fault in [
                Fault::Refused,
                Fault::LostRequest,
                Fault::LostAnswer,
                Fault::Cut(1),
            ] {
                for at in 0..5 {
                    let cluster = cluster(store(), state, there);
                    let revision = seen(&cluster).await;
                    cluster
                        .store
                        .before_each(move |nth, _, _| if nth == at { fault } else { Fault::None });
                    let _ = finish(&cluster, &revision).await;
                    cluster.store.end_faults();
                    if cluster.affinity("node1", BLOCK).is_some() {
                        let revision = seen(&cluster).await;
                        finish(&cluster, &revision).await.unwrap();
                    }
                    assert_consistent(&cluster.store.pairs(), true);
                }
            }
        }
    }
}

/// A process was killed between the creation of its block and the read of the ranges.
#[tokio::test]
async fn unfinished_claim_that_overlaps_with_another_block_is_not_confirmed() {
    for store in STORES {
        for (there, expected) in [
            (There::Empty, FinishedAffinity::Released),
            (There::Used, FinishedAffinity::Unchanged),
        ] {
            let cluster = cluster(store(), AffinityState::Pending, there);
            let (other, owner) = (cidr("10.0.0.0/26"), AffinityOwner::Host("node2".into()));
            let other = Block::new(other, &owner, os::clock::Clock::now(&cluster.clock)).unwrap();
            cluster.store.put(&other.cidr, &other);
            let revision = seen(&cluster).await;
            assert_eq!(
                finish(&cluster, &revision).await.unwrap(),
                expected,
                "{there:?}"
            );
            let is_kept = expected == FinishedAffinity::Unchanged;
            assert_eq!(
                cluster.affinity("node1", BLOCK),
                is_kept.then_some(AffinityState::Pending),
                "{there:?}"
            );
            assert_eq!(cluster.block(BLOCK).is_some(), is_kept, "{there:?}");
        }
    }
}

/// Another process creates its block directly before or after the affinity is deleted.
#[tokio::test]
async fn block_created_after_the_deletion_that_overlaps_with_another_block_is_not_confirmed() {
    for store in STORES {
        for (at, there) in [
            (1, There::Empty),
            (2, There::Empty),
            (1, There::Used),
            (2, There::Used),
        ] {
            let late = cluster(store(), AffinityState::Pending, there)
                .block(BLOCK)
                .unwrap()
                .encode()
                .unwrap();
            let cluster = cluster(store(), AffinityState::Pending, There::Nothing);
            let (other, owner) = (cidr("10.0.0.0/26"), AffinityOwner::Host("node2".into()));
            let other = Block::new(other, &owner, os::clock::Clock::now(&cluster.clock)).unwrap();
            cluster.store.put(&other.cidr, &other);
            let revision = seen(&cluster).await;
            cluster.store.before_each(move |nth, _, pairs| {
                if nth == at {
                    pairs.put(Block::path(&cidr(BLOCK)), late.clone());
                }
                Fault::None
            });
            let is_kept = there == There::Used;
            let expected = if is_kept {
                FinishedAffinity::Unchanged
            } else {
                FinishedAffinity::Released
            };
            assert_eq!(
                finish(&cluster, &revision).await.unwrap(),
                expected,
                "{there:?} at {at}"
            );
            cluster.store.end_faults();
            assert_eq!(
                cluster.affinity("node1", BLOCK),
                is_kept.then_some(AffinityState::Pending),
                "{there:?} at {at}"
            );
            assert_eq!(cluster.block(BLOCK).is_some(), is_kept, "{there:?} at {at}");
        }
    }
}
