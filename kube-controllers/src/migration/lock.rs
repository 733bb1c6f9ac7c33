//! The lock of v1: the field `datastoreReady` of its ClusterInformation, with the mark of the migration that set it
//! (MIG-64). Only a lock with that mark is ever ended here.

use libcalico::kubernetes::{ApiGroup, json_bytes};
use libcalico::migration::{V1_LOCKED_BY, cluster_information};
use serde_json::{Map, Value};

use super::marks::{V1Lock, has_mark};
use super::requests::{Problem, Requests};

/// The annotation in which Calico's clients store the metadata of an object in v1 (DS-56).
const CALICO_METADATA: &str = "projectcalico.org/metadata";

/// Locks v1 for the migration with this uid. Returns false if another program has locked v1 or removed its
/// ClusterInformation.
pub(super) async fn lock(requests: &Requests, migration: &str) -> Result<bool, Problem> {
    let at = cluster_information(ApiGroup::CrdV1);
    let Some(mut information) = requests.get(&at).await? else { return Ok(false) };
    match V1Lock::of(Some(&information)) {
        V1Lock::Ours => Ok(true),
        V1Lock::Others | V1Lock::Missing => Ok(false),
        V1Lock::Open => {
            information["spec"]["datastoreReady"] = false.into();
            information["metadata"]["annotations"][V1_LOCKED_BY] = migration.into();
            requests.replace(&at, &information).await?;
            tracing::warn!("migration: v1 is locked; no pod can start or end until v3 is open");
            Ok(true)
        }
    }
}

/// Returns true if v1 is locked by a migration.
pub(super) async fn is_held(requests: &Requests) -> Result<bool, Problem> {
    let information = requests.get(&cluster_information(ApiGroup::CrdV1)).await?;
    Ok(V1Lock::of(information.as_ref()) == V1Lock::Ours)
}

/// Ends a migration's lock of v1. Another lock and a missing ClusterInformation stay.
///
/// Also changes the resourceVersion of an unlocked ClusterInformation. Otherwise a late request of a former leader
/// could lock v1 for good after the migration has ended.
pub(super) async fn unlock(requests: &Requests, migration: &str) -> Result<(), Problem> {
    let at = cluster_information(ApiGroup::CrdV1);
    let Some(mut information) = requests.get(&at).await? else { return Ok(()) };
    let lock = V1Lock::of(Some(&information));
    if matches!(lock, V1Lock::Others | V1Lock::Missing) {
        return Ok(());
    }
    if !has_mark(&information, V1_LOCKED_BY) {
        information["metadata"]["annotations"][V1_LOCKED_BY] = migration.into();
        information = requests.replace(&at, &information).await?;
    }
    information["spec"]["datastoreReady"] = true.into();
    remove_mark(&mut information);
    requests.replace(&at, &information).await?;
    if lock == V1Lock::Ours {
        tracing::warn!("migration: v1 is unlocked; pods start and end in v1");
    }
    Ok(())
}

/// Removes the mark. Clients of v1 that have written the object meanwhile have copied the mark into the annotation with
/// Calico's metadata, and would restore it from there.
fn remove_mark(information: &mut Value) {
    let Some(annotations) = information["metadata"]["annotations"].as_object_mut() else { return };
    annotations.remove(V1_LOCKED_BY);
    let text = annotations.get(CALICO_METADATA).and_then(Value::as_str);
    let inner = text.and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
    if let Some(mut inner) = inner
        && let Some(copied) = inner.get_mut("annotations").and_then(Value::as_object_mut)
        && copied.remove(V1_LOCKED_BY).is_some()
    {
        let text = String::from_utf8(json_bytes(&Value::Object(inner))).unwrap_or_default();
        annotations.insert(CALICO_METADATA.into(), text.into());
    }
    if annotations.is_empty()
        && let Some(metadata) = information["metadata"].as_object_mut()
    {
        metadata.remove("annotations");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::migration::testing::World;

    fn v1(world: &World) -> Value {
        world.server.object(&cluster_information(ApiGroup::CrdV1)).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn v1_is_as_before_after_lock_and_unlock() {
        let world = World::new();
        let requests = world.requests();
        let without_revision = |mut information: Value| {
            information["metadata"]["resourceVersion"] = Value::Null;
            information
        };
        let before = v1(&world);
        assert!(lock(&requests, "u").await.unwrap() && lock(&requests, "u").await.unwrap());
        assert_eq!(v1(&world)["spec"]["datastoreReady"], false);
        assert!(is_held(&requests).await.unwrap());
        unlock(&requests, "u").await.unwrap();
        assert_eq!(without_revision(v1(&world)), without_revision(before));
        assert!(!is_held(&requests).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn lock_of_another_program_stays() {
        let world = World::new();
        let requests = world.requests();
        world.server.with_store(|store| {
            store.put(&cluster_information(ApiGroup::CrdV1), json!({ "spec": { "datastoreReady": false } }));
        });
        let before = v1(&world);
        assert!(!lock(&requests, "u").await.unwrap());
        unlock(&requests, "u").await.unwrap();
        assert_eq!(v1(&world), before);
    }

    #[test]
    fn mark_is_removed_from_calicos_annotation_too() {
        let inner = json!({ "name": "default", "annotations": { V1_LOCKED_BY: "u", "a": "b" } });
        let annotations = json!({ V1_LOCKED_BY: "u", CALICO_METADATA: inner.to_string() });
        let mut information = json!({ "metadata": { "annotations": annotations } });
        remove_mark(&mut information);
        let kept = json!({ "annotations": { "a": "b" }, "name": "default" });
        let annotations = &information["metadata"]["annotations"];
        assert_eq!(annotations.as_object().unwrap().len(), 1);
        let text = annotations[CALICO_METADATA].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), kept);
    }
}
