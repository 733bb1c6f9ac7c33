//! The door: the ClusterInformation of v3. While it is shut, no plugin uses v3. Once it is open and marked, all plugins
//! do, and the migration cannot be aborted (MIG-65).

use libcalico::kubernetes::{ApiGroup, Preconditions};
use libcalico::migration::{LOCKED_BY, MIGRATED_BY, cluster_information};
use serde_json::{Value, json};

use super::marks::{ATTEMPT, Door, has_mark, set_ready};
use super::object::remove_annotations;
use super::requests::{Created, Problem, Requests};

/// The write that shuts the door.
enum Shutting {
    Create(Value),
    Replace(Value),
}

impl Shutting {
    /// Prepares the write, for the migration with this uid.
    ///
    /// # Errors
    /// [`Problem::Refused`] if another program has locked v3. [`Problem::Lost`] if the door is or was open.
    async fn prepare(requests: &Requests, migration: &str) -> Result<Shutting, Problem> {
        let at = cluster_information(ApiGroup::V3);
        let Some(mut information) = requests.get(&at).await? else {
            return first_content(requests, migration).await.map(Shutting::Create);
        };
        match Door::of(Some(&information)) {
            Door::Open | Door::Locked | Door::Absent => return Err(Problem::Lost),
            Door::Foreign => {
                let text = "ClusterInformation of v3 is locked, and not by a migration".to_owned();
                return Err(Problem::Refused { code: 409, text });
            }
            Door::Shut => {}
            Door::Unmarked => {
                set_ready(&mut information, false);
                information["metadata"]["annotations"][LOCKED_BY] = migration.into();
            }
        }
        information["metadata"]["annotations"][ATTEMPT] = information["metadata"]["resourceVersion"].clone();
        Ok(Shutting::Replace(information))
    }
}

/// Shuts the door for the migration with this uid, and marks it. Returns the object, which [`open`] needs.
///
/// # Errors
/// [`Problem::Refused`] if another program has locked v3, or the API server refuses the write. [`Problem::Lost`] if the
/// door is or was open.
pub(super) async fn shut(requests: &Requests, migration: &str) -> Result<Value, Problem> {
    write_shut(requests, migration, false).await
}

/// Lets the API server check the write of [`shut`], and stores nothing. Admission can let only some accounts write the
/// object (DS-90), which would otherwise be found under the lock of v1.
///
/// # Errors
/// The same as those of [`shut`].
pub(super) async fn check(requests: &Requests, migration: &str) -> Result<(), Problem> {
    write_shut(requests, migration, true).await.map(drop)
}

/// Sends the write that shuts the door. With `dry`, the API server checks the write and stores nothing.
async fn write_shut(requests: &Requests, migration: &str, dry: bool) -> Result<Value, Problem> {
    let at = cluster_information(ApiGroup::V3);
    match Shutting::prepare(requests, migration).await? {
        Shutting::Create(body) => match requests.create(&at, &body, dry).await? {
            Created::New(information) => Ok(information),
            Created::Exists => Err(Problem::Lost),
            Created::Refused(text) => Err(Problem::Refused { code: 422, text }),
        },
        Shutting::Replace(body) if dry => requests.check_replacement(&at, &body).await,
        Shutting::Replace(body) => requests.replace(&at, &body).await,
    }
}

/// Returns the first content of the ClusterInformation of v3: that of v1, with the mark of the migration.
async fn first_content(requests: &Requests, migration: &str) -> Result<Value, Problem> {
    let at = cluster_information(ApiGroup::V3);
    let v1 = requests.get(&cluster_information(ApiGroup::CrdV1)).await?.ok_or(Problem::Lost)?;
    let annotations = json!({ MIGRATED_BY: migration, ATTEMPT: "" });
    let mut body = json!({
        "apiVersion": at.resource.api_version, "kind": at.resource.kind,
        "metadata": { "name": at.name, "annotations": annotations }, "spec": v1["spec"],
    });
    set_ready(&mut body, false);
    Ok(body)
}

/// Opens the door, if no other process has written `shut` since. From this request on, plugins use v3.
pub(super) async fn open(requests: &Requests, shut: Value) -> Result<(), Problem> {
    let mut information = shut;
    set_ready(&mut information, true);
    remove_annotations(&mut information, &[ATTEMPT]);
    requests.replace(&cluster_information(ApiGroup::V3), &information).await.map(drop)
}

