use libcalico::ipam::{Handle, HandleId};

use crate::alloc::one_address::assign_address;
use crate::error::IpamError;
use crate::testing::{Cluster, Fault, MemoryStore, assert_consistent, cidr, held};

/// An allocation in this store creates its handle without reading it first.
fn cluster(block_size: u8) -> Cluster {
    let cluster = Cluster::on(MemoryStore::sequential());
    cluster.pool("pool4", "10.65.0.0/24", block_size);
    cluster
}

#[tokio::test]
async fn warm_node_creates_the_handle_during_the_block_read() {
    let cluster = cluster(26);
    cluster.one("node1", "net.first").await.unwrap();
    cluster.store.take_counts();
    cluster.one("node1", "net.a").await.unwrap();
    assert_eq!(cluster.store.take_counts(), (2, 2));
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn handle_counts_the_assigned_block_instead_of_the_full_hinted_block() {
    let cluster = cluster(31);
    for handle in ["net.a", "net.b", "net.c", "net.d", "net.e"] {
        cluster.one("node1", handle).await.unwrap();
        assert_consistent(&cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn reserved_handle_counts_both_families() {
    let cluster = cluster(26);
    cluster.pool("pool6", "fd00:65::/116", 122);
    for handle in ["net.a", "net.b"] {
        let mut request = cluster.request("node1", handle);
        request.num6 = 1;
        assert_eq!(cluster.assign(&request).await.unwrap().addresses.len(), 2);
        assert_eq!(cluster.handle(handle).unwrap().block.len(), 2);
        assert_consistent(&cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn existing_handle_counts_are_incremented_and_retained() {
    let cluster = cluster(26);
    let block = cidr("10.65.0.128/26");
    cluster.one("node1", "net.a").await.unwrap();
    assert!(cluster.handle("net.a").unwrap().block.contains_key(&block));
    cluster.one("node1", "net.a").await.unwrap();
    assert_eq!(cluster.handle("net.a").unwrap().block[&block], 2);
    assert_consistent(&cluster.store.pairs(), true);
    // Counts that a killed ADD left stay, because their owner cannot be determined.
    let mut left = Handle::default();
    left.increment(block, 1);
    cluster.store.put(&HandleId::new("net.b"), &left);
    cluster.one("node1", "net.b").await.unwrap();
    assert_eq!(cluster.handle("net.b").unwrap().block[&block], 2);
}

#[tokio::test]
async fn handle_is_deleted_when_no_address_is_assigned() {
    let cluster = cluster(31);
    cluster.pool_with("pool4", "10.65.0.0/31", 31, |_| {});
    for handle in ["net.a", "net.b"] {
        cluster.one("node1", handle).await.unwrap();
    }
    let error = cluster.one("node1", "net.c").await.unwrap_err();
    assert!(matches!(error, IpamError::Shortfall(_)), "{error}");
    assert_eq!(cluster.handle("net.c"), None);
    let request = cluster.request("node1", "net.d");
    let inputs = cluster.inputs(&request).await.unwrap();
    let taken = "10.65.0.0".parse().unwrap();
    let error = assign_address(&cluster.store, &cluster.clock, &request, taken, inputs)
        .await
        .unwrap_err();
    assert!(
        matches!(error, IpamError::AlreadyAssigned { .. }),
        "{error}"
    );
    assert_eq!(cluster.handle("net.d"), None);
    assert_consistent(&cluster.store.pairs(), true);
}

/// Another process changes the block's revision before each of the first two attempts.
#[tokio::test]
async fn lost_race_does_not_create_the_handle_again() {
    let cluster = cluster(26);
    cluster.one("node1", "net.first").await.unwrap();
    let mut races = 2;
    cluster.store.before_each(move |_, writes, pairs| {
        if let Some([write]) = writes
            && write.kind == "IPAMBlock"
            && races > 0
        {
            races -= 1;
            pairs.touch(&write.path);
        }
        Fault::None
    });
    cluster.one("node1", "net.a").await.unwrap();
    assert_eq!(cluster.store.take_counts().1, 4);
    cluster.store.end_faults();
    assert_consistent(&cluster.store.pairs(), true);
}

/// The block is written, but the response is lost, and the datastore then refuses a number of
/// requests.
#[tokio::test]
async fn write_of_unknown_outcome_stays_counted_for_the_del() {
    for silent in [1, 10, 100, 1000] {
        let cluster = cluster(26);
        cluster.one("node1", "net.first").await.unwrap();
        let mut left = None;
        cluster
            .store
            .before_each(move |_, writes, _| match (&mut left, writes) {
                (None, Some([write])) if write.kind == "IPAMBlock" => {
                    left = Some(silent);
                    Fault::LostAnswer
                }
                (Some(left), _) if *left > 0 => {
                    *left -= 1;
                    Fault::Refused
                }
                _ => Fault::None,
            });
        let outcome = cluster.one("node1", "net.a").await;
        cluster.store.end_faults();
        let pairs = cluster.store.pairs();
        assert_consistent(&pairs, false);
        let kept = held(&pairs)
            .remove(&HandleId::new("net.a"))
            .unwrap_or_default();
        assert!(
            outcome.is_err() || kept.contains(&outcome.unwrap()),
            "{silent}"
        );
        assert_eq!(
            cluster.release("net.a").await.unwrap().addresses,
            kept.len(),
            "{silent}"
        );
        assert_eq!(held(&cluster.store.pairs()).len(), 1, "{silent}: leaked");
    }
}
