//! Changes of the access of programs to v3, which the ClusterInformation of v3 shows. While v3 is
//! closed, no plugin uses it. Once v3 is open, which means that the object is ready and marked, all
//! plugins do, and the migration cannot be aborted (MIG-65).

use libcalico::kubernetes::{ApiGroup, Preconditions};
use libcalico::migration::{LOCKED_BY, MIGRATED_BY, cluster_information};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::attempts::Withdrawals;
use super::marks::{ATTEMPT, CREATED_BY, V1Lock, V3Access, has_mark, set_ready};
use super::object::remove_annotations;
use super::requests::{Created, Problem, Requests};

/// The write that closes v3.
enum ClosingWrite {
    Create(Value),
    Replace(Value),
}

impl ClosingWrite {
    /// Prepares the write, for the migration with this uid.
    ///
    /// # Errors
    /// [`Problem::Refused`] if another program has locked v3. [`Problem::Lost`] if v3 is or was
    /// open.
    async fn prepare(requests: &Requests, migration: &str) -> Result<ClosingWrite, Problem> {
        let at = cluster_information(ApiGroup::V3);
        let Some(mut information) = requests.get(&at).await? else {
            return first_content(requests, migration)
                .await
                .map(ClosingWrite::Create);
        };
        match V3Access::of(Some(&information)) {
            V3Access::Open | V3Access::MarkedAndLocked | V3Access::Missing => {
                return Err(Problem::Lost);
            }
            V3Access::UnmarkedAndLocked => {
                let text = "ClusterInformation of v3 is locked, and not by a migration".to_owned();
                return Err(Problem::Refused { code: 409, text });
            }
            V3Access::Closed => {}
            V3Access::Unmarked => remove_annotations(&mut information, &[CREATED_BY]),
        }
        begin_attempt(&mut information);
        Ok(ClosingWrite::Replace(information))
    }
}

/// Closes v3 in `information`, so that it has another content than each earlier attempt.
fn begin_attempt(information: &mut Value) {
    set_ready(information, false);
    information["metadata"]["annotations"][ATTEMPT] =
        information["metadata"]["resourceVersion"].clone();
}

/// Closes v3 for the migration with this uid. Returns the object, which [`open`] needs.
///
/// # Errors
/// [`Problem::Refused`] if another program has locked v3, or the API server refuses the write.
/// [`Problem::Lost`] if v3 is or was open.
pub(super) async fn close(requests: &Requests, migration: &str) -> Result<Value, Problem> {
    write_closed(requests, migration, false).await
}

/// Lets the API server check the write of [`close`], and stores nothing. Admission can let only
/// some accounts write the object (DS-90), which would otherwise be found under the lock of v1.
///
/// # Errors
/// The same as those of [`close`].
pub(super) async fn check(requests: &Requests, migration: &str) -> Result<(), Problem> {
    write_closed(requests, migration, true).await.map(drop)
}

/// Sends the write that closes v3. With `dry`, the API server checks the write and stores nothing.
async fn write_closed(requests: &Requests, migration: &str, dry: bool) -> Result<Value, Problem> {
    let at = cluster_information(ApiGroup::V3);
    match ClosingWrite::prepare(requests, migration).await? {
        ClosingWrite::Create(body) => match requests.create(&at, &body, dry).await? {
            Created::New(information) => Ok(information),
            Created::Exists => Err(Problem::Lost),
            Created::Refused(text) => Err(Problem::Refused { code: 422, text }),
        },
        ClosingWrite::Replace(body) if dry => requests.check_replacement(&at, &body).await,
        ClosingWrite::Replace(body) => requests.replace(&at, &body).await,
    }
}

/// Returns the first content of the ClusterInformation of v3: that of v1, with the annotations of a
/// closed v3.
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

