//! The readiness of the datastore: the lock in ClusterInformation `default`, and a migration that
//! moved Calico's objects to `projectcalico.org/v3`.
//!
//! `calico` reads the ClusterInformation together with its other objects. The functions here serve
//! the other programs of a node: `calico-ipam` as a process of its own, the connection test, the
//! agent, `uninstall` and `doctor`.

use std::time::Duration;

use datastore::ClusterStore;
use futures::future::join;
use libcalico::api::{ClusterInformation, ObjectKey};
use libcalico::store::StoreError;
use netconf::{CniError, Code};
use os::clock::Clock;

use crate::reads::find;

/// The time for which a call may rely on a ClusterInformation that it has read. A migration copies
/// no object in the first 10 s of its lock (MIG-57), which it counts from a time in whole seconds.
const VALIDITY: Duration = Duration::from_secs(8);

const MOVED: &str = "Calico's objects moved to projectcalico.org/v3, and the network configuration \
                     names crd.projectcalico.org/v1";

const MOVED_ADVICE: &str = "set calico_api_group of the network configuration to \
                            projectcalico.org/v3, or leave it out; with the manifests of deploy/ \
                            set calico_api_group in the ConfigMap calico-cni-config and restart \
                            the pods of calico-cni";

/// The reason why a call may not change the datastore.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NotReadyError {
    /// The ClusterInformation is missing or cannot be read.
    #[error("error getting ClusterInformation: {0}")]
    Unread(#[from] StoreError),
    /// `datastoreReady` is false or missing.
    #[error("ClusterInformation default says that the datastore is not ready")]
    Locked,
    /// A migration moved the objects to `projectcalico.org/v3`, and the configuration names the
    /// other group.
    #[error("{}; {}", MOVED, MOVED_ADVICE)]
    Moved,
}

impl From<NotReadyError> for CniError {
    fn from(error: NotReadyError) -> Self {
        match error {
            NotReadyError::Unread(cause) => first_read_error(&cause),
            NotReadyError::Locked => {
                let reason = "ClusterInformation default has datastoreReady unset or false: an \
                              upgrade may be in progress";
                // Upstream's text.
                CniError::new(
                    Code::TRY_AGAIN,
                    "Calico is currently not ready to process requests",
                )
                .with_details(reason)
            }
            NotReadyError::Moved => {
                CniError::new(Code::TRY_AGAIN, MOVED).with_details(MOVED_ADVICE)
            }
        }
    }
}

/// Converts an error of the first read of a call, with upstream's text (CNI-75).
pub fn first_read_error(error: &StoreError) -> CniError {
    let (code, advice) = match error {
        StoreError::NotFound { .. } => (
            Code::TRY_AGAIN,
            "start calico-node or run `calico-ipam init`, which create the ClusterInformation",
        ),
        StoreError::Unavailable { .. } | StoreError::ForeignAnswer { .. } => (Code::TRY_AGAIN, ""),
        StoreError::DiskFull { .. } => (Code::IO, ""),
        _ => (Code::INTERNAL, ""),
    };
    CniError::new(code, format!("error getting ClusterInformation: {error}")).with_details(advice)
}

/// The API group after [`ensure_ready`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupInUse {
    /// The group of the objects read before.
    Same,
    /// `projectcalico.org/v3`, where all objects have to be read again.
    SwitchedToV3,
}

/// Reads the ClusterInformation. If it is missing or locked, and a migration has opened
/// `projectcalico.org/v3`, `store` uses that group from now on.
///
/// # Errors
/// The datastore is locked, has no ClusterInformation, or is unreachable; or its objects moved to
/// another group than the configured one.
pub async fn ensure_ready(store: &impl ClusterStore) -> Result<GroupInUse, NotReadyError> {
    let not_ready = match store
        .get::<ClusterInformation>(&ObjectKey::global("default"))
        .await
    {
        Ok(cluster) if cluster.value.spec.datastore_ready == Some(true) => {
            return Ok(GroupInUse::Same);
        }
        Ok(_) => NotReadyError::Locked,
        Err(error @ StoreError::NotFound { .. }) => error.into(),
        Err(error) => return Err(error.into()),
    };
    if !has_moved(store).await {
        return Err(not_ready);
    }
    if store.has_configured_group() {
        return Err(NotReadyError::Moved);
    }
    switch_to_v3(store).await?;
    Ok(GroupInUse::SwitchedToV3)
}

