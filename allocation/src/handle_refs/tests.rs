use libcalico::ipam::ReleaseRequest;

use super::*;
use crate::release::release_addresses;
use crate::testing::{Cluster, Fault, MemoryStore, assert_consistent, cidr};

const BLOCK: &str = "10.0.0.0/26";

fn faults() -> Vec<Fault> {
    let late = (1..4).map(|after| Fault::Late { applied: 0, after });
    let lost = [
        Fault::LostRequest,
        Fault::LostAnswer,
        Fault::Foreign,
        Fault::ForeignAnswer,
    ];
    [Fault::None, Fault::Refused]
        .into_iter()
        .chain(lost)
        .chain(late)
        .collect()
}

fn cluster(store: MemoryStore) -> Cluster {
    let cluster = Cluster::on(store);
    cluster.pool("pool4", "10.0.0.0/26", 26);
    cluster
}

fn break_handle(cluster: &Cluster, fault: Fault) {
    let mut once = true;
    cluster.store.before_each(move |_, writes, _| match writes {
        Some([write]) if write.kind == "IPAMHandle" && once => {
            once = false;
            fault
        }
        _ => Fault::None,
    });
}

fn count(cluster: &Cluster, id: &str) -> Option<i64> {
    cluster
        .handle(id)
        .map(|handle| handle.block.get(&cidr(BLOCK)).copied().unwrap_or_default())
}

#[tokio::test]
async fn decrement_of_unknown_outcome_is_not_repeated() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        for fault in faults() {
            let cluster = cluster(store());
            let (id, mut handle) = (HandleId::new("net.a"), Handle::default());
            handle.increment(cidr(BLOCK), 3);
            cluster.store.put(&id, &handle);
            break_handle(&cluster, fault);
            decrement(&cluster.store, &cluster.clock, &id, &[(cidr(BLOCK), 1)]).await;
            cluster.store.end_faults();
            assert_eq!(count(&cluster, "net.a"), Some(2), "{fault:?}");
        }
    }
}

#[tokio::test]
async fn decrement_is_tried_once_on_a_store_past_its_deadline() {
    let cluster = cluster(MemoryStore::sequential());
    cluster.store.before_each(|_, _, _| Fault::Refused);
    cluster.store.give_up();
    decrement(
        &cluster.store,
        &cluster.clock,
        &HandleId::new("net.a"),
        &[(cidr(BLOCK), 1)],
    )
    .await;
    assert_eq!(cluster.store.take_counts(), (1, 0));
}

#[tokio::test]
async fn decrement_ends_at_the_second_answer_of_another_program() {
    let cluster = cluster(MemoryStore::sequential());
    cluster.store.before_each(|_, _, _| Fault::Foreign);
    decrement(
        &cluster.store,
        &cluster.clock,
        &HandleId::new("net.a"),
        &[(cidr(BLOCK), 1)],
    )
    .await;
    assert_eq!(cluster.store.take_counts(), (2, 0));
}

#[tokio::test]
async fn concurrent_handle_change_leaves_the_count_too_high() {
    let cluster = cluster(MemoryStore::sequential());
    let (id, mut handle) = (HandleId::new("net.a"), Handle::default());
    handle.increment(cidr(BLOCK), 3);
    cluster.store.put(&id, &handle);
    let mut broken = false;
    cluster
        .store
        .before_each(move |_, writes, pairs| match writes {
            Some(_) if !broken => {
                broken = true;
                Fault::LostRequest
            }
            None if broken => {
                let mut more = pairs.get::<Handle>(&HandleId::new("net.a")).unwrap();
                more.increment(cidr(BLOCK), 4);
                pairs.put(
                    <Handle as libcalico::store::Kind>::path(&HandleId::new("net.a")),
                    serde_json::to_vec(&more).unwrap(),
                );
                Fault::None
            }
            _ => Fault::None,
        });
    decrement(&cluster.store, &cluster.clock, &id, &[(cidr(BLOCK), 1)]).await;
    cluster.store.end_faults();
    assert_eq!(count(&cluster, "net.a"), Some(7));
}

// A container with a repeated ADD has two addresses (IPAM-22).
#[tokio::test]
async fn release_of_a_second_address_leaves_the_first_counted() {
    for fault in [Fault::Cut(1), Fault::LostAnswer]
        .into_iter()
        .chain((1..4).map(|after| Fault::Late { applied: 1, after }))
    {
        let cluster = cluster(MemoryStore::sequential());
        let first = cluster.one("node1", "net.a").await.unwrap();
        let second = cluster.one("node1", "net.a").await.unwrap();
        let mut once = true;
        cluster.store.before_each(move |_, writes, _| match writes {
            Some([write, ..]) if write.kind == "IPAMBlock" && once => {
                once = false;
                fault
            }
            _ => Fault::None,
        });
        let request = ReleaseRequest {
            ip: second,
            handle: Some(HandleId::new("net.a")),
            sequence: None,
        };
        _ = release_addresses(&cluster.store, &cluster.clock, &[request]).await;
        cluster.store.end_faults();
        assert_eq!(count(&cluster, "net.a"), Some(1), "{fault:?}");
        assert_consistent(&cluster.store.pairs(), true);
        cluster.release("net.a").await.unwrap();
        assert!(
            !cluster
                .block(BLOCK)
                .unwrap()
                .allocated()
                .any(|held| held.ip == first),
            "{fault:?}"
        );
    }
}
