//! Finalizers of tiers, for `projectcalico.org/v3` only: a tier that is being deleted stays until its policies are
//! gone.
//!
//! Policies are listed when a tier is being deleted, and not watched: policies are many, and tiers are rarely deleted.
//! So a policy that was moved to another tier counts for its present tier.

mod policies;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use libcalico::api::{ObjectKey, Tier, TierSpec};
use libcalico::store::Entry;
use time::OffsetDateTime;

use super::condition::Condition;
use super::custom_resource::{CustomResources, finalizers};
use super::rounds::rounds;
use crate::context::{Context, Controller};
use crate::feed::{Cache, Event, Feeds};
use crate::runtime::{self, Failure, Next, Queue, Reconcile};

/// Finalizer that keeps a tier while it has policies.
const FINALIZER: &str = "projectcalico.org/tier-controller";

/// Delay before the policies of a tier that is being deleted are counted again.
const EMPTYING: Duration = Duration::from_secs(5);

type Seen = Cache<ObjectKey, Entry<Tier>>;

/// The controller. Its keys are names of tiers.
pub struct Tiers {
    queue: Queue<ObjectKey>,
    tiers: Arc<Mutex<Seen>>,
}

impl Controller for Tiers {
    const NAME: &'static str = "tier";

    fn new(_: &Context, feeds: &mut Feeds) -> Self {
        let (queue, tiers) = (Queue::default(), Arc::<Mutex<Seen>>::default());
        let heard: (Queue<ObjectKey>, Arc<Mutex<Seen>>) = (queue.clone(), tiers.clone());
        feeds.tiers.subscribe(move |event: &Event<'_, Entry<Tier>>| {
            let changed =
                heard.1.lock().unwrap_or_else(PoisonError::into_inner).follow(event, |entry| Some(entry.clone()));
            changed.into_iter().for_each(|key| heard.0.add(key));
        });
        Tiers { queue, tiers }
    }

    async fn run(self, context: Context) {
        let keeper = Arc::new(Keeper {
            kubernetes: context.kubernetes.clone(),
            objects: CustomResources::of::<TierSpec>(context.kubernetes.clone()),
            tiers: self.tiers.clone(),
        });
        let all = || {
            let tiers = self.tiers.lock().unwrap_or_else(PoisonError::into_inner);
            tiers.iter().for_each(|(key, _)| self.queue.add(key.clone()));
        };
        tokio::join!(runtime::run(keeper, self.queue.clone(), 1, context.clone()), rounds(&context, all));
    }
}

struct Keeper {
    kubernetes: kube::Client,
    objects: CustomResources,
    tiers: Arc<Mutex<Seen>>,
}

impl Reconcile for Keeper {
    const NAME: &'static str = Tiers::NAME;
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Next, Failure> {
        let seen = self.tiers.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
        let Some(Entry { value: tier, revision, .. }) = seen else { return Ok(Next::Done) };
        let version = revision.resource_version();
        let mut finalizers = finalizers(&tier);
        let ours = finalizers.iter().position(|finalizer| finalizer == FINALIZER);
        match (tier.metadata.deletion_timestamp.is_some(), ours) {
            (false, Some(_)) | (true, None) => Ok(Next::Done),
            (false, None) => {
                finalizers.push(FINALIZER.into());
                self.objects.write_finalizers(&key.name, version, &finalizers).await?;
                Ok(Next::Done)
            }
            (true, Some(at)) => {
                let counts = policies::count(&self.kubernetes, &key.name).await?;
                if counts.is_empty() {
                    finalizers.remove(at);
                    self.objects.write_finalizers(&key.name, version, &finalizers).await?;
                    return Ok(Next::Done);
                }
                let message = format!("Waiting for policies to be removed: {counts}");
                let waiting = Condition { kind: "Ready", is_true: false, reason: "Terminating", message };
                // Compared with the stored object, so that a failed write is retried. Upstream changes its cached
                // object before the write, and so never retries (KC-542).
                if let Some(conditions) = waiting.among(tier.status.as_ref(), OffsetDateTime::now_utc()) {
                    self.objects.write_conditions(&key.name, version, &conditions).await?;
                }
                Ok(Next::After(EMPTYING))
            }
        }
    }
}
