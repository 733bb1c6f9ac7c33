//! A WorkloadEndpoint made from what is known about one attachment (CNI-125, CNI-135, CNI-148 … CNI-153).

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::api::{EndpointPort, ObjectKey, ObjectSelect, WorkloadEndpoint, WorkloadEndpointSpec};
use crate::names::{self, EndpointIdentifiers};
use crate::net::Cidr;
use crate::validation::FieldError;

/// Label that says which namespace an endpoint is in; forced on every write (CNI-87).
pub const NAMESPACE_LABEL: &str = "projectcalico.org/namespace";
/// Label that says which orchestrator made an endpoint; forced on every write (CNI-87).
pub const ORCHESTRATOR_LABEL: &str = "projectcalico.org/orchestrator";
const SERVICE_ACCOUNT_LABEL: &str = "projectcalico.org/serviceaccount";

/// Service account names from this length on get no label, which could not hold them (DS-76).
const SERVICE_ACCOUNT_LABEL_LIMIT: usize = 63;

/// What is known about one attachment before its network is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointFacts {
    /// The node's name.
    pub node: String,
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// Interface name inside the container, `CNI_IFNAME`.
    pub endpoint: String,
    /// What runs the workload.
    pub orchestrator: Orchestrator,
}

/// What runs a workload, and what it says about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Orchestrator {
    /// Nothing that we know: a runtime alone, or Mesos.
    Cni(ContainerFacts),
    /// Kubernetes.
    Kubernetes(PodFacts),
}

/// What a runtime says about a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerFacts {
    /// `default` unless something says otherwise.
    pub namespace: String,
    /// Labels, sanitised.
    pub labels: BTreeMap<String, String>,
    /// Name of the network, which is the name of the endpoint's profile.
    pub network: String,
}

/// What Kubernetes says about a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Prefix the name was generated from.
    pub generate_name: String,
    /// Labels, as they are on the pod.
    pub labels: BTreeMap<String, String>,
    /// Service account, empty for none.
    pub service_account: String,
    /// Ports that have a name or a host port (CNI-116).
    pub ports: Vec<EndpointPort>,
}

impl ContainerFacts {
    /// A container in `network` that nothing else is known about.
    pub fn new(network: impl Into<String>) -> Self {
        ContainerFacts { namespace: "default".into(), labels: BTreeMap::new(), network: network.into() }
    }

    /// Takes over Mesos labels. The one that names the namespace is not kept as a label (CNI-153).
    pub fn add_mesos_labels<'l>(&mut self, labels: impl IntoIterator<Item = (&'l str, &'l str)>) {
        for (key, value) in labels {
            let value = names::sanitise_mesos_label(value);
            if key == NAMESPACE_LABEL {
                self.namespace = value;
            } else {
                self.labels.insert(names::sanitise_mesos_label(key), value);
            }
        }
    }
}

impl Orchestrator {
    /// The name that endpoints carry: `cni` or `k8s`.
    pub fn name(&self) -> &'static str {
        match self {
            Orchestrator::Cni(_) => "cni",
            Orchestrator::Kubernetes(_) => "k8s",
        }
    }

    /// The namespace that the endpoint lives in.
    pub fn namespace(&self) -> &str {
        match self {
            Orchestrator::Cni(container) => &container.namespace,
            Orchestrator::Kubernetes(pod) => &pod.namespace,
        }
    }
}

impl EndpointFacts {
    /// What the endpoint is named after.
    pub fn identifiers(&self) -> EndpointIdentifiers {
        let pod = match &self.orchestrator {
            Orchestrator::Cni(_) => String::new(),
            Orchestrator::Kubernetes(pod) => pod.name.clone(),
        };
        EndpointIdentifiers {
            node: self.node.clone(),
            orchestrator: self.orchestrator.name().into(),
            endpoint: self.endpoint.clone(),
            workload: String::new(),
            pod,
            container_id: self.container_id.clone(),
        }
    }

