//! Changes by other nodes, and broken connections, between any two requests.

use std::collections::BTreeSet;
use std::time::Duration;

use libcalico::api::{IpPool, ObjectKey};
use libcalico::ipam::{AffinityOwner, Block, BlockRequest, Handle};
use libcalico::store::Kind;

use super::*;
use crate::testing::{Fault, Pairs, TestClock};

/// Another node takes the first address of the list between any two requests.
#[tokio::test]
async fn two_nodes_never_get_one_listed_address() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        for at in 0..8 {
            let cluster = Cluster::on(store());
            cluster.pool("pool4", "10.65.0.0/16", 26);
            let list = list(&["10.65.3.3", "10.65.3.4"]);
            let warm = request(&cluster, "node1", "net.warm", "web-9");
            let inputs = cluster.inputs(&warm).await.unwrap();
            assign_address(
                &cluster.store,
                &cluster.clock,
                &warm,
                ip("10.65.3.9"),
                inputs,
            )
            .await
            .unwrap();
            cluster.store.before_each(move |nth, _, pairs| {
                if nth == at {
                    take(pairs, cidr("10.65.3.0/26"), ip("10.65.3.3"));
                }
                Fault::None
            });
            let own = request(&cluster, "node1", "net.a", "web-0");
            let found = assign_as(&cluster, &own, &list).await.unwrap();
            cluster.store.end_faults();
            let all = held(&cluster.store.pairs());
            let distinct: BTreeSet<&IpAddr> = all.values().flatten().collect();
            assert_eq!(distinct.len(), all.values().flatten().count(), "{all:?}");
            assert_eq!(all[&HandleId::new("net.a")], found);
            assert_consistent(&cluster.store.pairs(), true);
        }
    }
}

/// Another node takes the only address of one family between any two requests. The other family is
/// in the list too, or is assigned as usual.
#[tokio::test]
async fn race_for_one_family_leaves_no_address_of_the_other() {
    for (store, at) in [MemoryStore::transactional, MemoryStore::sequential]
        .into_iter()
        .flat_map(|s| (0..14).map(move |at| (s, at)))
    {
        for entries in [&["10.65.3.3", "fd00:65::3"][..], &["fd00:65::3"]] {
            let cluster = Cluster::on(store());
            cluster.pool("pool4", "10.65.0.0/16", 26);
            cluster.pool("pool6", "fd00:65::/64", 122);
            let warm = AssignRequest {
                num4: 0,
                num6: 1,
                ..request(&cluster, "node1", "net.warm", "web-9")
            };
            assign_as(&cluster, &warm, &list(&["fd00:65::9"]))
                .await
                .unwrap();
            cluster.store.before_each(move |nth, _, pairs| {
                if nth == at {
                    take(pairs, cidr("fd00:65::/122"), ip("fd00:65::3"));
                }
                Fault::None
            });
            let own = AssignRequest {
                num6: 1,
                ..request(&cluster, "node1", "net.a", "web-0")
            };
            let outcome = assign_as(&cluster, &own, &list(entries)).await;
            cluster.store.end_faults();
            let context = format!("{entries:?} at request {at}");
            let all = held(&cluster.store.pairs());
            match outcome {
                Ok(found) => assert_eq!((found.len(), &all[&own.handle]), (2, &found), "{context}"),
                Err(error) => {
                    assert!(
                        matches!(error, IpamError::NoneFree { .. }),
                        "{context}: {error}"
                    );
                    assert_eq!(all.get(&own.handle), None, "{context}");
                }
            }
            assert_consistent(&cluster.store.pairs(), true);
        }
    }
}

/// Another node takes the IPv6 address of the list, before or after the IPv4 address passes from
/// the earlier sandbox. The pod's endpoint lists the IPv4 address until the DEL.
#[tokio::test]
async fn address_of_the_earlier_sandbox_is_never_free_after_a_lost_race() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        let mut holders = BTreeSet::new();
        for at in 0..14 {
            let cluster = Cluster::on(store());
            cluster.pool("pool4", "10.65.0.0/16", 26);
            cluster.pool("pool6", "fd00:65::/64", 122);
            let warm = AssignRequest {
                num4: 0,
                num6: 1,
                ..request(&cluster, "node1", "net.warm", "web-9")
            };
            assign_as(&cluster, &warm, &list(&["fd00:65::9"]))
                .await
                .unwrap();
            assign_as(
                &cluster,
                &request(&cluster, "node1", "net.c1", "web-0"),
                &list(&["10.65.3.3"]),
            )
            .await
            .unwrap();
            let mut next = AssignRequest {
                num6: 1,
                ..request(&cluster, "node1", "net.c2", "web-0")
            };
            next.predecessor = Predecessor::from_annotation("net", "c1", "shop", "web-0");
            cluster.store.before_each(move |nth, _, pairs| {
                if nth == at {
                    take(pairs, cidr("fd00:65::/122"), ip("fd00:65::3"));
                }
                Fault::None
            });
            let outcome = assign_as(&cluster, &next, &list(&["10.65.3.3", "fd00:65::3"])).await;
            cluster.store.end_faults();
            let all = held(&cluster.store.pairs());
            let mut of_address = all
                .iter()
                .filter(|(_, held)| held.contains(&ip("10.65.3.3")));
            let (holder, _) = of_address
                .next()
                .unwrap_or_else(|| panic!("free after request {at}: {outcome:?}"));
            assert!(
                of_address.next().is_none(),
                "two holders after request {at}"
            );
            if outcome.is_err() {
                holders.insert(holder.to_string());
            }
            assert_consistent(&cluster.store.pairs(), true);
        }
        assert_eq!(holders, ["net.c1".to_owned(), "net.c2".to_owned()].into());
    }
}

