//! Builds the WorkloadEndpoint of an attachment.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::api::{WorkloadEndpoint, WorkloadEndpointSpec};
use crate::net::Cidr;
use crate::validation_error::ValidationError;
use crate::workload::{
    KUBERNETES, NAMESPACE_LABEL, ORCHESTRATOR_LABEL, Orchestrator, PodIdentity, WorkloadIdentity,
};

const SERVICE_ACCOUNT_LABEL: &str = "projectcalico.org/serviceaccount";

/// The length from which a service account's name gets no label, as in upstream (DS-76). A label's
/// value may have this length.
const SERVICE_ACCOUNT_LABEL_LIMIT: usize = 63;

impl WorkloadIdentity {
    /// Builds the endpoint of a workload that has none yet. The caller sets `interfaceName` and
    /// `mac`.
    pub fn create(&self, addresses: &[IpAddr]) -> Result<WorkloadEndpoint, ValidationError> {
        let mut endpoint =
            WorkloadEndpoint::new(self.identifiers().name()?, WorkloadEndpointSpec::default());
        endpoint.spec.endpoint = self.endpoint.clone();
        match &self.orchestrator {
            Orchestrator::Cni(container) => {
                endpoint.metadata.labels = container.labels.clone();
                endpoint.spec.profiles = vec![container.network.clone()];
            }
            Orchestrator::Kubernetes(pod) => describe_pod(&mut endpoint, pod),
        }
        self.identify(&mut endpoint);
        endpoint.spec.ip_networks = networks(addresses);
        Ok(endpoint)
    }

    /// Updates the endpoint of a workload, which keeps the fields that we do not model.
    ///
    /// A pod's endpoint gets the new addresses and the current data of the pod (CNI-125). A plain
    /// container's endpoint gets the network's profile and Calico's two labels, and keeps its
    /// addresses (CNI-149).
    pub fn update(&self, existing: WorkloadEndpoint, addresses: &[IpAddr]) -> WorkloadEndpoint {
        let mut endpoint = existing;
        match &self.orchestrator {
            Orchestrator::Cni(container) => {
                if !endpoint.spec.profiles.contains(&container.network) {
                    endpoint.spec.profiles.push(container.network.clone());
                }
                force_labels(&mut endpoint);
            }
            Orchestrator::Kubernetes(pod) => {
                describe_pod(&mut endpoint, pod);
                self.identify(&mut endpoint);
                endpoint.spec.ip_networks = networks(addresses);
            }
        }
        endpoint
    }

    fn identify(&self, endpoint: &mut WorkloadEndpoint) {
        endpoint.metadata.namespace = self.orchestrator.namespace().into();
        endpoint.spec.orchestrator = self.orchestrator.name().into();
        endpoint.spec.node = self.node.clone();
        endpoint.spec.container_id = self.container_id.clone();
        force_labels(endpoint);
    }
}

fn describe_pod(endpoint: &mut WorkloadEndpoint, pod: &PodIdentity) {
    endpoint.metadata.generate_name = pod.generate_name.clone();
    endpoint.metadata.labels = pod_labels(&pod.namespace, &pod.labels, &pod.service_account);
    endpoint.spec.pod = pod.name.clone();
    endpoint.spec.ports = pod.ports.clone();
    endpoint.spec.service_account_name = pod.service_account.clone();
    endpoint.spec.profiles = vec![format!("kns.{}", pod.namespace)];
    if !pod.service_account.is_empty() {
        endpoint
            .spec
            .profiles
            .push(format!("ksa.{}.{}", pod.namespace, pod.service_account));
    }
}

/// Returns the labels of a pod's endpoint. Calico's labels replace labels of the pod.
pub fn pod_labels(
    namespace: &str,
    labels: &BTreeMap<String, String>,
    account: &str,
) -> BTreeMap<String, String> {
    let mut labels = labels.clone();
    labels.insert(NAMESPACE_LABEL.into(), namespace.into());
    labels.insert(ORCHESTRATOR_LABEL.into(), KUBERNETES.into());
    if !account.is_empty() && account.len() < SERVICE_ACCOUNT_LABEL_LIMIT {
        labels.insert(SERVICE_ACCOUNT_LABEL.into(), account.into());
    }
    labels
}

