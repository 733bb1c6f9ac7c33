//! Another process creates a block of another size while a node claims a block, and faults while a
//! node gives up a block of a former size.

use std::net::IpAddr;

use libcalico::ipam::{
    AffinityKey, AffinityOwner, AffinitySelect, AffinityState, Block, BlockAffinity, BlockWalk,
    Handle, HandleId, OwnerSlot,
};
use libcalico::net::Cidr;
use libcalico::store::{Kind, Write, WriteOp};

use super::faults::{break_once, faults, stores};
use crate::alloc::one_address::assign_address;
use crate::alloc::request::{AssignRequest, workload_attributes};
use crate::testing::{Cluster, Fault, MemoryStore, Pairs, assert_consistent, cidr, held, take_one};
use os::clock::Clock;

const POOL: &str = "10.65.0.0/16";

/// Returns a cluster whose IPv4 pool has blocks of 16 addresses, the block that `node1` tries
/// first, and a block of `node2` with 64 addresses around it, which does not exist yet.
fn scene(store: MemoryStore) -> (Cluster, Cidr, Block) {
    let cluster = Cluster::on(store);
    cluster.pool("pool4", POOL, 28);
    cluster.pool("pool6", "fd00:65::/64", 122);
    let now = cluster.clock.now();
    let first = BlockWalk::new(cidr(POOL), 28, "node1", now).next().unwrap();
    let around = Cidr::new(first.network(), 26).unwrap();
    (
        cluster,
        first,
        Block::new(around, &AffinityOwner::Host("node2".into()), now).unwrap(),
    )
}

fn put_block(pairs: &mut Pairs, block: &Block, state: AffinityState) {
    let key = AffinityKey {
        owner: block.owner().unwrap(),
        cidr: block.cidr,
    };
    let affinity = BlockAffinity {
        state,
        ..BlockAffinity::default()
    };
    pairs.put(BlockAffinity::path(&key), affinity.encode().unwrap());
    pairs.put(Block::path(&block.cidr), block.encode().unwrap());
}

fn creates(writes: Option<&[Write]>, block: &Cidr) -> bool {
    let path = Block::path(block);
    writes
        .into_iter()
        .flatten()
        .any(|write| write.path == path && matches!(write.op, WriteOp::Create(_)))
}

fn deletes(writes: Option<&[Write]>, block: &Cidr) -> bool {
    let path = Block::path(block);
    writes
        .into_iter()
        .flatten()
        .any(|write| write.path == path && matches!(write.op, WriteOp::Delete(_)))
}

/// Returns a hook that creates `other` right before `first` is created, and returns the number of
/// the request that created `first`, from that request on.
fn create_before(
    first: Cidr,
    other: Block,
) -> impl FnMut(usize, Option<&[Write]>, &mut Pairs) -> Option<usize> + Send + 'static {
    let mut created = None;
    move |nth, writes, pairs| {
        if created.is_none() && creates(writes, &first) {
            created = Some(nth);
            put_block(pairs, &other, AffinityState::Confirmed);
        }
        created
    }
}

fn blocks(cluster: &Cluster) -> Vec<Cidr> {
    cluster
        .store
        .pairs()
        .list::<Block>(&None)
        .into_iter()
        .map(|(cidr, _)| cidr)
        .collect()
}

/// Asserts that the block of `ip` overlaps with no other block.
fn assert_apart(cluster: &Cluster, ip: IpAddr, context: &str) {
    let blocks = blocks(cluster);
    let around: Vec<&Cidr> = blocks.iter().filter(|block| block.contains(ip)).collect();
    assert_eq!(around.len(), 1, "{context}: {ip} in {blocks:?}");
    let overlaps = blocks
        .iter()
        .any(|other| other != around[0] && other.overlaps(around[0]));
    assert!(!overlaps, "{context}: {ip} in {blocks:?}");
}

