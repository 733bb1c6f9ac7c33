use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::testing::{Cluster, MemoryStore, affinity_key, cidr};
use libcalico::ipam::AffinityState;
use libcalico::store::WriteModel;

struct Counting(AtomicUsize);

impl WriteGate for Counting {
    async fn admit(&self, writes: usize) -> bool {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(writes)
            })
            .is_ok()
    }
}

fn cluster(store: MemoryStore) -> Cluster {
    let cluster = Cluster::on(store);
    cluster.pool("pool4", "10.0.0.0/16", 29);
    let owner = AffinityOwner::Host("node1".into());
    for range in ["10.0.0.0/29", "10.0.0.8/29"] {
        let claim = BlockAffinity {
            state: AffinityState::Confirmed,
            ..BlockAffinity::default()
        };
        cluster.store.put(&affinity_key("node1", range), &claim);
        cluster.store.put(
            &cidr(range),
            &Block::new(cidr(range), &owner, cluster.clock.now()).unwrap(),
        );
    }
    cluster
}

#[tokio::test]
async fn affinity_release_sends_no_write_after_the_gate_closes() {
    let owner = AffinityOwner::Host("node1".into());
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        for allowed in 0..=6 {
            let cluster = cluster(store());
            let gate = Counting(AtomicUsize::new(allowed));
            let outcome =
                release_host_affinities(&cluster.store, &cluster.clock, &gate, &owner, true).await;
            if allowed == 6 {
                assert_eq!(outcome.unwrap().released.len(), 2);
                continue;
            }
            assert!(matches!(outcome, Err(IpamError::Stopped)), "{outcome:?}");
            // All admitted writes are used, as far as whole transactions fit.
            let used = allowed - gate.0.into_inner();
            let unsplit = match cluster.store.write_model() {
                WriteModel::Transactional => [0, 0, 2, 3, 3, 5][allowed],
                WriteModel::PerObject => allowed,
            };
            assert_eq!(used, unsplit);
            let outcome = release_host_affinities(
                &cluster.store,
                &cluster.clock,
                &crate::write_gate::OpenGate,
                &owner,
                true,
            );
            outcome.await.unwrap();
            let left: Vec<_> = ["10.0.0.0/29", "10.0.0.8/29"]
                .into_iter()
                .filter(|range| {
                    cluster.block(range).is_some() || cluster.affinity("node1", range).is_some()
                })
                .collect();
            assert_eq!(left, [""; 0], "{allowed} writes");
        }
    }
}

#[tokio::test]
async fn single_block_is_not_released_behind_a_closed_gate() {
    let cluster = cluster(MemoryStore::sequential());
    let (gate, owner) = (
        Counting(AtomicUsize::new(0)),
        AffinityOwner::Host("node1".into()),
    );
    let outcome = release_empty_block(
        &cluster.store,
        &cluster.clock,
        &gate,
        &owner,
        cidr("10.0.0.0/29"),
    )
    .await
    .unwrap_err();
    assert!(matches!(outcome, IpamError::Stopped), "{outcome}");
    assert!(cluster.block("10.0.0.0/29").is_some());
}

#[tokio::test]
async fn unlabeled_affinities_of_a_host_are_released_and_other_hosts_unaffected() {
    let cluster = cluster(MemoryStore::without_labels());
    let other = BlockAffinity {
        state: AffinityState::Confirmed,
        ..BlockAffinity::default()
    };
    cluster
        .store
        .put(&affinity_key("node2", "10.0.0.16/29"), &other);
    let (open, owner) = (
        crate::write_gate::OpenGate,
        AffinityOwner::Host("node1".into()),
    );
    let outcome = release_host_affinities(&cluster.store, &cluster.clock, &open, &owner, true)
        .await
        .unwrap();
    assert_eq!(outcome.released, [cidr("10.0.0.0/29"), cidr("10.0.0.8/29")]);
    let left: Vec<_> = cluster
        .store
        .pairs()
        .paths()
        .into_iter()
        .filter(|path| path.contains("/ipam/"))
        .collect();
    assert_eq!(left, ["/calico/ipam/v2/host/node2/ipv4/block/10.0.0.16-29"]);
}
