use std::net::IpAddr;

use libcalico::api::{ObjectKey, WorkloadEndpoint, WorkloadEndpointSpec};
use libcalico::kubernetes::{CONTAINER_ID, Pod, annotated_addresses, has_empty_addresses};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Revision};
use libcalico::validation_error::ValidationError;
use libcalico::workload::{Orchestrator, PodIdentity, WorkloadIdentity};

/// The interface in the name of every pod's endpoint on Kubernetes.
pub(crate) const POD_INTERFACE: &str = "eth0";

/// The part of an endpoint that is necessary to remove addresses from it. On Kubernetes the
/// addresses are those in the plugin's annotations.
#[derive(Debug, Clone)]
pub struct Listing {
    pub(super) key: ObjectKey,
    /// The pod whose annotations represent the endpoint, on Kubernetes; `None` elsewhere.
    pub(super) pod: Option<ObjectKey>,
    /// The endpoint. On Kubernetes it contains only the uid, the container ID and the addresses.
    pub(super) endpoint: WorkloadEndpoint,
    pub(super) revision: Revision,
    /// True if the pod has no endpoint on this node: the pod is not assigned to this node, or runs
    /// in the network namespace of the node.
    pub(super) is_elsewhere: bool,
    /// True if the address annotations of the pod are empty, as after a DEL.
    pub(super) is_detached: bool,
    /// True if the phase of the pod is `Failed` or `Succeeded`.
    pub(super) is_finished: bool,
}

impl Listing {
    /// Returns the listing of a pod on Kubernetes, for a container on `node`.
    pub fn of_pod(entry: Entry<Pod>, node: &str) -> Result<Self, ValidationError> {
        let Entry {
            key: pod,
            value:
                Pod {
                    metadata,
                    spec,
                    status,
                },
            revision,
        } = entry;
        let container_id = metadata
            .annotations
            .get(CONTAINER_ID)
            .cloned()
            .unwrap_or_default();
        let names = PodIdentity {
            namespace: metadata.namespace,
            name: metadata.name,
            ..PodIdentity::default()
        };
        let workload = WorkloadIdentity {
            node: node.to_owned(),
            container_id: container_id.clone(),
            endpoint: POD_INTERFACE.into(),
            orchestrator: Orchestrator::Kubernetes(names),
        };
        let key = workload.key()?;
        let ip_networks = annotated_addresses(&metadata.annotations);
        let listed = WorkloadEndpointSpec {
            container_id,
            ip_networks,
            ..WorkloadEndpointSpec::default()
        };
        let mut endpoint = WorkloadEndpoint::new(key.name.as_str(), listed);
        endpoint.metadata.uid = metadata.uid;
        let is_elsewhere = spec.host_network || spec.node_name != node;
        let is_detached = has_empty_addresses(&metadata.annotations);
        let is_finished = matches!(status.phase.as_str(), "Failed" | "Succeeded");
        Ok(Listing {
            key,
            pod: Some(pod),
            endpoint,
            revision,
            is_elsewhere,
            is_detached,
            is_finished,
        })
    }

    /// Returns the endpoint without these addresses; `None` if it lists none of them.
    pub(super) fn without(&self, addresses: &[IpAddr]) -> Option<WorkloadEndpoint> {
        let is_leaving = |text: &str| {
            Cidr::parse_or_host(text)
                .is_some_and(|network| addresses.iter().any(|ip| network.contains(*ip)))
        };
        let listed = &self.endpoint.spec.ip_networks;
        if !listed.iter().any(|text| is_leaving(text)) {
            return None;
        }
        let mut endpoint = self.endpoint.clone();
        endpoint.spec.ip_networks.retain(|text| !is_leaving(text));
        endpoint
            .spec
            .ip_nats
            .retain(|nat| !is_leaving(&nat.internal_ip));
        Some(endpoint)
    }
}

impl From<Entry<WorkloadEndpoint>> for Listing {
    fn from(entry: Entry<WorkloadEndpoint>) -> Self {
        let Entry {
            key,
            value: endpoint,
            revision,
        } = entry;
        Listing {
            key,
            pod: None,
            endpoint,
            revision,
            is_elsewhere: false,
            is_detached: false,
            is_finished: false,
        }
    }
}
