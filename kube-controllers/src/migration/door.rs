//! The door: the ClusterInformation of v3. While it is shut, no plugin uses v3. Once it is open,
//! which means ready and marked, all plugins do, and the migration cannot be aborted (MIG-65).

use libcalico::kubernetes::{ApiGroup, Preconditions};
use libcalico::migration::{LOCKED_BY, MIGRATED_BY, cluster_information};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::attempts::Withdrawals;
use super::marks::{ATTEMPT, CREATED_BY, Door, V1Lock, has_mark, set_ready};
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
    /// [`Problem::Refused`] if another program has locked v3. [`Problem::Lost`] if the door is or
    /// was open.
    async fn prepare(requests: &Requests, migration: &str) -> Result<Shutting, Problem> {
        let at = cluster_information(ApiGroup::V3);
        let Some(mut information) = requests.get(&at).await? else {
            return first_content(requests, migration)
                .await
                .map(Shutting::Create);
        };
        match Door::of(Some(&information)) {
            Door::Open | Door::Locked | Door::Absent => return Err(Problem::Lost),
            Door::Foreign => {
                let text = "ClusterInformation of v3 is locked, and not by a migration".to_owned();
                return Err(Problem::Refused { code: 409, text });
            }
            Door::Shut => {}
            Door::Unmarked => remove_annotations(&mut information, &[CREATED_BY]),
        }
        begin_attempt(&mut information);
        Ok(Shutting::Replace(information))
    }
}

/// Shuts the door in `information`, so that it has another content than each earlier attempt.
fn begin_attempt(information: &mut Value) {
    set_ready(information, false);
    information["metadata"]["annotations"][ATTEMPT] =
        information["metadata"]["resourceVersion"].clone();
}

/// Shuts the door for the migration with this uid. Returns the object, which [`open`] needs.
///
/// # Errors
/// [`Problem::Refused`] if another program has locked v3, or the API server refuses the write.
/// [`Problem::Lost`] if the door is or was open.
pub(super) async fn shut(requests: &Requests, migration: &str) -> Result<Value, Problem> {
    write_shut(requests, migration, false).await
}

/// Lets the API server check the write of [`shut`], and stores nothing. Admission can let only some
/// accounts write the object (DS-90), which would otherwise be found under the lock of v1.
///
/// # Errors
/// The same as those of [`shut`].
pub(super) async fn check(requests: &Requests, migration: &str) -> Result<(), Problem> {
    write_shut(requests, migration, true).await.map(drop)
}

/// Sends the write that shuts the door. With `dry`, the API server checks the write and stores
/// nothing.
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

/// Returns the first content of the ClusterInformation of v3: that of v1, with the annotations of a
/// shut door.
///
/// # Errors
/// [`Problem::Lost`] if v3 may have been open: its ClusterInformation is lost.
async fn first_content(requests: &Requests, migration: &str) -> Result<Value, Problem> {
    let at = cluster_information(ApiGroup::V3);
    let v1 = requests
        .get(&cluster_information(ApiGroup::CrdV1))
        .await?
        .ok_or(Problem::Lost)?;
    if V1Lock::of(Some(&v1)) == V1Lock::Confirmed {
        return Err(Problem::Lost);
    }
    let annotations = json!({ CREATED_BY: migration, ATTEMPT: "" });
    let mut body = json!({
        "apiVersion": at.resource.api_version, "kind": at.resource.kind,
        "metadata": { "name": at.name, "annotations": annotations }, "spec": v1["spec"],
    });
    set_ready(&mut body, false);
    Ok(body)
}

/// Opens the door for the migration with this uid, if no other program has written `shut` since.
/// From this request on, plugins use v3.
pub(super) async fn open(requests: &Requests, shut: Value, migration: &str) -> Result<(), Problem> {
    let mut information = shut;
    let mark = if has_mark(&information, CREATED_BY) {
        MIGRATED_BY
    } else {
        LOCKED_BY
    };
    set_ready(&mut information, true);
    remove_annotations(&mut information, &[ATTEMPT, CREATED_BY]);
    information["metadata"]["annotations"][mark] = migration.into();
    requests
        .replace(&cluster_information(ApiGroup::V3), &information)
        .await
        .map(drop)
}

/// The ClusterInformation of v3 after a withdrawal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Withdrawn {
    /// Missing: no program can use v3.
    Missing,
    /// Shut until [`give_back`].
    Shut {
        /// True if the ClusterInformation existed before the migration, so that programs could use
        /// v3.
        existed: bool,
    },
    /// Shut, but the write has failed for so long that no request of a former leader can open it.
    /// `text` is the message for people.
    Refused { existed: bool, text: String },
    /// Not part of a migration: programs may use each object of v3.
    Foreign,
}

