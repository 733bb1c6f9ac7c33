use libcalico::ipam::{AffinityState, Block, BlockAffinity, Handle, HandleId};
use libcalico::store::{Store, StoreError, Write, WriteOp};

use crate::error::IpamError;
use crate::release::{ReleaseInputs, ReleasedHandles, release};
use crate::testing::{
    Cluster, Fault, MemoryStore, affinity_key, assert_consistent, cidr, held, take_one,
};
use os::clock::Clock;

const BLOCK: &str = "10.65.0.0/26";
const HANDLE: &str = "net.a";

/// The state that a killed ADD on `node1` left: the block's creation is in progress.
struct Killed {
    cluster: Cluster,
    creation: Write,
}

fn killed(store: MemoryStore, state: Option<AffinityState>) -> Killed {
    let cluster = Cluster::on(store);
    cluster.pool("pool4", "10.65.0.0/24", 26);
    let mut handle = Handle::default();
    handle.increment(cidr(BLOCK), 1);
    cluster.store.put(&HandleId::new(HANDLE), &handle);
    if let Some(state) = state {
        let claim = BlockAffinity {
            state,
            ..BlockAffinity::default()
        };
        cluster.store.put(&affinity_key("node1", BLOCK), &claim);
    }
    let creation = Write::create::<Block>(&cidr(BLOCK), &taken(&cluster)).unwrap();
    Killed { cluster, creation }
}

fn taken(cluster: &Cluster) -> Block {
    let mut block = Block::new(
        cidr(BLOCK),
        &affinity_key("node1", BLOCK).owner,
        cluster.clock.now(),
    )
    .unwrap();
    assert!(take_one(&mut block, "node1", &HandleId::new(HANDLE)));
    block
}

async fn release_on(cluster: &Cluster, node: &str) -> Result<ReleasedHandles, IpamError> {
    let inputs = ReleaseInputs::read(&cluster.store, &[HandleId::new(HANDLE)]).await?;
    release(&cluster.store, &cluster.clock, inputs.on_node(node)).await
}

fn stores() -> [MemoryStore; 2] {
    [MemoryStore::sequential(), MemoryStore::transactional()]
}

#[tokio::test]
async fn block_created_after_the_del_of_a_killed_add_allocates_no_address() {
    for store in stores() {
        let Killed { cluster, creation } = killed(store, Some(AffinityState::Pending));
        cluster.release(HANDLE).await.unwrap();
        assert_eq!(cluster.handle(HANDLE), None);
        let late = cluster.store.write_one(creation).await.unwrap_err();
        assert!(matches!(late, StoreError::AlreadyExists { .. }), "{late}");
        assert!(held(&cluster.store.pairs()).is_empty());
        assert_consistent(&cluster.store.pairs(), false);
        assert_eq!(
            cluster.affinity("node1", BLOCK),
            Some(AffinityState::Pending)
        );
        // The affinity counted towards the block limit already.
        cluster
            .configure(|config| (config.strict_affinity, config.max_blocks_per_host) = (true, 1));
        let ip = cluster.one("node1", "net.b").await.unwrap();
        assert!(cidr(BLOCK).contains(ip), "{ip}");
        assert_consistent(&cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn block_created_during_the_del_is_released() {
    for store in stores() {
        let Killed { cluster, creation } = killed(store, Some(AffinityState::Pending));
        let mut creation = Some(creation);
        cluster.store.before_each(move |_, writes, pairs| {
            if let Some(creation) = creation.take_if(|_| writes.is_some()) {
                let WriteOp::Create(value) = creation.op else {
                    unreachable!()
                };
                pairs.put(creation.path, value);
            }
            Fault::None
        });
        assert_eq!(release_on(&cluster, "node1").await.unwrap().addresses, 1);
        cluster.store.end_faults();
        assert_eq!(cluster.handle(HANDLE), None);
        assert!(held(&cluster.store.pairs()).is_empty());
        assert_consistent(&cluster.store.pairs(), false);
    }
}

/// Releasing the block at once would let the late creation succeed.
#[tokio::test]
async fn placeholder_block_is_retained_until_the_nodes_next_allocation() {
    let Killed { cluster, creation } =
        killed(MemoryStore::sequential(), Some(AffinityState::Pending));
    cluster.pool_with("pool4", "10.65.0.0/24", 26, |spec| {
        spec.node_selector = "tier == 'gold'".into()
    });
    cluster.pool("other", "10.66.0.0/24", 26);
    release_on(&cluster, "node1").await.unwrap();
    cluster.store.write_one(creation).await.unwrap_err();
    cluster.one("node1", "net.b").await.unwrap();
    assert_eq!(
        (cluster.block(BLOCK), cluster.affinity("node1", BLOCK)),
        (None, None)
    );
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn placeholder_block_requires_a_pending_affinity_of_the_node() {
    for state in [
        None,
        Some(AffinityState::PendingDeletion),
        Some(AffinityState::Confirmed),
    ] {
        let Killed { cluster, .. } = killed(MemoryStore::sequential(), state);
        release_on(&cluster, "node1").await.unwrap();
        assert_eq!(
            (cluster.handle(HANDLE), cluster.block(BLOCK)),
            (None, None),
            "{state:?}"
        );
        assert_eq!(cluster.affinity("node1", BLOCK), state);
    }
    let Killed { cluster, .. } = killed(MemoryStore::sequential(), Some(AffinityState::Pending));
    release_on(&cluster, "node2").await.unwrap();
    assert_eq!((cluster.handle(HANDLE), cluster.block(BLOCK)), (None, None));
}

#[tokio::test]
async fn no_placeholder_block_is_created_outside_pools_or_over_another_block() {
    let Killed { cluster, .. } = killed(MemoryStore::sequential(), Some(AffinityState::Pending));
    cluster.pool("pool4", "10.66.0.0/24", 26);
    release_on(&cluster, "node1").await.unwrap();
    assert_eq!((cluster.handle(HANDLE), cluster.block(BLOCK)), (None, None));

    let Killed { cluster, .. } = killed(MemoryStore::sequential(), Some(AffinityState::Pending));
    cluster.pool("pool4", "10.65.0.0/24", 28);
    let owner = affinity_key("node2", BLOCK).owner;
    let smaller = Block::new(
        cidr("10.65.0.16/28"),
        &owner,
        time::OffsetDateTime::UNIX_EPOCH,
    )
    .unwrap();
    cluster.store.put(&smaller.cidr, &smaller);
    release_on(&cluster, "node1").await.unwrap();
    assert_eq!((cluster.handle(HANDLE), cluster.block(BLOCK)), (None, None));
}

#[tokio::test]
async fn release_with_all_blocks_present_reads_no_affinities() {
    let cluster = Cluster::on(MemoryStore::sequential());
    cluster.pool("pool4", "10.65.0.0/24", 26);
    cluster.one("node1", "net.other").await.unwrap();
    cluster.one("node1", HANDLE).await.unwrap();
    cluster.store.take_counts();
    release_on(&cluster, "node1").await.unwrap();
    assert_eq!(cluster.store.take_counts(), (2, 1));
}