/// Assigns addresses on `node1`. Before the first request that `is_moment` accepts, by its number
/// and by whether it writes, `node2` creates its block.
async fn assert_avoided(
    store: MemoryStore,
    num6: usize,
    is_moment: impl Fn(usize, bool) -> bool + Send + 'static,
) {
    let (cluster, _, other) = scene(store);
    let mut is_created = false;
    cluster.store.before_each(move |nth, writes, pairs| {
        if !is_created && is_moment(nth, writes.is_some()) {
            is_created = true;
            put_block(pairs, &other, AffinityState::Confirmed);
        }
        Fault::None
    });
    let request = AssignRequest {
        num6,
        all_or_nothing: true,
        ..cluster.request("node1", "net.a")
    };
    let assigned = cluster.assign(&request).await.unwrap();
    cluster.store.end_faults();
    assert_eq!(assigned.addresses.len(), 1 + num6);
    assigned
        .addresses
        .iter()
        .for_each(|address| assert_apart(&cluster, address.ip, "claim"));
    assert_eq!(blocks(&cluster).len(), 2 + num6, "{:?}", blocks(&cluster));
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn block_of_another_size_created_before_the_ranges_are_read_is_avoided() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        for at in 0..2 {
            assert_avoided(store(), 0, move |nth, _| nth == at).await;
        }
    }
}

/// Shows SEC-58.
#[tokio::test]
async fn block_of_another_size_created_at_the_moment_of_the_claim_is_avoided() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        for num6 in [0, 1] {
            assert_avoided(store(), num6, |_, is_write| is_write).await;
        }
    }
}

/// The address is then taken from the block of the other size.
#[tokio::test]
async fn requested_address_in_a_block_created_at_the_moment_of_the_claim_is_in_one_block() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        let (cluster, first, other) = scene(store());
        let around = other.cidr;
        let mut create = create_before(first, other);
        cluster.store.before_each(move |nth, writes, pairs| {
            create(nth, writes, pairs);
            Fault::None
        });
        let request = cluster.request("node1", "net.a");
        let inputs = cluster.inputs(&request).await.unwrap();
        let ip = first.network();
        assign_address(&cluster.store, &cluster.clock, &request, ip, inputs)
            .await
            .unwrap();
        cluster.store.end_faults();
        assert_eq!(blocks(&cluster), [around]);
        assert_consistent(&cluster.store.pairs(), true);
    }
}

/// Another request takes an address of the new block before each of the requests that verify, empty
/// and delete it.
#[tokio::test]
async fn new_block_that_overlaps_and_has_an_address_of_another_request_stays() {
    for (store, after) in [MemoryStore::transactional, MemoryStore::sequential]
        .into_iter()
        .flat_map(|s| (1..5).map(move |n| (s, n)))
    {
        let (cluster, first, other) = scene(store());
        let rival = HandleId::new("net.rival");
        let (id, mut create) = (rival.clone(), create_before(first, other));
        cluster.store.before_each(move |nth, writes, pairs| {
            let created = create(nth, writes, pairs);
            if created.is_some_and(|created| nth == created + after) {
                let mut block = pairs.get::<Block>(&first).unwrap();
                assert!(take_one(&mut block, "node1", &id));
                let mut counts = Handle::default();
                counts.increment(first, 1);
                pairs.put(Handle::path(&id), counts.encode().unwrap());
                pairs.put(Block::path(&first), block.encode().unwrap());
            }
            Fault::None
        });
        let ip = cluster.one("node1", "net.a").await.unwrap();
        cluster.store.end_faults();
        assert_apart(&cluster, ip, "another request took an address");
        let held = held(&cluster.store.pairs());
        assert_eq!(held[&HandleId::new("net.a")], [ip]);
        assert!(first.contains(held[&rival][0]), "{held:?}");
        assert_ne!(
            cluster.affinity("node1", &first.to_string()),
            Some(AffinityState::Confirmed)
        );
        assert_eq!(
            cluster.handle("net.a").unwrap().block.values().sum::<i64>(),
            1
        );
        assert_consistent(&cluster.store.pairs(), false);
    }
}

