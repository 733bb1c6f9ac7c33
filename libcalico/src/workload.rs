//! The identity of one attachment, and the name and key of its endpoint.

use std::collections::BTreeMap;

use crate::api::{EndpointPort, ObjectKey, ObjectSelect};
use crate::names::{self, EndpointIdentifiers};
use crate::validation_error::ValidationError;

/// The label with the namespace of an endpoint (CNI-87).
pub const NAMESPACE_LABEL: &str = "projectcalico.org/namespace";
/// The label with the orchestrator of an endpoint (CNI-87).
pub const ORCHESTRATOR_LABEL: &str = "projectcalico.org/orchestrator";
/// The orchestrator of endpoints that belong to pods.
pub const KUBERNETES: &str = "k8s";

/// The identity of an attachment, known before its network is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadIdentity {
    /// The node's name.
    pub node: String,
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// Interface name inside the container, `CNI_IFNAME`.
    pub endpoint: String,
    /// The orchestrator that runs the workload, with its data about the workload.
    pub orchestrator: Orchestrator,
}

/// The orchestrator of a workload, with its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Orchestrator {
    /// No known orchestrator: a container runtime alone, or Mesos.
    Cni(ContainerIdentity),
    /// Kubernetes.
    Kubernetes(PodIdentity),
}

/// The data that a container runtime provides about a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerIdentity {
    /// The namespace, `default` unless `CNI_TEST_NAMESPACE` or a Mesos label sets another.
    pub namespace: String,
    /// The labels, sanitized.
    pub labels: BTreeMap<String, String>,
    /// The name of the network, which is also the name of the endpoint's profile.
    pub network: String,
}

/// The data that Kubernetes provides about a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodIdentity {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The prefix from which the name was generated; empty for none.
    pub generate_name: String,
    /// The pod's labels, unchanged.
    pub labels: BTreeMap<String, String>,
    /// The pod's service account; empty for none.
    pub service_account: String,
    /// The ports that have a name or a host port (CNI-116).
    pub ports: Vec<EndpointPort>,
}

impl ContainerIdentity {
    /// Creates the identity of a container in the namespace `default`.
    pub fn new(network: impl Into<String>) -> Self {
        ContainerIdentity {
            namespace: "default".into(),
            labels: BTreeMap::new(),
            network: network.into(),
        }
    }

    /// Adds Mesos labels. The value of the label [`NAMESPACE_LABEL`] becomes the namespace
    /// (CNI-153).
    pub fn add_mesos_labels<'l>(&mut self, labels: impl IntoIterator<Item = (&'l str, &'l str)>) {
        for (key, value) in labels {
            let value = sanitize_mesos_label(value);
            if key == NAMESPACE_LABEL {
                self.namespace = value;
            } else {
                self.labels.insert(sanitize_mesos_label(key), value);
            }
        }
    }
}

impl Orchestrator {
    /// Returns the orchestrator's name in endpoints: `cni` or `k8s`.
    pub fn name(&self) -> &'static str {
        match self {
            Orchestrator::Cni(_) => "cni",
            Orchestrator::Kubernetes(_) => KUBERNETES,
        }
    }

    /// Returns the namespace of the endpoint.
    pub fn namespace(&self) -> &str {
        match self {
            Orchestrator::Cni(container) => &container.namespace,
            Orchestrator::Kubernetes(pod) => &pod.namespace,
        }
    }
}

impl WorkloadIdentity {
    /// Returns the identifiers of which the endpoint's name consists.
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

    /// Returns the key under which the endpoint is stored.
    pub fn key(&self) -> Result<ObjectKey, ValidationError> {
        Ok(ObjectKey::namespaced(
            self.orchestrator.namespace(),
            self.identifiers().name()?,
        ))
    }

    /// Returns the selection of the workload's endpoints under any interface name. The list may
    /// contain others; check each with [`WorkloadIdentity::is_endpoint_name`].
    pub fn endpoint_select(&self) -> Result<ObjectSelect, ValidationError> {
        let any_endpoint = EndpointIdentifiers {
            endpoint: String::new(),
            ..self.identifiers()
        };
        Ok(ObjectSelect {
            namespace: Some(self.orchestrator.namespace().into()),
            name_prefix: any_endpoint.prefix()?,
        })
    }

    /// Returns true if an endpoint of this name belongs to the workload, under any interface name.
    pub fn is_endpoint_name(&self, name: &str) -> bool {
        EndpointIdentifiers {
            endpoint: String::new(),
            ..self.identifiers()
        }
        .matches(name)
    }

