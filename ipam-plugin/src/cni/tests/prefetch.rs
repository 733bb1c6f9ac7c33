use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use libcalico::ipam::{
    AffinityOwner, AffinitySelect, Block, BlockAffinity, HandleId, ReleaseRequest,
};
use libcalico::net::Cidr;
use libcalico::store::{ReadBatch, Store, StoreError};
use netconf::{CniError, CniResult};
use time::OffsetDateTime;

use crate::cni::IpamRequest;
use crate::cni::testing::call;
use crate::cni::{self, Pod};
use allocation::alloc::block_hints::{BlockHints, HintedBlocks};
use allocation::alloc::inputs::{AllocationInputs, InputsQuery, StoredHandle};
use allocation::alloc::prefetch::{Prefetch, ReservedHandle, discard};
use allocation::alloc::request::Namespace;
use allocation::release::release_addresses;
use allocation::testing::{Cluster, Fault, MemoryStore, TestClock, assert_consistent, cidr, held};
use os::clock::Clock;

mod cache;

struct Node {
    cluster: Cluster,
    directory: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let cluster = Cluster::on(MemoryStore::sequential());
        cluster.pool("pool4", "10.65.0.0/24", 29);
        Node {
            cluster,
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn lock_file(&self) -> std::path::PathBuf {
        self.directory.path().join("ipam.lock")
    }

    fn call(&self, container: &str) -> IpamRequest {
        let recent_file = Some(self.directory.path().join("recent"));
        IpamRequest {
            lock_file: Some(self.lock_file()),
            recent_file,
            ..call(container)
        }
    }

    async fn add(&self, call: &IpamRequest) -> Result<CniResult, CniError> {
        let (store, clock) = (&self.cluster.store, &self.cluster.clock);
        let ahead = call.prefetch(store);
        let query = call.inputs_query().for_first_read(store);
        let query = ahead
            .as_ref()
            .map_or(query.clone(), |ahead| ahead.extend(query));
        let mut batch = ReadBatch::new();
        let tickets = AllocationInputs::add_to(&mut batch, &query);
        let failed = |error: StoreError| CniError::internal(error.to_string());
        let inputs = match &ahead {
            None => {
                AllocationInputs::from_answers(&store.read(&batch).await.map_err(failed)?, &tickets)
                    .map_err(failed)?
            }
            Some(ahead) => {
                let (answers, early) = ahead.read(store, clock, &call.handle(), &batch).await;
                match answers.and_then(|answers| AllocationInputs::from_answers(&answers, &tickets))
                {
                    Ok(mut inputs) => {
                        early.merge_into(&mut inputs);
                        inputs
                    }
                    Err(error) => {
                        early.discard(store, clock, &call.container_handle()).await;
                        return Err(failed(error));
                    }
                }
            }
        };
        Ok(
            cni::add(store, clock, call, inputs, ahead.map(Prefetch::into_lock))
                .await?
                .result,
        )
    }

    async fn read_ahead(&self, call: &IpamRequest) -> (Prefetch, AllocationInputs, ReservedHandle) {
        let (store, clock) = (&self.cluster.store, &self.cluster.clock);
        let ahead = call.prefetch(store).unwrap();
        let mut batch = ReadBatch::new();
        let tickets = AllocationInputs::add_to(
            &mut batch,
            &ahead.extend(call.inputs_query().for_first_read(store)),
        );
        let (answers, early) = ahead.read(store, clock, &call.handle(), &batch).await;
        (
            ahead,
            AllocationInputs::from_answers(&answers.unwrap(), &tickets).unwrap(),
            early,
        )
    }

    async fn address(&self, container: &str) -> IpAddr {
        self.add(&self.call(container)).await.unwrap().ips[0]
            .address
            .addr()
    }

    fn assert_consistent(&self) {
        assert_consistent(&self.cluster.store.pairs(), true);
    }

    async fn free(&self, container: &str) -> IpAddr {
        let ip = self.held_by(container)[0];
        let request = ReleaseRequest {
            ip,
            handle: None,
            sequence: None,
        };
        release_addresses(&self.cluster.store, &self.cluster.clock, &[request])
            .await
            .unwrap();
        ip
    }

    fn hint(&self, blocks: HintedBlocks) {
        BlockHints::read(&self.directory.path().join("recent")).store("net", "", blocks, None);
    }

    fn held_by(&self, container: &str) -> Vec<IpAddr> {
        held(&self.cluster.store.pairs())
            .remove(&HandleId::for_container("net", container))
            .unwrap_or_default()
    }
}

#[tokio::test]
async fn second_address_costs_a_single_read_and_two_writes() {
    let node = Node::new();
    node.address("a").await;
    node.cluster.store.take_counts();
    node.address("b").await;
    assert_eq!(node.cluster.store.take_counts(), (1, 2));
    node.assert_consistent();
}

fn with_room(block: Cidr) -> HintedBlocks {
    HintedBlocks {
        with_room: vec![block],
        others: Vec::new(),
    }
}

#[tokio::test]
async fn full_blocks_beside_a_block_with_room_cost_no_round_trip() {
    let node = Node::new();
    for number in 0..17 {
        node.address(&number.to_string()).await;
    }
    node.cluster.store.take_counts();
    let address = node.address("third block").await;
    assert_eq!(node.cluster.store.take_counts(), (1, 2));
    node.assert_consistent();
    let first = node.free("0").await;
    assert_ne!(address, first);
    assert_eq!(node.address("first block").await, first);
    node.assert_consistent();
}

/// The block of the last address is full now.
#[tokio::test]
async fn block_hint_is_the_first_block_with_room() {
    let node = Node::new();
    for number in 0..9 {
        node.address(&number.to_string()).await;
    }
    let first = node.free("0").await;
    assert_eq!(node.address("the last of the first block").await, first);
    node.cluster.store.take_counts();
    node.address("second block").await;
    assert_eq!(node.cluster.store.take_counts(), (1, 2));
    node.assert_consistent();
}

#[tokio::test]
async fn wrong_hints_of_other_blocks_cost_requests_only() {
    for wrong in ["10.65.0.0/29", "10.65.0.8/29", "10.99.0.0/29", "fd00::/122"] {
        let node = Node::new();
        let first = node.address("a").await;
        node.cluster.one("node2", "net.other").await.unwrap();
        let own = node
            .cluster
            .store
            .pairs()
            .list::<Block>(&None)
            .into_iter()
            .map(|(cidr, _)| cidr);
        let own: Vec<Cidr> = own.filter(|cidr| cidr.contains(first)).collect();
        let recent = HintedBlocks {
            with_room: own,
            others: vec![cidr(wrong)],
        };
        node.hint(recent);
        let address = node.address("b").await;
        assert_eq!(node.held_by("b"), [address], "{wrong}");
        node.assert_consistent();
    }
}

/// The block was read while it was another node's. Before the affinities were read, a process of
/// this node claimed it, as calico-node does for a tunnel, without the node's lock.
#[tokio::test]
async fn block_recreated_between_the_reads_is_not_mistaken_for_a_lost_claim() {
    let node = Node::new();
    let first = node.address("a").await;
    let (store, clock) = (&node.cluster.store, &node.cluster.clock);
    let claims = || {
        store
            .pairs()
            .list::<BlockAffinity>(&AffinitySelect::of(AffinityOwner::Host("node1".into())))
    };
    let (before, (block, _)) = (claims(), store.pairs().list::<Block>(&None).remove(0));
    let call = node.call("b");
    let query = InputsQuery {
        blocks: vec![block],
        ..call.inputs_query()
    };
    let mut inputs = AllocationInputs::read(store, &query).await.unwrap();
    let (_, Ok(Some(older))) = &mut inputs.blocks[0] else {
        panic!("the block is there")
    };
    older.value.affinity = Some("host:node2".into());
    let address = cni::add(store, clock, &call, inputs, None)
        .await
        .unwrap()
        .result
        .ips[0]
        .address
        .addr();
    assert!(
        block.contains(first) && block.contains(address),
        "{address}"
    );
    assert_eq!(claims(), before);
    node.assert_consistent();
}

/// The reads took longer than the deletion of a pool.
#[tokio::test]
async fn stale_prefetch_is_repeated_and_the_handle_created_once() {
    let node = Node::new();
    node.address("a").await;
    let (store, clock) = (&node.cluster.store, &node.cluster.clock);
    let call = node.call("b");
    let (ahead, mut inputs, early) = node.read_ahead(&call).await;
    early.merge_into(&mut inputs);
    inputs.is_old = true;
    node.cluster
        .pool_with("pool4", "10.65.0.0/24", 29, |spec| spec.disabled = true);
    node.cluster.pool("other", "10.66.0.0/24", 29);
    let result = cni::add(store, clock, &call, inputs, Some(ahead.into_lock()))
        .await
        .unwrap()
        .result;
    assert!(
        cidr("10.66.0.0/24").contains(result.ips[0].address.addr()),
        "{result:?}"
    );
    node.assert_consistent();
}

/// A clock on which no two moments are so close that inputs stay valid in between.
#[derive(Debug)]
struct SlowClock(TestClock);

impl Clock for SlowClock {
    fn now(&self) -> OffsetDateTime {
        self.0.now()
    }