/// Opens v3 for the migration with this uid, if no other program has written `closed` since.
/// From this request on, plugins use v3.
pub(super) async fn open(
    requests: &Requests,
    closed: Value,
    migration: &str,
) -> Result<(), Problem> {
    let mut information = closed;
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
    /// Closed until [`give_back`].
    Closed {
        /// True if the ClusterInformation existed before the migration, so that programs could use
        /// v3.
        existed: bool,
    },
    /// Closed, but the write has failed for so long that no request of a former leader can open v3.
    /// `text` is the message for people.
    Refused { existed: bool, text: String },
    /// Not part of a migration: programs may use each object of v3.
    Foreign,
}

/// Ensures that no process of the migration opens v3 any more.
///
/// Admission may refuse each update of the object, and would then keep v1 locked for ever. So would
/// a webhook that is unreachable, for example because its pod waits for an address. But only a
/// leader opens v3, and `withdrawals` shows for how long this leader has done nothing but
/// withdraw. So a failed write suffices if v3 was seen closed after the earlier requests of all
/// leaders: if the write takes effect late, v3 is closed again.
///
/// # Errors
/// [`Problem::Lost`] if v3 is or was open. [`Problem::Transient`] if an earlier request could still
/// open v3.
pub(super) async fn withdraw(
    requests: &Requests,
    withdrawals: &mut Withdrawals,
) -> Result<Withdrawn, Problem> {
    let at = cluster_information(ApiGroup::V3);
    let read_at = Instant::now();
    let Some(mut information) = requests.get(&at).await? else {
        return Ok(Withdrawn::Missing);
    };
    match V3Access::of(Some(&information)) {
        V3Access::Open | V3Access::MarkedAndLocked => Err(Problem::Lost),
        V3Access::Missing | V3Access::Unmarked | V3Access::UnmarkedAndLocked => {
            Ok(Withdrawn::Foreign)
        }
        V3Access::Closed => {
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
                written => written.map(|_| Withdrawn::Closed { existed }),
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
    if V3Access::of(Some(&information)) != V3Access::Closed {
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
    use crate::lock;
    use crate::testing::MigratedCluster;

    async fn withdrawn(requests: &Requests) -> Result<Withdrawn, Problem> {
        withdraw(requests, &mut Withdrawals::default()).await
    }

    fn v3(cluster: &MigratedCluster) -> Option<Value> {
        cluster.server.object(&cluster_information(ApiGroup::V3))
    }

    #[tokio::test(start_paused = true)]
    async fn created_information_opens_v3_with_the_content_of_v1_and_is_deleted_by_a_withdrawal() {
        let cluster = MigratedCluster::new();
        let requests = cluster.requests();
        let late = close(&requests, "u").await.unwrap();
        assert_eq!(
            withdrawn(&requests).await,
            Ok(Withdrawn::Closed { existed: false })
        );
        assert_eq!(open(&requests, late, "u").await, Err(Problem::Lost));
        give_back(&requests).await.unwrap();
        assert_eq!(v3(&cluster), None);
        assert_eq!(withdrawn(&requests).await, Ok(Withdrawn::Missing));

        let held = close(&requests, "u").await.unwrap();
        assert_eq!(
            held["spec"],
            json!({ "clusterGUID": "g", "datastoreReady": false })
        );
        open(&requests, held, "u").await.unwrap();
        let opened = v3(&cluster).unwrap();
        assert_eq!(
            opened["spec"],
            json!({ "clusterGUID": "g", "datastoreReady": true })
        );
        assert_eq!(
            opened["metadata"]["annotations"],
            json!({ MIGRATED_BY: "u" })
        );
        assert_eq!(withdrawn(&requests).await, Err(Problem::Lost));
        assert_eq!(close(&requests, "u").await, Err(Problem::Lost));

        // An administrator locks v3 for another reason.
        cluster.server.with_store(|store| {
            let mut locked = opened.clone();
            locked["spec"]["datastoreReady"] = false.into();
            store.put(&cluster_information(ApiGroup::V3), locked);
        });
        assert_eq!(withdrawn(&requests).await, Err(Problem::Lost));
        assert_eq!(close(&requests, "u").await, Err(Problem::Lost));
    }

    #[tokio::test(start_paused = true)]
    async fn v3_closed_again_is_opened_by_its_last_process_only() {
        let cluster = MigratedCluster::new();
        let requests = cluster.requests();
        let first = close(&requests, "u").await.unwrap();
        let second = close(&requests, "u").await.unwrap();
        assert_eq!(open(&requests, first, "u").await, Err(Problem::Lost));
        open(&requests, second, "u").await.unwrap();
        assert_eq!(V3Access::of(v3(&cluster).as_ref()), V3Access::Open);
    }

    /// calico-node that starts in v3, or a person, may set the field.
    #[tokio::test(start_paused = true)]
    async fn closed_v3_that_another_program_sets_ready_has_no_mark_and_is_closed_again() {
        for existed in [false, true] {
            let cluster = MigratedCluster::new();
            let requests = cluster.requests();
            let at = cluster_information(ApiGroup::V3);
            if existed {
                cluster.server.with_store(|store| {
                    store.put(&at, json!({ "spec": { "datastoreReady": true } }))
                });
            }
            let late = close(&requests, "u").await.unwrap();
            cluster.server.with_store(|store| {
                let mut ready = late.clone();
                ready["spec"]["datastoreReady"] = true.into();
                store.put(&at, ready);
            });
            let ready = v3(&cluster).unwrap();
            assert!(
                !has_mark(&ready, MIGRATED_BY) && !has_mark(&ready, LOCKED_BY),
                "{ready}"
            );
            assert_eq!(V3Access::of(Some(&ready)), V3Access::Closed);
            assert_eq!(open(&requests, late, "u").await, Err(Problem::Lost));
            assert_eq!(
                withdrawn(&requests).await,
                Ok(Withdrawn::Closed { existed })
            );
            let closed = close(&requests, "u").await.unwrap();
            assert_eq!(closed["spec"]["datastoreReady"], false);
            open(&requests, closed, "u").await.unwrap();
            let mark = if existed { LOCKED_BY } else { MIGRATED_BY };
            assert_eq!(
                v3(&cluster).unwrap()["metadata"]["annotations"],
                json!({ mark: "u" })
            );
        }
    }

    /// The next process copies again, and must not mistake a lost ClusterInformation for one that
    /// never existed.
    #[tokio::test(start_paused = true)]
    async fn v3_that_may_have_been_open_is_not_created_again() {
        let cluster = MigratedCluster::new();
        let requests = cluster.requests();
        lock::lock(&requests, "u").await.unwrap();
        assert!(lock::confirm(&requests).await.unwrap());
        assert_eq!(close(&requests, "u").await, Err(Problem::Lost));
        assert_eq!(v3(&cluster), None);
    }

    #[tokio::test(start_paused = true)]
    async fn existing_information_is_locked_and_given_back() {
        let cluster = MigratedCluster::new();
        let requests = cluster.requests();
        let put = |ready: bool| {
            cluster.server.with_store(|store| {
                store.put(
                    &cluster_information(ApiGroup::V3),
                    json!({ "spec": { "datastoreReady": ready } }),
                )
            })
        };
        put(true);
        let late = close(&requests, "u").await.unwrap();
        assert_eq!(V3Access::of(v3(&cluster).as_ref()), V3Access::Closed);
        assert_eq!(
            withdrawn(&requests).await,
            Ok(Withdrawn::Closed { existed: true })
        );
        assert_eq!(open(&requests, late, "u").await, Err(Problem::Lost));
        assert_eq!(V3Access::of(v3(&cluster).as_ref()), V3Access::Closed);
        give_back(&requests).await.unwrap();
        assert_eq!(withdrawn(&requests).await, Ok(Withdrawn::Foreign));
        let after = v3(&cluster).unwrap();
        assert_eq!(after["spec"]["datastoreReady"], true);
        assert_eq!(after["metadata"]["annotations"], Value::Null);

        let foreign = put(false);
        assert!(matches!(
            close(&requests, "u").await,
            Err(Problem::Refused { .. })
        ));
        assert_eq!(withdrawn(&requests).await, Ok(Withdrawn::Foreign));
        give_back(&requests).await.unwrap();
        assert_eq!(v3(&cluster), Some(foreign));
    }
}