    /// Where the endpoint is stored.
    pub fn key(&self) -> Result<ObjectKey, FieldError> {
        Ok(ObjectKey::namespaced(self.orchestrator.namespace(), self.identifiers().name()?))
    }

    /// What to list to find an endpoint that the workload already has, whatever its interface is called (CNI-100). The
    /// list may hold others: re-check each with [`EndpointFacts::owns`].
    pub fn select(&self) -> Result<ObjectSelect, FieldError> {
        let any_endpoint = EndpointIdentifiers { endpoint: String::new(), ..self.identifiers() };
        Ok(ObjectSelect { namespace: Some(self.orchestrator.namespace().into()), name_prefix: any_endpoint.prefix()? })
    }

    /// Whether an endpoint of this name belongs to the workload, whatever its interface is called.
    pub fn owns(&self, name: &str) -> bool {
        EndpointIdentifiers { endpoint: String::new(), ..self.identifiers() }.matches(name)
    }

    /// Name of the host end of the interface pair. `felix_interface_prefix` is the environment variable's value; only
    /// pods' interfaces follow it (CNI-88, CNI-89).
    pub fn host_interface(&self, felix_interface_prefix: Option<&str>) -> String {
        match &self.orchestrator {
            Orchestrator::Cni(_) => names::container_interface(&self.container_id),
            Orchestrator::Kubernetes(pod) => {
                names::pod_interface(names::interface_prefix(felix_interface_prefix), &pod.namespace, &pod.name)
            }
        }
    }

