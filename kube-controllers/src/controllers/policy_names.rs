//! Policies under the names of an older Calico are stored under their own (KC-280 … KC-287).
//!
//! Calico before 3.32 put `default.` before the name of a policy of the default tier. Old nodes look for the old names,
//! so nothing is renamed before `calico-node` runs everywhere in its new version. Nobody waits for that but this
//! controller, and it looks only while there is something to rename (B-04, B-46). Until then the old names go on
//! working.

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

/// How often policies are looked through.
const PERIOD: Duration = Duration::from_secs(300);
/// When the roll-out is looked at while policies wait for it: after this time, and then each time after twice as long.
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
    /// Policies were found that wait for the roll-out. While they do nothing is listed.
    found: AtomicBool,
    /// How many times in a row they had to.
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
    /// Returns when to come again if the roll-out is not complete. Told the first time only (KC-287).
    async fn wait(&self) -> Result<Option<Next>, Failure> {
        let complete = self.rollout.is_complete().await;
        self.found.store(complete.is_err(), Ordering::Relaxed);
        match complete {
            Ok(()) => {
                self.waits.store(0, Ordering::Relaxed);
                Ok(None)
            }
            // Nobody learns of these but from us: they are failures, and told as such.
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

    /// One policy that fails does not stop the others.
    async fn rename_all<K: PolicyKind>(&self, policies: Vec<Stored<K>>) -> Option<Failure> {
        let mut failure = None;
        for policy in policies {
            if let Err(error) = self.rename(&policy).await {
                failure = Some(error);
            }
        }
        failure
    }

    /// The new one first: at no moment is there none. What others write to either meanwhile is not lost: see [`Twin`].
    async fn rename<K: PolicyKind>(&self, seen: &Stored<K>) -> Result<(), Failure> {
        // Long after it was listed, if many came before it: one that is gone is not brought back.
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
        // Only what was copied. One that was written since is a conflict, and comes again.
        match self.context.calico.delete::<Object<PolicySpec<K>>>(key, Some(&old.revision)).await {
            Ok(()) | Err(StoreError::NotFound { .. }) => {
                tracing::info!(controller = Self::NAME, kind = K::KIND, %key, %new, "stored under its own name");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The policy is there under its own name already.
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

/// Policies of the default tier that are not stored under their own names (KC-281).
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

/// Those of one kind, looked for page by page: of the others nothing is kept. A kind that the API server does not have
/// has none, and one that cannot be read is nobody's to rename.
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

/// One that is being deleted goes by itself, and is not to come back.
fn is_misnamed<K: PolicyKind>(policy: &Stored<K>) -> bool {
    policy.value.spec.tier() == Some(DEFAULT_TIER)
        && policy.key.name != policy.value.metadata.name
        && policy.value.metadata.deletion_timestamp.is_none()
}