/// Allocates `ip` of the block `range` for a pod of node2, handle first.
fn take(pairs: &mut Pairs, range: Cidr, ip: IpAddr) {
    let (id, owner) = (
        HandleId::new("net.rival"),
        AffinityOwner::Host("node2".into()),
    );
    let mut block = pairs.get::<Block>(&range).unwrap();
    let attributes = workload_attributes(
        "node2",
        Some(("shop", "rival")),
        time::OffsetDateTime::UNIX_EPOCH,
    );
    let from = BlockRequest {
        handle: Some(&id),
        attributes: &attributes,
        requester: &owner,
        check_affinity: false,
    };
    if block.assign_address(ip, &from).is_err() {
        return;
    }
    block.count_write();
    let mut handle = pairs.get::<Handle>(&id).unwrap_or_default();
    handle.increment(range, 1);
    pairs.put(Handle::path(&id), handle.encode().unwrap());
    pairs.put(Block::path(&range), block.encode().unwrap());
}

/// The program that deletes a pool disables it first. No process may use the pool 500 ms later
/// (IPAM-100).
#[tokio::test]
async fn pool_disabled_during_slow_reads_of_blocks_gives_no_address() {
    for store in [MemoryStore::transactional(), MemoryStore::sequential()] {
        let cluster = Cluster::on(store);
        cluster.pool("pool4", "10.65.0.0/16", 26);
        let clock: &'static TestClock = Box::leak(Box::default());
        cluster.store.before_each(move |nth, _, pairs| {
            clock.advance(Duration::from_millis(150));
            if nth == 1 {
                let mut pool = pairs.get::<IpPool>(&ObjectKey::global("pool4")).unwrap();
                pool.spec.disabled = true;
                pairs.put(IpPool::path(&pool.key()), pool.encode().unwrap());
            }
            Fault::None
        });
        let own = request(&cluster, "node1", "net.a", "web-0");
        let inputs = cluster.inputs(&own).await.unwrap();
        let outcome =
            assign_listed(&cluster.store, clock, &own, &list(&["10.65.3.3"]), inputs).await;
        assert!(
            matches!(outcome, Err(IpamError::NoneFree { .. })),
            "{outcome:?}"
        );
        assert!(held(&cluster.store.pairs()).is_empty());
        assert_eq!(cluster.handle("net.a"), None);
    }
}

#[tokio::test]
async fn killed_any_of_leaks_nothing() {
    let faults = [
        Fault::Refused,
        Fault::LostRequest,
        Fault::LostAnswer,
        Fault::Cut(1),
        Fault::CutAnswer(1),
    ];
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        for (fault, at) in faults
            .into_iter()
            .flat_map(|fault| (0..12).map(move |at| (fault, at)))
        {
            let context = format!("{fault:?} at request {at}");
            let cluster = Cluster::on(store());
            cluster.pool("pool4", "10.65.0.0/16", 26);
            cluster.pool("pool6", "fd00:65::/64", 122);
            let mut own = request(&cluster, "node1", "net.a", "web-0");
            own.num6 = 1;
            cluster
                .store
                .before_each(move |nth, _, _| if nth == at { fault } else { Fault::None });
            let outcome = assign_as(
                &cluster,
                &own,
                &list(&["10.65.3.3", "10.65.3.4", "fd00:65::3"]),
            )
            .await;
            cluster.store.end_faults();
            assert_consistent(&cluster.store.pairs(), false);
            let mut now: Vec<IpAddr> = held(&cluster.store.pairs())
                .into_values()
                .flatten()
                .collect();
            now.sort();
            assert_eq!(now, outcome.unwrap_or_default(), "{context}");
            cluster.release("net.a").await.unwrap();
            assert!(
                held(&cluster.store.pairs()).is_empty(),
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
