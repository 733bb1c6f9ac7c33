//! The whole migration, over the API server in memory and under a paused clock.

mod abort;
mod checks;
mod copy;
mod course;
mod existing_v3;
mod interrupted;
mod killed;
mod metrics;
mod owners;
mod phases;
mod refused;
mod second_look;
mod stored_marks;
mod trial;
mod uncover;
mod wait;

use std::collections::BTreeMap;

use libcalico::kubernetes::{ApiGroup, Location};
use libcalico::migration::cluster_information;
use serde_json::{Value, json};

use super::marks::ATTEMPT;
use super::testing::{MigratedCluster, ObjectStore, at, object};

/// Returns all objects but reports, without the fields that depend on the number of requests and on
/// the time. Of the controlling object, only the phase is kept.
fn snapshot(cluster: &MigratedCluster) -> BTreeMap<String, Value> {
    cluster.server.with_store(|store| {
        store
            .all()
            .filter(|(key, _)| key.plural != "configmaps")
            .map(|(key, object)| {
                let mut object = object.clone();
                if object["kind"] == "DatastoreMigration" {
                    object = object["status"]["phase"].clone();
                } else if let Some(metadata) = object["metadata"].as_object_mut() {
                    for field in ["uid", "resourceVersion", "creationTimestamp"] {
                        metadata.remove(field);
                    }
                    if let Some(annotations) = metadata
                        .get_mut("annotations")
                        .and_then(Value::as_object_mut)
                    {
                        annotations.remove("migration.projectcalico.org/v1-revision");
                        annotations.remove(ATTEMPT);
                    }
                }
                (
                    format!(
                        "{}/{}/{}/{}",
                        key.group, key.plural, key.namespace, key.name
                    ),
                    object,
                )
            })
            .collect()
    })
}

/// Compares two snapshots object by object.
fn assert_same(found: &BTreeMap<String, Value>, expected: &BTreeMap<String, Value>, case: &str) {
    for key in found.keys().chain(expected.keys()) {
        assert_eq!(found.get(key), expected.get(key), "{case}: {key}");
    }
}

fn is_gone(store: &ObjectStore) -> bool {
    store.get(&object()).is_none()
}

fn is_v1_ready(store: &ObjectStore) -> bool {
    store
        .get(&cluster_information(ApiGroup::CrdV1))
        .is_some_and(|found| found["spec"]["datastoreReady"] == true)
}

fn is_v1_locked(store: &ObjectStore) -> bool {
    store
        .get(&cluster_information(ApiGroup::CrdV1))
        .is_some_and(|found| found["spec"]["datastoreReady"] == false)
}

fn is_v3_open(store: &ObjectStore) -> bool {
    store
        .get(&cluster_information(ApiGroup::V3))
        .is_some_and(|found| found["spec"]["datastoreReady"] == true)
}

/// Returns true if v3 has the copy of the last object of v1.
fn has_last_copy(store: &ObjectStore) -> bool {
    store
        .get(&at(ApiGroup::V3, "IPAMHandle", "", "lb-mixed"))
        .is_some()
}

/// Puts an object into v3 that no migration has created.
fn put_foreign(cluster: &MigratedCluster, at: &Location) {
    cluster.server.with_store(|store| {
        store.put(at, json!({ "spec": { "nets": ["203.0.113.0/24"] } }));
    });
}

fn office_in_v3() -> Location {
    at(ApiGroup::V3, "GlobalNetworkSet", "", "office")
}

/// Changes an object beside all requests.
fn change(cluster: &MigratedCluster, at: &Location, change: impl FnOnce(&mut Value)) {
    cluster.server.with_store(|store| {
        let mut object = store.get(at).unwrap().clone();
        change(&mut object);
        store.put(at, object);
    });
}
