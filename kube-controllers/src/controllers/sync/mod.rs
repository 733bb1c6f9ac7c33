//! Synchronization of Kubernetes objects to Calico objects in etcd. Each Calico object, the target, is made from one
//! Kubernetes object, the source. Three controllers work this way; [`SyncedKind`] describes their differences.
//!
//! A target is recognized by its name alone: every object whose name has the controller's prefix belongs to the
//! controller, regardless of its writer (KC-222). Only targets that differ are written. An update replaces `spec` and
//! keeps other writers' metadata (KC-224). Before a deletion the source is looked up in Kubernetes, because a watch may
//! lag behind the writes of another replica.

mod cache;
mod kind;
mod reconcile;
#[cfg(test)]
mod tests;

pub use kind::{SyncedKind, SyncedSpec};

use std::sync::Arc;

use prometheus::{IntGauge, Opts};

use self::cache::SourceCache;
use self::reconcile::Reconciler;
use super::resync::ResyncKey;
use crate::context::Context;
use crate::runtime::{self, Controller, Queue};
use crate::settings::Mode;
use crate::watches::{Event, Watches};

/// The controller of one kind.
pub struct SyncController<M: SyncedKind> {
    cache: SourceCache<M>,
    queue: Queue<ResyncKey>,
}

impl<M: SyncedKind> SyncController<M> {
    /// Creates a controller that is not subscribed to any watch.
    fn unsubscribed() -> Self {
        SyncController { cache: SourceCache::default(), queue: Queue::default() }
    }

    /// Applies an event. The first complete list queues the first comparison of all objects, even if the reconcile
    /// period is zero. Before that, the cache is incomplete and nothing is queued.
    fn on_event(&self, event: &Event<'_, M::Source>) {
        let changes = self.cache.apply(event);
        if changes.first_list_complete {
            self.queue.add(ResyncKey::All);
        }
        changes.sources.into_iter().for_each(|source| self.queue.add(ResyncKey::One(M::target_of(&source))));
    }
}

impl<M: SyncedKind> Controller for SyncController<M> {
    const NAME: &'static str = M::NAME;

    fn new(context: &Context, watches: &mut Watches) -> Self {
        let controller = SyncController::unsubscribed();
        if context.mode == Mode::Etcd {
            let subscribed = SyncController { cache: controller.cache.clone(), queue: controller.queue.clone() };
            M::watch(watches).subscribe(move |event: &Event<'_, M::Source>| subscribed.on_event(event));
        }
        controller
    }

    async fn run(self, context: Context) {
        if context.mode != Mode::Etcd {
            tracing::warn!(
                controller = M::NAME,
                "not needed: with Calico's data in Kubernetes there is nothing to mirror"
            );
            return;
        }
        let invalid = gauge(M::NAME);
        let registered = invalid.as_ref().is_some_and(|gauge| context.metrics.register(gauge.clone()).is_ok());
        let workers = context.settings.borrow().workers_of(M::CONTROLLER);
        let reconciler = Reconciler::new(self.cache, self.queue.clone(), context.clone(), invalid.clone());
        runtime::run(Arc::new(reconciler), self.queue, workers, context.clone()).await;
        if let Some(gauge) = invalid.filter(|_| registered) {
            // Only this controller registers the metric.
            let _ = context.metrics.unregister(gauge);
        }
    }
}

/// Creates the gauge of targets that cannot be written because Calico's validation is stricter than that of Kubernetes.
fn gauge(controller: &str) -> Option<IntGauge> {
    let help = "How many objects of Kubernetes cannot be mirrored, for Calico's rules forbid it.";
    IntGauge::with_opts(Opts::new("kube_controllers_unmirrored_objects", help).const_label("controller", controller))
        .ok()
}