/// Returns true if a migration has moved the objects to `projectcalico.org/v3` while `store` uses
/// the other group. Returns false if the API server does not answer that.
pub async fn has_moved(store: &impl ClusterStore) -> bool {
    store.has_migrated_to_v3().await.unwrap_or_else(|error| {
        tracing::debug!(
            %error,
            "cannot check whether Calico's objects moved to projectcalico.org/v3"
        );
        false
    })
}

/// Makes `store` use `projectcalico.org/v3` from now on.
pub async fn switch_to_v3(store: &impl ClusterStore) -> Result<(), StoreError> {
    store.switch_to_v3().await?;
    tracing::info!(
        "Calico's objects moved to projectcalico.org/v3; continuing the call with that API group"
    );
    Ok(())
}

/// Runs `read`, the first reads of a call, together with [`ensure_ready`], and again after a switch
/// of the group. A missing ClusterInformation is no lock, because upstream's `calico-ipam` reads
/// none (MIG-66).
pub async fn read_unlocked<T>(
    store: &impl ClusterStore,
    read: impl AsyncFn() -> Result<T, CniError>,
) -> Result<T, CniError> {
    match read_beside(store, read).await {
        (Err(NotReadyError::Unread(StoreError::NotFound { .. })), objects) => objects,
        (ready, objects) => first_error(ready, objects),
    }
}

/// Fails if the datastore is locked. Does the same as [`read_unlocked`] without other reads.
pub async fn ensure_unlocked(store: &impl ClusterStore) -> Result<(), CniError> {
    read_unlocked(store, async || Ok(())).await
}

/// Fails if the datastore has been locked while a call assigned addresses, because a migration may
/// have copied the blocks before. `begun` is a time of `clock` before the call read the
/// ClusterInformation. A call of the usual duration sends no request.
pub async fn ensure_still_unlocked(
    store: &impl ClusterStore,
    clock: &impl Clock,
    begun: Duration,
) -> Result<(), NotReadyError> {
    if clock.elapsed().saturating_sub(begun) < VALIDITY {
        return Ok(());
    }
    match find::<ClusterInformation>(store, &ObjectKey::global("default")).await? {
        Some(cluster) if cluster.value.spec.datastore_ready != Some(true) => {
            Err(NotReadyError::Locked)
        }
        _ => Ok(()),
    }
}

/// Does the same as [`read_unlocked`], and fails also without a ClusterInformation.
pub async fn read_ready<T>(
    store: &impl ClusterStore,
    read: impl AsyncFn() -> Result<T, CniError>,
) -> Result<T, CniError> {
    let (ready, objects) = read_beside(store, read).await;
    first_error(ready, objects)
}

async fn read_beside<T>(
    store: &impl ClusterStore,
    read: impl AsyncFn() -> Result<T, CniError>,
) -> (Result<(), NotReadyError>, Result<T, CniError>) {
    let (ready, objects) = join(ensure_ready(store), read()).await;
    match ready {
        Ok(GroupInUse::SwitchedToV3) => (Ok(()), read().await),
        Ok(GroupInUse::Same) => (Ok(()), objects),
        Err(error) => (Err(error), objects),
    }
}

