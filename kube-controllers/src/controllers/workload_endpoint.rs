//! Maintains workload endpoints in etcd: copies labels and service accounts from pods, and deletes
//! orphaned endpoints.
//!
//! An endpoint is read again before it is written or deleted.

mod orphans;
mod projections;
#[cfg(test)]
mod tests;
mod workloads;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libcalico::api::{ObjectKey, WorkloadEndpoint};
use libcalico::kubernetes::{PODS, Pod};
use libcalico::store::{Store, StoreError};
use node_process::metrics;
use prometheus::IntCounterVec;

use self::orphans::DeletionCandidates;
use self::projections::EndpointLabels;
use self::workloads::Workloads;
use super::cached::{CachedController, CachedReconcile, ResyncKey, SharedCache};
use crate::api_reads;
use crate::context::Context;
use crate::runtime::{NextReconcile, Queue, Reconcile, ReconcileError};
use crate::settings::ControllerName;
use crate::watches::Watches;

/// The controller. Its keys are names of pods.
pub type WorkloadEndpoints = CachedController<PodEndpointReconciler>;

/// The reconciler of pods' endpoints.
pub struct PodEndpointReconciler {
    workloads: SharedCache<Workloads>,
    queue: Queue<ResyncKey>,
    context: Context,
    orphans: Option<IntCounterVec>,
    candidates: Mutex<DeletionCandidates>,
}

metrics! {
    struct OrphanMetrics {
        /// Endpoints whose pod or node no longer exists, deleted or only reported.
        found: IntCounterVec = "kube_controllers_orphaned_endpoints_total"["action"],
    }
}

enum EndpointNeed {
    CopyLabels,
    CheckOrphan,
    UpToDate,
}

impl CachedReconcile for PodEndpointReconciler {
    type Cache = Workloads;
    const CONTROLLER: Option<ControllerName> = Some(ControllerName::WorkloadEndpoint);

    fn subscribe(controller: &WorkloadEndpoints, watches: &mut Watches) {
        watches.options.pod_labels = true;
        controller.subscribe(&mut watches.pods, Workloads::apply_pod);
        controller.subscribe(&mut watches.workload_endpoints, Workloads::apply_endpoint);
        controller.subscribe(&mut watches.nodes, Workloads::apply_node);
        controller.subscribe(&mut watches.calico_nodes, Workloads::apply_calico_node);
    }

    fn new(context: &Context, controller: &WorkloadEndpoints) -> Self {
        let (workloads, queue) = (controller.cache.clone(), controller.queue.clone());
        let orphans = OrphanMetrics::new().found;
        let is_shown = context.metrics.register(orphans.clone()).is_ok();
        PodEndpointReconciler {
            workloads,
            queue,
            context: context.clone(),
            orphans: is_shown.then_some(orphans),
            candidates: Mutex::default(),
        }
    }
}

impl Reconcile for PodEndpointReconciler {
    const NAME: &'static str = "workloadendpoint";
    type Key = ResyncKey;

    async fn reconcile(&self, key: &ResyncKey) -> Result<NextReconcile, ReconcileError> {
        match key {
            ResyncKey::All => Ok(self.compare_all()),
            ResyncKey::One(pod) => self.reconcile_pod(pod).await,
        }
    }
}

impl PodEndpointReconciler {
    fn compare_all(&self) -> NextReconcile {
        let pods_to_check = {
            let workloads = self.workloads.lock();
            if !workloads.is_complete() {
                // Each completed list queues this work again.
                return NextReconcile::AwaitChange;
            }
            self.candidates()
                .retain(|endpoint| workloads.has_endpoint(endpoint));
            workloads.pods_to_check()
        };
        pods_to_check
            .into_iter()
            .for_each(|pod| self.queue.add(ResyncKey::One(pod)));
        let period = self
            .context
            .settings
            .borrow()
            .reconcile_period
            .get(&ControllerName::WorkloadEndpoint)
            .copied();
        period
            .filter(|period| !period.is_zero())
            .map_or(NextReconcile::AwaitChange, NextReconcile::After)
    }

    /// An endpoint that fails does not stop the others.
    async fn reconcile_pod(&self, pod: &ObjectKey) -> Result<NextReconcile, ReconcileError> {
        let (mut next, mut failure) = (None::<Duration>, None);
        for (endpoint, need) in self.endpoint_needs(pod) {
            if !matches!(need, EndpointNeed::CheckOrphan) {
                self.candidates().clear(&endpoint);
            }
            let outcome = match need {
                EndpointNeed::UpToDate => Ok(None),
                EndpointNeed::CopyLabels => self.copy_labels(pod, &endpoint).await.map(|()| None),
                EndpointNeed::CheckOrphan => self.check_orphan(pod, &endpoint).await,
            };
            match outcome {
                Ok(later) => next = next.into_iter().chain(later).min(),
                Err(error) => failure = Some(error),
            }
        }
        let next = next.map_or(NextReconcile::AwaitChange, NextReconcile::After);
        failure.map_or(Ok(next), Err)
    }

    fn endpoint_needs(&self, pod: &ObjectKey) -> Vec<(ObjectKey, EndpointNeed)> {
        let workloads = self.workloads.lock();
        let Some(workload) = workloads.get(pod).filter(|_| workloads.is_complete()) else {
            return Vec::new();
        };
        let need = |endpoint| match () {
            () if workloads.may_be_orphaned(workload, endpoint) => EndpointNeed::CheckOrphan,
            () if workload.has_outdated_labels(endpoint) => EndpointNeed::CopyLabels,
            () => EndpointNeed::UpToDate,
        };
        let key = |name: &str| ObjectKey {
            namespace: pod.namespace.clone(),
            name: name.to_owned(),
        };
        workload
            .endpoints
            .iter()
            .map(|endpoint| (key(&endpoint.name), need(endpoint)))
            .collect()
    }

    /// Copies the pod's present labels and service account to an endpoint. Both objects are read
    /// again, so earlier changes by the CNI plugin stay.
    async fn copy_labels(
        &self,
        pod: &ObjectKey,
        endpoint: &ObjectKey,
    ) -> Result<(), ReconcileError> {
        let live = api_reads::read_object::<Pod>(&self.context.kubernetes, PODS, pod).await?;
        let Some(live) = live else { return Ok(()) };
        let namespace = pod.namespace.as_deref().unwrap_or_default();
        let desired = EndpointLabels::for_pod(
            namespace,
            &live.metadata.labels,
            &live.spec.service_account_name,
        );
        let mut entry = match self.context.calico.get::<WorkloadEndpoint>(endpoint).await {
            Err(StoreError::NotFound { .. }) => return Ok(()),
            Err(error @ StoreError::Corrupt { .. }) => {
                return Err(ReconcileError::Permanent(error.to_string()));
            }
            read => read?,
        };
        if EndpointLabels::from_endpoint(&entry.value) == desired {
            return Ok(());
        }
        desired.apply_to(&mut entry.value);
        self.context.leadership.may_write()?;
        self.context
            .calico
            .update(endpoint, &entry.value, &entry.revision)
            .await?;
        tracing::info!(
            controller = Self::NAME, %endpoint, "copied labels and service account from the pod",
        );
        Ok(())
    }

    fn candidates(&self) -> MutexGuard<'_, DeletionCandidates> {
        self.candidates
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