    fn elapsed(&self) -> Duration {
        self.0.advance(Duration::from_millis(101));
        self.0.elapsed()
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        self.0.sleep(duration)
    }

    fn restarted(&self) -> Self {
        SlowClock(self.0.restarted())
    }
}

/// The process released its lock while it waited for a busy server, and waited long for the lock
/// afterwards.
#[tokio::test]
async fn inputs_read_again_after_a_wait_for_the_lock_keep_the_reserved_handle() {
    let node = Node::new();
    node.address("a").await;
    let (store, clock) = (&node.cluster.store, SlowClock(TestClock::default()));
    let call = node.call("b");
    let (ahead, mut inputs, early) = node.read_ahead(&call).await;
    early.merge_into(&mut inputs);
    drop(ahead);
    node.cluster
        .pool_with("pool4", "10.65.0.0/24", 29, |spec| spec.disabled = true);
    node.cluster.pool("other", "10.66.0.0/24", 29);
    let result = cni::add(store, &clock, &call, inputs, None)
        .await
        .unwrap()
        .result;
    assert!(
        cidr("10.66.0.0/24").contains(result.ips[0].address.addr()),
        "{result:?}"
    );
    node.assert_consistent();
}

#[tokio::test]
async fn full_block_is_replaced_in_the_hint_by_the_next_block() {
    let node = Node::new();
    for number in 0..20 {
        node.address(&number.to_string()).await;
        node.assert_consistent();
    }
    assert_eq!(held(&node.cluster.store.pairs()).len(), 20);
}

#[tokio::test]
async fn wrong_block_hint_costs_requests_only() {
    for wrong in ["10.65.0.0/29", "10.99.0.0/29", "fd00::/122"] {
        let node = Node::new();
        node.address("a").await;
        node.hint(with_room(cidr(wrong)));
        let address = node.address("b").await;
        assert_eq!(node.held_by("b"), [address], "{wrong}");
        node.assert_consistent();
    }
}

#[tokio::test]
async fn hinted_block_of_another_node_is_not_used() {
    let node = Node::new();
    node.cluster.one("node2", "net.other").await.unwrap();
    let (foreign, _) = node.cluster.store.pairs().list::<Block>(&None).remove(0);
    node.hint(with_room(foreign));
    let address = node.address("a").await;
    assert!(!foreign.contains(address), "{address}");
    node.assert_consistent();
}

#[tokio::test]
async fn pool_disabled_after_the_hint_is_not_used() {
    let node = Node::new();
    node.address("a").await;
    node.cluster
        .pool_with("pool4", "10.65.0.0/24", 29, |spec| spec.disabled = true);
    node.add(&node.call("b")).await.unwrap_err();
    node.assert_consistent();
    node.cluster.pool("other", "10.66.0.0/24", 29);
    assert!(cidr("10.66.0.0/24").contains(node.address("c").await));
    node.assert_consistent();
}

#[tokio::test]
async fn each_namespace_and_network_has_a_separate_hint() {
    let node = Node::new();
    let pod = |container: &str, namespace: &str, pool: &str| IpamRequest {
        pod: Some(Pod {
            namespace: Namespace {
                name: namespace.into(),
                ..Namespace::default()
            },
            name: container.into(),
        }),
        ipv4_pools: vec![pool.into()],
        ..node.call(container)
    };
    node.cluster.pool("pool6", "10.66.0.0/24", 29);
    for (container, namespace, pool) in [("a", "x", "pool4"), ("b", "y", "pool6")] {
        node.add(&pod(container, namespace, pool)).await.unwrap();
    }
    for (container, namespace, pool) in [("c", "x", "pool4"), ("d", "y", "pool6")] {
        node.cluster.store.take_counts();
        node.add(&pod(container, namespace, pool)).await.unwrap();
        assert_eq!(node.cluster.store.take_counts(), (1, 2), "{namespace}");
    }
    // The pod's own pools differ from its namespace's.
    node.add(&pod("e", "x", "pool6")).await.unwrap();
    node.assert_consistent();
}

#[tokio::test]
async fn prefetch_is_skipped_without_a_hint_or_benefit() {
    let node = Node::new();
    let store = &node.cluster.store;
    let ahead = |call: &IpamRequest| call.prefetch(store).is_some();
    assert!(!ahead(&node.call("a")), "no hint yet");
    node.address("a").await;
    assert!(ahead(&node.call("b")));
    assert!(
        node.call("b")
            .prefetch(&MemoryStore::transactional())
            .is_none()
    );
    assert!(!ahead(&IpamRequest {
        ip: Some("10.65.0.9".parse().unwrap()),
        ..node.call("b")
    }));
    assert!(
        !ahead(&IpamRequest {
            assign_ipv6: true,
            ..node.call("b")
        }),
        "one family of two"
    );
    assert!(!ahead(&IpamRequest {
        lock_file: None,
        ..node.call("b")
    }));
    assert!(!ahead(&IpamRequest {
        recent_file: None,
        ..node.call("b")
    }));
    let pod = Pod {
        namespace: Namespace::default(),
        name: "virt-launcher-vm1-x".into(),
    };
    assert!(!ahead(&IpamRequest {
        pod: Some(pod),
        ..node.call("b")
    }));
    let held: &Path = &node.lock_file();
    let lock = node.call("b").files.free_ipam_lock(held).unwrap();
    assert!(!ahead(&node.call("b")), "another process has the lock");
    drop(lock);
    assert!(ahead(&node.call("b")));
}

#[tokio::test]
async fn prefetch_stops_after_a_read_that_finds_the_datastore_not_ready() {
    let node = Node::new();
    let store = &node.cluster.store;
    let call = node.call("b");
    call.stop_prefetch(None).await;
    node.address("a").await;
    let ahead = call.prefetch(store).unwrap();
    call.stop_prefetch(Some(&ahead)).await;
    drop(ahead);
    assert!(call.prefetch(store).is_none(), "the node remembers");
    node.address("c").await;
    assert!(call.prefetch(store).is_some(), "an ADD has succeeded");
    // DEL and STATUS call this without the lock.
    call.stop_prefetch(None).await;
    assert!(call.prefetch(store).is_none());
}

#[tokio::test]
async fn dual_stack_add_prefetches_both_families() {
    let node = Node::new();
    node.cluster.pool("pool6", "fd00:65::/116", 122);
    let both = |container: &str| IpamRequest {
        assign_ipv6: true,
        ..node.call(container)
    };
    node.add(&both("a")).await.unwrap();
    node.cluster.store.take_counts();
    node.add(&both("b")).await.unwrap();
    assert_eq!(node.cluster.store.take_counts(), (1, 2));
    assert_eq!(node.held_by("b").len(), 2);
    node.assert_consistent();
}

#[tokio::test]
async fn existing_handle_is_not_mistaken_for_the_reserved_handle() {
    let node = Node::new();
    node.address("a").await;
    node.address("b").await;
    node.address("b").await;
    assert_eq!(node.held_by("b").len(), 2);
    node.assert_consistent();
}

/// Each request in turn is refused, lost before the server, or its response is lost.
#[tokio::test]
async fn fault_at_any_request_assigns_no_address_twice_and_del_releases_all() {
    for (fault, is_old) in [Fault::Refused, Fault::LostRequest, Fault::LostAnswer]
        .into_iter()
        .flat_map(|f| [(f, false), (f, true)])
    {
        for at in 0..6 {
            let node = Node::new();
            let first = node.address("a").await;
            if is_old {
                // The cache does not contain the allocation of the next address.
                node.cluster.store.stop_cache();
                node.cluster.one("node1", "net.other").await.unwrap();
            }
            node.cluster
                .store
                .before_each(move |number, _, _| if number == at { fault } else { Fault::None });
            let outcome = node.add(&node.call("b")).await;
            node.cluster.store.end_faults();
            assert_consistent(&node.cluster.store.pairs(), false);
            let kept = node.held_by("b");
            match &outcome {
                Ok(result) => assert_eq!(kept, [result.ips[0].address.addr()], "{fault:?} at {at}"),
                Err(_) => assert!(
                    kept.is_empty() || fault == Fault::LostAnswer,
                    "{fault:?} at {at}: {kept:?}"
                ),
            }
            assert!(!kept.contains(&first));
            let handle = HandleId::for_container("net", "b");
            node.cluster.release(&handle.to_string()).await.unwrap();
            assert!(node.held_by("b").is_empty());
            node.assert_consistent();
        }
    }
}

/// The read is refused while the handle is created.
#[tokio::test]
async fn failed_prefetch_deletes_the_reserved_handle() {
    let node = Node::new();
    node.address("a").await;
    let mut failed = false;
    node.cluster
        .store
        .before_each(move |_, writes, _| match (writes, failed) {
            (None, false) => {
                failed = true;
                Fault::Refused
            }
            _ => Fault::None,
        });
    node.add(&node.call("b")).await.unwrap_err();
    node.cluster.store.end_faults();
    assert_eq!(
        node.cluster
            .handle(&HandleId::for_container("net", "b").to_string()),
        None
    );
    node.assert_consistent();
}

/// The handle is created, its response is lost, and it cannot be read.
#[tokio::test]
async fn unreadable_reserved_handle_fails_the_add() {
    let node = Node::new();
    node.address("a").await;
    let mut lost = false;
    node.cluster
        .store
        .before_each(move |_, writes, _| match writes {
            Some([write]) if write.kind == "IPAMHandle" && !lost => {
                lost = true;
                Fault::LostAnswer
            }
            None if lost => Fault::Refused,
            _ => Fault::None,
        });
    node.add(&node.call("b")).await.unwrap_err();
    node.cluster.store.end_faults();
    assert!(node.held_by("b").is_empty());
    node.cluster
        .release(&HandleId::for_container("net", "b").to_string())
        .await
        .unwrap();
    node.assert_consistent();
}

/// An ADD that turns out not to need the allocator.
#[tokio::test]
async fn discarded_prefetch_deletes_the_reserved_handle() {
    let node = Node::new();
    node.address("a").await;
    let (store, clock) = (&node.cluster.store, &node.cluster.clock);
    let call = node.call("b");
    let (_ahead, mut inputs, early) = node.read_ahead(&call).await;
    early.merge_into(&mut inputs);
    assert!(node.cluster.handle(&call.handle().to_string()).is_some());
    discard(store, clock, &call.container_handle(), &mut inputs).await;
    assert_eq!(
        (&inputs.handle, inputs.reserved.len()),
        (&StoredHandle::Unread, 0)
    );
    node.assert_consistent();
}
