use std::net::IpAddr;

use libcalico::ipam::{HandleId, ReleaseError, ReleaseRequest};

use super::{ReleasedAddresses, release_addresses};
use crate::error::IpamError;
use crate::reads::attributes_of;
use crate::testing::{Cluster, Fault, MemoryStore, assert_consistent, held};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn plain(ip: IpAddr) -> ReleaseRequest {
    ReleaseRequest {
        ip,
        handle: None,
        sequence: None,
    }
}

async fn free(
    cluster: &Cluster,
    requests: &[ReleaseRequest],
) -> Result<ReleasedAddresses, IpamError> {
    release_addresses(&cluster.store, &cluster.clock, requests).await
}

fn delete_pools(cluster: &Cluster) {
    cluster.store.edit(|pairs| {
        for path in pairs
            .paths()
            .into_iter()
            .filter(|path| path.contains("ippools"))
        {
            pairs.remove(&path);
        }
    });
}

#[tokio::test]
async fn addresses_of_many_blocks_and_handles_are_released() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.0.0.0/16", 26);
    let mut request = cluster.request("node1", "net.many");
    request.num4 = 66;
    let mut all: Vec<IpAddr> = cluster
        .assign(&request)
        .await
        .unwrap()
        .addresses
        .iter()
        .map(|a| a.ip)
        .collect();
    all.push(cluster.one("node2", "net.b").await.unwrap());
    let requests: Vec<_> = all.iter().copied().map(plain).collect();
    let outcome = free(&cluster, &requests).await.unwrap();
    assert_eq!((outcome.released.len(), outcome.unallocated.len()), (67, 0));
    assert_eq!(
        (cluster.handle("net.many"), cluster.handle("net.b")),
        (None, None)
    );
    assert_consistent(&cluster.store.pairs(), true);
    assert_eq!(
        free(&cluster, &requests).await.unwrap().unallocated.len(),
        67,
        "a second time there is nothing to do"
    );
}

#[tokio::test]
async fn ten_addresses_of_a_block_and_handle_are_released_with_a_single_write() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        let cluster = Cluster::on(store());
        cluster.pool("pool4", "10.0.0.0/16", 26);
        let mut request = cluster.request("node1", "net.many");
        request.num4 = 10;
        let assigned = cluster.assign(&request).await.unwrap();
        let named = |ip| ReleaseRequest {
            handle: Some(request.handle.clone()),
            ..plain(ip)
        };
        let requests: Vec<_> = assigned
            .addresses
            .iter()
            .map(|assignment| named(assignment.ip))
            .collect();
        cluster.store.take_counts();
        assert_eq!(free(&cluster, &requests).await.unwrap().released.len(), 10);
        assert_eq!(cluster.store.take_counts(), (3, 1));
    }
}

#[tokio::test]
async fn address_listed_twice_is_released_once() {
    let cluster = Cluster::new();
    cluster.pool("tiny", "10.66.0.0/31", 31);
    let first = cluster.one("node1", "net.a").await.unwrap();
    cluster.one("node1", "net.b").await.unwrap();
    assert_eq!(
        free(&cluster, &[plain(first), plain(first)])
            .await
            .unwrap()
            .released,
        [first]
    );
    cluster.one("node1", "net.c").await.unwrap();
    cluster.one("node1", "net.d").await.unwrap_err();
}

#[tokio::test]
async fn addresses_without_a_pool_are_found_in_all_blocks() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.0.0.0/26", 26);
    cluster.pool("pool6", "fd00::/122", 122);
    let mut request = cluster.request("node1", "net.a");
    request.num6 = 1;
    let held_now: Vec<_> = cluster
        .assign(&request)
        .await
        .unwrap()
        .addresses
        .iter()
        .map(|a| a.ip)
        .collect();
    delete_pools(&cluster);
    // Upstream looks only in the blocks of the first family.
    let requests = [
        plain(held_now[0]),
        plain(held_now[1]),
        plain(ip("192.0.2.1")),
        plain(ip("2001:db8::1")),
    ];
    let outcome = free(&cluster, &requests).await.unwrap();
    assert_eq!(outcome.released, held_now);
    assert_eq!(outcome.unallocated, [ip("192.0.2.1"), ip("2001:db8::1")]);
}

