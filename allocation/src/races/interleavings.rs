//! Another process changes an object, or allocates an address, between any two requests.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use libcalico::api::IpPool;
use libcalico::ipam::{AffinityOwner, AffinityState, Block, BlockAffinity, Handle, HandleId};
use libcalico::net::Cidr;
use libcalico::store::Kind;
use proptest::prelude::*;

use crate::alloc::one_address::assign_address;
use crate::error::IpamError;
use crate::testing::{
    Cluster, Fault, MemoryStore, Pairs, affinity_key, assert_consistent, cidr, held, take_one,
};

/// Allocates an address of `block` for `handle` as another process does, handle first.
fn take(pairs: &mut Pairs, block: &Cidr, node: &str, handle: &str) {
    let Some(mut taken) = pairs.get::<Block>(block) else {
        return;
    };
    let id = HandleId::new(handle);
    if !take_one(&mut taken, node, &id) {
        return;
    }
    let mut counts = pairs.get::<Handle>(&id).unwrap_or_default();
    counts.increment(*block, 1);
    pairs.put(Handle::path(&id), counts.encode().unwrap());
    pairs.put(Block::path(block), taken.encode().unwrap());
}

#[tokio::test]
async fn address_taken_between_any_two_requests_is_not_assigned_twice() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        for at in 0..5 {
            let cluster = Cluster::on(store());
            cluster.pool("pool4", "10.0.0.0/26", 26);
            cluster.one("node1", "net.first").await.unwrap();
            cluster.store.before_each(move |nth, _, pairs| {
                if nth == at {
                    take(pairs, &cidr("10.0.0.0/26"), "node2", "net.rival");
                }
                Fault::None
            });
            cluster.one("node1", "net.a").await.unwrap();
            cluster.store.end_faults();
            let (reads, writes) = cluster.store.take_counts();
            let held = held(&cluster.store.pairs());
            let mut all: Vec<_> = held.values().flatten().collect();
            all.sort();
            all.dedup();
            assert_eq!(
                all.len(),
                if at < reads + writes { 3 } else { 2 },
                "{held:?}"
            );
            assert_consistent(&cluster.store.pairs(), true);
        }
    }
}

#[tokio::test]
async fn losing_every_race_ends_in_contention_without_an_allocation() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        let cluster = Cluster::on(store());
        cluster.pool("pool4", "10.0.0.0/26", 26);
        cluster.one("node1", "net.first").await.unwrap();
        cluster.store.before_each(|_, writes, pairs| {
            let block =
                writes.and_then(|writes| writes.iter().find(|write| write.kind == "IPAMBlock"));
            if let Some(block) = block {
                pairs.touch(&block.path);
            }
            Fault::None
        });
        let error = cluster.one("node1", "net.a").await.unwrap_err();
        assert!(matches!(error, IpamError::Contention), "{error}");
        assert_eq!(
            error.to_string(),
            "Max retries hit - excessive concurrent IPAM requests"
        );
        cluster.store.end_faults();
        assert_eq!(cluster.handle("net.a"), None);
        assert_consistent(&cluster.store.pairs(), true);
    }
}

/// Another process of the node began to claim the same block a moment earlier, and has reached this
/// state.
#[tokio::test]
async fn concurrent_processes_of_a_node_share_the_claimed_block() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        for (state, with_block) in [
            (AffinityState::Pending, false),
            (AffinityState::Pending, true),
            (AffinityState::Confirmed, true),
        ] {
            for at in 0..4 {
                let cluster = Cluster::on(store());
                cluster.pool("pool4", "10.65.0.0/16", 26);
                let block = cidr("10.65.166.128/26");
                let now = time::macros::datetime!(2026-08-22 01:02:03 UTC);
                cluster.store.before_each(move |nth, _, pairs| {
                    if nth == at && pairs.get::<Block>(&block).is_none() {
                        let affinity = BlockAffinity {
                            state,
                            ..BlockAffinity::default()
                        };
                        let key = affinity_key("node1", "10.65.166.128/26");
                        pairs.put(BlockAffinity::path(&key), affinity.encode().unwrap());
                        if with_block {
                            let new = Block::new(block, &AffinityOwner::Host("node1".into()), now)
                                .unwrap();
                            pairs.put(Block::path(&block), new.encode().unwrap());
                        }
                    }
                    Fault::None
                });
                let ip = cluster.one("node1", "net.a").await.unwrap();
                cluster.store.end_faults();
                assert!(block.contains(ip), "{state:?} {with_block} at {at}: {ip}");
                assert_consistent(&cluster.store.pairs(), true);
            }
        }
    }
}

