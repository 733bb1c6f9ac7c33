//! Interrupted adoptions, and adoptions beside an ADD, a DEL or another adoption.

use super::*;
use allocation::alloc::inputs::AllocationInputs;
use repository::effort::kill_every;

/// With `keeps_handles`, only the block is lost; otherwise the handles and the affinity too.
async fn lossy_world(store: MemoryStore, keeps_handles: bool) -> AdoptingNode {
    let mut adopting = AdoptingNode::on(store);
    adopting.run_allocated_pods().await;
    adopting.remove(Block::path(&cidr(BLOCK)));
    if !keeps_handles {
        adopting.remove(BlockAffinity::path(&affinity_key("node1", BLOCK)));
        (0..10).for_each(|number| {
            adopting.remove(Handle::path(&HandleId::new(format!("net.c-web-{number}"))))
        });
    }
    adopting
}

#[tokio::test]
async fn adopt_killed_at_each_write_ends_in_the_same_state() {
    for (store, keeps_handles) in stores()
        .into_iter()
        .flat_map(|store| [(store, true), (store, false)])
    {
        let complete = lossy_world(store(), keeps_handles).await;
        complete.adopt().await;
        let (expected, paths) = (
            held(&complete.cluster.store.pairs()),
            complete.cluster.store.pairs().paths(),
        );
        for (at, applied) in (0..48)
            .step_by(kill_every())
            .flat_map(|at| (0..3).map(move |applied| (at, applied)))
        {
            let adopting = lossy_world(store(), keeps_handles).await;
            adopting
                .cluster
                .store
                .before_each(move |nth, writes, _| match nth.cmp(&at) {
                    std::cmp::Ordering::Less => Fault::None,
                    std::cmp::Ordering::Equal if writes.is_some() => Fault::Cut(applied),
                    _ => Fault::Refused,
                });
            _ = adopting.try_adopt(false).await;
            adopting.cluster.store.end_faults();
            let outcomes = adopting.adopt().await;
            let is_conflict = |outcome: &AdoptOutcome| matches!(outcome, AdoptOutcome::Conflict(_));
            assert!(
                !outcomes.iter().any(is_conflict),
                "killed at {at} after {applied}: {outcomes:?}"
            );
            let pairs = adopting.cluster.store.pairs();
            assert_eq!(held(&pairs), expected, "killed at {at} after {applied}");
            assert_eq!(pairs.paths(), paths, "killed at {at} after {applied}");
            assert_consistent(&pairs, true);
        }
    }
}

async fn assign(cluster: &Cluster, handle: &str, address: &str) {
    let request = cluster.request("node1", handle);
    let inputs = AllocationInputs::read(&cluster.store, &request.inputs_query())
        .await
        .unwrap();
    assign_address(
        &cluster.store,
        &cluster.clock,
        &request,
        ip(address),
        inputs,
    )
    .await
    .unwrap();
}

/// An ADD assigns the address, or another one of the block, before any request of the adoption. The
/// block is missing, or has an address of another pod.
#[tokio::test]
async fn adopt_beside_an_add_never_assigns_twice() {
    for (store, is_missing) in stores()
        .into_iter()
        .flat_map(|store| [(store, true), (store, false)])
    {
        for (address, at) in ["10.65.1.0", "10.65.1.1"]
            .into_iter()
            .flat_map(|ip| (0..12).map(move |at| (ip, at)))
        {
            let mut adopting = AdoptingNode::on(store());
            adopting.run_pod("web", "10.65.1.0");
            let rival = AdoptingNode::on(MemoryStore::transactional()).cluster;
            if !is_missing {
                assign(&adopting.cluster, "net.first", "10.65.1.9").await;
                assign(&rival, "net.first", "10.65.1.9").await;
            }
            assign(&rival, "net.rival", address).await;
            let (block, key) = (rival.block(BLOCK).unwrap(), affinity_key("node1", BLOCK));
            let (handle, affinity) = (rival.handle("net.rival").unwrap(), BlockAffinity::default());
            let affinity = BlockAffinity {
                state: AffinityState::Confirmed,
                ..affinity
            };
            adopting.cluster.store.before_each(move |nth, _, pairs| {
                let present = pairs.get::<Block>(&cidr(BLOCK));
                if nth == at
                    && present.is_none_or(|block| block.allocation(ip("10.65.1.0")).is_none())
                {
                    pairs.put(
                        Handle::path(&HandleId::new("net.rival")),
                        handle.encode().unwrap(),
                    );
                    pairs.put(BlockAffinity::path(&key), affinity.encode().unwrap());
                    pairs.put(Block::path(&cidr(BLOCK)), block.encode().unwrap());
                }
                Fault::None
            });
            let outcomes = adopting.adopt().await;
            adopting.cluster.store.end_faults();
            let pairs = adopting.cluster.store.pairs();
            let holders = held(&pairs);
            let holder = holders
                .iter()
                .find(|(_, addresses)| addresses.contains(&ip("10.65.1.0")));
            let is_rivals = holder.is_some_and(|(handle, _)| handle.as_str() == "net.rival");
            let is_conflict = matches!(outcomes[..], [AdoptOutcome::Conflict(_)]);
            assert_eq!(is_rivals, is_conflict, "at {at}: {outcomes:?}, {holders:?}");
            assert_consistent(&pairs, false);
        }
    }
}

