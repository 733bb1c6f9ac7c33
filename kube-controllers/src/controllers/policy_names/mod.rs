//! Stores policies with names of older releases under their own names.
//!
//! Calico before 3.32 stored policies of the default tier with the prefix `default.`. Old nodes look up these names, so
//! policies are renamed only when the new `calico-node` runs on all nodes. Only this controller waits for that, and
//! only while there are policies to rename; in upstream, several controllers wait meanwhile (KC-287). The old names
//! keep working until then.

mod rollout;
#[cfg(test)]
mod tests;
mod twin;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use datastore::Datastore;
use datastore::watch::{Change, WatchFailure};
use libcalico::api::{
    DEFAULT_TIER, Global, InNamespace, Object, ObjectKey, ObjectSelect, PolicyKind, PolicySpec, Spec, StagedGlobal,
    StagedInNamespace,
};
use libcalico::store::{Entry, Store, StoreError};

use self::rollout::{Obstacle, Rollout};
use self::twin::Twin;
use super::work::Work;
use crate::context::{Context, Controller};
use crate::feed::Feeds;
use crate::runtime::{self, Failure, Next, Queue, Reconcile};

/// Interval at which all policies are listed.
const PERIOD: Duration = Duration::from_secs(300);
/// First and longest delay between two checks of the roll-out while policies wait for it. The delay doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(80);

/// The controller.
pub struct PolicyNames {
    rollout: Rollout,
}

impl Controller for PolicyNames {
    const NAME: &'static str = "policy-names";

    fn new(context: &Context, _: &mut Feeds) -> Self {
        PolicyNames { rollout: Rollout::of_environment(context.kubernetes.clone()) }
    }

    async fn run(self, context: Context) {
        let migrator = Migrator {
            context: context.clone(),
            rollout: self.rollout,
            found: AtomicBool::default(),
            waits: AtomicU32::default(),
        };
        let queue = Queue::default();
        queue.add(Work::All);
        runtime::run(Arc::new(migrator), queue, 1, context).await;
    }
}

struct Migrator {
    context: Context,
    rollout: Rollout,
    /// True if there are policies that wait for the roll-out. Policies are not listed again meanwhile.
    found: AtomicBool,
    /// Number of checks in a row that found the roll-out incomplete.
    waits: AtomicU32,
}

impl Reconcile for Migrator {
    const NAME: &'static str = PolicyNames::NAME;
    type Key = Work;

    async fn reconcile(&self, _: &Work) -> Result<Next, Failure> {
        if !self.context.settings.borrow().policy_name_migrator {
            return Ok(Next::Done);
        }
        let found = self.found.load(Ordering::Relaxed);
        if found && let Some(next) = self.wait().await? {
            return Ok(next);
        }
        let misnamed = Misnamed::read(&self.context.calico).await?;
        if misnamed.is_empty() {
            return Ok(Next::After(PERIOD));
        }
        if !found && let Some(next) = self.wait().await? {
            return Ok(next);
        }
        let failures = [
            self.rename_all(misnamed.policies).await,
            self.rename_all(misnamed.global).await,
            self.rename_all(misnamed.staged).await,
            self.rename_all(misnamed.staged_global).await,
        ];
        match failures.into_iter().flatten().next() {
            Some(failure) => Err(failure),
            None => Ok(Next::After(PERIOD)),
        }
    }
}

impl Migrator {
    /// Returns the time of the next check if the roll-out is not complete. Only the first such check is logged.
    async fn wait(&self) -> Result<Option<Next>, Failure> {
        let complete = self.rollout.is_complete().await;
        self.found.store(complete.is_err(), Ordering::Relaxed);
        match complete {
            Ok(()) => {
                self.waits.store(0, Ordering::Relaxed);
                Ok(None)
            }
            // A failed read is a failure of this controller, and is reported as such.
            Err(unread @ Obstacle::Unread { .. }) => Err(Failure::Retry(unread.to_string())),
            Err(obstacle) => {
                let waits = self.waits.fetch_add(1, Ordering::Relaxed);
                if waits == 0 {
                    tracing::info!(controller = Self::NAME, "policies keep their names for now: {obstacle}");
                }
                Ok(Some(Next::After((FIRST_PAUSE * 2u32.pow(waits.min(4))).min(LONGEST_PAUSE))))
            }
        }
    }

    /// Renames all policies. A policy that fails does not stop the others.
    async fn rename_all<K: PolicyKind>(&self, policies: Vec<Stored<K>>) -> Option<Failure> {
        let mut failure = None;
        for policy in policies {
            if let Err(error) = self.rename(&policy).await {
                failure = Some(error);
            }
        }
        failure
    }