/// Ensures that no process of the migration opens the door any more.
///
/// Admission may refuse each update of the object, and would then keep v1 locked for ever. So would
/// a webhook that is unreachable, for example because its pod waits for an address. But only a
/// leader opens the door, and `withdrawals` shows for how long this leader has done nothing but
/// withdraw. So a failed write suffices if the door was seen shut after the earlier requests of all
/// leaders: if the write takes effect late, the door is shut again.
///
/// # Errors
/// [`Problem::Lost`] if the door is or was open. [`Problem::Transient`] if an earlier request could
/// still open the door.
pub(super) async fn withdraw(
    requests: &Requests,
    withdrawals: &mut Withdrawals,
) -> Result<Withdrawn, Problem> {
    let at = cluster_information(ApiGroup::V3);
    let read_at = Instant::now();
    let Some(mut information) = requests.get(&at).await? else {
        return Ok(Withdrawn::Missing);
    };
    match Door::of(Some(&information)) {
        Door::Open | Door::Locked => Err(Problem::Lost),
        Door::Absent | Door::Unmarked | Door::Foreign => Ok(Withdrawn::Foreign),
        Door::Shut => {
            let existed = !has_mark(&information, CREATED_BY);
            begin_attempt(&mut information);
            match requests.replace(&at, &information).await {
                Err(problem @ (Problem::Refused { .. } | Problem::Transient(_))) => {
                    let text = format!(
                        "ClusterInformation default of projectcalico.org/v3 cannot be withdrawn: \
                         {problem}"
                    );
                    if !withdrawals.fail(read_at) {
                        return Err(Problem::Transient(text));
                    }
                    Ok(Withdrawn::Refused {
                        existed,
                        text: format!("the datastore is not locked, but {text}"),
                    })
                }
                written => written.map(|_| Withdrawn::Shut { existed }),
            }
        }
    }
}

