//! Node: Calico's record of a host, in its etcd form.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Object, Unknown};

/// A host. The node selectors of pools match its labels.
pub type Node = Object<NodeSpec>;

/// `spec` of Node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// BGP settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bgp: Option<NodeBgp>,
    /// IPv4 address of the VXLAN device.
    #[serde(
        rename = "ipv4VXLANTunnelAddr",
        skip_serializing_if = "String::is_empty"
    )]
    pub ipv4_vxlan_tunnel_addr: String,
    /// MAC of the VXLAN device.
    #[serde(
        rename = "vxlanTunnelMACAddr",
        skip_serializing_if = "String::is_empty"
    )]
    pub vxlan_tunnel_mac_addr: String,
    /// IPv6 address of the IPv6 VXLAN device.
    #[serde(
        rename = "ipv6VXLANTunnelAddr",
        skip_serializing_if = "String::is_empty"
    )]
    pub ipv6_vxlan_tunnel_addr: String,
    /// MAC of the IPv6 VXLAN device.
    #[serde(
        rename = "vxlanTunnelMACAddrV6",
        skip_serializing_if = "String::is_empty"
    )]
    pub vxlan_tunnel_mac_addr_v6: String,
    /// The node's names in orchestrators.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub orch_refs: Vec<OrchRef>,
    /// The WireGuard devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wireguard: Option<NodeWireguard>,
    /// The addresses of the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<NodeAddress>,
    /// The interfaces of the node, kept unchanged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Value>,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl NodeSpec {
    /// Returns the node's name in the first reference to Kubernetes; `None` if there is no such
    /// reference or its name is empty (KC-402).
    pub fn kubernetes_name(&self) -> Option<&str> {
        let reference = self
            .orch_refs
            .iter()
            .find(|reference| reference.orchestrator == "k8s")?;
        Some(reference.node_name.as_str()).filter(|name| !name.is_empty())
    }
}

/// `spec.bgp` of a Node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeBgp {
    /// AS number: a number, or a text that contains one (DS-108).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub as_number: Option<Value>,
    /// IPv4 address with the prefix length of its network.
    #[serde(rename = "ipv4Address", skip_serializing_if = "String::is_empty")]
    pub ipv4_address: String,
    /// IPv6 address with the prefix length of its network.
    #[serde(rename = "ipv6Address", skip_serializing_if = "String::is_empty")]
    pub ipv6_address: String,
    /// Address of the IPIP device.
    #[serde(
        rename = "ipv4IPIPTunnelAddr",
        skip_serializing_if = "String::is_empty"
    )]
    pub ipv4_ipip_tunnel_addr: String,
    /// Identifier of the cluster that a route reflector serves.
    #[serde(
        rename = "routeReflectorClusterID",
        skip_serializing_if = "String::is_empty"
    )]
    pub route_reflector_cluster_id: String,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The name of a node in an orchestrator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OrchRef {
    /// The node's name in that orchestrator.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// The orchestrator; `k8s` for Kubernetes.
    pub orchestrator: String,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `spec.wireguard` of a Node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeWireguard {
    /// IPv4 address of the device.
    #[serde(
        rename = "interfaceIPv4Address",
        skip_serializing_if = "String::is_empty"
    )]
    pub interface_ipv4_address: String,
    /// IPv6 address of the IPv6 device.
    #[serde(
        rename = "interfaceIPv6Address",
        skip_serializing_if = "String::is_empty"
    )]
    pub interface_ipv6_address: String,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// An address of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAddress {
    /// The address, with or without a prefix length.
    pub address: String,
    /// `CalicoNodeIP`, `InternalIP` or `ExternalIP`.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A Node as upstream's calico-node stores it.
    #[test]
    fn node_stored_by_calico_node_round_trips() {
        let stored = json!({
            "kind": "Node", "apiVersion": "projectcalico.org/v3",
            "metadata": {
                "name": "node-1", "uid": "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7",
                "creationTimestamp": "2026-08-22T06:33:20Z",
                "labels": {"kubernetes.io/hostname": "node-1"},
            },
            "spec": {
                "bgp": {
                    "asNumber": 64512, "ipv4Address": "192.168.0.11/24",
                    "ipv4IPIPTunnelAddr": "10.244.1.1",
                },
                "ipv4VXLANTunnelAddr": "10.244.1.0", "vxlanTunnelMACAddr": "66:4e:2a:00:00:01",
                "orchRefs": [{"nodeName": "node-1", "orchestrator": "k8s"}],
                "addresses": [
                    {"address": "192.168.0.11/24", "type": "CalicoNodeIP"},
                    {"address": "192.168.0.11", "type": "InternalIP"},
                ],
            },
            "status": {},
        });
        let node: Node = serde_json::from_value(stored.clone()).unwrap();
        assert!(node.spec.unknown.is_empty());
        assert_eq!(serde_json::to_value(&node).unwrap(), stored);
    }

    #[test]
    fn kubernetes_name_of_a_node_requires_a_named_k8s_reference() {
        let node = |references: &[(&str, &str)]| {
            let reference = |(orchestrator, name): &(&str, &str)| OrchRef {
                node_name: (*name).into(),
                orchestrator: (*orchestrator).into(),
                ..OrchRef::default()
            };
            NodeSpec {
                orch_refs: references.iter().map(reference).collect(),
                ..NodeSpec::default()
            }
        };
        assert_eq!(
            node(&[("other", "a"), ("k8s", "b")]).kubernetes_name(),
            Some("b")
        );
        assert_eq!(node(&[("other", "a")]).kubernetes_name(), None);
        assert_eq!(node(&[("k8s", "")]).kubernetes_name(), None);
        assert_eq!(node(&[]).kubernetes_name(), None);
    }
}