    /// Renames a policy: creates the new object, then deletes the old object, so that the policy always exists.
    /// Concurrent changes to either are not lost; see [`Twin`].
    async fn rename<K: PolicyKind>(&self, seen: &Stored<K>) -> Result<(), Failure> {
        // Read again, because the list may be old. A policy that was deleted meanwhile must not be created again.
        let old = match self.context.calico.get::<Object<PolicySpec<K>>>(&seen.key).await {
            Ok(old) if is_misnamed(&old) => old,
            Ok(_) | Err(StoreError::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let (key, new) = (&old.key, old.value.key());
        self.context.leadership.may_write()?;
        match self.context.calico.create(&new, &old.value).await {
            Ok(_) => {}
            Err(StoreError::AlreadyExists { .. }) => self.bring_up_to_date(&old, &new).await?,
            Err(error) => return Err(error.into()),
        }
        self.context.leadership.may_write()?;
        // Deletes only the version that was copied. A later version is a conflict and causes a retry.
        match self.context.calico.delete::<Object<PolicySpec<K>>>(key, Some(&old.revision)).await {
            Ok(()) | Err(StoreError::NotFound { .. }) => {
                tracing::info!(controller = Self::NAME, kind = K::KIND, %key, %new, "stored under its own name");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Handles a policy that already exists under its own name.
    async fn bring_up_to_date<K: PolicyKind>(&self, old: &Stored<K>, key: &ObjectKey) -> Result<(), Failure> {
        let new = self.context.calico.get::<Object<PolicySpec<K>>>(key).await?;
        match Twin::of(old, &new) {
            Twin::Right => Ok(()),
            Twin::Going => Err(Failure::Retry(format!("{} {key} is being deleted", K::KIND))),
            Twin::Unclear => Err(Failure::Retry(format!(
                "{kind} {} and {kind} {key} differ, and which of them was written last cannot be told: delete one of them",
                old.key,
                kind = K::KIND,
            ))),
            Twin::Outdated(value) => {
                self.context.leadership.may_write()?;
                self.context.calico.update(key, &*value, &new.revision).await?;
                tracing::warn!(controller = Self::NAME, kind = K::KIND, old = %old.key, %key, written = %old.revision.0,
                    over = %new.revision.0, "replaced as a whole by what was written later under its old name");
                Ok(())
            }
        }
    }
}

/// Policies of the default tier whose stored names differ from their own names (KC-281).
struct Misnamed {
    policies: Vec<Stored<InNamespace>>,
    global: Vec<Stored<Global>>,
    staged: Vec<Stored<StagedInNamespace>>,
    staged_global: Vec<Stored<StagedGlobal>>,
}

type Stored<K> = Entry<Object<PolicySpec<K>>>;

impl Misnamed {
    async fn read(calico: &Datastore) -> Result<Self, WatchFailure> {
        Ok(Misnamed {
            policies: misnamed(calico).await?,
            global: misnamed(calico).await?,
            staged: misnamed(calico).await?,
            staged_global: misnamed(calico).await?,
        })
    }

    fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.global.is_empty() && self.staged.is_empty() && self.staged_global.is_empty()
    }
}

/// Lists the misnamed policies of one kind, page by page. A kind that the API server does not serve has none.
/// Unreadable policies are skipped.
async fn misnamed<K: PolicyKind>(calico: &Datastore) -> Result<Vec<Stored<K>>, WatchFailure> {
    let mut pages = calico.pages::<Object<PolicySpec<K>>>(ObjectSelect::default());
    let mut found = Vec::new();
    loop {
        match pages.next().await {
            Ok(Some(page)) => found.extend(page.into_iter().filter_map(readable).filter(is_misnamed)),
            Ok(None) | Err(WatchFailure::Missing(_)) => return Ok(found),
            Err(failure) => return Err(failure),
        }
    }
}

fn readable<K: PolicyKind>(change: Change<Stored<K>, ObjectKey>) -> Option<Stored<K>> {
    match change {
        Change::Put(entry) => Some(entry),
        Change::Unreadable { name, reason, .. } => {
            tracing::warn!(controller = PolicyNames::NAME, kind = K::KIND, name, "cannot be read: {reason}");
            None
        }
        Change::Gone(_) => None,
    }
}

/// Returns true if the policy has to be renamed. A policy that is being deleted is left alone, so that it is not
/// created again.
fn is_misnamed<K: PolicyKind>(policy: &Stored<K>) -> bool {
    policy.value.spec.tier() == Some(DEFAULT_TIER)
        && policy.key.name != policy.value.metadata.name
        && policy.value.metadata.deletion_timestamp.is_none()
}