/// Returns the objects, or an error. An unreadable ClusterInformation counts only if the other
/// objects are readable: their error says more about the call.
fn first_error<T>(
    ready: Result<(), NotReadyError>,
    objects: Result<T, CniError>,
) -> Result<T, CniError> {
    match ready {
        Ok(()) => objects,
        Err(error @ NotReadyError::Unread(_)) => objects.and(Err(error.into())),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use datastore::config::LocalConfig;
    use datastore::{Datastore, Local};
    use libcalico::api::ClusterInformationSpec;
    use libcalico::store::Store as _;

    use super::*;
    use crate::testing::TestClock;

    fn datastore(files: &tempfile::TempDir) -> Datastore {
        let path = files.path().join("calico.db");
        Datastore::Local(Local::new(&LocalConfig {
            path,
            deadline: Duration::from_secs(10),
        }))
    }

    async fn set_ready(store: &Datastore, ready: Option<bool>) {
        let key = ObjectKey::global("default");
        let stored = store.get::<ClusterInformation>(&key).await.unwrap();
        let spec = ClusterInformationSpec {
            datastore_ready: ready,
            ..stored.value.spec
        };
        store
            .update(
                &key,
                &ClusterInformation::new("default", spec),
                &stored.revision,
            )
            .await
            .unwrap();
    }

    /// Returns the error texts of a call and of a STATUS; an empty text is a success.
    async fn outcomes(store: &Datastore, objects: Result<(), CniError>) -> [String; 2] {
        let read = async || objects.clone();
        let text = |result: Result<(), CniError>| {
            result.map_or_else(|error| error.msg, |()| String::new())
        };
        [
            text(read_unlocked(store, &read).await),
            text(read_ready(store, &read).await),
        ]
    }

    #[tokio::test]
    async fn ready_datastore_is_read_once() {
        let files = tempfile::tempdir().unwrap();
        let store = datastore(&files);
        let reads = Cell::new(0);
        let read = async || {
            reads.set(reads.get() + 1);
            Ok::<_, CniError>(reads.get())
        };
        assert_eq!(read_unlocked(&store, read).await, Ok(1));
        let unreadable = Err(CniError::internal("no pool"));
        assert_eq!(outcomes(&store, unreadable).await, ["no pool", "no pool"]);
    }

    #[tokio::test]
    async fn locked_datastore_is_refused_whatever_the_other_reads_return() {
        let files = tempfile::tempdir().unwrap();
        let store = datastore(&files);
        for ready in [Some(false), None] {
            set_ready(&store, ready).await;
            for objects in [Ok(()), Err(CniError::internal("no pool"))] {
                let not_ready = "Calico is currently not ready to process requests";
                assert_eq!(
                    outcomes(&store, objects).await,
                    [not_ready, not_ready],
                    "{ready:?}"
                );
            }
        }
        let error = ensure_ready(&store).await.unwrap_err();
        assert!(
            error.to_string().contains("the datastore is not ready"),
            "{error}"
        );
    }

    /// Shows SEC-70.
    #[tokio::test]
    async fn long_call_fails_if_the_datastore_was_locked_meanwhile() {
        let files = tempfile::tempdir().unwrap();
        let store = datastore(&files);
        let clock = TestClock::default();
        let after = |seconds| {
            let clock = clock.restarted();
            clock.advance(Duration::from_secs(seconds));
            clock
        };
        let begun = Duration::ZERO;
        for (ready, is_refused) in [(Some(true), false), (Some(false), true), (None, true)] {
            set_ready(&store, ready).await;
            assert_eq!(
                ensure_still_unlocked(&store, &after(9), begun)
                    .await
                    .is_err(),
                is_refused,
                "{ready:?}"
            );
            let requests = store.requests();
            assert!(
                ensure_still_unlocked(&store, &after(1), begun)
                    .await
                    .is_ok()
            );
            assert_eq!(store.requests(), requests);
        }
        store
            .delete::<ClusterInformation>(&ObjectKey::global("default"), None)
            .await
            .unwrap();
        assert!(
            ensure_still_unlocked(&store, &after(9), begun)
                .await
                .is_ok()
        );
    }

    #[tokio::test]
    async fn missing_cluster_information_is_refused_by_status_alone() {
        let files = tempfile::tempdir().unwrap();
        let store = datastore(&files);
        store
            .delete::<ClusterInformation>(&ObjectKey::global("default"), None)
            .await
            .unwrap();
        let missing = "error getting ClusterInformation: resource does not exist: \
                       ClusterInformation(default)";
        assert_eq!(outcomes(&store, Ok(())).await, ["", missing]);
        let unreadable = Err(CniError::internal("no pool"));
        assert_eq!(outcomes(&store, unreadable).await, ["no pool", "no pool"]);
    }
}