/// The ClusterInformation of v3 after a withdrawal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Withdrawn {
    /// Missing: no program can use v3.
    Missing,
    /// Shut until [`give_back`].
    Shut {
        /// True if the ClusterInformation existed before the migration, so that programs could use v3.
        existed: bool,
    },
    /// Not part of a migration: programs may use each object of v3.
    Foreign,
}

/// Ensures that no process of the migration opens the door any more.
///
/// # Errors
/// [`Problem::Lost`] if the door is or was open.
pub(super) async fn withdraw(requests: &Requests) -> Result<Withdrawn, Problem> {
    let at = cluster_information(ApiGroup::V3);
    let Some(mut information) = requests.get(&at).await? else { return Ok(Withdrawn::Missing) };
    match Door::of(Some(&information)) {
        Door::Open | Door::Locked => Err(Problem::Lost),
        Door::Absent | Door::Unmarked | Door::Foreign => Ok(Withdrawn::Foreign),
        Door::Shut => {
            information["metadata"]["annotations"][ATTEMPT] = information["metadata"]["resourceVersion"].clone();
            requests.replace(&at, &information).await?;
            Ok(Withdrawn::Shut { existed: !has_mark(&information, MIGRATED_BY) })
        }
    }
}

/// Deletes a withdrawn ClusterInformation of v3, or unlocks one that existed before the migration. Call this only after
/// the deletion of the copies, if programs could use v3: they would assign addresses of copied blocks.
pub(super) async fn give_back(requests: &Requests) -> Result<(), Problem> {
    let at = cluster_information(ApiGroup::V3);
    let Some(mut information) = requests.get(&at).await? else { return Ok(()) };
    if Door::of(Some(&information)) != Door::Shut {
        return Ok(());
    }
    if has_mark(&information, MIGRATED_BY) {
        let text = |field: &str| information["metadata"][field].as_str().map(str::to_owned);
        let conditions = Preconditions { uid: text("uid"), resource_version: text("resourceVersion") };
        return requests.delete(&at, &conditions).await;
    }
    set_ready(&mut information, true);
    remove_annotations(&mut information, &[LOCKED_BY, ATTEMPT]);
    requests.replace(&at, &information).await.map(drop)
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
        let late = shut(&requests, "u").await.unwrap();
        assert_eq!(withdraw(&requests).await, Ok(Withdrawn::Shut { existed: false }));
        assert_eq!(open(&requests, late).await, Err(Problem::Lost));
        give_back(&requests).await.unwrap();
        assert_eq!(v3(&world), None);
        assert_eq!(withdraw(&requests).await, Ok(Withdrawn::Missing));

        let held = shut(&requests, "u").await.unwrap();
        assert_eq!(held["spec"], json!({ "clusterGUID": "g", "datastoreReady": false }));
        open(&requests, held).await.unwrap();
        let opened = v3(&world).unwrap();
        assert_eq!(opened["spec"], json!({ "clusterGUID": "g", "datastoreReady": true }));
        assert_eq!(opened["metadata"]["annotations"], json!({ MIGRATED_BY: "u" }));
        assert_eq!(withdraw(&requests).await, Err(Problem::Lost));
        assert_eq!(shut(&requests, "u").await, Err(Problem::Lost));

        // An administrator locks v3 for another reason.
        world.server.with_store(|store| {
            let mut locked = opened.clone();
            locked["spec"]["datastoreReady"] = false.into();
            store.put(&cluster_information(ApiGroup::V3), locked);
        });
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
        let late = shut(&requests, "u").await.unwrap();
        assert_eq!(Door::of(v3(&world).as_ref()), Door::Shut);
        assert_eq!(withdraw(&requests).await, Ok(Withdrawn::Shut { existed: true }));
        assert_eq!(open(&requests, late).await, Err(Problem::Lost));
        assert_eq!(Door::of(v3(&world).as_ref()), Door::Shut);
        give_back(&requests).await.unwrap();
        assert_eq!(withdraw(&requests).await, Ok(Withdrawn::Foreign));
        let after = v3(&world).unwrap();
        assert_eq!(after["spec"]["datastoreReady"], true);
        assert_eq!(after["metadata"]["annotations"], Value::Null);

        let foreign = put(false);
        assert!(matches!(shut(&requests, "u").await, Err(Problem::Refused { .. })));
        assert_eq!(withdraw(&requests).await, Ok(Withdrawn::Foreign));
        give_back(&requests).await.unwrap();
        assert_eq!(v3(&world), Some(foreign));
    }
}