/// The pool was deleted while its addresses were in use, and created again with another block size.
#[tokio::test]
async fn release_finds_a_block_of_a_former_block_size() {
    let cluster = Cluster::new();
    cluster.pool("before", "10.0.0.0/16", 26);
    let mut request = cluster.request("node1", "net.a");
    request.num4 = 40;
    let held_now: Vec<_> = cluster
        .assign(&request)
        .await
        .unwrap()
        .addresses
        .iter()
        .map(|a| a.ip)
        .collect();
    delete_pools(&cluster);
    cluster.pool("after", "10.0.0.0/16", 28);
    let (last, free_now) = (*held_now.last().unwrap(), ip("10.0.200.1"));
    assert_eq!(
        attributes_of(&cluster.store, &[last]).await.unwrap().len(),
        1
    );
    let outcome = free(&cluster, &[plain(last), plain(free_now)])
        .await
        .unwrap();
    assert_eq!(
        (outcome.released, outcome.unallocated),
        (vec![last], vec![free_now])
    );
    assert_eq!(held(&cluster.store.pairs())[&request.handle].len(), 39);
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn mismatched_handle_rejects_only_the_requests_of_its_block() {
    let cluster = Cluster::new();
    cluster.pool("pool4", "10.0.0.0/24", 31);
    let mut request = cluster.request("node1", "net.a");
    request.num4 = 4;
    let ips: Vec<_> = cluster
        .assign(&request)
        .await
        .unwrap()
        .addresses
        .iter()
        .map(|a| a.ip)
        .collect();
    let wrong = ReleaseRequest {
        handle: Some(HandleId::new("net.other")),
        ..plain(ips[0])
    };
    let error = free(&cluster, &[wrong, plain(ips[1]), plain(ips[2])])
        .await
        .unwrap_err();
    assert!(
        matches!(error, IpamError::Release(ReleaseError::Handle { .. })),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .starts_with("update conflict: the given handle"),
        "{error}"
    );
    assert_eq!(
        held(&cluster.store.pairs())[&request.handle],
        [ips[0], ips[1], ips[3]]
    );
    assert_consistent(&cluster.store.pairs(), true);
}

// From upstream's tests.
#[tokio::test]
async fn stale_sequence_number_releases_no_reallocated_address() {
    let cluster = Cluster::new();
    cluster.pool("tiny", "10.66.0.0/32", 32);
    let only = cluster.one("node1", "net.a").await.unwrap();
    let block = || cluster.block("10.66.0.0/32").unwrap();
    let sequence = block().sequence_number_for_allocation["0"];
    cluster.release("net.a").await.unwrap();
    cluster.one("node1", "net.a").await.unwrap();
    assert_eq!(block().sequence_number_for_allocation["0"], sequence + 2);
    let stale = ReleaseRequest {
        sequence: Some(sequence),
        handle: Some(HandleId::new("net.a")),
        ..plain(only)
    };
    let error = free(&cluster, std::slice::from_ref(&stale))
        .await
        .unwrap_err();
    assert!(
        matches!(error, IpamError::Release(ReleaseError::Sequence { .. })),
        "{error}"
    );
    let fresh = ReleaseRequest {
        sequence: Some(sequence + 2),
        ..stale
    };
    assert_eq!(free(&cluster, &[fresh]).await.unwrap().released, [only]);
}

#[tokio::test]
async fn release_happens_exactly_once_despite_races_and_faults() {
    for store in [MemoryStore::transactional, MemoryStore::sequential] {
        for fault in [Fault::None, Fault::Cut(1), Fault::LostAnswer] {
            let cluster = Cluster::on(store());
            cluster.pool("pool4", "10.0.0.0/26", 26);
            let first = cluster.one("node1", "net.a").await.unwrap();
            cluster.one("node1", "net.b").await.unwrap();
            let mut once = true;
            cluster.store.before_each(move |_, writes, pairs| {
                let Some(write) = writes.and_then(|writes| writes.first()).filter(|_| once) else {
                    return Fault::None;
                };
                once = false;
                if fault == Fault::None {
                    pairs.touch(&write.path);
                }
                fault
            });
            free(&cluster, &[plain(first)]).await.ok();
            cluster.store.end_faults();
            assert_eq!(held(&cluster.store.pairs()).len(), 1, "{fault:?}");
            assert_consistent(&cluster.store.pairs(), true);
        }
    }
}