    /// Returns the name of the host end of the interface pair. `FELIX_INTERFACEPREFIX` applies to
    /// pods only (CNI-88, CNI-89).
    pub fn host_interface(&self, felix_interface_prefix: Option<&str>) -> String {
        let prefix = names::interface_prefix(felix_interface_prefix);
        match &self.orchestrator {
            Orchestrator::Cni(_) => names::container_interface(&self.container_id),
            Orchestrator::Kubernetes(pod) => {
                names::pod_interface(prefix, &pod.namespace, &pod.name)
            }
        }
    }
}

/// Replaces the characters of the key or the value of a Mesos label that a label cannot contain
/// (CNI-153).
///
/// `/` becomes `.`. A run of other forbidden characters becomes a single `-`. A run of `.` and `-`
/// that contains a `.` becomes a single `.`. A `.` or `-` at the beginning or the end is removed.
fn sanitize_mesos_label(text: &str) -> String {
    dots_from_mixed_runs(&dashes_for_forbidden(text))
        .trim_matches(is_separator)
        .to_owned()
}

fn dashes_for_forbidden(text: &str) -> String {
    let mut allowed = String::with_capacity(text.len());
    let mut in_run = false;
    for c in text.chars().map(|c| if c == '/' { '.' } else { c }) {
        let forbidden = !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        match (forbidden, in_run) {
            (false, _) => allowed.push(c),
            (true, false) => allowed.push('-'),
            (true, true) => {}
        }
        in_run = forbidden;
    }
    allowed
}

fn dots_from_mixed_runs(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_separator) {
        let (before, from_run) = rest.split_at(start);
        let (run, after) = from_run.split_at(
            from_run
                .find(|c| !is_separator(c))
                .unwrap_or(from_run.len()),
        );
        result.push_str(before);
        result.push_str(if run.contains('.') { "." } else { run });
        rest = after;
    }
    result.push_str(rest);
    result
}

fn is_separator(c: char) -> bool {
    matches!(c, '.' | '-')
}

#[cfg(test)]
pub(super) mod samples {
    //! Attachments that the tests of this file and of `conversion` use.

    use super::*;

    pub(crate) fn container() -> WorkloadIdentity {
        WorkloadIdentity {
            node: "node-1".into(),
            container_id: "c0ffee01000000".into(),
            endpoint: "eth0".into(),
            orchestrator: Orchestrator::Cni(ContainerIdentity::new("net1")),
        }
    }

    pub(crate) fn pod() -> WorkloadIdentity {
        let pod = PodIdentity {
            namespace: "prod".into(),
            name: "web-0".into(),
            generate_name: "web-".into(),
            labels: [("app".to_owned(), "web".to_owned())].into(),
            service_account: "robot".into(),
            ports: vec![],
        };
        WorkloadIdentity {
            orchestrator: Orchestrator::Kubernetes(pod),
            ..container()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{container, pod};
    use super::*;

    #[test]
    fn workload_key_and_selector_match_upstreams_names() {
        let key = container().key().unwrap();
        assert_eq!(key.to_string(), "default/node--1-cni-c0ffee01000000-eth0");
        let select = pod().endpoint_select().unwrap();
        assert_eq!(select.namespace.as_deref(), Some("prod"));
        assert_eq!(select.name_prefix, "node--1-k8s-web--0-");
        assert!(pod().is_endpoint_name("node--1-k8s-web--0-eth7"));
        assert!(!pod().is_endpoint_name("node--1-k8s-web--0--1-eth0"));
        let homeless = WorkloadIdentity {
            node: String::new(),
            ..pod()
        };
        assert_eq!(
            homeless.key().unwrap_err().to_string(),
            "error with field node (field should be assigned)"
        );
    }

    #[test]
    fn host_interface_name_uses_the_prefix_for_pods_only() {
        assert_eq!(container().host_interface(Some("eni")), "calic0ffee01000");
        assert_eq!(
            pod().host_interface(None),
            names::pod_interface("cali", "prod", "web-0")
        );
        assert!(pod().host_interface(Some("eni,x")).starts_with("eni"));
    }

    #[test]
    fn mesos_labels_are_sanitized_as_upstream_does() {
        for (text, label) in [
            ("-my-val", "my-val"),
            ("$my..val", "my.val"),
            ("m$y.val", "m-y.val"),
            ("//my/val/", "my.val"),
            (
                "some_val-with.lots*of^weird#characters",
                "some_val-with.lots-of-weird-characters",
            ),
            ("a--b", "a--b"),
            ("a$$$b", "a-b"),
            ("a-.-b", "a.b"),
            ("ä", ""),
            ("", ""),
        ] {
            assert_eq!(sanitize_mesos_label(text), label, "{text:?}");
        }
    }
}
