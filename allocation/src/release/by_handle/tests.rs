use libcalico::ipam::{Block, Handle, HandleId};
use libcalico::store::Kind;

use super::{
    AddressToRelease, HandleRead, HandleRelease, HandleWrite, ReleaseInputs, Unlisted, release,
};
use crate::release::still_allocated;
use crate::testing::{Cluster, Fault, assert_consistent, cidr};
use os::node_files::ReleaseLock;

#[tokio::test]
async fn two_handles_of_a_container_are_released_with_a_single_write() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    cluster.one("node1", "net1.cid").await.unwrap();
    cluster.one("node1", "cid").await.unwrap();
    cluster.store.take_counts();
    let both = [
        HandleId::new("net1.cid"),
        HandleId::new("cid"),
        HandleId::new("cid"),
    ];
    let inputs = ReleaseInputs::read(&cluster.store, &both).await.unwrap();
    assert_eq!(
        release(&cluster.store, &cluster.clock, inputs)
            .await
            .unwrap()
            .addresses,
        2
    );
    assert_eq!(cluster.store.take_counts(), (3, 1));
    assert_eq!(
        (cluster.handle("net1.cid"), cluster.handle("cid")),
        (None, None)
    );
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn owner_of_an_address_is_the_handle_named_in_its_block() {
    for read in [true, false] {
        let cluster = Cluster::new();
        cluster.pool("pool4", "10.65.0.0/16", 26);
        let ip = cluster.one("node1", "net.a").await.unwrap();
        let handle = HandleId::new("net.a");
        cluster
            .store
            .edit(|pairs| pairs.remove(&Handle::path(&handle)));
        let block = cluster.store.pairs().list::<Block>(&None)[0].0;
        let block = read.then_some(block);
        let leaving = |handle: &str| AddressToRelease {
            ip,
            pod: None,
            handle: Some(HandleId::new(handle)),
            block,
        };
        let both = [leaving("net.a"), leaving("net.b")];
        assert_eq!(
            still_allocated(&cluster.store, &both).await.unwrap(),
            [leaving("net.a")],
            "block read: {read}"
        );
    }
}

// Two interfaces of a container share a handle (IPAM-22).
#[tokio::test]
async fn all_addresses_of_a_handle_are_released_with_a_single_block_write() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.66.0.0/29", 29);
    for handle in ["net.a", "net.b", "net.a"] {
        cluster.one("node1", handle).await.unwrap();
    }
    let before = cluster.block("10.66.0.0/29").unwrap().sequence_number;
    assert_eq!(
        cluster.handle("net.a").unwrap().block[&cidr("10.66.0.0/29")],
        2
    );
    cluster.release("net.a").await.unwrap();
    let block = cluster.block("10.66.0.0/29").unwrap();
    assert_eq!(block.unallocated, [3, 4, 5, 6, 7, 0, 2]);
    assert_eq!(block.sequence_number, before + 1);
}

// With a cooldown, the allocation stays in its place with a release time.
#[tokio::test]
async fn released_address_is_free_only_after_the_cooldown() {
    let cluster = Cluster::new();
    cluster.pool("tiny", "10.66.0.0/31", 31);
    cluster.configure(|config| config.ip_cooldown_seconds = 30);
    let first = cluster.one("node1", "net.a").await.unwrap();
    cluster.release("net.a").await.unwrap();
    let block = cluster.block("10.66.0.0/31").unwrap();
    assert_eq!(block.unallocated, [1]);
    assert_eq!(
        block.attributes[0].released_at.as_deref(),
        Some("2026-08-22T01:02:03Z")
    );
    assert_eq!(cluster.handle("net.a"), None);
    assert_ne!(cluster.one("node1", "net.b").await.unwrap(), first);
    cluster.one("node1", "net.c").await.unwrap_err();
    cluster.clock.advance(std::time::Duration::from_secs(32));
    assert_eq!(cluster.one("node1", "net.c").await.unwrap(), first);
}

// Upstream's recorded data (golden on Kubernetes: annot-pools).
#[tokio::test]
async fn emptied_block_of_a_pool_that_deselects_the_node_is_released() {
    for owner in ["node1", "node2"] {
        let cluster = Cluster::new();
        cluster.pool_with("gold", "10.65.0.0/26", 26, |spec| {
            spec.node_selector = "tier == 'gold'".into()
        });
        cluster.node(owner, &[("tier", "gold")]);
        cluster.one(owner, "net.a").await.unwrap();
        cluster.one(owner, "net.b").await.unwrap();
        cluster.node(owner, &[]);
        cluster.release("net.a").await.unwrap();
        assert!(cluster.block("10.65.0.0/26").is_some(), "not empty yet");
        cluster.release("net.b").await.unwrap();
        assert_eq!(cluster.block("10.65.0.0/26"), None);
        assert_eq!(cluster.affinity(owner, "10.65.0.0/26"), None);
    }
}

