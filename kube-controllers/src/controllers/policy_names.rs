//! Stores policies with names of older releases under their own names.
//!
//! Calico before 3.32 stored policies of the default tier with the prefix `default.`. Old nodes
//! look up these names, so policies are renamed only after the roll-out of `calico-node`, as
//! `rollout.rs` determines it. In upstream, several controllers wait for that (KC-287).

mod misnamed;
mod rollout;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use allocation::reads::find;
use libcalico::api::{Object, PolicyKind, PolicySpec};
use libcalico::backoff::{Backoff, Jitter};
use libcalico::store::{Store, StoreError, ignore_missing};

use self::misnamed::{DuplicatePolicy, MisnamedPolicies, StoredPolicy, is_misnamed};
use self::rollout::{NodeRollout, RolloutBlocker};
use super::cached::ResyncKey;
use crate::context::Context;
use crate::runtime::{self, Controller, NextReconcile, Queue, Reconcile, ReconcileError};
use crate::watches::Watches;

/// Interval at which all policies are listed, unless policies wait for the roll-out.
const PERIOD: Duration = Duration::from_secs(300);
/// First delay between two checks of the roll-out while policies wait for it.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(80);
const PAUSES: Backoff = Backoff {
    first: FIRST_PAUSE,
    longest: LONGEST_PAUSE,
    jitter: Jitter::None,
};

/// The controller.
pub struct PolicyNames {
    rollout: NodeRollout,
}

impl Controller for PolicyNames {
    const NAME: &'static str = misnamed::NAME;

    fn new(context: &Context, _: &mut Watches) -> Self {
        PolicyNames {
            rollout: NodeRollout::from_environment(context.kubernetes.clone()),
        }
    }

    async fn run(self, context: Context) {
        let PolicyNames { rollout } = self;
        let (has_misnamed, incomplete_checks) = (AtomicBool::default(), AtomicU32::default());
        let reconciler = PolicyNameReconciler {
            context: context.clone(),
            rollout,
            has_misnamed,
            incomplete_checks,
        };
        let queue = Queue::default();
        queue.add(ResyncKey::All);
        runtime::run(Arc::new(reconciler), queue, 1, context).await;
    }
}

struct PolicyNameReconciler {
    context: Context,
    rollout: NodeRollout,
    /// True if there are policies that wait for the roll-out.
    has_misnamed: AtomicBool,
    incomplete_checks: AtomicU32,
}

impl Reconcile for PolicyNameReconciler {
    const NAME: &'static str = PolicyNames::NAME;
    type Key = ResyncKey;

    async fn reconcile(&self, _: &ResyncKey) -> Result<NextReconcile, ReconcileError> {
        if !self.context.settings.borrow().policy_name_migrator {
            return Ok(NextReconcile::AwaitChange);
        }
        let has_misnamed = self.has_misnamed.load(Ordering::Relaxed);
        if has_misnamed && let Some(next) = self.check_rollout().await? {
            return Ok(next);
        }
        let misnamed = MisnamedPolicies::read(&self.context.calico).await?;
        if misnamed.is_empty() {
            return Ok(NextReconcile::After(PERIOD));
        }
        if !has_misnamed && let Some(next) = self.check_rollout().await? {
            return Ok(next);
        }
        let failures = [
            self.rename_all(misnamed.policies).await,
            self.rename_all(misnamed.global).await,
            self.rename_all(misnamed.staged).await,
            self.rename_all(misnamed.staged_global).await,
        ];
        failures
            .into_iter()
            .flatten()
            .next()
            .map_or(Ok(NextReconcile::After(PERIOD)), Err)
    }
}

