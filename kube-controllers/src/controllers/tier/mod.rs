//! Finalizers of tiers, for `projectcalico.org/v3` only: a tier that is being deleted stays until its policies are
//! gone.
//!
//! Policies are listed when a tier is being deleted, and not watched: policies are many, and tiers are rarely deleted.
//! So a policy that was moved to another tier counts for its present tier.

mod policies;

use std::time::Duration;

use libcalico::api::{ObjectKey, Tier, TierSpec};
use libcalico::store::Entry;
use time::OffsetDateTime;

use super::cached::{CachedController, CachedReconcile, SharedCache};
use super::custom_resource::{CustomResources, StatusCondition, with_finalizer, without_finalizer};
use crate::context::Context;
use crate::runtime::{NextReconcile, Reconcile, ReconcileError};
use crate::settings::ControllerName;
use crate::watches::{Cache, Watches};

/// Finalizer that keeps a tier while it has policies.
const FINALIZER: &str = "projectcalico.org/tier-controller";

/// Delay before the policies of a tier that is being deleted are counted again.
const EMPTYING: Duration = Duration::from_secs(5);

/// The controller. Its keys are names of tiers.
pub type Tiers = CachedController<TierReconciler>;

/// The reconciler of one tier.
pub struct TierReconciler {
    kubernetes: kube::Client,
    objects: CustomResources,
    tiers: SharedCache<Cache<ObjectKey, Entry<Tier>>>,
}

impl CachedReconcile for TierReconciler {
    type Cache = Cache<ObjectKey, Entry<Tier>>;
    const CONTROLLER: Option<ControllerName> = None;

    fn subscribe(controller: &Tiers, _: &Context, watches: &mut Watches) {
        controller.subscribe(&mut watches.tiers, |tiers, event| tiers.apply(event, |entry| Some(entry.clone())));
    }

    fn new(context: &Context, controller: &Tiers) -> Self {
        let objects = CustomResources::new::<TierSpec>(context.kubernetes.clone());
        TierReconciler { kubernetes: context.kubernetes.clone(), objects, tiers: controller.cache.clone() }
    }

    fn all_keys(tiers: &Self::Cache) -> Vec<ObjectKey> {
        tiers.iter().map(|(key, _)| key.clone()).collect()
    }
}

impl Reconcile for TierReconciler {
    const NAME: &'static str = "tier";
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<NextReconcile, ReconcileError> {
        let cached = self.tiers.lock().get(key).cloned();
        let Some(Entry { value: tier, revision, .. }) = cached else { return Ok(NextReconcile::Done) };
        let version = revision.resource_version();
        if tier.metadata.deletion_timestamp.is_none() {
            if let Some(finalizers) = with_finalizer(&tier, FINALIZER) {
                self.objects.write_finalizers(&key.name, version, &finalizers).await?;
            }
            return Ok(NextReconcile::Done);
        }
        let Some(others) = without_finalizer(&tier, FINALIZER) else { return Ok(NextReconcile::Done) };
        let counts = policies::count(&self.kubernetes, &key.name).await?;
        if counts.is_empty() {
            self.objects.write_finalizers(&key.name, version, &others).await?;
            return Ok(NextReconcile::Done);
        }
        let message = format!("Waiting for policies to be removed: {counts}");
        let waiting = StatusCondition { kind: "Ready", is_true: false, reason: "Terminating", message };
        // Compared with the stored object, so that a failed write is retried. Upstream changes its cached object before
        // the write, and so never retries (KC-542).
        if let Some(conditions) = waiting.among(tier.status.as_ref(), OffsetDateTime::now_utc()) {
            self.objects.write_conditions(&key.name, version, &conditions).await?;
        }
        Ok(NextReconcile::After(EMPTYING))
    }
}
