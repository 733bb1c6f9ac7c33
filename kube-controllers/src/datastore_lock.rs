//! The lock of the datastore: the field `datastoreReady` of ClusterInformation.
//!
//! While the field is false, for example during an upgrade, a restore or a migration, no controller
//! may write to the datastore (DS-92). The leader creates the objects that an empty datastore
//! lacks; the other replicas wait for them.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use datastore::Datastore;
use datastore::bootstrap::InitialObjects;
use datastore::watch::WatchEvent;
use libcalico::api::{ClusterInformation, ObjectKey, ObjectSelect};
use libcalico::store::{Entry, Store, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::leader::Leadership;
use crate::startup::retry_until_ok;

const NAME: &str = "default";
/// The number of successful checks between two that include the built-in tiers. An API server gets
/// a request for each tier, and tiers are rarely deleted. With a check each 10 s, a deleted tier is
/// created again after 5 minutes at most.
const CHECKS_WITHOUT_TIERS: u32 = 29;

/// Returns the right to write Calico's objects, derived from `elected`, and a future that follows
/// ClusterInformation until `stop`.
///
/// The datastore counts as not ready until ClusterInformation has been read, and while it is
/// missing or unreadable. `on_found` is called, possibly many times, once the watch has delivered
/// ClusterInformation. Missing built-in tiers are created before the right to write begins, and
/// never while the datastore is locked.
pub fn guard(
    elected: Leadership,
    calico: Arc<Datastore>,
    on_found: impl Fn(),
    stop: CancellationToken,
) -> (Leadership, impl Future<Output = ()>) {
    let (sender, unlocked) = watch::channel(false);
    (
        elected.clone().while_unlocked(unlocked),
        follow(elected, calico, on_found, sender, stop),
    )
}

/// A check, to be repeated, that the datastore responds and has the objects that Calico needs.
#[derive(Debug, Default)]
pub(crate) struct DatastoreCheck {
    /// The number of checks before the next one that includes the built-in tiers.
    checks_before_tiers: AtomicU32,
}

impl DatastoreCheck {
    /// Creates the objects that the datastore lacks, if this replica is the leader. On any other
    /// replica, returns an error while ClusterInformation is missing.
    pub(crate) async fn initialize_or_check(
        &self,
        calico: &Datastore,
        elected: &Leadership,
    ) -> Result<(), StoreError> {
        let before = self.checks_before_tiers.load(Ordering::Relaxed);
        let objects = if before == 0 {
            InitialObjects::All
        } else {
            InitialObjects::ClusterInformation
        };
        match elected
            .while_held(calico.ensure_initialized_for_kubernetes(objects))
            .await
        {
            Some(Ok(())) => {
                let before = before.checked_sub(1).unwrap_or(CHECKS_WITHOUT_TIERS);
                self.checks_before_tiers.store(before, Ordering::Relaxed);
                Ok(())
            }
            // A failed check of the tiers is repeated.
            Some(Err(error)) => Err(error),
            None => calico
                .get::<ClusterInformation>(&ObjectKey::global(NAME))
                .await
                .map(drop),
        }
    }
}

/// Waits until this replica is the leader, then creates the objects that the datastore lacks.
async fn initialize(calico: &Datastore, elected: &Leadership) -> Result<(), StoreError> {
    loop {
        elected.clone().gained().await;
        if let Some(made) = elected
            .while_held(calico.ensure_initialized_for_kubernetes(InitialObjects::All))
            .await
        {
            return made;
        }
    }
}

async fn follow(
    elected: Leadership,
    calico: Arc<Datastore>,
    on_found: impl Fn(),
    unlocked: watch::Sender<bool>,
    stop: CancellationToken,
) {
    let select = ObjectSelect {
        name_prefix: NAME.into(),
        ..ObjectSelect::default()
    };
    // Only the embedded datastore cannot be watched, and kube-controllers does not run on it.
    let Some(mut watch) = calico.watch::<ClusterInformation>(&select) else {
        return;
    };
    let (sender, ready) = watch::channel(None);
    let watching = async {
        let mut state = ReadyState::default();
        loop {
            state.apply(watch.next().await);
            if state.is_named {
                on_found();
            }
            sender.send_if_modified(|ready| std::mem::replace(ready, state.ready) != state.ready);
        }
    };
    let initialize = async || initialize(&calico, &elected).await;
    let unlocking = async {
        // Initializes first, because ClusterInformation itself may be missing.
        if retry_until_ok("initialize the datastore", &stop, initialize)
            .await
            .is_some()
        {
            unlock(ready, unlocked, &stop, initialize).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = watching => {}
        () = unlocking => {}
    }
}

/// Publishes the latest value of `changes` in `unlocked`, unless it is `None`. Initializes the
/// datastore each time before it publishes true, and publishes no true that changes meanwhile.
async fn unlock<E: Display>(
    mut changes: watch::Receiver<Option<bool>>,
    unlocked: watch::Sender<bool>,
    stop: &CancellationToken,
    initialize: impl AsyncFn() -> Result<(), E>,
) {
    loop {
        let ready = *changes.borrow_and_update();
        match ready {
            None => {}
            Some(false) => {
                unlocked.send_replace(false);
                tracing::warn!(
                    "no controller writes until spec.datastoreReady of ClusterInformation({NAME}) is true"
                );
            }
            Some(true) => tokio::select! {
                biased;
                Ok(()) = changes.changed() => continue,
                Some(()) = retry_until_ok("initialize the datastore", stop, &initialize) => {
                    unlocked.send_replace(true);
                    tracing::info!("the datastore is ready: spec.datastoreReady of ClusterInformation({NAME}) is true");
                }
            },
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

#[derive(Debug, Default)]
struct ReadyState {
    /// The last value of `datastoreReady`, or false if the object is missing or unreadable. `None`
    /// until the watch delivers the object with this field, or completes a list without the object.
    ready: Option<bool>,
    /// True if the object came in a [`WatchEvent::Upsert`] since the start of the latest list.
    is_named: bool,
}

impl ReadyState {
    /// Applies an event. A missing object counts as not ready, and a missing field leaves the state
    /// unchanged (KC-425).
    fn apply(&mut self, event: WatchEvent<Entry<ClusterInformation>, ObjectKey>) {
        match event {
            WatchEvent::ListStart => self.is_named = false,
            WatchEvent::Upsert(entry) if entry.key.name == NAME => {
                self.is_named = true;
                self.ready = entry.value.spec.datastore_ready.or(self.ready);
            }
            WatchEvent::Delete(key) if key.name == NAME => self.ready = Some(false),
            WatchEvent::ListEnd if !self.is_named => self.ready = Some(false),
            WatchEvent::Upsert(_) | WatchEvent::Delete(_) | WatchEvent::ListEnd => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::pin::pin;
    use std::time::Duration;

    use futures::FutureExt;
    use libcalico::api::{ClusterInformationSpec, Tier};
    use libcalico::store::Revision;
    use tokio::time::sleep;

    use super::*;
    use crate::controllers::testing::embedded;
    use crate::leader::LeadershipTerm;

    fn put(name: &str, ready: Option<bool>) -> WatchEvent<Entry<ClusterInformation>, ObjectKey> {
        let spec = ClusterInformationSpec {
            datastore_ready: ready,
            ..ClusterInformationSpec::default()
        };
        let value = ClusterInformation::new(name, spec);
        WatchEvent::Upsert(Entry {
            key: value.key(),
            value,
            revision: Revision("1".into()),
        })
    }

    #[test]
    fn readiness_follows_the_default_object_only() {
        let mut state = ReadyState::default();
        for (event, ready) in [
            (WatchEvent::ListStart, None),
            (put("default-other", Some(true)), None),
            (put(NAME, None), None),
            (WatchEvent::ListEnd, None),
            (put(NAME, Some(true)), Some(true)),
            (put("default-other", Some(false)), Some(true)),
            (
                WatchEvent::Delete(ObjectKey::global("default-other")),
                Some(true),
            ),
            (put(NAME, Some(false)), Some(false)),
            (put(NAME, None), Some(false)),
            (put(NAME, Some(true)), Some(true)),
            // A restarted watch keeps the state until its list is complete.
            (WatchEvent::ListStart, Some(true)),
            (put(NAME, Some(true)), Some(true)),
            (WatchEvent::ListEnd, Some(true)),
            (WatchEvent::Delete(ObjectKey::global(NAME)), Some(false)),
            (put(NAME, Some(true)), Some(true)),
            (WatchEvent::ListStart, Some(true)),
            (WatchEvent::ListEnd, Some(false)),
        ] {
            state.apply(event);
            assert_eq!(state.ready, ready);
        }
    }

    #[tokio::test]
    async fn missing_cluster_information_is_created_by_the_leader_only() {
        let (_dir, calico) = embedded();
        // A new embedded datastore already has a ClusterInformation.
        calico
            .delete::<ClusterInformation>(&ObjectKey::global(NAME), None)
            .await
            .unwrap();
        let (term, elected) = watch::channel(LeadershipTerm::No);
        let elected = Leadership::new(elected);
        let check = DatastoreCheck::default();
        let missing = check.initialize_or_check(&calico, &elected).await;
        assert!(
            matches!(missing, Err(StoreError::NotFound { .. })),
            "{missing:?}"
        );
        let mut making = pin!(initialize(&calico, &elected));
        assert!(making.as_mut().now_or_never().is_none(), "it waits");
        assert!(
            check.initialize_or_check(&calico, &elected).await.is_err(),
            "nothing was made"
        );
        term.send_replace(LeadershipTerm::Always);
        making.await.unwrap();
        term.send_replace(LeadershipTerm::No);
        check.initialize_or_check(&calico, &elected).await.unwrap();
    }

    /// An API server gets a request for each tier.
    #[tokio::test]
    async fn tiers_are_read_in_one_of_thirty_checks() {
        let (_dir, calico) = embedded();
        let (elected, check) = (Leadership::always(), DatastoreCheck::default());
        let tier = ObjectKey::global("kube-admin");
        for round in 0..3 {
            for later in 0..30 {
                check.initialize_or_check(&calico, &elected).await.unwrap();
                let is_there = calico.get::<Tier>(&tier).await.is_ok();
                assert_eq!(is_there, later == 0, "check {later} of round {round}");
                if is_there {
                    calico.delete::<Tier>(&tier, None).await.unwrap();
                }
            }
        }
        check.initialize_or_check(&calico, &elected).await.unwrap();
        calico
            .delete::<ClusterInformation>(&ObjectKey::global(NAME), None)
            .await
            .unwrap();
        check.initialize_or_check(&calico, &elected).await.unwrap();
        assert!(
            calico
                .get::<ClusterInformation>(&ObjectKey::global(NAME))
                .await
                .is_ok()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn writes_are_unlocked_after_initialization_and_locked_while_not_ready() {
        let (changes, states) = watch::channel(None);
        let (unlocked, shown) = watch::channel(false);
        let (answer, asked) = (Cell::new(Err("away")), Cell::new(0));
        let initialize = async || {
            asked.set(asked.get() + 1);
            answer.get()
        };
        let seen = RefCell::new(Vec::new());
        let stop = CancellationToken::new();
        let telling = async {
            for (word, outcome) in [
                (None, Err("away")),
                (Some(false), Err("away")),
                (Some(true), Err("away")),
                (Some(false), Ok(())),
                (Some(true), Ok(())),
                (Some(false), Ok(())),
            ] {
                answer.set(outcome);
                changes.send_replace(word);
                sleep(Duration::from_millis(500)).await;
                seen.borrow_mut().push((*shown.borrow(), asked.get()));
            }
        };
        tokio::select! {
            () = unlock(
                states, unlocked, &stop, initialize,
            ) => unreachable!("it ends with the word's sender"),
            () = telling => {}
        }
        assert_eq!(
            *seen.borrow(),
            [
                (false, 0),
                (false, 0),
                (false, 1),
                (false, 1),
                (true, 2),
                (false, 2)
            ]
        );
    }
}
