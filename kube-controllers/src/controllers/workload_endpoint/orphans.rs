//! Deletes orphaned endpoints ([`OrphanReason`] has the cases).

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use libcalico::api::{Node as CalicoNode, ObjectKey, WorkloadEndpoint};
use libcalico::kubernetes::{NODES, PODS, Pod};
use libcalico::net::Cidr;
use libcalico::orphaned_endpoint::{
    ExaminedEndpoint, ExaminedNode, ExaminedPod, OrphanReason, orphaned,
};
use libcalico::store::{Entry, ReadBatch, Store, StoreError};
use tokio::time::Instant;
use uuid::Uuid;

use super::PodEndpointReconciler;
use super::workloads::pod_and_node;
use crate::api_reads;
use crate::controllers::same_cluster::hold_and_report;
use crate::runtime::{Reconcile, ReconcileError};
use crate::settings::GcMode;

struct StoredEndpoint {
    endpoint: Entry<WorkloadEndpoint>,
    node: ObjectKey,
}

impl PodEndpointReconciler {
    /// Deletes an endpoint that has looked orphaned for the grace period, and is orphaned by the
    /// live state. In the mode `report`, only reports the endpoint. Returns the time until the next
    /// check if the grace period has not passed. With a grace period of zero, does nothing.
    pub(super) async fn check_orphan(
        &self,
        pod: &ObjectKey,
        endpoint: &ObjectKey,
    ) -> Result<Option<Duration>, ReconcileError> {
        let settings = self.context.settings.borrow().clone();
        let (grace, mode) = (settings.orphan_endpoint_grace_period, settings.gc_mode);
        if grace.is_zero() {
            return Ok(None);
        }
        if let Some(wait) = hold_and_report(&self.context).await {
            return Ok(Some(wait));
        }
        let Some(stored) = self.read_stored(endpoint).await? else {
            self.candidates().clear(endpoint);
            return Ok(None);
        };
        let age = self.candidates().age(
            endpoint,
            &stored.endpoint.value.metadata.uid,
            Instant::now(),
        );
        if age < grace {
            return Ok(Some(grace - age));
        }
        let Some(reason) = self.orphan_reason(pod, &stored).await? else {
            self.candidates().clear(endpoint);
            return Ok(None);
        };
        match mode {
            GcMode::Report => self.report(endpoint, reason),
            GcMode::Reclaim => self.delete(&stored.endpoint, reason).await?,
        }
        Ok(None)
    }

    async fn read_stored(
        &self,
        endpoint: &ObjectKey,
    ) -> Result<Option<StoredEndpoint>, ReconcileError> {
        let Some((_, node)) = pod_and_node(endpoint) else {
            return Ok(None);
        };
        let node = ObjectKey::global(node);
        let mut batch = ReadBatch::new();
        let endpoint = batch.get::<WorkloadEndpoint>(endpoint);
        let calico_node = batch.get::<CalicoNode>(&node);
        let answers = self.context.calico.read(&batch).await?;
        let endpoint = match answers.get(&endpoint) {
            Ok(Some(endpoint)) => endpoint,
            Ok(None) => return Ok(None),
            Err(error) => return Err(ReconcileError::Permanent(error.to_string())),
        };
        let calico_node = answers.get(&calico_node)?;
        let kubernetes = calico_node
            .as_ref()
            .and_then(|entry| entry.value.spec.kubernetes_name());
        Ok(Some(StoredEndpoint {
            endpoint,
            node: kubernetes.map_or(node, ObjectKey::global),
        }))
    }

    /// Returns the reason why the endpoint is orphaned by the present state in Kubernetes, or
    /// `None` if it is not orphaned.
    async fn orphan_reason(
        &self,
        pod: &ObjectKey,
        stored: &StoredEndpoint,
    ) -> Result<Option<OrphanReason>, ReconcileError> {
        let kubernetes = &self.context.kubernetes;
        let pod = api_reads::read_object::<Pod>(kubernetes, PODS, pod).await?;
        let pod_addresses: Vec<IpAddr> = pod.iter().flat_map(addresses).collect();
        let pod = pod.as_ref().map(|pod| ExaminedPod {
            uid: Uuid::parse_str(&pod.metadata.uid).ok(),
            host_network: pod.spec.host_network,
            node: &pod.spec.node_name,
            addresses: &pod_addresses,
        });
        // The node is looked up only if the pod exists; without a pod, the node does not matter.
        let exists = pod.is_none() || api_reads::exists(kubernetes, NODES, &stored.node).await?;
        let spec = &stored.endpoint.value.spec;
        let networks: Vec<Cidr> = spec.networks().collect();
        let endpoint = ExaminedEndpoint {
            addresses: &networks,
            node: ExaminedNode {
                name: &stored.node.name,
                exists,
            },
            pod_uid: self
                .workloads
                .lock()
                .pod_uid(&stored.endpoint.key, &spec.container_id),
        };
        Ok(orphaned(&endpoint, pod))
    }

