//! Answers of another program in place of the datastore's, for example of a proxy.

use std::collections::BTreeSet;

use libcalico::ipam::{Block, ReleaseRequest};
use libcalico::store::StoreError;

use crate::error::IpamError;
use crate::release::{ReleasedBatch, release_from_blocks};
use crate::testing::{Cluster, Fault, MemoryStore, assert_consistent, held};

const STORES: [fn() -> MemoryStore; 2] = [MemoryStore::transactional, MemoryStore::sequential];

/// More than the requests of an operation with one repetition.
const MANY: usize = 40;

fn assert_is_foreign(error: &IpamError) {
    assert!(
        matches!(error, IpamError::Store(StoreError::ForeignAnswer { .. })),
        "{error}"
    );
}

fn requests(cluster: &Cluster) -> usize {
    let (reads, writes) = cluster.store.take_counts();
    reads + writes
}

/// The writes are answered by the other program from the `n`th on, and in every other round the
/// reads after them, too.
#[tokio::test]
async fn allocation_whose_writes_another_program_answers_ends_and_names_that_program() {
    for (store, first, with_reads) in STORES
        .into_iter()
        .flat_map(|store| (0..3).flat_map(move |n| [(store, n, false), (store, n, true)]))
    {
        let cluster = Cluster::on(store());
        cluster.pool("pool4", "10.65.0.0/16", 26);
        let mut writes = 0;
        cluster.store.before_each(move |_, sent, _| {
            let is_hidden = writes >= first + usize::from(sent.is_none());
            writes += usize::from(sent.is_some());
            if is_hidden && (sent.is_some() || with_reads) {
                Fault::Foreign
            } else {
                Fault::None
            }
        });
        match cluster.one("node1", "net.a").await {
            Err(error) => assert_is_foreign(&error),
            // All writes of the allocation came before.
            Ok(_) => assert!(first > 0),
        }
        let requests = requests(&cluster);
        assert!(
            requests < MANY,
            "{requests} requests, hidden from write {first}, reads as well: {with_reads}"
        );
        cluster.store.end_faults();
        assert_consistent(&cluster.store.pairs(), false);
        cluster.release("net.a").await.unwrap();
        assert_eq!(held(&cluster.store.pairs()).len(), 0);
        assert_eq!(cluster.handle("net.a"), None);
    }
}

#[tokio::test]
async fn allocation_whose_write_took_effect_succeeds_though_another_program_answered() {
    for store in STORES {
        for answered in 0..6 {
            let cluster = Cluster::on(store());
            cluster.pool("pool4", "10.65.0.0/16", 26);
            let answer = move |n, _: Option<&[_]>, _: &mut _| {
                if n == answered {
                    Fault::ForeignAnswer
                } else {
                    Fault::None
                }
            };
            cluster.store.before_each(answer);
            cluster.one("node1", "net.a").await.unwrap();
            cluster.store.end_faults();
            assert_eq!(held(&cluster.store.pairs()).len(), 1, "answer {answered}");
            assert_consistent(&cluster.store.pairs(), false);
        }
    }
}

#[tokio::test]
async fn release_whose_writes_another_program_answers_ends_and_names_that_program() {
    for store in STORES {
        let cluster = Cluster::on(store());
        cluster.pool("pool4", "10.65.0.0/16", 26);
        let ip = cluster.one("node1", "net.a").await.unwrap();
        let is_write = |_, sent: Option<&[_]>, _: &mut _| {
            if sent.is_some() {
                Fault::Foreign
            } else {
                Fault::None
            }
        };
        cluster.store.before_each(is_write);
        assert_is_foreign(&cluster.release("net.a").await.unwrap_err());
        let of_handle = requests(&cluster);
        let blocks: BTreeSet<_> = cluster
            .store
            .pairs()
            .list::<Block>(&None)
            .into_iter()
            .map(|(cidr, _)| cidr)
            .collect();
        let all = |block: &Block| {
            let held = block.allocation(ip).into_iter();
            held.map(|held| ReleaseRequest {
                ip,
                handle: held.handle(),
                sequence: held.sequence,
            })
            .collect()
        };
        let released = release_from_blocks(&cluster.store, &cluster.clock, blocks, all).await;
        assert_is_foreign(
            &released
                .and_then(ReleasedBatch::into_addresses)
                .unwrap_err(),
        );
        let of_batch = requests(&cluster);
        assert!(
            of_handle < MANY && of_batch < MANY,
            "{of_handle} and {of_batch} requests"
        );
        cluster.store.end_faults();
        assert_eq!(held(&cluster.store.pairs()).len(), 1);
        cluster.release("net.a").await.unwrap();
        assert_eq!(held(&cluster.store.pairs()).len(), 0);
    }
}
