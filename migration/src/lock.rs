//! The lock of v1: the field `datastoreReady` of its ClusterInformation, with the mark of the
//! migration that set it (MIG-64). Only a lock with that mark is ever ended here.

use libcalico::kubernetes::{ApiGroup, json_bytes};
use libcalico::migration::{V1_LOCKED_BY, cluster_information};
use serde_json::{Map, Value};

use super::marks::{ATTEMPT, V1Lock, has_mark, set_ready};
use super::object::remove_annotations;
use super::requests::{Problem, Requests};

/// The annotation in which Calico's clients store the metadata of an object in v1 (DS-56).
const CALICO_METADATA: &str = "projectcalico.org/metadata";

const STILL_LOCKED: &str = "v1 is still locked, because its ClusterInformation default in \
                            crd.projectcalico.org/v1 cannot be changed; no pod can start or end";

/// Locks v1 for the migration with this uid. Returns false if another program has locked v1 or
/// removed its ClusterInformation.
pub(super) async fn lock(requests: &Requests, migration: &str) -> Result<bool, Problem> {
    let at = cluster_information(ApiGroup::CrdV1);
    let Some(mut information) = requests.get(&at).await? else {
        return Ok(false);
    };
    match V1Lock::of(Some(&information)) {
        V1Lock::ByMigration => Ok(true),
        V1Lock::Confirmed => Err(Problem::Lost),
        V1Lock::ByOthers | V1Lock::Missing => Ok(false),
        V1Lock::Unlocked => {
            set_locked(&mut information, migration);
            requests.replace(&at, &information).await?;
            tracing::warn!("migration: v1 is locked; no pod can start or end");
            Ok(true)
        }
    }
}

/// Lets the API server check the write of [`lock`], and stores nothing.
pub(super) async fn check(requests: &Requests, migration: &str) -> Result<(), Problem> {
    let at = cluster_information(ApiGroup::CrdV1);
    match requests.get(&at).await? {
        Some(mut information) if V1Lock::of(Some(&information)) == V1Lock::Unlocked => {
            set_locked(&mut information, migration);
            requests
                .check_replacement(&at, &information)
                .await
                .map(drop)
        }
        _ => Ok(()),
    }
}

/// Locks a ClusterInformation. A person who has ended an earlier lock may have left its marks.
fn set_locked(information: &mut Value, migration: &str) {
    remove_marks(information);
    set_ready(information, false);
    information["metadata"]["annotations"][V1_LOCKED_BY] = migration.into();
}

/// Returns true if v1 is locked by a migration, and then records in v1 that the migration is about
/// to open v3: see [`V1Lock::Confirmed`].
///
/// The write also changes the resourceVersion. Otherwise a late request of a former leader, whose
/// attempt had failed, could unlock v1 after v3 is open.
pub(super) async fn confirm(requests: &Requests) -> Result<bool, Problem> {
    let at = cluster_information(ApiGroup::CrdV1);
    let Some(mut information) = requests.get(&at).await? else {
        return Ok(false);
    };
    if !V1Lock::of(Some(&information)).is_by_migration() {
        return Ok(false);
    }
    information["metadata"]["annotations"][ATTEMPT] =
        information["metadata"]["resourceVersion"].clone();
    requests.replace(&at, &information).await?;
    Ok(true)
}

/// Ends a migration's lock of v1. Another lock and a missing ClusterInformation stay.
///
/// Also changes the resourceVersion of an unlocked ClusterInformation. Otherwise a late request of
/// a former leader could lock v1 for good after the migration has ended.
///
/// `is_closed` is true if the caller has seen that v3 was never open.
///
/// # Errors
/// [`Problem::Lost`] if v3 may have been open. If admission does not let the migration write the
/// object, only a person can unlock v1, and the text of the error says so.
pub(super) async fn unlock(
    requests: &Requests,
    migration: &str,
    is_closed: bool,
) -> Result<(), Problem> {
    let at = cluster_information(ApiGroup::CrdV1);
    let Some(mut information) = requests.get(&at).await? else {
        return Ok(());
    };
    let lock = V1Lock::of(Some(&information));
    match lock {
        V1Lock::ByOthers | V1Lock::Missing => return Ok(()),
        V1Lock::Confirmed if !is_closed => return Err(Problem::Lost),
        V1Lock::Unlocked | V1Lock::ByMigration | V1Lock::Confirmed => {}
    }
    if !has_mark(&information, V1_LOCKED_BY) {
        information["metadata"]["annotations"][V1_LOCKED_BY] = migration.into();
        information = requests.replace(&at, &information).await?;
    }
    set_ready(&mut information, true);
    remove_marks(&mut information);
    let unlocked = requests.replace(&at, &information).await;
    if !lock.is_by_migration() {
        return unlocked.map(drop);
    }
    unlocked.map_err(still_locked)?;
    tracing::warn!("migration: v1 is unlocked; pods start and end in v1");
    Ok(())
}

/// Returns the problem with the effect for the pods.
fn still_locked(problem: Problem) -> Problem {
    match problem {
        Problem::Refused { .. } | Problem::Transient(_) => {
            Problem::Transient(format!("{STILL_LOCKED}: {problem}"))
        }
        Problem::Lost | Problem::MayNotWrite => problem,
    }
}

