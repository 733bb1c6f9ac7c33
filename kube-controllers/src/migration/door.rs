//! The door: the ClusterInformation of v3. While it is shut, no plugin uses v3. Once it is open and marked, all plugins
//! do, and the migration cannot be aborted (MIG-65).

use libcalico::kubernetes::{ApiGroup, Preconditions};
use libcalico::migration::{LOCKED_BY, MIGRATED_BY, cluster_information};
use serde_json::{Value, json};

use super::marks::{Door, has_mark, is_ready};
use super::requests::{Created, Problem, Requests};

/// The annotation of a shut door with its former resourceVersion. Each copying process writes another value, so that a
/// late request of a former leader to open the door names an old resourceVersion, and fails.
const ATTEMPT: &str = "migration.projectcalico.org/attempt";

/// Shuts the door for the migration with this uid, and marks it. Returns the object, which [`open`] needs.
///
/// # Errors
/// [`Problem::Refused`] if another program has locked v3. [`Problem::Lost`] if the door is open.
pub(super) async fn shut(requests: &Requests, migration: &str) -> Result<Value, Problem> {
    let at = cluster_information(ApiGroup::V3);
    let Some(mut information) = requests.get(&at).await? else { return create(requests, migration).await };
    match Door::of(Some(&information)) {
        Door::Open | Door::Absent => return Err(Problem::Lost),
        Door::Foreign => {
            let text = "ClusterInformation of v3 is locked, and not by a migration".to_owned();
            return Err(Problem::Refused { code: 409, text });
        }
        Door::Shut => {}
        Door::Unmarked => {
            information["spec"]["datastoreReady"] = false.into();
            information["metadata"]["annotations"][LOCKED_BY] = migration.into();
        }
    }
    information["metadata"]["annotations"][ATTEMPT] = information["metadata"]["resourceVersion"].clone();
    requests.replace(&at, &information).await
}

/// Creates the ClusterInformation of v3 with the content of that of v1.
async fn create(requests: &Requests, migration: &str) -> Result<Value, Problem> {
    let at = cluster_information(ApiGroup::V3);
    let v1 = requests.get(&cluster_information(ApiGroup::CrdV1)).await?.ok_or(Problem::Lost)?;
    let mut spec = v1["spec"].clone();
    spec["datastoreReady"] = false.into();
    let annotations = json!({ MIGRATED_BY: migration });
    let body = json!({
        "apiVersion": at.resource.api_version, "kind": at.resource.kind,
        "metadata": { "name": at.name, "annotations": annotations }, "spec": spec,
    });
    match requests.create(&at, &body, false).await? {
        Created::New(information) => Ok(information),
        Created::Exists => Err(Problem::Lost),
        Created::Refused(text) => Err(Problem::Refused { code: 422, text }),
    }
}

/// Opens the door, if no other process has written `shut` since. From this request on, plugins use v3.
pub(super) async fn open(requests: &Requests, shut: Value) -> Result<(), Problem> {
    let mut information = shut;
    information["spec"]["datastoreReady"] = true.into();
    remove_annotations(&mut information, &[ATTEMPT]);
    requests.replace(&cluster_information(ApiGroup::V3), &information).await.map(drop)
}

/// Gives back the ClusterInformation of v3 as it was before the migration.
///
/// # Errors
/// [`Problem::Lost`] if the door is open.
pub(super) async fn withdraw(requests: &Requests) -> Result<(), Problem> {
    let at = cluster_information(ApiGroup::V3);
    let Some(mut information) = requests.get(&at).await? else { return Ok(()) };
    if Door::of(Some(&information)) == Door::Open {
        return Err(Problem::Lost);
    }
    if has_mark(&information, MIGRATED_BY) {
        let text = |field: &str| information["metadata"][field].as_str().map(str::to_owned);
        let conditions = Preconditions { uid: text("uid"), resource_version: text("resourceVersion") };
        return requests.delete(&at, &conditions).await;
    }
    if has_mark(&information, LOCKED_BY) && !is_ready(&information) {
        information["spec"]["datastoreReady"] = true.into();
        remove_annotations(&mut information, &[LOCKED_BY, ATTEMPT]);
        requests.replace(&at, &information).await?;
    }
    Ok(())
}

fn remove_annotations(information: &mut Value, keys: &[&str]) {
    let Some(annotations) = information["metadata"]["annotations"].as_object_mut() else { return };
    annotations.retain(|key, _| !keys.contains(&key.as_str()));
    if annotations.is_empty()
        && let Some(metadata) = information["metadata"].as_object_mut()
    {
        metadata.remove("annotations");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migration::testing::World;

    fn v3(world: &World) -> Option<Value> {
        world.server.object(&cluster_information(ApiGroup::V3))
    }

    #[tokio::test(start_paused = true)]
    async fn created_door_opens_with_the_content_of_v1_and_is_deleted_by_a_withdrawal() {
        let world = World::new();
        let requests = world.requests();
        shut(&requests, "u").await.unwrap();
        withdraw(&requests).await.unwrap();
        assert_eq!(v3(&world), None);

        let held = shut(&requests, "u").await.unwrap();
        assert_eq!(held["spec"], json!({ "clusterGUID": "g", "datastoreReady": false }));
        open(&requests, held).await.unwrap();
        let opened = v3(&world).unwrap();
        assert_eq!(opened["spec"], json!({ "clusterGUID": "g", "datastoreReady": true }));
        assert_eq!(opened["metadata"]["annotations"], json!({ MIGRATED_BY: "u" }));
        assert_eq!(withdraw(&requests).await, Err(Problem::Lost));
        assert_eq!(shut(&requests, "u").await, Err(Problem::Lost));
    }

    #[tokio::test(start_paused = true)]
    async fn door_shut_again_is_opened_by_its_last_process_only() {
        let world = World::new();
        let requests = world.requests();
        let first = shut(&requests, "u").await.unwrap();
        let second = shut(&requests, "u").await.unwrap();
        assert_eq!(open(&requests, first).await, Err(Problem::Lost));
        open(&requests, second).await.unwrap();
        assert_eq!(Door::of(v3(&world).as_ref()), Door::Open);
    }

    #[tokio::test(start_paused = true)]
    async fn existing_information_is_locked_and_given_back() {
        let world = World::new();
        let requests = world.requests();
        let put = |ready: bool| {
            world.server.with_store(|store| {
                store.put(&cluster_information(ApiGroup::V3), json!({ "spec": { "datastoreReady": ready } }))
            })
        };
        put(true);
        shut(&requests, "u").await.unwrap();
        assert_eq!(Door::of(v3(&world).as_ref()), Door::Shut);
        withdraw(&requests).await.unwrap();
        let after = v3(&world).unwrap();
        assert_eq!(after["spec"]["datastoreReady"], true);
        assert_eq!(after["metadata"]["annotations"], Value::Null);

        let foreign = put(false);
        assert!(matches!(shut(&requests, "u").await, Err(Problem::Refused { .. })));
        withdraw(&requests).await.unwrap();
        assert_eq!(v3(&world), Some(foreign));
    }
}
