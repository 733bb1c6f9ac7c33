//! The parts of pods and endpoints that are compared.
//!
//! An endpoint contains the name of its pod but not the uid, and a later pod may have the same
//! name. It also contains the container ID, and a container never changes its pod. So a pod of that
//! name that was once seen with the endpoint's address, and was not being deleted, counts as the
//! pod of that container.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use libcalico::api::{WorkloadEndpoint, WorkloadEndpointSpec};
use libcalico::conversion::pod_labels;
use uuid::Uuid;

use crate::watched::Pod;

/// The fields of an endpoint that are copied from its pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct EndpointLabels {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) service_account: String,
}

impl EndpointLabels {
    pub(super) fn for_pod(
        namespace: &str,
        labels: &BTreeMap<String, String>,
        service_account: &str,
    ) -> Self {
        let labels = pod_labels(namespace, labels, service_account);
        EndpointLabels {
            labels,
            service_account: service_account.into(),
        }
    }

    pub(super) fn from_endpoint(endpoint: &WorkloadEndpoint) -> Self {
        let labels = endpoint.metadata.labels.clone();
        EndpointLabels {
            labels,
            service_account: endpoint.spec.service_account_name.clone(),
        }
    }

    /// Sets the fields in the endpoint. Labels are replaced, not merged (KC-265).
    pub(super) fn apply_to(self, endpoint: &mut WorkloadEndpoint) {
        endpoint.metadata.labels = self.labels;
        endpoint.spec.service_account_name = self.service_account;
    }
}

/// The uid of a pod, and the first of the pod's addresses.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PodUidAndAddress {
    uid: Option<Uuid>,
    address: Option<IpAddr>,
    /// True if the pod is being deleted, so that a later pod may have its address already.
    is_deleting: bool,
}

/// The container of an endpoint, and the uid of the pod for which the container was created, if it
/// is known.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sandbox {
    /// Hash of `spec.containerID`, which is comparable only within this process.
    container: u64,
    address: Option<IpAddr>,
    pod_uid: Option<Uuid>,
}

impl PodUidAndAddress {
    pub(super) fn new(pod: &Pod) -> Self {
        let address = pod
            .pod_ip
            .as_ref()
            .or(pod.pod_ips.first())
            .and_then(|address| address.parse().ok());
        PodUidAndAddress {
            uid: Uuid::parse_str(&pod.uid).ok(),
            address,
            is_deleting: pod.is_deleting,
        }
    }
}

impl Sandbox {
    pub(super) fn new(endpoint: &WorkloadEndpointSpec) -> Self {
        let address = endpoint.networks().next().map(|network| network.network());
        Sandbox {
            container: fingerprint(endpoint.container_id.as_str()),
            address,
            pod_uid: None,
        }
    }

    /// Copies the pod's uid from the previous state of the endpoint, if the container is the same.
    pub(super) fn copy_pod_uid(&mut self, before: &Sandbox) {
        if self.container == before.container {
            self.pod_uid = before.pod_uid;
        }
    }

    /// Records the uid of `pod`, the pod with the name that the endpoint contains, if `pod` has the
    /// endpoint's address and is not being deleted.
    pub(super) fn match_pod(&mut self, pod: &PodUidAndAddress) {
        if !pod.is_deleting && pod.uid.is_some() && self.has_address_of(pod) {
            self.pod_uid = pod.uid;
        }
    }

    /// Returns true if `pod` is not the pod for which the endpoint was created, and does not have
    /// the endpoint's address. Returns false if one of the uids is unknown.
    pub(super) fn belongs_to_other_pod(&self, pod: &PodUidAndAddress) -> bool {
        self.pod_uid
            .zip(pod.uid)
            .is_some_and(|(one, other)| one != other)
            && !self.has_address_of(pod)
    }

    /// Returns the uid of the pod for which the container `container_id` was created. Returns
    /// `None` if the uid is unknown, or if this is another container.
    pub(super) fn pod_uid(&self, container_id: &str) -> Option<Uuid> {
        self.pod_uid
            .filter(|_| self.container == fingerprint(container_id))
    }

    fn has_address_of(&self, pod: &PodUidAndAddress) -> bool {
        self.address.is_some() && self.address == pod.address
    }
}

/// Returns a hash of the value, which is comparable only within this process.
pub(super) fn fingerprint(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(container: &str) -> Sandbox {
        Sandbox::new(&WorkloadEndpointSpec {
            container_id: container.into(),
            ip_networks: vec!["10.0.0.1/32".into()],
            ..WorkloadEndpointSpec::default()
        })
    }

    fn pod(uid: u128, address: &str) -> PodUidAndAddress {
        PodUidAndAddress {
            uid: Some(Uuid::from_u128(uid)),
            address: address.parse().ok(),
            is_deleting: false,
        }
    }

    #[test]
    fn pod_that_reports_the_address_owns_the_sandbox() {
        let mut sandbox = sandbox("c1");
        sandbox.match_pod(&pod(1, ""));
        sandbox.match_pod(&pod(1, "10.0.0.2"));
        sandbox.match_pod(&PodUidAndAddress {
            is_deleting: true,
            ..pod(1, "10.0.0.1")
        });
        assert_eq!(sandbox.pod_uid("c1"), None);
        assert!(
            !sandbox.belongs_to_other_pod(&pod(2, "")),
            "nothing is known"
        );
        sandbox.match_pod(&pod(1, "10.0.0.1"));
        assert_eq!(
            (sandbox.pod_uid("c1"), sandbox.pod_uid("c2")),
            (Some(Uuid::from_u128(1)), None)
        );
        assert!(
            sandbox.belongs_to_other_pod(&pod(2, ""))
                && sandbox.belongs_to_other_pod(&pod(2, "10.0.0.2"))
        );
        assert!(
            !sandbox.belongs_to_other_pod(&pod(1, ""))
                && !sandbox.belongs_to_other_pod(&pod(2, "10.0.0.1"))
        );
        assert!(!sandbox.belongs_to_other_pod(&PodUidAndAddress {
            uid: None,
            ..pod(2, "")
        }));
    }

    #[test]
    fn pod_uid_is_copied_only_for_the_same_container() {
        let mut known = sandbox("c1");
        known.match_pod(&pod(1, "10.0.0.1"));
        let (mut same, mut other) = (sandbox("c1"), sandbox("c2"));
        same.copy_pod_uid(&known);
        other.copy_pod_uid(&known);
        assert_eq!(
            (same.pod_uid("c1"), other.pod_uid("c2")),
            (Some(Uuid::from_u128(1)), None)
        );
    }
}