#[tokio::test]
async fn block_lost_to_another_node_is_replaced_by_the_next_block() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        for at in 0..3 {
            let cluster = Cluster::on(store());
            cluster.pool("pool4", "10.65.0.0/16", 26);
            let block = cidr("10.65.166.128/26");
            let now = time::macros::datetime!(2026-08-22 01:02:03 UTC);
            cluster.store.before_each(move |nth, _, pairs| {
                if nth == at {
                    let new = Block::new(block, &AffinityOwner::Host("node2".into()), now).unwrap();
                    pairs.put(Block::path(&block), new.encode().unwrap());
                    let affinity = BlockAffinity {
                        state: AffinityState::Confirmed,
                        ..BlockAffinity::default()
                    };
                    let key = affinity_key("node2", "10.65.166.128/26");
                    pairs.put(BlockAffinity::path(&key), affinity.encode().unwrap());
                }
                Fault::None
            });
            let ip = cluster.one("node1", "net.a").await.unwrap();
            cluster.store.end_faults();
            assert_eq!(
                ip,
                "10.65.166.192".parse::<std::net::IpAddr>().unwrap(),
                "at {at}"
            );
            assert_consistent(&cluster.store.pairs(), true);
        }
    }
}

#[derive(Debug, Clone)]
enum Op {
    Add { node: u8, container: u8, num6: bool },
    Del { container: u8 },
    Forget { node: u8 },
    Wait,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (0..4u8, 0..12u8, any::<bool>())
            .prop_map(|(node, container, num6)| Op::Add { node, container, num6 }),
        4 => (0..12u8).prop_map(|container| Op::Del { container }),
        1 => (0..4u8).prop_map(|node| Op::Forget { node }),
        1 => Just(Op::Wait),
    ]
}

/// Rewrites the object about to be written, or breaks the request, in one request of `every`.
fn bother(cluster: &Cluster, every: usize, seed: usize, faults: bool) {
    let count = Arc::new(AtomicUsize::new(seed));
    let last = Mutex::new(0);
    cluster.store.before_each(move |_, writes, pairs| {
        let n = count.fetch_add(1, Ordering::Relaxed);
        if !n.is_multiple_of(every) {
            return Fault::None;
        }
        let kinds = if faults { 7 } else { 2 };
        let mut last = last.lock().unwrap();
        *last += 1;
        match (*last + seed) % kinds {
            0 | 1 => {
                if let Some(write) = writes.and_then(|writes| writes.get(n % writes.len())) {
                    pairs.touch(&write.path);
                }
                Fault::None
            }
            2 => Fault::Refused,
            3 => Fault::LostRequest,
            4 => Fault::LostAnswer,
            5 => Fault::CutAnswer(n % 4),
            _ => Fault::Cut(1 + n % 4),
        }
    });
}