/// After the deletion whose response is lost, another node may create the block again, here without
/// addresses.
#[tokio::test]
async fn new_block_whose_deletion_gets_no_response_leaves_no_affinity_and_no_count() {
    let stores = [MemoryStore::transactional, MemoryStore::sequential];
    let rounds = stores
        .into_iter()
        .flat_map(|store| [(store, false), (store, true)]);
    for ((store, is_created_again), fault) in rounds
        .flat_map(|round| [Fault::LostAnswer, Fault::ForeignAnswer].map(|fault| (round, fault)))
    {
        let (cluster, first, other) = scene(store());
        let again = Block::new(
            first,
            &AffinityOwner::Host("node3".into()),
            cluster.clock.now(),
        )
        .unwrap();
        let (mut create, mut lost) = (create_before(first, other), None);
        cluster.store.before_each(move |nth, writes, pairs| {
            create(nth, writes, pairs);
            if is_created_again && lost.is_some_and(|lost| nth == lost + 1) {
                put_block(pairs, &again, AffinityState::Confirmed);
            }
            if lost.is_none() && deletes(writes, &first) {
                lost = Some(nth);
                return fault;
            }
            Fault::None
        });
        let ip = cluster.one("node1", "net.a").await.unwrap();
        cluster.store.end_faults();
        assert_apart(&cluster, ip, "the deletion got no response");
        assert_eq!(cluster.affinity("node1", &first.to_string()), None);
        assert_eq!(
            cluster.block(&first.to_string()).is_some(),
            is_created_again
        );
        assert_consistent(&cluster.store.pairs(), true);
    }
}

/// The block is emptied, but no attempt deletes it.
#[tokio::test]
async fn new_block_that_cannot_be_deleted_leaves_no_count() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        let (cluster, first, other) = scene(store());
        let mut create = create_before(first, other);
        cluster.store.before_each(move |nth, writes, pairs| {
            create(nth, writes, pairs);
            if deletes(writes, &first) {
                Fault::Refused
            } else {
                Fault::None
            }
        });
        let ip = cluster.one("node1", "net.a").await.unwrap();
        cluster.store.end_faults();
        assert_apart(&cluster, ip, "the block cannot be deleted");
        assert!(cluster.block(&first.to_string()).unwrap().is_empty());
        assert_eq!(
            cluster.handle("net.a").unwrap().block.values().sum::<i64>(),
            1
        );
    }
}

/// Before the ranges are read again, the address passes to another launcher pod of the VMI, under
/// the same handle.
#[tokio::test]
async fn address_of_another_launcher_in_a_new_block_that_overlaps_stays_counted() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        let (cluster, first, other) = scene(store());
        let id = HandleId::new("net.vmi");
        let launcher =
            workload_attributes("node2", Some(("ns", "launcher-2")), cluster.clock.now());
        let mut create = create_before(first, other);
        cluster.store.before_each(move |nth, writes, pairs| {
            let created = create(nth, writes, pairs);
            if created.is_some_and(|created| nth == created + 1) {
                let mut block = pairs.get::<Block>(&first).unwrap();
                block.set_owner(&id, OwnerSlot::Active, &launcher);
                pairs.put(Block::path(&first), block.encode().unwrap());
            }
            Fault::None
        });
        cluster.one("node1", "net.vmi").await.unwrap();
        cluster.store.end_faults();
        assert_eq!(
            held(&cluster.store.pairs())[&HandleId::new("net.vmi")].len(),
            2
        );
        assert_consistent(&cluster.store.pairs(), false);
    }
}

/// Shows SEC-58.
#[tokio::test]
async fn add_interrupted_while_it_takes_back_a_new_block_leaves_no_address_in_two_blocks() {
    for (kind, store) in stores() {
        for (fault, at) in faults().flat_map(|fault| (2..16).map(move |at| (fault, at))) {
            let context = format!("{kind} {fault:?} at request {at}");
            let (cluster, first, other) = scene(store());
            let mut create = create_before(first, other);
            cluster.store.before_each(move |nth, writes, pairs| {
                create(nth, writes, pairs);
                if nth == at { fault } else { Fault::None }
            });
            let outcome = cluster.one("node1", "net.a").await;
            cluster.store.end_faults();
            assert_consistent(&cluster.store.pairs(), false);
            let now = held(&cluster.store.pairs());
            let told: Vec<IpAddr> = outcome.into_iter().collect();
            assert_eq!(
                now.into_values().flatten().collect::<Vec<_>>(),
                told,
                "{context}"
            );
            told.iter()
                .for_each(|ip| assert_apart(&cluster, *ip, &context));
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
            let next = cluster.one("node1", "net.next").await.unwrap();
            assert_apart(&cluster, next, &context);
            let blocks = blocks(&cluster);
            for (key, affinity) in cluster
                .store
                .pairs()
                .list::<BlockAffinity>(&AffinitySelect::default())
            {
                let is_complete =
                    affinity.state != AffinityState::Confirmed || blocks.contains(&key.cidr);
                assert!(is_complete, "{context}: {key} has no block");
            }
        }
    }
}