impl PolicyNameReconciler {
    /// Returns the time of the next check if the roll-out is not complete, and `None` if it is.
    async fn check_rollout(&self) -> Result<Option<NextReconcile>, ReconcileError> {
        let complete = self.rollout.check_complete().await;
        self.has_misnamed
            .store(complete.is_err(), Ordering::Relaxed);
        match complete {
            Ok(()) => {
                self.incomplete_checks.store(0, Ordering::Relaxed);
                Ok(None)
            }
            // A failed read is a failure of this controller, and is reported as such.
            Err(unreadable @ RolloutBlocker::Unreadable { .. }) => {
                Err(ReconcileError::Retry(unreadable.to_string()))
            }
            Err(blocker) => {
                let incomplete_checks = self.incomplete_checks.fetch_add(1, Ordering::Relaxed);
                if incomplete_checks == 0 {
                    tracing::info!(
                        controller = Self::NAME,
                        "not renaming policies yet: {blocker}; checking the roll-out again later"
                    );
                }
                Ok(Some(NextReconcile::After(
                    PAUSES.pause(incomplete_checks.saturating_add(1), 0.0),
                )))
            }
        }
    }

    /// Renames all policies. A policy that fails does not stop the others. Returns the last
    /// failure, if there is one.
    async fn rename_all<K: PolicyKind>(
        &self,
        policies: Vec<StoredPolicy<K>>,
    ) -> Option<ReconcileError> {
        let mut failure = None;
        for policy in policies {
            failure = self.rename(&policy).await.err().or(failure);
        }
        failure
    }

    /// Renames a policy: creates the new object, then deletes the old object, so that the policy
    /// always exists.
    async fn rename<K: PolicyKind>(&self, listed: &StoredPolicy<K>) -> Result<(), ReconcileError> {
        // Read again, because the list may be old. A policy that was deleted after the list must
        // not be created again.
        let old = find::<Object<PolicySpec<K>>>(&*self.context.calico, &listed.key).await?;
        let Some(old) = old.filter(is_misnamed) else {
            return Ok(());
        };
        let (key, new) = (&old.key, old.value.key());
        self.context.leadership.may_write()?;
        match self.context.calico.create(&new, &old.value).await {
            Ok(_) => {}
            Err(StoreError::AlreadyExists { .. }) => self.resolve_duplicate(&old).await?,
            Err(error) => return Err(error.into()),
        }
        self.context.leadership.may_write()?;
        // Deletes only the version that was copied. A later version is a conflict and causes a
        // retry.
        ignore_missing(
            self.context
                .calico
                .delete::<Object<PolicySpec<K>>>(key, Some(&old.revision))
                .await,
        )?;
        tracing::info!(
            controller = Self::NAME, kind = K::KIND, old = %key, %new,
            "renamed a policy to its own name",
        );
        Ok(())
    }

    /// Handles a policy that already exists under its own name. Replaces the new policy if the old
    /// one was written later.
    async fn resolve_duplicate<K: PolicyKind>(
        &self,
        old: &StoredPolicy<K>,
    ) -> Result<(), ReconcileError> {
        let key = &old.value.key();
        let new = self
            .context
            .calico
            .get::<Object<PolicySpec<K>>>(key)
            .await?;
        match DuplicatePolicy::compare(old, &new) {
            DuplicatePolicy::Current => Ok(()),
            DuplicatePolicy::Terminating => Err(ReconcileError::Retry(format!(
                "{} {key} is being deleted",
                K::KIND
            ))),
            DuplicatePolicy::Undecidable => Err(ReconcileError::Retry(format!(
                "{kind} {} and {kind} {key} differ, and their revisions do not show which was \
                 written last; delete one of them",
                old.key,
                kind = K::KIND,
            ))),
            DuplicatePolicy::Outdated(value) => {
                self.context.leadership.may_write()?;
                self.context
                    .calico
                    .update(key, &*value, &new.revision)
                    .await?;
                tracing::warn!(controller = Self::NAME, kind = K::KIND, old = %old.key, new = %key,
                    old_revision = %old.revision.0, replaced_revision = %new.revision.0,
                    "replaced a policy by its later version under the old name");
                Ok(())
            }
        }
    }
}
