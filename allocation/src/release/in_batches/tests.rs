use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use libcalico::ipam::{
    AffinityOwner, AffinityState, Block, BlockAffinity, BlockRequest, Handle, HandleId,
    ReleaseRequest, Reservations,
};
use libcalico::store::Kind;

use super::*;
use crate::testing::{Cluster, Fault, MemoryStore, affinity_key, assert_consistent, cidr, held};

const STORES: [fn() -> MemoryStore; 2] = [MemoryStore::transactional, MemoryStore::sequential];

struct Counting(AtomicUsize);

impl WriteGate for Counting {
    async fn admit(&self, writes: usize) -> bool {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(writes)
            })
            .is_ok()
    }
}

/// Creates `blocks` blocks of `node1` with `each` addresses each, every address under its own
/// handle.
fn filled(store: MemoryStore, blocks: usize, each: usize) -> Cluster {
    let cluster = Cluster::on(store);
    cluster.pool("pool4", "10.0.0.0/16", 29);
    let owner = AffinityOwner::Host("node1".into());
    for number in 0..blocks {
        let range = cidr(&format!("10.0.{}.{}/29", number / 32, number % 32 * 8));
        let mut block = Block::new(range, &owner, cluster.clock.now()).unwrap();
        for n in 0..each {
            let id = HandleId::new(format!("net.{number}-{n}"));
            let attributes = BTreeMap::new();
            let request = BlockRequest {
                handle: Some(&id),
                attributes: &attributes,
                requester: &owner,
                check_affinity: true,
            };
            block.assign(1, &request, &Reservations::default()).unwrap();
            block.count_write();
            let mut handle = Handle::default();
            handle.increment(range, 1);
            cluster.store.put(&id, &handle);
        }
        let claim = BlockAffinity {
            state: AffinityState::Confirmed,
            ..BlockAffinity::default()
        };
        cluster
            .store
            .put(&affinity_key("node1", &range.to_string()), &claim);
        cluster.store.put(&range, &block);
    }
    cluster
}

type ByBlock = BTreeMap<Cidr, Vec<ReleaseRequest>>;

fn all(cluster: &Cluster) -> ByBlock {
    let mut requests = ByBlock::new();
    for (cidr, block) in cluster.store.pairs().list::<Block>(&None) {
        for held in block.allocated().filter(|held| !held.is_cooling()) {
            let request = ReleaseRequest {
                ip: held.ip,
                handle: held.handle(),
                sequence: held.sequence,
            };
            requests.entry(cidr).or_default().push(request);
        }
    }
    requests
}

async fn run(cluster: &Cluster, requests: &ByBlock) -> ReleasedBatch {
    through(cluster, &OpenGate, requests, 16).await.unwrap()
}

async fn through(
    cluster: &Cluster,
    gate: &impl WriteGate,
    requests: &ByBlock,
    parallel: usize,
) -> Result<ReleasedBatch, IpamError> {
    let blocks: Vec<Cidr> = requests.keys().copied().collect();
    let of = |block: &Block| requests[&block.cidr].clone();
    release_batch(&cluster.store, &cluster.clock, gate, &blocks, of, parallel).await
}

