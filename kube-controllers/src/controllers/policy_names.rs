//! Policies under the names of an older Calico are stored under their own (KC-280 … KC-287).
//!
//! Calico before 3.32 put `default.` before the name of a policy of the default tier. Old nodes look for the old names, so
//! nothing is renamed before `calico-node` runs everywhere in its new version. Nobody waits for that but this controller,
//! and it looks only while there is something to rename (B-04, B-46). Until then the old names go on working.

mod rollout;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use datastore::Datastore;
use libcalico::api::{
    DEFAULT_TIER, Global, InNamespace, Object, ObjectSelect, PolicyKind, PolicySpec, Spec, StagedGlobal,
    StagedInNamespace,
};
use libcalico::kubernetes::ApiGroup;
use libcalico::store::{Entry, Store, StoreError};

use self::rollout::Rollout;
use super::work::Work;
use crate::context::{Context, Controller, Mode};
use crate::feed::Feeds;
use crate::runtime::{self, Failure, Next, Queue, Reconcile};

/// How often policies are looked through.
const PERIOD: Duration = Duration::from_secs(300);
/// How often the roll-out is looked at while policies wait for it.
const ROLLOUT_PERIOD: Duration = Duration::from_secs(5);

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
        // There, the name is the resource's own.
        if context.mode == Mode::Kubernetes(ApiGroup::V3) {
            return;
        }
        let migrator = Migrator { context: context.clone(), rollout: self.rollout, told: AtomicBool::new(false) };
        let queue = Queue::default();
        queue.add(Work::All);
        runtime::run(Arc::new(migrator), queue, 1, context).await;
    }
}

struct Migrator {
    context: Context,
    rollout: Rollout,
    /// It has been told that policies wait.
    told: AtomicBool,
}

impl Reconcile for Migrator {
    const NAME: &'static str = PolicyNames::NAME;
    type Key = Work;

    async fn reconcile(&self, _: &Work) -> Result<Next, Failure> {
        if !self.context.settings.borrow().policy_name_migrator {
            return Ok(Next::Done);
        }
        let calico = &self.context.calico;
        let policies = misnamed::<InNamespace>(calico).await?;
        let global = misnamed::<Global>(calico).await?;
        let staged = misnamed::<StagedInNamespace>(calico).await?;
        let staged_global = misnamed::<StagedGlobal>(calico).await?;
        let count = policies.len() + global.len() + staged.len() + staged_global.len();
        if count == 0 {
            return Ok(Next::After(PERIOD));
        }
        if let Err(obstacle) = self.rollout.is_complete().await {
            if !self.told.swap(true, Ordering::Relaxed) {
                tracing::info!(controller = Self::NAME, count, "policies keep their old names for now: {obstacle}");
            }
            return Ok(Next::After(ROLLOUT_PERIOD));
        }
        let failures = [
            self.rename_all(policies).await,
            self.rename_all(global).await,
            self.rename_all(staged).await,
            self.rename_all(staged_global).await,
        ];
        match failures.into_iter().flatten().next() {
            Some(failure) => Err(failure),
            None => Ok(Next::After(PERIOD)),
        }
    }
}

impl Migrator {
    /// One policy that fails does not stop the others.
    async fn rename_all<K: PolicyKind>(&self, policies: Vec<Entry<Object<PolicySpec<K>>>>) -> Option<Failure> {
        let mut failure = None;
        for policy in policies {
            if let Err(error) = self.rename(&policy).await {
                failure = Some(error);
            }
        }
        failure
    }

    /// The new one first: at no moment is there none.
    async fn rename<K: PolicyKind>(&self, policy: &Entry<Object<PolicySpec<K>>>) -> Result<(), Failure> {
        let (old, new) = (&policy.key, policy.value.key());
        self.may_write()?;
        match self.context.calico.create(&new, &policy.value).await {
            Ok(_) | Err(StoreError::AlreadyExists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.may_write()?;
        match self.context.calico.delete::<Object<PolicySpec<K>>>(old, Some(&policy.revision)).await {
            Ok(()) | Err(StoreError::NotFound { .. }) => {
                tracing::info!(controller = Self::NAME, kind = K::KIND, %old, %new, "stored under its own name");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Right before each write.
    fn may_write(&self) -> Result<(), Failure> {
        match self.context.leadership.holds() {
            true => Ok(()),
            false => Err(Failure::Retry("another replica leads now".into())),
        }
    }
}

/// Policies of the default tier that are not stored under their own names (KC-281).
async fn misnamed<K: PolicyKind>(calico: &Datastore) -> Result<Vec<Entry<Object<PolicySpec<K>>>>, StoreError> {
    let mut all = calico.list::<Object<PolicySpec<K>>>(&ObjectSelect::default()).await?;
    all.retain(|policy| {
        policy.value.spec.tier() == Some(DEFAULT_TIER) && policy.key.name != policy.value.metadata.name
    });
    Ok(all)
}