/// Removes the marks. Clients of v1 that have written the object meanwhile have copied the marks
/// into the annotation with Calico's metadata, and would restore them from there.
fn remove_marks(information: &mut Value) {
    let marks = [V1_LOCKED_BY, ATTEMPT];
    remove_annotations(information, &marks);
    let Some(text) = information["metadata"]["annotations"][CALICO_METADATA].as_str() else {
        return;
    };
    let Ok(mut inner) = serde_json::from_str::<Map<String, Value>>(text) else {
        return;
    };
    let Some(copied) = inner.get_mut("annotations").and_then(Value::as_object_mut) else {
        return;
    };
    let before = copied.len();
    copied.retain(|key, _| !marks.contains(&key.as_str()));
    if copied.len() < before {
        let text = String::from_utf8(json_bytes(&Value::Object(inner))).unwrap_or_default();
        information["metadata"]["annotations"][CALICO_METADATA] = text.into();
    }
}

#[cfg(test)]
mod tests {
    use hyper::Method;
    use serde_json::json;

    use super::*;
    use crate::testing::{MigratedCluster, ReceivedRequest, failure};

    fn v1(cluster: &MigratedCluster) -> Value {
        cluster
            .server
            .object(&cluster_information(ApiGroup::CrdV1))
            .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn v1_is_as_before_after_lock_and_unlock() {
        let cluster = MigratedCluster::new();
        let requests = cluster.requests();
        let without_revision = |mut information: Value| {
            information["metadata"]["resourceVersion"] = Value::Null;
            information
        };
        let before = v1(&cluster);
        assert!(lock(&requests, "u").await.unwrap() && lock(&requests, "u").await.unwrap());
        assert_eq!(v1(&cluster)["spec"]["datastoreReady"], false);
        assert!(confirm(&requests).await.unwrap());
        unlock(&requests, "u", true).await.unwrap();
        assert_eq!(without_revision(v1(&cluster)), without_revision(before));
        assert!(!confirm(&requests).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn confirmed_lock_is_ended_only_if_v3_is_closed() {
        let cluster = MigratedCluster::new();
        let requests = cluster.requests();
        lock(&requests, "u").await.unwrap();
        assert_eq!(V1Lock::of(Some(&v1(&cluster))), V1Lock::ByMigration);
        assert!(confirm(&requests).await.unwrap() && confirm(&requests).await.unwrap());
        assert_eq!(V1Lock::of(Some(&v1(&cluster))), V1Lock::Confirmed);
        assert_eq!(unlock(&requests, "u", false).await, Err(Problem::Lost));
        assert_eq!(lock(&requests, "u").await, Err(Problem::Lost));
        assert_eq!(V1Lock::of(Some(&v1(&cluster))), V1Lock::Confirmed);

        // A person unlocks v1, and a later migration locks it again.
        let mut unlocked = v1(&cluster);
        unlocked["spec"]["datastoreReady"] = true.into();
        requests
            .replace(&cluster_information(ApiGroup::CrdV1), &unlocked)
            .await
            .unwrap();
        check(&requests, "later").await.unwrap();
        assert_eq!(
            V1Lock::of(Some(&v1(&cluster))),
            V1Lock::Unlocked,
            "a check stores nothing"
        );
        assert!(lock(&requests, "later").await.unwrap());
        assert_eq!(V1Lock::of(Some(&v1(&cluster))), V1Lock::ByMigration);
    }

    #[tokio::test(start_paused = true)]
    async fn confirmed_lock_is_not_ended_by_an_earlier_request() {
        let cluster = MigratedCluster::new();
        let requests = cluster.requests();
        lock(&requests, "u").await.unwrap();
        let mut late = v1(&cluster);
        late["spec"]["datastoreReady"] = true.into();
        assert!(confirm(&requests).await.unwrap());
        assert_eq!(
            requests
                .replace(&cluster_information(ApiGroup::CrdV1), &late)
                .await,
            Err(Problem::Lost)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn unlock_that_admission_prevents_names_the_effect() {
        for code in [403, 500] {
            let cluster = MigratedCluster::new();
            let requests = cluster.requests();
            lock(&requests, "u").await.unwrap();
            cluster.server.fail(move |request: &ReceivedRequest| {
                (request.method == Method::PUT).then(|| failure(code, "Failed", "only calico-node"))
            });
            let Err(Problem::Transient(text)) = unlock(&requests, "u", true).await else {
                panic!("{code}")
            };
            assert!(
                text.starts_with(STILL_LOCKED) && text.ends_with("only calico-node"),
                "{text}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lock_of_another_program_stays() {
        let cluster = MigratedCluster::new();
        let requests = cluster.requests();
        cluster.server.with_store(|store| {
            store.put(
                &cluster_information(ApiGroup::CrdV1),
                json!({ "spec": { "datastoreReady": false } }),
            );
        });
        let before = v1(&cluster);
        assert!(!lock(&requests, "u").await.unwrap());
        unlock(&requests, "u", true).await.unwrap();
        assert_eq!(v1(&cluster), before);
    }

    #[test]
    fn marks_are_removed_from_calicos_annotation_too() {
        let inner = json!({
            "name": "default", "annotations": { V1_LOCKED_BY: "u", ATTEMPT: "7", "a": "b" },
        });
        let annotations =
            json!({ V1_LOCKED_BY: "u", ATTEMPT: "8", CALICO_METADATA: inner.to_string() });
        let mut information = json!({ "metadata": { "annotations": annotations } });
        remove_marks(&mut information);
        let kept = json!({ "annotations": { "a": "b" }, "name": "default" });
        let annotations = &information["metadata"]["annotations"];
        assert_eq!(annotations.as_object().unwrap().len(), 1);
        let text = annotations[CALICO_METADATA].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), kept);
    }
}
