//! Blocks from a cache that lacks the latest writes.

use libcalico::ipam::{AffinityOwner, AffinitySelect, AffinityState, Block, BlockAffinity};

use super::{Node, with_room};
use crate::cni;
use allocation::alloc::inputs::AllocationInputs;
use allocation::alloc::one_address::assign_address;
use allocation::release::ReleaseInputs;
use allocation::testing::cidr;
use os::clock::Clock;

#[tokio::test]
async fn address_free_only_in_the_cache_is_not_assigned() {
    let node = Node::new();
    node.address("a").await;
    node.cluster.store.stop_cache();
    let taken = node.cluster.one("node1", "net.other").await.unwrap();
    let address = node.address("b").await;
    assert_eq!(node.cluster.store.blocks_from_cache(), 1);
    assert_ne!(address, taken);
    assert_eq!(node.held_by("b"), [address]);
    node.assert_consistent();
}

/// An address of the node's only block was released, without an update of the hint.
#[tokio::test]
async fn block_full_only_in_the_cache_is_read_again() {
    let node = Node::new();
    for number in 0..8 {
        node.address(&number.to_string()).await;
    }
    let own = node.cluster.store.pairs().list::<Block>(&None).remove(0).0;
    node.hint(with_room(own));
    node.cluster.store.stop_cache();
    let freed = node.free("3").await;
    assert_eq!(node.address("late").await, freed);
    assert_eq!(node.cluster.store.blocks_from_cache(), 1);
    node.assert_consistent();
}

#[tokio::test]
async fn cache_behind_the_last_write_is_bypassed() {
    let node = Node::new();
    for number in 0..9 {
        node.address(&number.to_string()).await;
    }
    node.cluster.store.stop_cache();
    let (store, clock) = (&node.cluster.store, &node.cluster.clock);
    let call = node.call("3");
    let first = node.held_by("3")[0];
    let inputs = ReleaseInputs::read(store, &[call.handle()]).await.unwrap();
    cni::del(store, clock, &call, inputs).await.unwrap();
    node.cluster.store.take_counts();
    assert_eq!(node.address("b").await, first);
    assert_eq!(node.cluster.store.take_counts(), (1, 2));
    assert_eq!(node.cluster.store.blocks_from_cache(), 0);
    node.assert_consistent();
}

/// The node's pool no longer selects it, and its block is empty only in the cache.
#[tokio::test]
async fn block_empty_only_in_the_cache_is_not_released() {
    let node = Node::new();
    let first = node.address("a").await;
    node.free("a").await;
    let block = node.cluster.store.pairs().list::<Block>(&None).remove(0).0;
    node.cluster.pool_with("pool4", "10.65.0.0/24", 29, |spec| {
        spec.node_selector = "rack == 'x'".into()
    });
    node.cluster.pool("other", "10.66.0.0/24", 29);
    node.cluster.store.stop_cache();
    let request = node
        .call("by hand")
        .assign_request(node.cluster.clock.now());
    let inputs = AllocationInputs::read(&node.cluster.store, &node.call("by hand").inputs_query())
        .await
        .unwrap();
    assign_address(
        &node.cluster.store,
        &node.cluster.clock,
        &request,
        first,
        inputs,
    )
    .await
    .unwrap();
    let claims = || {
        let own = AffinitySelect::of(AffinityOwner::Host("node1".into()));
        let found = node.cluster.store.pairs().list::<BlockAffinity>(&own);
        found
            .into_iter()
            .filter(|(key, _)| key.cidr == block)
            .map(|(_, claim)| claim.state)
            .collect::<Vec<_>>()
    };
    assert_eq!(claims(), [AffinityState::Confirmed]);
    let address = node.address("b").await;
    assert!(cidr("10.66.0.0/24").contains(address), "{address}");
    assert_eq!(claims(), [AffinityState::Confirmed]);
    node.assert_consistent();
}
