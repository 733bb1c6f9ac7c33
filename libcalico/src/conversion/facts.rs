//! What is known about one attachment, and where its endpoint is to be found (CNI-79, CNI-100, CNI-153).

use std::collections::BTreeMap;

use crate::api::{EndpointPort, ObjectKey, ObjectSelect};
use crate::names::{self, EndpointIdentifiers};
use crate::validation::ValidationError;

/// Label that says which namespace an endpoint is in; forced on every write (CNI-87).
pub const NAMESPACE_LABEL: &str = "projectcalico.org/namespace";
/// Label that says which orchestrator made an endpoint; forced on every write (CNI-87).
pub const ORCHESTRATOR_LABEL: &str = "projectcalico.org/orchestrator";
/// The orchestrator whose endpoints are pods'.
pub const KUBERNETES: &str = "k8s";

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
            Orchestrator::Kubernetes(_) => KUBERNETES,
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
    pub fn key(&self) -> Result<ObjectKey, ValidationError> {
        Ok(ObjectKey::namespaced(self.orchestrator.namespace(), self.identifiers().name()?))
    }

    /// What to list to find an endpoint that the workload already has, whatever its interface is called (CNI-100). The
    /// list may hold others: re-check each with [`EndpointFacts::owns`].
    pub fn select(&self) -> Result<ObjectSelect, ValidationError> {
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
}

#[cfg(test)]
pub(super) mod samples {
    //! Attachments that tests of this folder build upon.

    use super::*;

    pub(in crate::conversion) fn container() -> EndpointFacts {
        EndpointFacts {
            node: "node-1".into(),
            container_id: "c0ffee01000000".into(),
            endpoint: "eth0".into(),
            orchestrator: Orchestrator::Cni(ContainerFacts::new("net1")),
        }
    }

    pub(in crate::conversion) fn pod() -> EndpointFacts {
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
}

#[cfg(test)]
mod tests {
    use super::samples::{container, pod};
    use super::*;

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
        assert_eq!(homeless.key().unwrap_err().to_string(), "error with field node (field should be assigned)");
    }

    #[test]
    fn host_interfaces() {
        assert_eq!(container().host_interface(Some("eni")), "calic0ffee01000");
        assert_eq!(pod().host_interface(None), names::pod_interface("cali", "prod", "web-0"));
        assert!(pod().host_interface(Some("eni,x")).starts_with("eni"));
    }
}
