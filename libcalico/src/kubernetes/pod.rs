//! [`Pod`] and [`Namespace`]: the fields that our programs need, read unchanged.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::{EndpointPort, ObjectKey, ObjectMeta, ObjectSelect};
use crate::store::{Kind, Revision};
use crate::workload::PodIdentity;

/// A pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pod {
    /// The metadata; `unknown` contains the owner references.
    pub metadata: ObjectMeta,
    /// The desired state.
    pub spec: PodSpec,
    /// The observed state.
    pub status: PodStatus,
}

/// `spec` of a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// The node that the pod is scheduled to; empty until then.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// True if the pod uses the node's network.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
    /// The pod's service account.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_account_name: String,
    /// The containers.
    pub containers: Vec<Container>,
    /// The init containers, which start before `containers`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Container {
    /// The ports that the container declares.
    pub ports: Vec<ContainerPort>,
}

/// A port of a container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// The name; empty for none.
    pub name: String,
    /// The port in the container.
    pub container_port: u16,
    /// The port on the node; 0 for none.
    pub host_port: u16,
    /// The address of the node to which the port on the node is bound; empty for all addresses.
    #[serde(rename = "hostIP")]
    pub host_ip: String,
    /// `TCP` (also when empty), `UDP` or `SCTP`.
    pub protocol: String,
}

/// `status` of a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub phase: String,
    /// The first address.
    #[serde(rename = "podIP", skip_serializing_if = "String::is_empty")]
    pub pod_ip: String,
    /// All addresses.
    #[serde(rename = "podIPs", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<PodIp>,
}

/// An address of a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PodIp {
    /// The address.
    pub ip: String,
}

/// A namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// The metadata.
    pub metadata: ObjectMeta,
}

impl Pod {
    /// Returns the pod's data that its endpoint contains.
    pub fn identity(&self) -> PodIdentity {
        let containers = self
            .spec
            .containers
            .iter()
            .chain(&self.spec.init_containers);
        let ports = containers
            .flat_map(|container| &container.ports)
            .filter_map(ContainerPort::to_endpoint_port);
        PodIdentity {
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone(),
            generate_name: self.metadata.generate_name.clone(),
            labels: self.metadata.labels.clone(),
            service_account: self.spec.service_account_name.clone(),
            ports: ports.collect(),
        }
    }
}

impl PodStatus {
    /// Returns the texts of [`PodStatus::pod_ips`].
    pub fn listed_ips(&self) -> Vec<&str> {
        self.pod_ips
            .iter()
            .map(|address| address.ip.as_str())
            .collect()
    }
}

impl ContainerPort {
    /// Returns the port as endpoints list it; `None` for a port that they do not list, such as one
    /// with neither a name nor a port on the node (CNI-116).
    fn to_endpoint_port(&self) -> Option<EndpointPort> {
        let is_exposed = self.container_port != 0 && (self.host_port != 0 || !self.name.is_empty());
        let protocol = match self.protocol.as_str() {
            "" | "TCP" => "TCP",
            "UDP" => "UDP",
            "SCTP" => "SCTP",
            _ => return None,
        };
        is_exposed.then(|| EndpointPort {
            name: self.name.clone(),
            protocol: Value::from(protocol),
            port: self.container_port,
            host_port: self.host_port,
            host_ip: self.host_ip.clone(),
            ..EndpointPort::default()
        })
    }
}

// === paths in a read batch ===

/// The prefix of the paths of pods, which one batch can read together with Calico's objects.
const PODS: &str = "/kubernetes/pods/";
const NAMESPACES: &str = "/kubernetes/namespaces/";

impl Kind for Pod {
    const KIND: &'static str = "Pod";
    type Key = ObjectKey;
    type Select = ObjectSelect;

    fn path(key: &ObjectKey) -> String {
        format!(
            "{PODS}{}/{}",
            key.namespace.as_deref().unwrap_or_default(),
            key.name
        )
    }

    fn parse_path(path: &str) -> Option<ObjectKey> {
        ObjectKey::parse_namespaced(path.strip_prefix(PODS)?)
    }

    fn prefix(select: &ObjectSelect) -> String {
        match &select.namespace {
            Some(namespace) => format!("{PODS}{namespace}/{}", select.name_prefix),
            None => PODS.to_owned(),
        }
    }

    fn set_revision(&mut self, revision: &Revision) {
        self.metadata.resource_version = revision.resource_version().to_owned();
    }
}

impl Kind for Namespace {
    const KIND: &'static str = "Namespace";
    type Key = ObjectKey;
    type Select = ();

    fn path(key: &ObjectKey) -> String {
        format!("{NAMESPACES}{}", key.name)
    }

    fn parse_path(path: &str) -> Option<ObjectKey> {
        let name = path.strip_prefix(NAMESPACES)?;
        (!name.is_empty() && !name.contains('/')).then(|| ObjectKey::global(name))
    }

    fn prefix(_: &()) -> String {
        NAMESPACES.to_owned()
    }

    fn set_revision(&mut self, revision: &Revision) {
        self.metadata.resource_version = revision.resource_version().to_owned();
    }
}

/// A pod of a given node, so that the API server filters the list by node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodOnNode(pub Pod);

/// The key of a [`PodOnNode`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodOnNodeKey {
    /// The pod's node.
    pub node: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
}

impl fmt::Display for PodOnNodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} on {}", self.namespace, self.name, self.node)
    }
}

const ROOT: &str = "/kubernetes/podsonnodes/";

/// Returns the node whose pods the path prefix selects.
pub(super) fn node_of_prefix(prefix: &str) -> Option<&str> {
    prefix
        .strip_prefix(ROOT)?
        .strip_suffix('/')
        .filter(|node| !node.is_empty() && !node.contains('/'))
}

impl Kind for PodOnNode {
    const KIND: &'static str = "PodOnNode";
    type Key = PodOnNodeKey;
    /// The node.
    type Select = String;

    fn path(key: &PodOnNodeKey) -> String {
        format!("{ROOT}{}/{}/{}", key.node, key.namespace, key.name)
    }

    fn parse_path(path: &str) -> Option<PodOnNodeKey> {
        let mut parts = path.strip_prefix(ROOT)?.split('/').map(str::to_owned);
        let key = PodOnNodeKey {
            node: parts.next()?,
            namespace: parts.next()?,
            name: parts.next()?,
        };
        parts.next().is_none().then_some(key)
    }

    fn prefix(node: &String) -> String {
        format!("{ROOT}{node}/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_on_node_paths_parse_back_to_their_keys() {
        let key = PodOnNodeKey {
            node: "n1".into(),
            namespace: "ns".into(),
            name: "web".into(),
        };
        assert_eq!(PodOnNode::parse_path(&PodOnNode::path(&key)), Some(key));
        assert_eq!(node_of_prefix(&PodOnNode::prefix(&"n1".into())), Some("n1"));
        for other in [
            "/kubernetes/podsonnodes/n1/ns",
            "/kubernetes/podsonnodes/n1/ns/web/x",
            "/kubernetes/pods/ns/web",
        ] {
            assert_eq!(PodOnNode::parse_path(other), None, "{other}");
        }
    }
}