    /// The endpoint of a workload that has none. `interfaceName` and `mac` are left to whoever makes the interface.
    pub fn create(&self, addresses: &[IpAddr]) -> Result<WorkloadEndpoint, FieldError> {
        let mut endpoint = WorkloadEndpoint::new(self.identifiers().name()?, WorkloadEndpointSpec::default());
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

    /// The endpoint that a workload already has, brought up to date. It keeps its name, its interface's name and what
    /// we know nothing about.
    ///
    /// A pod's endpoint takes the new addresses and what the pod says now (CNI-125). A container's endpoint only joins
    /// the network, and keeps the addresses it has (CNI-149).
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

fn describe_pod(endpoint: &mut WorkloadEndpoint, pod: &PodFacts) {
    endpoint.metadata.generate_name = pod.generate_name.clone();
    endpoint.metadata.labels = pod.labels.clone();
    endpoint.spec.pod = pod.name.clone();
    endpoint.spec.ports = pod.ports.clone();
    endpoint.spec.service_account_name = pod.service_account.clone();
    endpoint.spec.profiles = vec![format!("kns.{}", pod.namespace)];
    if !pod.service_account.is_empty() {
        endpoint.spec.profiles.push(format!("ksa.{}.{}", pod.namespace, pod.service_account));
        if pod.service_account.len() < SERVICE_ACCOUNT_LABEL_LIMIT {
            endpoint.metadata.labels.insert(SERVICE_ACCOUNT_LABEL.into(), pod.service_account.clone());
        }
    }
}

fn force_labels(endpoint: &mut WorkloadEndpoint) {
    let labels = &mut endpoint.metadata.labels;
    labels.insert(NAMESPACE_LABEL.into(), endpoint.metadata.namespace.clone());
    labels.insert(ORCHESTRATOR_LABEL.into(), endpoint.spec.orchestrator.clone());
}

fn networks(addresses: &[IpAddr]) -> Vec<String> {
    addresses.iter().map(|ip| Cidr::host(*ip).to_string()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn container() -> EndpointFacts {
        EndpointFacts {
            node: "node-1".into(),
            container_id: "c0ffee01000000".into(),
            endpoint: "eth0".into(),
            orchestrator: Orchestrator::Cni(ContainerFacts::new("net1")),
        }
    }

    fn pod() -> EndpointFacts {
        let pod = PodFacts {
            namespace: "prod".into(),
            name: "web-0".into(),
            generate_name: "web-".into(),
            labels: [("app".to_owned(), "web".to_owned())].into(),
            service_account: "robot".into(),
            ports: vec![],
        };
        EndpointFacts { orchestrator: Orchestrator::Kubernetes(pod), ..container() }
    }

    fn addresses() -> Vec<IpAddr> {
        vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()]
    }

    #[test]
    fn keys_and_lookups() {
        let key = container().key().unwrap();
        assert_eq!(key.to_string(), "default/node--1-cni-c0ffee01000000-eth0");
        let select = pod().select().unwrap();
        assert_eq!(select.namespace.as_deref(), Some("prod"));
        assert_eq!(select.name_prefix, "node--1-k8s-web--0-");
        assert!(pod().owns("node--1-k8s-web--0-eth7"));
        assert!(!pod().owns("node--1-k8s-web--0--1-eth0"));
        let homeless = EndpointFacts { node: String::new(), ..pod() };
        assert_eq!(homeless.key().unwrap_err().to_string(), "node (field should be assigned)");
    }

    #[test]
    fn host_interfaces() {
        assert_eq!(container().host_interface(Some("eni")), "calic0ffee01000");
        assert_eq!(pod().host_interface(None), names::pod_interface("cali", "prod", "web-0"));
        assert!(pod().host_interface(Some("eni,x")).starts_with("eni"));
    }

    #[test]
    fn a_containers_endpoint() {
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
                    "name": "node--1-cni-c0ffee01000000-eth0", "namespace": "team", "creationTimestamp": null,
                    "labels": {"a-b": "x", NAMESPACE_LABEL: "team", ORCHESTRATOR_LABEL: "cni"},
                },
                "spec": {
                    "orchestrator": "cni", "node": "node-1", "containerID": "c0ffee01000000", "endpoint": "eth0",
                    "ipNetworks": ["10.0.0.1/32", "fd00::1/128"], "profiles": ["net1"],
                },
            })
        );
    }

    #[test]
    fn a_second_network_adds_a_profile_and_nothing_else() {
        let mut existing = container().create(&addresses()).unwrap();
        existing.spec.mac = "aa:bb:cc:dd:ee:ff".into();
        existing.spec.unknown.insert("newer".into(), json!(1));
        let again = container().update(existing.clone(), &[]);
        assert_eq!(again, existing);
        let mut second = container();
        second.orchestrator = Orchestrator::Cni(ContainerFacts::new("net2"));
        let joined = second.update(existing.clone(), &[]);
        assert_eq!(joined.spec.profiles, ["net1", "net2"]);
        let mut expected = existing;
        expected.spec.profiles = joined.spec.profiles.clone();
        assert_eq!(joined, expected);
    }

    #[test]
    fn a_pods_endpoint_follows_the_pod() {
        let mut existing = pod().create(&addresses()).unwrap();
        assert_eq!(existing.spec.profiles, ["kns.prod", "ksa.prod.robot"]);
        assert_eq!(existing.metadata.labels["projectcalico.org/serviceaccount"], "robot");
        existing.metadata.labels.insert("stale".into(), "1".into());
        existing.spec.qos_controls = Some(json!({"dscp": 1}));
        let later = EndpointFacts { container_id: "new".into(), endpoint: "eth7".into(), ..pod() };
        let updated = later.update(existing.clone(), &addresses()[1..]);
        assert_eq!(updated.metadata.name, existing.metadata.name);
        assert_eq!(updated.spec.endpoint, "eth0");
        assert_eq!(updated.spec.container_id, "new");
        assert_eq!(updated.spec.ip_networks, ["fd00::1/128"]);
        assert_eq!(updated.spec.qos_controls, existing.spec.qos_controls);
        assert!(!updated.metadata.labels.contains_key("stale"));
    }

    #[test]
    fn long_service_accounts_get_a_profile_but_no_label() {
        let mut facts = pod();
        if let Orchestrator::Kubernetes(pod) = &mut facts.orchestrator {
            pod.service_account = "s".repeat(63);
        }
        let endpoint = facts.create(&[]).unwrap();
        assert_eq!(endpoint.spec.profiles.len(), 2);
        assert!(!endpoint.metadata.labels.contains_key(SERVICE_ACCOUNT_LABEL));
    }
}
