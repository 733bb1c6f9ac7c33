use datastore::config::{DEFAULT_DEADLINE, LocalConfig};
use datastore::{Datastore, DatastoreConfig};
use libcalico::ipam::gc::{GcSettings, Index};
use libcalico::ipam::{AffinityState, Block};
use libcalico::store::Store;
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::gc::gate::LeaderGate;
use crate::leader::Leadership;

const AT: fn(u64) -> Duration = Duration::from_secs;
const GRACE: Duration = Duration::from_secs(20);

fn gate(stop: &CancellationToken) -> LeaderGate {
    LeaderGate::new(Leadership::always(), stop.clone(), 0)
}

/// Returns a datastore in which a node has a pending affinity for its own block, and another one
/// for a missing block, and the audit that has listed both affinities at second 0.
async fn scene(directory: &tempfile::TempDir) -> (Datastore, AffinityAudit) {
    let local = LocalConfig {
        path: directory.path().join("calico.db"),
        deadline: DEFAULT_DEADLINE,
    };
    let store = Datastore::open(&DatastoreConfig::Local(local)).unwrap();
    let mut index = Index::new(GcSettings::default());
    index.put_kubernetes_node("node-a", false);
    index.put_calico_node("node-a", Some("node-a"));
    let (affinities, owner) = (
        AffinityAudit::default(),
        AffinityOwner::Host("node-a".into()),
    );
    let pending = BlockAffinity {
        state: AffinityState::Pending,
        ..BlockAffinity::default()
    };
    for cidr in ["10.0.0.0/29", "10.0.0.8/29"] {
        store
            .create(
                &AffinityKey {
                    owner: owner.clone(),
                    cidr: cidr.parse().unwrap(),
                },
                &pending,
            )
            .await
            .unwrap();
    }
    let block = Block::new(
        "10.0.0.0/29".parse().unwrap(),
        &owner,
        OffsetDateTime::now_utc(),
    )
    .unwrap();
    store.create(&block.cidr, &block).await.unwrap();
    affinities.get().begin_list();
    for entry in store
        .list::<BlockAffinity>(&AffinitySelect::default())
        .await
        .unwrap()
    {
        affinities.get().listed(&entry, &index, AT(0));
    }
    affinities.get().end_list();
    (store, affinities)
}

async fn states(store: &Datastore) -> Vec<(String, AffinityState)> {
    let all = store
        .list::<BlockAffinity>(&AffinitySelect::default())
        .await
        .unwrap();
    all.iter()
        .map(|entry| (entry.key.cidr.to_string(), entry.value.state))
        .collect()
}

#[tokio::test]
async fn unfinished_affinities_are_completed_after_five_minutes() {
    let (directory, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
    let (store, affinities) = scene(&directory).await;
    let (gate, mut told) = (gate(&stop), HashSet::new());
    affinities
        .finish(&store, &gate, GcMode::Reclaim, AT(299), GRACE, &mut told)
        .await;
    assert_eq!(states(&store).await.len(), 2);
    assert_eq!(affinities.next_deadline(AT(299), GRACE), Some(AT(300)));
    assert_eq!(
        affinities
            .finish(&store, &gate, GcMode::Reclaim, AT(300), GRACE, &mut told)
            .await,
        0
    );
    assert_eq!(
        states(&store).await,
        [("10.0.0.0/29".to_owned(), AffinityState::Confirmed)]
    );
    assert_eq!(affinities.get().due(AT(1000), GRACE), []);
}

#[tokio::test]
async fn report_mode_and_a_closed_gate_write_no_affinities() {
    let (directory, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
    let (store, affinities) = scene(&directory).await;
    let (gate, mut told) = (gate(&stop), HashSet::new());
    let before = states(&store).await;
    affinities
        .finish(&store, &gate, GcMode::Report, AT(300), GRACE, &mut told)
        .await;
    assert_eq!((states(&store).await, told.len()), (before.clone(), 2));
    stop.cancel();
    affinities
        .finish(&store, &gate, GcMode::Reclaim, AT(300), GRACE, &mut told)
        .await;
    assert_eq!(states(&store).await, before);
    assert_eq!(
        affinities.get().due(AT(300), GRACE).len(),
        2,
        "they are left to whoever leads"
    );
}