/// Deletes a withdrawn ClusterInformation of v3, or unlocks one that existed before the migration.
/// Call this only after the deletion of the copies, if programs could use v3: they would assign
/// addresses of copied blocks.
pub(super) async fn give_back(requests: &Requests) -> Result<(), Problem> {
    let at = cluster_information(ApiGroup::V3);
    let Some(mut information) = requests.get(&at).await? else {
        return Ok(());
    };
    if Door::of(Some(&information)) != Door::Shut {
        return Ok(());
    }
    if has_mark(&information, CREATED_BY) {
        let text = |field: &str| information["metadata"][field].as_str().map(str::to_owned);
        let conditions = Preconditions {
            uid: text("uid"),
            resource_version: text("resourceVersion"),
        };
        return requests.delete(&at, &conditions).await;
    }
    set_ready(&mut information, true);
    remove_annotations(&mut information, &[ATTEMPT]);
    requests.replace(&at, &information).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migration::lock;
    use crate::migration::testing::World;

    async fn withdrawn(requests: &Requests) -> Result<Withdrawn, Problem> {
        withdraw(requests, &mut Withdrawals::default()).await
    }

    fn v3(world: &World) -> Option<Value> {
        world.server.object(&cluster_information(ApiGroup::V3))
    }

    #[tokio::test(start_paused = true)]
    async fn created_door_opens_with_the_content_of_v1_and_is_deleted_by_a_withdrawal() {
        let world = World::new();
        let requests = world.requests();
        let late = shut(&requests, "u").await.unwrap();
        assert_eq!(
            withdrawn(&requests).await,
            Ok(Withdrawn::Shut { existed: false })
        );
        assert_eq!(open(&requests, late, "u").await, Err(Problem::Lost));
        give_back(&requests).await.unwrap();
        assert_eq!(v3(&world), None);
        assert_eq!(withdrawn(&requests).await, Ok(Withdrawn::Missing));

        let held = shut(&requests, "u").await.unwrap();
        assert_eq!(
            held["spec"],
            json!({ "clusterGUID": "g", "datastoreReady": false })
        );
        open(&requests, held, "u").await.unwrap();
        let opened = v3(&world).unwrap();
        assert_eq!(
            opened["spec"],
            json!({ "clusterGUID": "g", "datastoreReady": true })
        );
        assert_eq!(
            opened["metadata"]["annotations"],
            json!({ MIGRATED_BY: "u" })
        );
        assert_eq!(withdrawn(&requests).await, Err(Problem::Lost));
        assert_eq!(shut(&requests, "u").await, Err(Problem::Lost));

        // An administrator locks v3 for another reason.
        world.server.with_store(|store| {
            let mut locked = opened.clone();
            locked["spec"]["datastoreReady"] = false.into();
            store.put(&cluster_information(ApiGroup::V3), locked);
        });
        assert_eq!(withdrawn(&requests).await, Err(Problem::Lost));
        assert_eq!(shut(&requests, "u").await, Err(Problem::Lost));
    }

    #[tokio::test(start_paused = true)]
    async fn door_shut_again_is_opened_by_its_last_process_only() {
        let world = World::new();
        let requests = world.requests();
        let first = shut(&requests, "u").await.unwrap();
        let second = shut(&requests, "u").await.unwrap();
        assert_eq!(open(&requests, first, "u").await, Err(Problem::Lost));
        open(&requests, second, "u").await.unwrap();
        assert_eq!(Door::of(v3(&world).as_ref()), Door::Open);
    }

    /// calico-node that starts in v3, or a person, may set the field.
    #[tokio::test(start_paused = true)]
    async fn shut_door_that_another_program_sets_ready_has_no_mark_and_is_shut_again() {
        for existed in [false, true] {
            let world = World::new();
            let requests = world.requests();
            let at = cluster_information(ApiGroup::V3);
            if existed {
                world.server.with_store(|store| {
                    store.put(&at, json!({ "spec": { "datastoreReady": true } }))
                });
            }
            let late = shut(&requests, "u").await.unwrap();
            world.server.with_store(|store| {
                let mut ready = late.clone();
                ready["spec"]["datastoreReady"] = true.into();
                store.put(&at, ready);
            });
            let ready = v3(&world).unwrap();
            assert!(
                !has_mark(&ready, MIGRATED_BY) && !has_mark(&ready, LOCKED_BY),
                "{ready}"
            );
            assert_eq!(Door::of(Some(&ready)), Door::Shut);
            assert_eq!(open(&requests, late, "u").await, Err(Problem::Lost));
            assert_eq!(withdrawn(&requests).await, Ok(Withdrawn::Shut { existed }));
            let shut = shut(&requests, "u").await.unwrap();
            assert_eq!(shut["spec"]["datastoreReady"], false);
            open(&requests, shut, "u").await.unwrap();
            let mark = if existed { LOCKED_BY } else { MIGRATED_BY };
            assert_eq!(
                v3(&world).unwrap()["metadata"]["annotations"],
                json!({ mark: "u" })
            );
        }
    }

    /// The next process copies again, and must not mistake a lost ClusterInformation for one that
    /// never existed.
    #[tokio::test(start_paused = true)]
    async fn door_that_may_have_been_open_is_not_created_again() {
        let world = World::new();
        let requests = world.requests();
        lock::lock(&requests, "u").await.unwrap();
        assert!(lock::confirm(&requests).await.unwrap());
        assert_eq!(shut(&requests, "u").await, Err(Problem::Lost));
        assert_eq!(v3(&world), None);
    }

    #[tokio::test(start_paused = true)]
    async fn existing_information_is_locked_and_given_back() {
        let world = World::new();
        let requests = world.requests();
        let put = |ready: bool| {
            world.server.with_store(|store| {
                store.put(
                    &cluster_information(ApiGroup::V3),
                    json!({ "spec": { "datastoreReady": ready } }),
                )
            })
        };
        put(true);
        let late = shut(&requests, "u").await.unwrap();
        assert_eq!(Door::of(v3(&world).as_ref()), Door::Shut);
        assert_eq!(
            withdrawn(&requests).await,
            Ok(Withdrawn::Shut { existed: true })
        );
        assert_eq!(open(&requests, late, "u").await, Err(Problem::Lost));
        assert_eq!(Door::of(v3(&world).as_ref()), Door::Shut);
        give_back(&requests).await.unwrap();
        assert_eq!(withdrawn(&requests).await, Ok(Withdrawn::Foreign));
        let after = v3(&world).unwrap();
        assert_eq!(after["spec"]["datastoreReady"], true);
        assert_eq!(after["metadata"]["annotations"], Value::Null);

        let foreign = put(false);
        assert!(matches!(
            shut(&requests, "u").await,
            Err(Problem::Refused { .. })
        ));
        assert_eq!(withdrawn(&requests).await, Ok(Withdrawn::Foreign));
        give_back(&requests).await.unwrap();
        assert_eq!(v3(&world), Some(foreign));
    }
}