/// A process was killed between the creation of its block and the read of the ranges.
#[tokio::test]
async fn unconfirmed_block_that_overlaps_with_another_gives_no_address() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        for state in [AffinityState::Pending, AffinityState::PendingDeletion] {
            let (cluster, first, other) = scene(store());
            let own = Block::new(
                first,
                &AffinityOwner::Host("node1".into()),
                cluster.clock.now(),
            )
            .unwrap();
            cluster.store.edit(|pairs| {
                put_block(pairs, &own, state);
                put_block(pairs, &other, AffinityState::Confirmed);
            });
            for handle in ["net.a", "net.b"] {
                let ip = cluster.one("node1", handle).await.unwrap();
                assert_apart(&cluster, ip, handle);
            }
            assert_eq!(cluster.affinity("node1", &first.to_string()), Some(state));
            assert_consistent(&cluster.store.pairs(), false);
        }
    }
}

/// Another process of the node creates the block after the ranges were read with the node's
/// affinities.
#[tokio::test]
async fn unconfirmed_block_that_is_newer_than_the_ranges_gives_no_address() {
    let cluster = Cluster::on(MemoryStore::sequential());
    cluster.pool("pool4", "10.0.0.0/26", 32);
    cluster.configure(|config| config.max_blocks_per_host = 5);
    cluster.one("node1", "net.a").await.unwrap();
    // Close to the limit, the affinities that the cache lacks are read with the ranges.
    cluster.store.stop_cache();
    let now = cluster.clock.now();
    let newer = BlockWalk::new(cidr("10.0.0.0/26"), 32, "node1", now)
        .nth(20)
        .unwrap();
    let block =
        |cidr: Cidr, node: &str| Block::new(cidr, &AffinityOwner::Host(node.into()), now).unwrap();
    let (own, other) = (
        block(newer, "node1"),
        block(Cidr::new(newer.network(), 31).unwrap(), "node2"),
    );
    let pending = BlockAffinity {
        state: AffinityState::Pending,
        ..BlockAffinity::default()
    };
    cluster.store.put(
        &AffinityKey {
            owner: AffinityOwner::Host("node1".into()),
            cidr: newer,
        },
        &pending,
    );
    let mut reads = 0;
    cluster.store.before_each(move |_, writes, pairs| {
        reads += usize::from(writes.is_none());
        // The reads are: the inputs; the node's own block; the first blocks, with the affinities;
        // the ranges; the new block.
        if writes.is_none() && reads == 5 {
            pairs.put(Block::path(&own.cidr), own.encode().unwrap());
            put_block(pairs, &other, AffinityState::Confirmed);
        }
        Fault::None
    });
    let ip = cluster.one("node1", "net.b").await.unwrap();
    cluster.store.end_faults();
    assert_eq!(blocks(&cluster).len(), 4, "{:?}", blocks(&cluster));
    assert_apart(&cluster, ip, "the ranges were read before");
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
            assert_eq!(
                held(&cluster.store.pairs()).len(),
                usize::from(outcome.is_ok()),
                "{context}"
            );
            cluster.release("net.a").await.unwrap();
            cluster.one("node1", "net.next").await.unwrap();
            let blocks = cluster.store.pairs().list::<Block>(&None);
            assert!(
                blocks.iter().all(|(cidr, _)| cidr.prefix() == 28),
                "{context}: {blocks:?}"
            );
            assert_consistent(&cluster.store.pairs(), true);
        }
    }
}