async fn run(ops: &[Op], store: MemoryStore, every: usize, seed: usize, faults: bool) {
    let cluster = Cluster::on(store);
    cluster.pool("pool4", "10.0.0.0/28", 30);
    cluster.pool("pool6", "fd00::/124", 126);
    bother(&cluster, every, seed, faults);
    for op in ops {
        match op {
            Op::Add {
                node,
                container,
                num6,
            } => {
                let mut request =
                    cluster.request(&format!("node{}", node + 1), &format!("net.{container}"));
                request.num6 = usize::from(*num6);
                request.all_or_nothing = true;
                let before = held(&cluster.store.pairs())
                    .get(&request.handle)
                    .cloned()
                    .unwrap_or_default();
                if let Ok(assigned) = cluster.assign(&request).await {
                    let mut expected = before;
                    expected.extend(assigned.addresses.iter().map(|a| a.ip));
                    let mut now = held(&cluster.store.pairs())
                        .get(&request.handle)
                        .cloned()
                        .unwrap_or_default();
                    expected.sort();
                    now.sort();
                    assert_eq!(now, expected, "what the caller was told is what is held");
                }
            }
            Op::Del { container } => {
                let handle = format!("net.{container}");
                if cluster.release(&handle).await.is_ok() {
                    let held = held(&cluster.store.pairs());
                    assert!(
                        !held.contains_key(&HandleId::new(&handle)),
                        "released, but still held"
                    );
                }
            }
            Op::Forget { node } => {
                let owner = AffinityOwner::Host(format!("node{}", node + 1));
                let _ = crate::affinity::release_host_affinities(
                    &cluster.store,
                    &cluster.clock,
                    &crate::write_gate::OpenGate,
                    &owner,
                    true,
                )
                .await;
            }
            Op::Wait => cluster.clock.advance(std::time::Duration::from_secs(61)),
        }
        // `held` panics if a block is inconsistent.
        assert_consistent(&cluster.store.pairs(), false);
    }
    cluster.store.end_faults();
    for container in 0..12 {
        cluster.release(&format!("net.{container}")).await.unwrap();
    }
    let pairs = cluster.store.pairs();
    assert_eq!(held(&pairs).len(), 0, "leaked");
    assert_eq!(pairs.list::<Handle>(&()).len(), 0, "handles left over");
}

fn block_on(operation: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(operation);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn random_interleavings_assign_no_address_twice_and_leak_none_after_del(
        ops in prop::collection::vec(op(), 1..40),
        transactional: bool,
        every in 2..9usize,
        seed in 0..100usize,
        faults: bool,
    ) {
        let store = if transactional {
            MemoryStore::transactional()
        } else {
            MemoryStore::sequential()
        };
        block_on(run(&ops, store, every, seed, faults));
    }
}

// A pool is disabled before it is deleted (IPAM-100).
#[tokio::test]
async fn pool_disabled_during_a_lost_race_is_not_claimed_from() {
    for asked in [None, Some("10.0.0.7")] {
        let cluster = Cluster::new();
        cluster.pool("old", "10.0.0.0/24", 26);
        let mut lost = false;
        cluster.store.before_each(move |_, writes, pairs| {
            if writes.is_some() && !std::mem::replace(&mut lost, true) {
                let key = libcalico::api::ObjectKey::global("old");
                let mut pool = pairs.get::<IpPool>(&key).unwrap();
                pool.spec.disabled = true;
                pairs.put(IpPool::path(&key), pool.encode().unwrap());
                let pending = BlockAffinity {
                    state: AffinityState::Pending,
                    ..BlockAffinity::default()
                };
                for block in [
                    "10.0.0.0/26",
                    "10.0.0.64/26",
                    "10.0.0.128/26",
                    "10.0.0.192/26",
                ] {
                    pairs.put(
                        BlockAffinity::path(&affinity_key("node1", block)),
                        pending.encode().unwrap(),
                    );
                }
            }
            Fault::None
        });
        let request = cluster.request("node1", "net.a");
        let error = match asked {
            None => cluster.assign(&request).await.unwrap_err(),
            Some(ip) => {
                let inputs = cluster.inputs(&request).await.unwrap();
                let ip = ip.parse().unwrap();
                assign_address(&cluster.store, &cluster.clock, &request, ip, inputs)
                    .await
                    .unwrap_err()
            }
        };
        assert!(
            matches!(error, IpamError::Pools(_) | IpamError::NotInPool { .. }),
            "{error}"
        );
        cluster.store.end_faults();
        assert!(cluster.store.pairs().list::<Block>(&None).is_empty());
        assert_eq!(cluster.handle("net.a"), None);
    }
}
