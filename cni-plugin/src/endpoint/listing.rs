//! [`Listing`]: an endpoint, as far as it lists addresses.

use std::net::IpAddr;

use libcalico::api::{ObjectKey, WorkloadEndpoint, WorkloadEndpointSpec};
use libcalico::conversion::{EndpointFacts, Orchestrator, PodFacts};
use libcalico::kubernetes::{CONTAINER_ID, Pod, listed_addresses, lists_nothing};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Revision};
use libcalico::validation::ValidationError;

/// The interface that every pod's endpoint is named after in Kubernetes.
const POD_INTERFACE: &str = "eth0";

/// An endpoint, as far as it lists addresses: those that the plugin wrote. A pod's status is kubelet's and has no part in it.
#[derive(Debug, Clone)]
pub struct Listing {
    /// Name of the endpoint.
    pub(super) key: ObjectKey,
    /// The pod that it is an annotation of, in Kubernetes.
    pub(super) pod: Option<ObjectKey>,
    /// The endpoint. Of a pod in Kubernetes no more than uid, container and addresses.
    pub(super) endpoint: WorkloadEndpoint,
    /// When it was read.
    pub(super) revision: Revision,
    /// The pod has no endpoint on this node: it is elsewhere, or in the node's own network.
    pub(super) is_elsewhere: bool,
    /// A pod that DEL has taken all addresses off before.
    pub(super) is_detached: bool,
    /// Kubelet says that the pod's containers ended for good.
    pub(super) is_finished: bool,
}

impl Listing {
    /// The listing of a pod in Kubernetes, for a container on `node`.
    pub fn of_pod(entry: Entry<Pod>, node: &str) -> Result<Self, ValidationError> {
        let Entry { key: pod, value: Pod { metadata, spec, status }, revision } = entry;
        let container_id = metadata.annotations.get(CONTAINER_ID).cloned().unwrap_or_default();
        let names = PodFacts { namespace: metadata.namespace, name: metadata.name, ..PodFacts::default() };
        let facts = EndpointFacts {
            node: node.to_owned(),
            container_id: container_id.clone(),
            endpoint: POD_INTERFACE.into(),
            orchestrator: Orchestrator::Kubernetes(names),
        };
        let key = facts.key()?;
        let ip_networks = listed_addresses(&metadata.annotations);
        let listed = WorkloadEndpointSpec { container_id, ip_networks, ..WorkloadEndpointSpec::default() };
        let mut endpoint = WorkloadEndpoint::new(key.name.as_str(), listed);
        endpoint.metadata.uid = metadata.uid;
        Ok(Listing {
            key,
            pod: Some(pod),
            endpoint,
            revision,
            is_elsewhere: spec.host_network || spec.node_name != node,
            is_detached: lists_nothing(&metadata.annotations),
            is_finished: matches!(status.phase.as_str(), "Failed" | "Succeeded"),
        })
    }

    /// Returns the endpoint without these addresses; `None` if it lists none of them.
    pub(super) fn without(&self, addresses: &[IpAddr]) -> Option<WorkloadEndpoint> {
        let is_leaving = |text: &str| {
            Cidr::parse_or_host(text).is_some_and(|network| addresses.iter().any(|ip| network.contains(*ip)))
        };
        let listed = &self.endpoint.spec.ip_networks;
        if !listed.iter().any(|text| is_leaving(text)) {
            return None;
        }
        let mut endpoint = self.endpoint.clone();
        endpoint.spec.ip_networks.retain(|text| !is_leaving(text));
        endpoint.spec.ip_nats.retain(|nat| !is_leaving(&nat.internal_ip));
        Some(endpoint)
    }
}

impl From<Entry<WorkloadEndpoint>> for Listing {
    fn from(entry: Entry<WorkloadEndpoint>) -> Self {
        Listing {
            key: entry.key,
            pod: None,
            endpoint: entry.value,
            revision: entry.revision,
            is_elsewhere: false,
            is_detached: false,
            is_finished: false,
        }
    }
}
