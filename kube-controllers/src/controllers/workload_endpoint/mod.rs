//! Maintains workload endpoints in etcd: copies labels and service accounts from pods, and deletes endpoints whose pod
//! or node is gone.
//!
//! On a Kubernetes datastore, an endpoint is its pod, and there is nothing to do. Watches deliver pods and endpoints;
//! the cache contains little more than a fingerprint of the labels. Every object is read again before it is written or
//! deleted.

mod labels;
mod orphans;
mod reconcile;
mod sandbox;
mod suspects;
#[cfg(test)]
mod tests;
mod workloads;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libcalico::api::{Node as CalicoNode, WorkloadEndpoint};
use libcalico::store::Entry;
use prometheus::{IntCounterVec, Opts};

use self::reconcile::Reconciler;
use self::workloads::Workloads;
use super::work::Work;
use crate::context::{Context, Controller, Mode};
use crate::feed::{Event, Feeds};
use crate::runtime::{self, Queue};
use crate::settings::ControllerName;
use crate::watched::{Node, Pod};

/// The controller. Its keys are names of pods.
pub struct WorkloadEndpoints {
    workloads: Shared,
    queue: Queue<Work>,
}

/// The cached pods and endpoints. Cheap to clone; all clones share them.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Workloads>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Workloads> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Controller for WorkloadEndpoints {
    const NAME: &'static str = "workloadendpoint";

    fn new(context: &Context, feeds: &mut Feeds) -> Self {
        let (workloads, queue) = (Shared::default(), Queue::default());
        if context.mode == Mode::Etcd {
            feeds.wanted.pod_labels = true;
            let ear = (workloads.clone(), queue.clone());
            feeds.pods.subscribe(move |event: &Event<'_, Pod>| add(&ear.1, ear.0.lock().hear_pod(event)));
            let ear = (workloads.clone(), queue.clone());
            feeds.workload_endpoints.subscribe(move |event: &Event<'_, Entry<WorkloadEndpoint>>| {
                add(&ear.1, ear.0.lock().hear_endpoint(event));
            });
            let ear = (workloads.clone(), queue.clone());
            feeds.nodes.subscribe(move |event: &Event<'_, Node>| add(&ear.1, ear.0.lock().hear_node(event)));
            let ear = (workloads.clone(), queue.clone());
            feeds.calico_nodes.subscribe(move |event: &Event<'_, Entry<CalicoNode>>| {
                add(&ear.1, ear.0.lock().hear_calico_node(event));
            });
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

fn add(queue: &Queue<Work>, works: Vec<Work>) {
    works.into_iter().for_each(|work| queue.add(work));
}

/// Creates the counter of deleted or reported orphaned endpoints.
fn counter() -> Option<IntCounterVec> {
    let help = "Endpoints that had outlived their pod or node, and whether they were deleted or only reported.";
    IntCounterVec::new(Opts::new("kube_controllers_orphaned_endpoints_total", help), &["action"]).ok()
}