fn force_labels(endpoint: &mut WorkloadEndpoint) {
    let labels = &mut endpoint.metadata.labels;
    labels.insert(NAMESPACE_LABEL.into(), endpoint.metadata.namespace.clone());
    labels.insert(
        ORCHESTRATOR_LABEL.into(),
        endpoint.spec.orchestrator.clone(),
    );
}

fn networks(addresses: &[IpAddr]) -> Vec<String> {
    addresses
        .iter()
        .map(|ip| Cidr::host(*ip).to_string())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::workload::ContainerIdentity;
    use crate::workload::samples::{container, pod};

    fn addresses() -> Vec<IpAddr> {
        vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()]
    }

    #[test]
    fn container_endpoint_has_sanitized_labels_and_no_pod_fields() {
        let mut facts = container();
        if let Orchestrator::Cni(container) = &mut facts.orchestrator {
            container.add_mesos_labels([("a b", "/x/"), (NAMESPACE_LABEL, "$team")]);
        }
        let endpoint = facts.create(&addresses()).unwrap();
        assert_eq!(
            serde_json::to_value(&endpoint).unwrap(),
            json!({
                "kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3",
                "metadata": {
                    "name": "node--1-cni-c0ffee01000000-eth0", "namespace": "team",
                    "creationTimestamp": null,
                    "labels": {"a-b": "x", NAMESPACE_LABEL: "team", ORCHESTRATOR_LABEL: "cni"},
                },
                "spec": {
                    "orchestrator": "cni", "node": "node-1", "containerID": "c0ffee01000000",
                    "endpoint": "eth0",
                    "ipNetworks": ["10.0.0.1/32", "fd00::1/128"], "profiles": ["net1"],
                },
            })
        );
    }

    #[test]
    fn second_network_adds_only_a_profile_to_the_endpoint() {
        let mut existing = container().create(&addresses()).unwrap();
        existing.spec.mac = "aa:bb:cc:dd:ee:ff".into();
        existing.spec.unknown.insert("newer".into(), json!(1));
        let again = container().update(existing.clone(), &[]);
        assert_eq!(again, existing);
        let mut second = container();
        second.orchestrator = Orchestrator::Cni(ContainerIdentity::new("net2"));
        let joined = second.update(existing.clone(), &[]);
        assert_eq!(joined.spec.profiles, ["net1", "net2"]);
        let mut expected = existing;
        expected.spec.profiles = joined.spec.profiles.clone();
        assert_eq!(joined, expected);
    }

    #[test]
    fn pod_endpoint_update_follows_the_pod_and_retains_its_name() {
        let mut existing = pod().create(&addresses()).unwrap();
        assert_eq!(existing.spec.profiles, ["kns.prod", "ksa.prod.robot"]);
        assert_eq!(
            existing.metadata.labels["projectcalico.org/serviceaccount"],
            "robot"
        );
        existing.metadata.labels.insert("stale".into(), "1".into());
        existing.spec.qos_controls = Some(json!({"dscp": 1}));
        let later = WorkloadIdentity {
            container_id: "new".into(),
            endpoint: "eth7".into(),
            ..pod()
        };
        let updated = later.update(existing.clone(), &addresses()[1..]);
        assert_eq!(updated.metadata.name, existing.metadata.name);
        assert_eq!(updated.spec.endpoint, "eth0");
        assert_eq!(updated.spec.container_id, "new");
        assert_eq!(updated.spec.ip_networks, ["fd00::1/128"]);
        assert_eq!(updated.spec.qos_controls, existing.spec.qos_controls);
        assert!(!updated.metadata.labels.contains_key("stale"));
    }

    #[test]
    fn long_service_account_name_gets_a_profile_and_no_label() {
        let mut facts = pod();
        if let Orchestrator::Kubernetes(pod) = &mut facts.orchestrator {
            pod.service_account = "s".repeat(63);
        }
        let endpoint = facts.create(&[]).unwrap();
        assert_eq!(endpoint.spec.profiles.len(), 2);
        assert!(!endpoint.metadata.labels.contains_key(SERVICE_ACCOUNT_LABEL));
    }
}
