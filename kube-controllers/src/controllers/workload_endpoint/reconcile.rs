//! [`Reconciler`]: reconciles the endpoints of one pod.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libcalico::api::{ObjectKey, WorkloadEndpoint};
use libcalico::kubernetes::{PODS, Pod};
use libcalico::store::{Store, StoreError};
use prometheus::IntCounterVec;

use super::candidates::DeletionCandidates;
use super::labels::EndpointLabels;
use super::workloads::Workloads;
use crate::api_reads;
use crate::context::Context;
use crate::controllers::resync::ResyncKey;
use crate::controllers::shared_cache::SharedCache;
use crate::runtime::{NextReconcile, Queue, Reconcile, ReconcileError};
use crate::settings::ControllerName;

/// The reconciler of pods' endpoints.
pub(super) struct Reconciler {
    pub(super) workloads: SharedCache<Workloads>,
    pub(super) queue: Queue<ResyncKey>,
    pub(super) context: Context,
    pub(super) orphans: Option<IntCounterVec>,
    candidates: Mutex<DeletionCandidates>,
}

/// The need of an endpoint.
enum EndpointNeed {
    /// The fields copied from the pod are out of date.
    Labels,
    /// The endpoint may be orphaned.
    Verdict,
    /// The endpoint is up to date.
    Nothing,
}

impl Reconcile for Reconciler {
    const NAME: &'static str = "workloadendpoint";
    type Key = ResyncKey;

    async fn reconcile(&self, key: &ResyncKey) -> Result<NextReconcile, ReconcileError> {
        match key {
            ResyncKey::All => Ok(self.compare_all()),
            ResyncKey::One(pod) => self.reconcile_pod(pod).await,
        }
    }
}

impl Reconciler {
    pub(super) fn new(
        workloads: SharedCache<Workloads>,
        queue: Queue<ResyncKey>,
        context: Context,
        orphans: Option<IntCounterVec>,
    ) -> Self {
        Reconciler { workloads, queue, context, orphans, candidates: Mutex::default() }
    }

    fn compare_all(&self) -> NextReconcile {
        let doubtful = {
            let workloads = self.workloads.lock();
            if !workloads.is_complete() {
                // Each completed list queues this work again.
                return NextReconcile::Done;
            }
            self.candidates().retain(|endpoint| workloads.has(endpoint));
            workloads.doubtful()
        };
        doubtful.into_iter().for_each(|pod| self.queue.add(ResyncKey::One(pod)));
        let period = self.context.settings.borrow().reconcile_period.get(&ControllerName::WorkloadEndpoint).copied();
        period.filter(|period| !period.is_zero()).map_or(NextReconcile::Done, NextReconcile::After)
    }

    /// Reconciles the endpoints of a pod. An endpoint that fails does not stop the others.
    async fn reconcile_pod(&self, pod: &ObjectKey) -> Result<NextReconcile, ReconcileError> {
        let (mut next, mut failure) = (None::<Duration>, None);
        for (endpoint, need) in self.needs(pod) {
            let outcome = match need {
                EndpointNeed::Nothing => {
                    self.candidates().clear(&endpoint);
                    Ok(None)
                }
                EndpointNeed::Labels => {
                    self.candidates().clear(&endpoint);
                    self.copy_labels(pod, &endpoint).await.map(|()| None)
                }
                EndpointNeed::Verdict => self.check_orphan(pod, &endpoint).await,
            };
            match outcome {
                Ok(later) => next = next.into_iter().chain(later).min(),
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(failure) => Err(failure),
            None => Ok(next.map_or(NextReconcile::Done, NextReconcile::After)),
        }
    }

    fn needs(&self, pod: &ObjectKey) -> Vec<(ObjectKey, EndpointNeed)> {
        let workloads = self.workloads.lock();
        let Some(workload) = workloads.get(pod).filter(|_| workloads.is_complete()) else { return Vec::new() };
        let need = |endpoint| match () {
            () if workloads.is_suspicious(workload, endpoint) => EndpointNeed::Verdict,
            () if workload.is_mislabelled(endpoint) => EndpointNeed::Labels,
            () => EndpointNeed::Nothing,
        };
        let key = |name: &str| ObjectKey { namespace: pod.namespace.clone(), name: name.to_owned() };
        workload.endpoints.iter().map(|endpoint| (key(&endpoint.name), need(endpoint))).collect()
    }

    /// Copies the pod's present fields to an endpoint. Both objects are read again, so earlier changes by the CNI
    /// plugin stay. A concurrent change makes the compare-and-swap fail.
    async fn copy_labels(&self, pod: &ObjectKey, endpoint: &ObjectKey) -> Result<(), ReconcileError> {
        let Some(live) = api_reads::object::<Pod>(&self.context.kubernetes, PODS, pod).await? else { return Ok(()) };
        let namespace = pod.namespace.as_deref().unwrap_or_default();
        let desired = EndpointLabels::for_pod(namespace, &live.metadata.labels, &live.spec.service_account_name);
        let mut entry = match self.context.calico.get::<WorkloadEndpoint>(endpoint).await {
            Err(StoreError::NotFound { .. }) => return Ok(()),
            Err(error @ StoreError::Corrupt { .. }) => return Err(ReconcileError::Permanent(error.to_string())),
            found => found?,
        };
        if EndpointLabels::from_endpoint(&entry.value) == desired {
            return Ok(());
        }
        desired.apply_to(&mut entry.value);
        self.context.leadership.may_write()?;
        self.context.calico.update(endpoint, &entry.value, &entry.revision).await?;
        tracing::info!(controller = Self::NAME, %endpoint, "labels and service account taken over from the pod");
        Ok(())
    }

    pub(super) fn candidates(&self) -> MutexGuard<'_, DeletionCandidates> {
        self.candidates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
