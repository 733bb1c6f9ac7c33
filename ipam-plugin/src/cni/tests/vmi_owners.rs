use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use libcalico::ipam::{Block, HandleId, OwnerSlot};
use libcalico::kubernetes::VmiPod;
use libcalico::net::Cidr;
use libcalico::store::Kind;
use time::OffsetDateTime;
use time::macros::datetime;

use crate::cni::release_ownership;
use allocation::error::Result;
use allocation::release::ReleasedHandles;
use allocation::testing::{Cluster, Fault, MemoryStore, held};
use allocation::vmi::{AdoptedAddresses, Ownership, adopt_addresses, restore_owner};

const HANDLE: &str = "net.vmi.ns.vm1";

fn noted(pod: &str) -> BTreeMap<String, String> {
    [("namespace", "ns"), ("pod", pod), ("node", "node1")]
        .map(|(key, value)| (key.into(), value.into()))
        .into()
}

/// Returns the VMI of pod `a`, which is being deleted.
fn deleted_vmi() -> VmiPod {
    VmiPod {
        namespace: "ns".into(),
        pod: "a".into(),
        vmi_name: "vm1".into(),
        is_being_deleted: true,
        ..VmiPod::default()
    }
}

/// Creates the VMI's only address, which pod `a` owns.
async fn cluster(store: MemoryStore) -> (Cluster, Cidr) {
    let cluster = Cluster::on(store);
    cluster.pool("pool4", "10.65.0.0/24", 26);
    let mut request = cluster.request("node1", HANDLE);
    request.attributes = noted("a");
    cluster.assign(&request).await.unwrap();
    let block = cluster.store.pairs().list::<Block>(&None)[0].0;
    (cluster, block)
}

async fn release(
    cluster: &Cluster,
    vmi: &VmiPod,
    before: Option<OffsetDateTime>,
) -> Result<ReleasedHandles> {
    let ownership = Ownership {
        handle: HandleId::new(HANDLE),
        vmi,
        node: "node1",
        before,
    };
    release_ownership(&cluster.store, &cluster.clock, ownership)
        .await?
        .complete_without_endpoints()
        .await
}

/// Another pod becomes the owner before each request of the DEL in turn.
#[tokio::test]
async fn address_taken_over_by_another_pod_is_not_released() {
    let handle = HandleId::new(HANDLE);
    let vmi = deleted_vmi();
    let mut kept = 0;
    for fault in [
        Fault::None,
        Fault::LostRequest,
        Fault::LostAnswer,
        Fault::Cut(1),
    ] {
        for (store, at) in [MemoryStore::sequential, MemoryStore::transactional]
            .into_iter()
            .flat_map(|store| (0..8).map(move |at| (store, at)))
        {
            let context = format!("{fault:?}, another owner before request {at}");
            let (cluster, cidr) = cluster(store()).await;
            let taken = Arc::new(Mutex::new(false));
            let (id, told) = (handle.clone(), taken.clone());
            cluster.store.before_each(move |nth, writes, pairs| {
                if nth == at {
                    let mut block = pairs.get::<Block>(&cidr).unwrap();
                    let addresses = block.set_owner(&id, OwnerSlot::Active, &noted("b"));
                    block.count_write();
                    pairs.put(Block::path(&cidr), block.encode().unwrap());
                    *told.lock().unwrap() = !addresses.is_empty();
                }
                if nth + 1 == at && writes.is_some() {
                    fault
                } else {
                    Fault::None
                }
            });
            _ = release(&cluster, &vmi, None).await;
            cluster.store.end_faults();
            let is_held = held(&cluster.store.pairs()).contains_key(&handle);
            if *taken.lock().unwrap() {
                kept += 1;
                assert!(is_held, "{context}: freed");
                assert!(
                    cluster.handle(HANDLE).is_some(),
                    "{context}: nothing leads to it"
                );
                let block = cluster.store.pairs().get::<Block>(&cidr).unwrap();
                assert!(block.has_owner(&handle), "{context}");
            }
        }
    }
    assert!(kept > 20, "{kept}");
}

/// The ADD of the pod's next sandbox became the owner after the DEL was deferred, and has not
/// written its endpoint yet.
#[tokio::test]
async fn deferred_release_keeps_an_owner_that_is_newer_than_the_del() {
    let handle = HandleId::new(HANDLE);
    let vmi = deleted_vmi();
    let (cluster, cidr) = cluster(MemoryStore::sequential()).await;
    let mut block = cluster.store.pairs().get::<Block>(&cidr).unwrap();
    let mut owner = noted("a");
    owner.insert("timestamp".into(), "2026-11-28 20:00:00 +0000 UTC".into());
    block.set_owner(&handle, OwnerSlot::Active, &owner);
    cluster.store.put(&cidr, &block);
    let release = async |limit| {
        release(&cluster, &vmi, Some(limit)).await.unwrap();
        held(&cluster.store.pairs()).contains_key(&handle)
    };
    assert!(release(datetime!(2026-11-28 19:59:59.9 UTC)).await);
    assert_eq!(
        cluster
            .store
            .pairs()
            .get::<Block>(&cidr)
            .unwrap()
            .owner_of(&handle, OwnerSlot::Active),
        Some(&owner)
    );
    assert!(
        !release(datetime!(2026-11-28 20:00:01 UTC)).await,
        "the DEL of the owner was deferred"
    );
}

/// The previous launcher pod may still run, even if the VMI is being deleted.
#[tokio::test]
async fn failed_vmi_add_restores_the_previous_owner_despite_lost_requests() {
    let mut repeated = 0;
    let handle = HandleId::new(HANDLE);
    for (slot, migration) in [
        (OwnerSlot::Active, None),
        (OwnerSlot::Alternate, Some("job")),
    ] {
        let vmi = VmiPod {
            namespace: "ns".into(),
            pod: "b".into(),
            vmi_name: "vm1".into(),
            is_being_deleted: true,
            migration_uid: migration.map(str::to_owned),
            ..VmiPod::default()
        };
        for fault in [Fault::None, Fault::LostRequest, Fault::LostAnswer] {
            for at in 0..9 {
                let (cluster, cidr) = cluster(MemoryStore::sequential()).await;
                cluster
                    .store
                    .before_each(move |nth, _, _| if nth == at { fault } else { Fault::None });
                let taken =
                    adopt_addresses(&cluster.store, &cluster.clock, &handle, &vmi, &noted("b"))
                        .await;
                let Ok(AdoptedAddresses { replaced, .. }) = taken else {
                    continue;
                };
                let restore =
                    || restore_owner(&cluster.store, &cluster.clock, &handle, &vmi, &replaced);
                let context = format!("{slot:?}, {fault:?} at request {at}");
                if restore().await.is_err() {
                    restore().await.expect(&context);
                    repeated += 1;
                }
                let block = cluster.store.pairs().get::<Block>(&cidr).unwrap();
                let before = if slot == OwnerSlot::Active {
                    noted("a")
                } else {
                    BTreeMap::new()
                };
                assert_eq!(block.owner_of(&handle, slot), Some(&before), "{context}");
                assert_eq!(
                    block.owner_of(&handle, OwnerSlot::Active),
                    Some(&noted("a")),
                    "{context}"
                );
            }
        }
    }
    assert!(repeated > 5, "{repeated}");
}