/// Without the node's lock, a DEL deletes the handles of the missing block before any request of
/// the adoption.
#[tokio::test]
async fn adopt_beside_a_del_leaves_no_address_without_handle() {
    for (store, at) in stores()
        .into_iter()
        .flat_map(|store| (0..24).map(move |at| (store, at)))
    {
        let adopting = lossy_world(store(), true).await;
        adopting.cluster.store.before_each(move |nth, _, pairs| {
            if nth == at && pairs.get::<Block>(&cidr(BLOCK)).is_none() {
                (0..10).for_each(|number| {
                    pairs.remove(&Handle::path(&HandleId::new(format!("net.c-web-{number}"))))
                });
            }
            Fault::None
        });
        let adopted = adopting.try_adopt(false).await.unwrap();
        adopting.cluster.store.end_faults();
        let is_adopted =
            |adopted: &AdoptedAddress| matches!(adopted.outcome, AdoptOutcome::Adopted(_));
        assert!(
            adopted.addresses.iter().all(is_adopted),
            "at {at}: {adopted:?}"
        );
        assert_consistent(&adopting.cluster.store.pairs(), false);
    }
}

/// Without the node's lock, another adoption counts the address before any request of this one, and
/// creates the block before the same or any later request.
#[tokio::test]
async fn adopt_beside_another_adopt_leaves_no_address_without_handle() {
    let web = || HandleId::new("net.c-web");
    for store in stores() {
        let adopting = |store| {
            let mut adopting = AdoptingNode::on(store);
            adopting.run_pod("web", "10.65.1.1");
            adopting
        };
        let other = adopting(store());
        assert_eq!(other.adopt().await, [AdoptOutcome::Adopted(cidr(BLOCK))]);
        for (counts, creates) in
            (0..20).flat_map(|counts| (counts..20).map(move |creates| (counts, creates)))
        {
            let adopting = adopting(store());
            let (handle, block) = (
                other.cluster.handle("net.c-web").unwrap(),
                other.cluster.block(BLOCK).unwrap(),
            );
            let affinity = BlockAffinity {
                state: AffinityState::Confirmed,
                ..BlockAffinity::default()
            };
            let mut has_counted = false;
            adopting.cluster.store.before_each(move |nth, _, pairs| {
                if nth == counts && pairs.get::<Handle>(&web()).is_none() {
                    pairs.put(Handle::path(&web()), handle.encode().unwrap());
                    has_counted = true;
                }
                if nth == creates && has_counted && pairs.get::<Block>(&cidr(BLOCK)).is_none() {
                    pairs.put(
                        BlockAffinity::path(&affinity_key("node1", BLOCK)),
                        affinity.encode().unwrap(),
                    );
                    pairs.put(Block::path(&cidr(BLOCK)), block.encode().unwrap());
                }
                Fault::None
            });
            let outcomes = adopting.adopt().await;
            adopting.cluster.store.end_faults();
            let is_conflict = matches!(outcomes[..], [AdoptOutcome::Conflict(_)]);
            assert!(!is_conflict, "{counts} {creates}: {outcomes:?}");
            let pairs = adopting.cluster.store.pairs();
            assert_eq!(
                held(&pairs),
                [(web(), vec![ip("10.65.1.1")])].into(),
                "{counts} {creates}"
            );
            assert_consistent(&pairs, false);
        }
    }
}