#[tokio::test]
async fn emptied_block_is_retained_while_the_pool_selects_the_node() {
    let cluster = Cluster::new();
    cluster.pool_with("gold", "10.65.0.0/26", 26, |spec| {
        spec.node_selector = "tier == 'gold'".into()
    });
    cluster.node("node1", &[("tier", "gold")]);
    cluster.one("node1", "net.a").await.unwrap();
    cluster.release("net.a").await.unwrap();
    assert!(cluster.block("10.65.0.0/26").is_some());
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn unreadable_block_retains_its_count_and_blocks_no_other_release() {
    use libcalico::ipam::Block;
    use libcalico::store::Kind;
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.66.0.0/24", 31);
    let mut request = cluster.request("node1", "net.a");
    request.num4 = 4;
    cluster.assign(&request).await.unwrap();
    let blocks: Vec<_> = cluster.handle("net.a").unwrap().block.into_keys().collect();
    cluster
        .store
        .edit(|pairs| pairs.put(Block::path(&blocks[0]), b"{".to_vec()));
    let released = cluster.release("net.a").await.unwrap();
    assert_eq!(
        (released.addresses, released.unreadable),
        (2, vec![blocks[0]])
    );
    assert_eq!(
        cluster
            .handle("net.a")
            .unwrap()
            .block
            .into_keys()
            .collect::<Vec<_>>(),
        [blocks[0]]
    );
}

#[tokio::test]
async fn release_without_a_datastore_returns_an_unavailable_error() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    cluster.one("node1", "net.a").await.unwrap();
    cluster.store.before_each(|_, _, _| Fault::Refused);
    let error = cluster.release("net.a").await.unwrap_err();
    assert!(
        matches!(error, crate::error::IpamError::Store(ref cause) if cause.is_unavailable()),
        "{error}"
    );
}

/// A runtime repeats a DEL until it succeeds, so an inconsistent block would otherwise block its
/// containers forever.
#[tokio::test]
async fn inconsistent_block_allows_releases_and_no_assignments() {
    const BLOCK: &str = "10.65.166.128/26";
    for cooldown in [0, 30] {
        let cluster = Cluster::new();
        cluster.pool("pool4", "10.65.0.0/16", 26);
        cluster.configure(|config| config.ip_cooldown_seconds = cooldown);
        for handle in ["net.a", "net.b", "net.c"] {
            cluster.one("node1", handle).await.unwrap();
        }
        let mut damaged = cluster.block(BLOCK).unwrap();
        // These ordinals are both allocated and free.
        damaged.unallocated.splice(0..0, [0, 1]);
        cluster.store.put(&cidr(BLOCK), &damaged);
        let elsewhere = cluster.one("node1", "net.d").await.unwrap();
        assert!(!cidr(BLOCK).contains(elsewhere), "{elsewhere}");

        let released = cluster.release("net.a").await.unwrap();
        assert_eq!((released.addresses, released.unreadable), (1, Vec::new()));
        assert_eq!(cluster.handle("net.a"), None);
        let after = cluster.block(BLOCK).unwrap();
        assert_eq!(after.allocations[1..], damaged.allocations[1..]);
        assert_eq!(after.sequence_number, damaged.sequence_number + 1);
        let listed = |ordinal: usize| {
            after
                .unallocated
                .iter()
                .filter(|listed| **listed == ordinal)
                .count()
        };
        assert_eq!((listed(0), listed(1)), (usize::from(cooldown == 0), 1));
        assert_ne!(
            cluster.one("node1", "net.e").await.unwrap(),
            "10.65.166.129".parse::<std::net::IpAddr>().unwrap()
        );
    }
}

#[tokio::test]
async fn addresses_stay_allocated_until_their_endpoints_are_updated() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    let mut request = cluster.request("node1", "net.a");
    request
        .attributes
        .extend([("namespace", "ns"), ("pod", "a")].map(|(key, text)| (key.into(), text.into())));
    let ip = cluster.assign(&request).await.unwrap().addresses[0].ip;
    let before = cluster.store.pairs().list::<libcalico::ipam::Block>(&None);
    let inputs = ReleaseInputs::read(&cluster.store, &[HandleId::new("net.a")])
        .await
        .unwrap();
    let release = HandleRelease::new(&cluster.clock, inputs);
    let HandleRead::Leaving(read) = release.read(&cluster.store).await.unwrap() else {
        panic!("an address is leaving")
    };
    assert_eq!(
        cluster.store.pairs().list::<libcalico::ipam::Block>(&None),
        before
    );
    assert_eq!(cluster.handle("net.a").unwrap().block.len(), 1);

    let (pod, handle) = (("ns".to_owned(), "a".to_owned()), HandleId::new("net.a"));
    let leaving = AddressToRelease {
        ip,
        pod: Some(pod),
        handle: Some(handle),
        block: Some(before[0].0),
    };
    assert_eq!(read.leaving(), [leaving]);
    let (mut lock, unlisted) = (ReleaseLock::default(), Unlisted::new(read.leaving()));
    let written = read
        .write(&cluster.store, &cluster.clock, &mut lock, &unlisted)
        .await
        .unwrap();
    assert!(matches!(written, HandleWrite::Released(released) if released.addresses == 1));
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn release_with_a_limit_releases_nothing_if_one_address_is_newer() {
    use os::clock::Clock as _;
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.65.0.0/16", 26);
    cluster.one("node1", "net.a").await.unwrap();
    cluster.clock.advance(std::time::Duration::from_secs(1));
    let limit = cluster.clock.now();
    let read = async || {
        ReleaseInputs::read(&cluster.store, &[HandleId::new("net.a")])
            .await
            .unwrap()
    };
    let before = read().await.allocated_before(Some(limit));
    assert!(before.newer(&cluster.store).await.unwrap().is_empty());
    // The ADD gets its address after the handle was read.
    cluster.one("node1", "net.a").await.unwrap();
    let released = release(&cluster.store, &cluster.clock, before)
        .await
        .unwrap();
    assert_eq!((released.is_newer, released.addresses), (true, 0));
    assert!(
        !read()
            .await
            .allocated_before(Some(limit))
            .newer(&cluster.store)
            .await
            .unwrap()
            .is_empty()
    );
    let later = Some(limit + std::time::Duration::from_nanos(1));
    let released = release(
        &cluster.store,
        &cluster.clock,
        read().await.allocated_before(later),
    )
    .await
    .unwrap();
    assert_eq!((released.is_newer, released.addresses), (false, 2));
    assert_consistent(&cluster.store.pairs(), true);
}
