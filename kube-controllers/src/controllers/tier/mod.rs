//! Finalizers of tiers, for `projectcalico.org/v3` only: a tier that is being deleted stays until its policies are
//! gone.
//!
//! Policies are listed when a tier is being deleted, and not watched: policies are many, and tiers are rarely deleted.
//! So a policy that was moved to another tier counts for its present tier.

mod policies;

use std::sync::Arc;
use std::time::Duration;

use libcalico::api::{ObjectKey, Tier, TierSpec};
use libcalico::store::Entry;
use time::OffsetDateTime;

use super::condition::Condition;
use super::custom_resource::{CustomResources, finalizers};
use super::resync::resync;
use super::shared_cache::SharedCache;
use crate::context::Context;
use crate::runtime::{self, Controller, NextReconcile, Queue, Reconcile, ReconcileError};
use crate::watches::{Cache, Watches};

/// Finalizer that keeps a tier while it has policies.
const FINALIZER: &str = "projectcalico.org/tier-controller";

/// Delay before the policies of a tier that is being deleted are counted again.
const EMPTYING: Duration = Duration::from_secs(5);

type TierCache = Cache<ObjectKey, Entry<Tier>>;

/// The controller. Its keys are names of tiers.
pub struct Tiers {
    queue: Queue<ObjectKey>,
    tiers: SharedCache<TierCache>,
}

impl Controller for Tiers {
    const NAME: &'static str = "tier";

    fn new(_: &Context, watches: &mut Watches) -> Self {
        let (queue, tiers) = (Queue::default(), SharedCache::<TierCache>::default());
        tiers.subscribe(&mut watches.tiers, &queue, |tiers, event| tiers.apply(event, |entry| Some(entry.clone())));
        Tiers { queue, tiers }
    }

    async fn run(self, context: Context) {
        let reconciler = Arc::new(TierReconciler {
            kubernetes: context.kubernetes.clone(),
            objects: CustomResources::new::<TierSpec>(context.kubernetes.clone()),
            tiers: self.tiers.clone(),
        });
        let queue_all = || self.tiers.lock().iter().for_each(|(key, _)| self.queue.add(key.clone()));
        tokio::join!(runtime::run(reconciler, self.queue.clone(), 1, context.clone()), resync(&context, queue_all));
    }
}

struct TierReconciler {
    kubernetes: kube::Client,
    objects: CustomResources,
    tiers: SharedCache<TierCache>,
}

impl Reconcile for TierReconciler {
    const NAME: &'static str = Tiers::NAME;
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<NextReconcile, ReconcileError> {
        let cached = self.tiers.lock().get(key).cloned();
        let Some(Entry { value: tier, revision, .. }) = cached else { return Ok(NextReconcile::Done) };
        let version = revision.resource_version();
        let mut finalizers = finalizers(&tier);
        let ours = finalizers.iter().position(|finalizer| finalizer == FINALIZER);
        match (tier.metadata.deletion_timestamp.is_some(), ours) {
            (false, Some(_)) | (true, None) => Ok(NextReconcile::Done),
            (false, None) => {
                finalizers.push(FINALIZER.into());
                self.objects.write_finalizers(&key.name, version, &finalizers).await?;
                Ok(NextReconcile::Done)
            }
            (true, Some(at)) => {
                let counts = policies::count(&self.kubernetes, &key.name).await?;
                if counts.is_empty() {
                    finalizers.remove(at);
                    self.objects.write_finalizers(&key.name, version, &finalizers).await?;
                    return Ok(NextReconcile::Done);
                }
                let message = format!("Waiting for policies to be removed: {counts}");
                let waiting = Condition { kind: "Ready", is_true: false, reason: "Terminating", message };
                // Compared with the stored object, so that a failed write is retried. Upstream changes its cached
                // object before the write, and so never retries (KC-542).
                if let Some(conditions) = waiting.among(tier.status.as_ref(), OffsetDateTime::now_utc()) {
                    self.objects.write_conditions(&key.name, version, &conditions).await?;
                }
                Ok(NextReconcile::After(EMPTYING))
            }
        }
    }
}