    fn report(&self, endpoint: &ObjectKey, reason: OrphanReason) {
        if self.candidates().report(endpoint) {
            self.count("reported");
            tracing::info!(
                controller = Self::NAME, %endpoint,
                "would delete an endpoint, which GC_MODE=report keeps: {reason}"
            );
        }
    }

    async fn delete(
        &self,
        endpoint: &Entry<WorkloadEndpoint>,
        reason: OrphanReason,
    ) -> Result<(), ReconcileError> {
        self.context.leadership.may_write()?;
        match self
            .context
            .calico
            .delete::<WorkloadEndpoint>(&endpoint.key, Some(&endpoint.revision))
            .await
        {
            Ok(()) => {
                self.count("deleted");
                tracing::info!(
                    controller = Self::NAME, endpoint = %endpoint.key,
                    "deleted an endpoint: {reason}",
                );
            }
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.candidates().clear(&endpoint.key);
        Ok(())
    }

    fn count(&self, action: &str) {
        if let Some(orphans) = &self.orphans {
            orphans.with_label_values(&[action]).inc();
        }
    }
}

fn addresses(pod: &Pod) -> impl Iterator<Item = IpAddr> {
    let listed = pod.status.pod_ips.iter().map(|address| address.ip.as_str());
    listed
        .chain([pod.status.pod_ip.as_str()])
        .filter_map(|address| address.parse().ok())
}

/// Endpoints that look orphaned.
#[derive(Debug, Default)]
pub(super) struct DeletionCandidates {
    by_endpoint: HashMap<ObjectKey, DeletionCandidate>,
}

#[derive(Debug)]
struct DeletionCandidate {
    /// Uid of the endpoint, which distinguishes it from a later endpoint with the same name.
    uid: String,
    since: Instant,
    /// True if the mode `report` has reported the endpoint.
    reported: bool,
}

impl DeletionCandidates {
    /// Returns the time for which the endpoint has looked orphaned. The first call with this uid
    /// records the endpoint and returns zero.
    pub(super) fn age(&mut self, endpoint: &ObjectKey, uid: &str, now: Instant) -> Duration {
        let new_candidate = || DeletionCandidate {
            uid: uid.to_owned(),
            since: now,
            reported: false,
        };
        let candidate = self
            .by_endpoint
            .entry(endpoint.clone())
            .or_insert_with(new_candidate);
        if candidate.uid != uid {
            *candidate = new_candidate();
        }
        now.saturating_duration_since(candidate.since)
    }

    /// Records that the endpoint was reported. Returns true if this is the first time.
    pub(super) fn report(&mut self, endpoint: &ObjectKey) -> bool {
        self.by_endpoint
            .get_mut(endpoint)
            .is_some_and(|candidate| !std::mem::replace(&mut candidate.reported, true))
    }

    pub(super) fn retain(&mut self, exists: impl Fn(&ObjectKey) -> bool) {
        self.by_endpoint.retain(|endpoint, _| exists(endpoint));
    }

    pub(super) fn clear(&mut self, endpoint: &ObjectKey) {
        self.by_endpoint.remove(endpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recreated_endpoint_restarts_the_age_of_its_candidate() {
        let (key, begin, mut candidates) = (
            ObjectKey::namespaced("ns", "e"),
            Instant::now(),
            DeletionCandidates::default(),
        );
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(candidates.age(&key, "u1", begin), Duration::ZERO);
        assert_eq!(candidates.age(&key, "u1", at(5)), Duration::from_secs(5));
        assert!(candidates.report(&key) && !candidates.report(&key));
        assert_eq!(candidates.age(&key, "u2", at(7)), Duration::ZERO);
        assert!(candidates.report(&key));
        candidates.clear(&key);
        assert_eq!(candidates.age(&key, "u2", at(9)), Duration::ZERO);
    }
}