#[tokio::test]
async fn batch_release_writes_each_block_and_handle_once() {
    for (store, handles) in STORES.into_iter().zip([240usize.div_ceil(64), 240]) {
        let cluster = filled(store(), 40, 6);
        let requests = all(&cluster);
        cluster.store.take_counts();
        let outcome = run(&cluster, &requests).await;
        let (reads, writes) = cluster.store.take_counts();
        assert_eq!(
            (
                outcome.released.len(),
                outcome.blocks_written,
                outcome.handles_written
            ),
            (240, 40, 240)
        );
        assert_eq!(writes, 40 + handles);
        assert_eq!(reads, 1 + 3 + handles + 1);
        assert_eq!(held(&cluster.store.pairs()).len(), 0);
        assert_consistent(&cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn reallocated_address_survives_and_does_not_block_other_releases() {
    for store in STORES {
        let cluster = filled(store(), 2, 3);
        let requests = all(&cluster);
        let used_again = requests[&cidr("10.0.0.0/29")][1].clone();
        let mut block = cluster.block("10.0.0.0/29").unwrap();
        *block.sequence_number_for_allocation.get_mut("1").unwrap() += 2;
        cluster.store.put(&block.cidr.clone(), &block);
        let outcome = run(&cluster, &requests).await;
        assert_eq!(
            (
                outcome.released.len(),
                outcome.refused.len(),
                outcome.failed.len()
            ),
            (5, 1, 0)
        );
        let left = held(&cluster.store.pairs());
        assert_eq!(
            left.into_iter().collect::<Vec<_>>(),
            [(used_again.handle.unwrap(), vec![used_again.ip])]
        );
        assert_consistent(&cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn released_addresses_cool_down_and_a_second_release_writes_no_data() {
    let cluster = filled(MemoryStore::sequential(), 2, 3);
    cluster.configure(|config| config.ip_cooldown_seconds = 30);
    let requests = all(&cluster);
    assert_eq!(run(&cluster, &requests).await.released.len(), 6);
    let block = cluster.block("10.0.0.0/29").unwrap();
    assert_eq!(
        block.allocated().filter(|held| held.is_cooling()).count(),
        3
    );
    cluster.store.take_counts();
    let again = run(&cluster, &requests).await;
    assert_eq!(
        (
            again.unallocated.len(),
            again.refused.len(),
            again.blocks_written
        ),
        (6, 0, 0)
    );
    assert_eq!(
        cluster.store.take_counts().1,
        0,
        "nothing is written when nothing changed"
    );
}

#[tokio::test]
async fn missing_or_corrupt_blocks_do_not_block_other_releases() {
    let cluster = filled(MemoryStore::transactional(), 3, 2);
    let mut requests = all(&cluster);
    let mut corrupt = cluster.block("10.0.0.8/29").unwrap();
    corrupt.allocations.pop();
    cluster.store.put(&corrupt.cidr.clone(), &corrupt);
    let gone = ReleaseRequest {
        ip: "10.0.9.1".parse().unwrap(),
        handle: None,
        sequence: None,
    };
    requests.insert(cidr("10.0.9.0/29"), vec![gone]);
    let outcome = run(&cluster, &requests).await;
    assert_eq!(
        (outcome.released.len(), outcome.missing.as_slice()),
        (4, &[cidr("10.0.9.0/29")][..])
    );
    assert!(
        matches!(outcome.failed[..], [(_, IpamError::Corrupt(_))]),
        "{:?}",
        outcome.failed
    );
}

#[tokio::test]
async fn batch_release_reports_a_handle_that_cannot_be_read() {
    for store in STORES {
        let cluster = filled(store(), 1, 2);
        let requests = all(&cluster);
        let id = HandleId::new("net.0-1");
        cluster
            .store
            .edit(|pairs| pairs.put(Handle::path(&id), b"{".to_vec()));
        let outcome = run(&cluster, &requests).await;
        assert_eq!((outcome.released.len(), outcome.handles_written), (2, 1));
        assert_eq!(outcome.handles_not_written, [id]);
    }
}

#[tokio::test]
async fn handle_with_addresses_in_other_blocks_is_retained() {
    let cluster = Cluster::on(MemoryStore::sequential());
    cluster.pool("pool4", "10.0.0.0/24", 31);
    let mut request = cluster.request("node1", "net.a");
    request.num4 = 4;
    cluster.assign(&request).await.unwrap();
    let mut requests = all(&cluster);
    let kept = requests.pop_last().unwrap().0;
    let outcome = run(&cluster, &requests).await;
    assert_eq!((outcome.blocks_written, outcome.handles_written), (1, 1));
    assert_eq!(
        cluster
            .handle("net.a")
            .unwrap()
            .block
            .keys()
            .collect::<Vec<_>>(),
        [&kept]
    );
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn batch_release_stops_before_the_next_write_when_the_gate_closes() {
    for store in STORES {
        for admitted in 0..12 {
            let cluster = filled(store(), 3, 3);
            let requests = all(&cluster);
            let gate = Counting(AtomicUsize::new(admitted));
            cluster.store.take_counts();
            let outcome = through(&cluster, &gate, &requests, 2).await.unwrap();
            assert!(outcome.stopped, "{admitted}");
            assert!(cluster.store.take_counts().1 <= admitted);
            assert_consistent(&cluster.store.pairs(), false);
            let left = held(&cluster.store.pairs()).len();
            assert_eq!(
                left + outcome.released.len(),
                9,
                "what is told as released is free"
            );
        }
    }
}

/// Each request in turn fails in each way or loses a race.
#[tokio::test]
async fn interrupted_batch_release_is_completed_by_the_next_batch() {
    let faults = [
        Fault::None,
        Fault::Refused,
        Fault::LostRequest,
        Fault::LostAnswer,
        Fault::Cut(1),
    ];
    for (store, fault) in STORES
        .into_iter()
        .flat_map(|store| faults.map(|fault| (store, fault)))
    {
        for at in 0..14 {
            let cluster = filled(store(), 2, 3);
            let requests = all(&cluster);
            cluster.store.before_each(move |nth, writes, pairs| {
                if nth != at {
                    return Fault::None;
                }
                if fault == Fault::None
                    && let Some(write) = writes.and_then(|writes| writes.first())
                {
                    pairs.touch(&write.path);
                }
                fault
            });
            let outcome = through(&cluster, &OpenGate, &requests, 2).await;
            cluster.store.end_faults();
            assert_consistent(&cluster.store.pairs(), false);
            let left = held(&cluster.store.pairs());
            if let Ok(outcome) = outcome {
                assert_eq!(
                    left.len() + outcome.released.len(),
                    6,
                    "{fault:?} at {at}: {outcome:?}"
                );
                if outcome.failed.is_empty() && outcome.handles_not_written.is_empty() {
                    assert_consistent(&cluster.store.pairs(), true);
                }
            }
            run(&cluster, &all(&cluster)).await;
            assert_eq!(held(&cluster.store.pairs()).len(), 0, "{fault:?} at {at}");
        }
    }
}

#[tokio::test]
async fn emptied_block_without_affinity_is_deleted_and_a_deselected_block_released() {
    let cluster = filled(MemoryStore::sequential(), 2, 1);
    let mut orphan = cluster.block("10.0.0.0/29").unwrap();
    orphan.clear_affinity();
    cluster.store.put(&orphan.cidr.clone(), &orphan);
    cluster.pool_with("pool4", "10.0.0.0/16", 29, |spec| {
        spec.node_selector = "has(never)".into()
    });
    run(&cluster, &all(&cluster)).await;
    assert_eq!(
        (cluster.block("10.0.0.0/29"), cluster.block("10.0.0.8/29")),
        (None, None)
    );
    assert_eq!(cluster.affinity("node1", "10.0.0.8/29"), None);
}

#[tokio::test]
async fn block_without_requests_is_written_when_its_addresses_have_cooled_down() {
    let cluster = filled(MemoryStore::sequential(), 2, 2);
    cluster.configure(|config| config.ip_cooldown_seconds = 30);
    run(&cluster, &all(&cluster)).await;
    let cold: ByBlock = cluster
        .store
        .pairs()
        .list::<Block>(&None)
        .into_iter()
        .map(|(cidr, _)| (cidr, vec![]))
        .collect();
    cluster.clock.advance(std::time::Duration::from_secs(10));
    assert_eq!(run(&cluster, &cold).await.blocks_written, 0);
    cluster.clock.advance(std::time::Duration::from_secs(30));
    assert_eq!(run(&cluster, &cold).await.blocks_written, 2);
    assert_eq!(cluster.block("10.0.0.0/29").unwrap().allocated().count(), 0);
    assert_eq!(run(&cluster, &cold).await.blocks_written, 0);
}
