//! Each request of an operation in turn is broken by each fault.

use libcalico::ipam::{Block, Handle, HandleId};
use libcalico::store::{Kind, WriteOp};
use repository::effort::kill_every;

use crate::alloc::one_address::assign_address;
use crate::testing::{Cluster, Fault, MemoryStore, assert_consistent, held};

/// A list has five writes at most, and a write's outcome is resolved within five requests.
pub(super) fn faults() -> impl Iterator<Item = Fault> {
    let cuts = (1..5).map(Fault::Cut).chain((0..5).map(Fault::CutAnswer));
    let late = (0..5).flat_map(|applied| (1..6).map(move |after| Fault::Late { applied, after }));
    [Fault::Refused, Fault::LostRequest, Fault::LostAnswer]
        .into_iter()
        .chain(cuts)
        .chain(late)
}

pub(super) type Stores = [(&'static str, fn() -> MemoryStore); 2];

pub(super) fn stores() -> Stores {
    [
        ("transactional", MemoryStore::transactional),
        ("sequential", MemoryStore::sequential),
    ]
}

/// Creates a cluster in which `node1` has blocks for IPv4 and IPv6 if `warm`.
async fn cluster(store: MemoryStore, warm: bool) -> Cluster {
    let cluster = Cluster::on(store);
    cluster.pool("pool4", "10.65.0.0/24", 26);
    cluster.pool("pool6", "fd00:65::/116", 122);
    if warm {
        let mut request = cluster.request("node1", "net.other");
        request.num6 = 1;
        cluster.assign(&request).await.unwrap();
    }
    cluster
}

pub(super) fn break_once(cluster: &Cluster, at: usize, fault: Fault) {
    let mut broken = false;
    cluster.store.before_each(move |nth, _, _| {
        if nth != at || broken {
            return Fault::None;
        }
        broken = true;
        fault
    });
}

#[tokio::test]
async fn add_interrupted_at_any_request_is_fully_released_by_its_del() {
    for (kind, store) in stores() {
        for (warm, num6) in [(false, 0), (true, 0), (false, 1), (true, 1)] {
            for fault in faults() {
                for at in (0..8).step_by(kill_every()) {
                    let context =
                        format!("{kind} warm={warm} num6={num6} {fault:?} at request {at}");
                    let cluster = cluster(store(), warm).await;
                    let others = held(&cluster.store.pairs());
                    let mut request = cluster.request("node1", "net.a");
                    request.num6 = num6;
                    request.all_or_nothing = true;
                    break_once(&cluster, at, fault);
                    let outcome = cluster.assign(&request).await;
                    cluster.store.end_faults();
                    assert_consistent(&cluster.store.pairs(), false);
                    let now = held(&cluster.store.pairs());
                    match &outcome {
                        Ok(assigned) => {
                            let told: Vec<_> = assigned.addresses.iter().map(|a| a.ip).collect();
                            assert_eq!(now[&request.handle], told, "{context}");
                            assert_eq!(told.len(), 1 + num6, "{context}");
                            let counted: i64 =
                                cluster.handle("net.a").unwrap().block.values().sum();
                            let (told, is_late) =
                                (told.len() as i64, matches!(fault, Fault::Late { .. }));
                            // A count of one too many is corrected by a DEL; one too few loses an
                            // address.
                            let is_right = counted == told || is_late && counted > told;
                            assert!(is_right, "{context}: the handle counts {counted} of {told}");
                        }
                        Err(_) => {
                            assert_eq!(now, others, "{context}: a failed ADD holds addresses")
                        }
                    }
                    cluster.release("net.a").await.unwrap();
                    assert_eq!(
                        held(&cluster.store.pairs()),
                        others,
                        "{context}: leaked after DEL"
                    );
                    assert_eq!(
                        cluster.handle("net.a"),
                        None,
                        "{context}: handle left after DEL"
                    );
                    // The node's next allocation of the family repairs an unfinished affinity.
                    let mut request = cluster.request("node1", "net.next");
                    request.num6 = num6;
                    cluster.assign(&request).await.unwrap();
                    assert_consistent(&cluster.store.pairs(), true);
                }
            }
        }
    }
}

/// The handle counts an address of an earlier ADD of the container, in the block that the second
/// ADD uses.
#[tokio::test]
async fn second_add_interrupted_at_any_request_preserves_the_first_count() {
    for (kind, store) in stores() {
        for (warm, fault, at) in [false, true].into_iter().flat_map(|warm| {
            faults().flat_map(move |fault| (0..8).map(move |at| (warm, fault, at)))
        }) {
            let context = format!("{kind} warm={warm} {fault:?} at request {at}");
            let cluster = cluster(store(), warm).await;
            let others = held(&cluster.store.pairs());
            let first = cluster.one("node1", "net.a").await.unwrap();
            let mut request = cluster.request("node1", "net.a");
            (request.num6, request.all_or_nothing) = (1, true);
            break_once(&cluster, at, fault);
            let outcome = cluster.assign(&request).await;
            cluster.store.end_faults();
            assert_consistent(&cluster.store.pairs(), false);
            let now = held(&cluster.store.pairs());
            let told = outcome
                .iter()
                .flat_map(|assigned| &assigned.addresses)
                .map(|a| a.ip);
            let mut expected: Vec<_> = [first].into_iter().chain(told).collect();
            expected.sort();
            assert_eq!(now[&request.handle], expected, "{context}");
            cluster.release("net.a").await.unwrap();
            assert_eq!(
                held(&cluster.store.pairs()),
                others,
                "{context}: leaked after DEL"
            );
            assert_eq!(
                cluster.handle("net.a"),
                None,
                "{context}: handle left after DEL"
            );
        }
    }
}

#[tokio::test]
async fn write_applied_after_the_del_allocates_no_address() {
    for (kind, store) in stores() {
        for (warm, applied, at) in [false, true].into_iter().flat_map(|warm| {
            (0..5).flat_map(move |applied| (0..8).map(move |at| (warm, applied, at)))
        }) {
            let context = format!("{kind} warm={warm} applied={applied} at request {at}");
            let cluster = cluster(store(), warm).await;
            let others = held(&cluster.store.pairs());
            break_once(
                &cluster,
                at,
                Fault::Late {
                    applied,
                    after: usize::MAX,
                },
            );
            _ = cluster.one("node1", "net.a").await;
            // The fault may hit a DEL, and at most one of the two.
            if cluster.release("net.a").await.is_err() | cluster.release("net.a").await.is_err() {
                cluster
                    .release("net.a")
                    .await
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
            }
            cluster.store.end_faults();
            assert_eq!(
                held(&cluster.store.pairs()),
                others,
                "{context}: leaked after DEL"
            );
        }
    }
}

/// The handle counts a block that turns out to be full, the write that moves the count breaks, and
/// an address of that block is released meanwhile.
#[tokio::test]
async fn interrupted_move_of_a_reserved_count_loses_no_address() {
    let broken = faults().filter(|fault| *fault != Fault::Refused);
    for fault in broken.chain([Fault::Late {
        applied: 0,
        after: usize::MAX,
    }]) {
        let cluster = Cluster::on(MemoryStore::sequential());
        cluster.pool("pool4", "10.65.0.0/29", 31);
        for handle in ["net.x", "net.y", "net.z"] {
            cluster.one("node1", handle).await.unwrap();
        }
        let blocks = cluster.store.pairs().list::<Block>(&None);
        let full = blocks
            .into_iter()
            .find(|(_, block)| block.unallocated.is_empty())
            .unwrap()
            .0;
        let (mut broken, mut counted) = (false, None);
        cluster.store.before_each(move |_, writes, pairs| {
            let Some([write, ..]) = writes.filter(|_| !broken) else {
                return Fault::None;
            };
            match &write.op {
                WriteOp::Create(handle) if write.kind == Handle::KIND => {
                    counted = Handle::decode(handle).ok();
                    return Fault::None;
                }
                WriteOp::Update(..) if write.kind == Handle::KIND => {}
                _ => return Fault::None,
            }
            assert!(
                counted.take().unwrap().block.contains_key(&full),
                "{fault:?}: it counts another block"
            );
            broken = true;
            let mut block = pairs.get::<Block>(&full).unwrap();
            let holder = block.allocated().next().unwrap().handle().unwrap();
            block
                .release_by_handle(
                    &holder,
                    None,
                    0,
                    time::macros::datetime!(2026-08-22 01:00:00 UTC),
                )
                .unwrap();
            block.count_write();
            pairs.put(Block::path(&full), block.encode().unwrap());
            fault
        });
        let ip = cluster
            .one("node1", "net.a")
            .await
            .unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert!(
            fault != Fault::LostRequest || full.contains(ip),
            "the next attempt is to find room there"
        );
        cluster.store.end_faults();
        let counted: i64 = cluster.handle("net.a").unwrap().block.values().sum();
        let is_right = counted == 1 || matches!(fault, Fault::Late { .. }) && counted > 1;
        assert!(is_right, "{fault:?}: the handle counts {counted}");
        cluster.release("net.a").await.unwrap();
        assert!(
            !held(&cluster.store.pairs()).contains_key(&HandleId::new("net.a")),
            "{fault:?}: leaked after DEL"
        );
        assert_eq!(cluster.handle("net.a"), None, "{fault:?}");
    }
}

#[tokio::test]
async fn add_succeeds_despite_lost_responses() {
    for (kind, store) in stores() {
        for warm in [false, true] {
            let cluster = cluster(store(), warm).await;
            cluster.store.before_each(|_, writes, _| {
                if writes.is_some_and(|writes| writes[0].kind == "IPAMHandle") {
                    Fault::LostAnswer
                } else {
                    Fault::None
                }
            });
            let ip = cluster
                .one("node1", "net.a")
                .await
                .unwrap_or_else(|error| panic!("{kind} {warm}: {error}"));
            cluster.store.end_faults();
            assert_eq!(held(&cluster.store.pairs())[&HandleId::new("net.a")], [ip]);
            assert_consistent(&cluster.store.pairs(), true);
        }
    }
}

#[tokio::test]
async fn address_is_assigned_though_its_affinity_cannot_be_confirmed() {
    for (kind, store) in stores() {
        for asked in [false, true] {
            for fault in [Fault::Refused, Fault::LostRequest] {
                let context = format!("{kind} asked={asked} {fault:?}");
                let cluster = cluster(store(), false).await;
                cluster.store.before_each(move |_, writes, _| match writes {
                    Some([write]) if write.kind == "BlockAffinity" => fault,
                    _ => Fault::None,
                });
                let ip = if asked {
                    let request = cluster.request("node1", "net.a");
                    let inputs = cluster.inputs(&request).await.unwrap();
                    let ip = "10.65.0.9".parse().unwrap();
                    let assigned =
                        assign_address(&cluster.store, &cluster.clock, &request, ip, inputs).await;
                    assigned.map(|assigned| assigned.ip)
                } else {
                    cluster.one("node1", "net.a").await
                };
                let ip = ip.unwrap_or_else(|error| panic!("{context}: {error}"));
                cluster.store.end_faults();
                assert_eq!(
                    held(&cluster.store.pairs())[&HandleId::new("net.a")],
                    [ip],
                    "{context}"
                );
                assert_consistent(&cluster.store.pairs(), false);
                cluster.one("node1", "net.next").await.unwrap();
                assert_consistent(&cluster.store.pairs(), true);
            }
        }
    }
}

#[tokio::test]
async fn del_interrupted_at_any_request_is_completed_by_the_next_del() {
    for (kind, store) in stores() {
        for fault in faults() {
            for at in (0..6).step_by(kill_every()) {
                let context = format!("{kind} {fault:?} at request {at}");
                let cluster = cluster(store(), true).await;
                let others = held(&cluster.store.pairs());
                let mut request = cluster.request("node1", "net.a");
                request.num6 = 1;
                cluster.assign(&request).await.unwrap();
                break_once(&cluster, at, fault);
                let first = cluster.release("net.a").await;
                cluster.store.end_faults();
                assert_consistent(&cluster.store.pairs(), false);
                if first.is_ok() {
                    assert_eq!(
                        held(&cluster.store.pairs()),
                        others,
                        "{context}: success, but not released"
                    );
                }
                cluster.release("net.a").await.unwrap();
                assert_eq!(held(&cluster.store.pairs()), others, "{context}");
                assert_eq!(cluster.handle("net.a"), None, "{context}");
                assert_consistent(&cluster.store.pairs(), true);
            }
        }
    }
}

#[tokio::test]
async fn lost_response_past_the_deadline_is_verified_with_few_requests() {
    for (kind, store) in stores() {
        let cluster = cluster(store(), true).await;
        let mut is_lost = false;
        cluster.store.before_each(move |_, writes, _| match writes {
            Some(_) if !is_lost => {
                is_lost = true;
                Fault::LostAnswer
            }
            _ if is_lost => Fault::Refused,
            _ => Fault::None,
        });
        cluster.store.give_up();
        cluster.one("node1", "net.b").await.unwrap_err();
        let (reads, writes) = cluster.store.take_counts();
        assert!(
            reads + writes < 10,
            "{kind}: {reads} reads, {writes} writes"
        );
    }
}
