//! Maintains workload endpoints in etcd: copies labels and service accounts from pods, and deletes endpoints whose pod
//! or node is gone.
//!
//! On a Kubernetes datastore, an endpoint is its pod, and there is nothing to do. Watches deliver pods and endpoints;
//! the cache contains little more than a fingerprint of the labels. Every object is read again before it is written or
//! deleted.

mod candidates;
mod labels;
mod orphans;
mod reconcile;
mod sandbox;
#[cfg(test)]
mod tests;
mod workloads;

use std::sync::Arc;

use prometheus::{IntCounterVec, Opts};

use self::reconcile::Reconciler;
use self::workloads::Workloads;
use super::resync::ResyncKey;
use super::shared_cache::SharedCache;
use crate::context::Context;
use crate::runtime::{self, Controller, Queue, Reconcile};
use crate::settings::{ControllerName, Mode};
use crate::watches::Watches;

/// The controller. Its keys are names of pods.
pub struct WorkloadEndpoints {
    workloads: SharedCache<Workloads>,
    queue: Queue<ResyncKey>,
}

impl Controller for WorkloadEndpoints {
    const NAME: &'static str = Reconciler::NAME;

    fn new(context: &Context, watches: &mut Watches) -> Self {
        let (workloads, queue) = (SharedCache::<Workloads>::default(), Queue::default());
        if context.mode == Mode::Etcd {
            watches.options.pod_labels = true;
            workloads.subscribe(&mut watches.pods, &queue, Workloads::apply_pod);
            workloads.subscribe(&mut watches.workload_endpoints, &queue, Workloads::apply_endpoint);
            workloads.subscribe(&mut watches.nodes, &queue, Workloads::apply_node);
            workloads.subscribe(&mut watches.calico_nodes, &queue, Workloads::apply_calico_node);
        }
        WorkloadEndpoints { workloads, queue }
    }

    async fn run(self, context: Context) {
        if context.mode != Mode::Etcd {
            tracing::warn!(
                controller = Self::NAME,
                "not needed: with Calico's data in Kubernetes an endpoint is its pod"
            );
            return;
        }
        let counter = counter();
        let registered = counter.as_ref().is_some_and(|counter| context.metrics.register(counter.clone()).is_ok());
        let workers = context.settings.borrow().workers_of(ControllerName::WorkloadEndpoint);
        let reconciler = Reconciler::new(self.workloads, self.queue.clone(), context.clone(), counter.clone());
        runtime::run(Arc::new(reconciler), self.queue, workers, context.clone()).await;
        if let Some(counter) = counter.filter(|_| registered) {
            // Only this controller registers the metric.
            let _ = context.metrics.unregister(counter);
        }
    }
}

/// Creates the counter of deleted or reported orphaned endpoints.
fn counter() -> Option<IntCounterVec> {
    let help = "Endpoints that had outlived their pod or node, and whether they were deleted or only reported.";
    IntCounterVec::new(Opts::new("kube_controllers_orphaned_endpoints_total", help), &["action"]).ok()
}
