//! WorkloadEndpoint: an interface of a pod or container.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Object, Spec, Unknown};
use crate::net::Cidr;

/// An interface of a pod or container.
pub type WorkloadEndpoint = Object<WorkloadEndpointSpec>;

/// `spec` of a WorkloadEndpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadEndpointSpec {
    /// The orchestrator, such as `k8s` or `cni`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub orchestrator: String,
    /// The workload, for orchestrators other than `k8s` and `cni`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub workload: String,
    /// The node of the endpoint.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// The container ID of the sandbox.
    #[serde(rename = "containerID", skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// The name of the pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod: String,
    /// The name of the interface inside the container.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// The service account of the pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_account_name: String,
    /// The addresses, in most cases as /32 or /128.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ip_networks: Vec<String>,
    /// The floating addresses.
    #[serde(rename = "ipNATs", skip_serializing_if = "Vec::is_empty")]
    pub ip_nats: Vec<IpNat>,
    /// The IPv4 gateway; not written by the CNI plugin.
    #[serde(rename = "ipv4Gateway", skip_serializing_if = "String::is_empty")]
    pub ipv4_gateway: String,
    /// The IPv6 gateway; not written by the CNI plugin.
    #[serde(rename = "ipv6Gateway", skip_serializing_if = "String::is_empty")]
    pub ipv6_gateway: String,
    /// The profiles that apply.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<String>,
    /// The name of the host interface.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interface_name: String,
    /// The MAC address of the container's interface, in lower case with colons.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// The ports that have a name or a host port.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<EndpointPort>,
    /// The prefixes that the pod may use as source addresses in addition to its own addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_spoofed_source_prefixes: Vec<String>,
    /// The traffic limits; not written by the CNI plugin.
    #[serde(rename = "qosControls", skip_serializing_if = "Option::is_none")]
    pub qos_controls: Option<Value>,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl WorkloadEndpointSpec {
    /// Returns the networks of the endpoint's addresses, which may be stored without a prefix
    /// length. Invalid entries are skipped.
    pub fn networks(&self) -> impl Iterator<Item = Cidr> {
        self.ip_networks
            .iter()
            .filter_map(|text| Cidr::parse_or_host(text))
    }

    /// Returns the name of the host interface, and the endpoint's addresses, which the host routes
    /// to that interface.
    pub fn host_link(&self) -> (String, Vec<IpAddr>) {
        (
            self.interface_name.clone(),
            self.networks().map(|network| network.network()).collect(),
        )
    }
}

/// A floating address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpNat {
    /// The endpoint's own address.
    #[serde(rename = "internalIP")]
    pub internal_ip: String,
    /// The address visible from outside.
    #[serde(rename = "externalIP")]
    pub external_ip: String,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A port with a name or a host port. JSON always contains all five keys (CNI-135).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointPort {
    /// The name of the port.
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`, or a number.
    pub protocol: Value,
    /// The port in the container.
    pub port: u16,
    /// The port on the host; 0 for none.
    pub host_port: u16,
    /// The host address to which the port is bound; empty for all addresses.
    #[serde(rename = "hostIP")]
    pub host_ip: String,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Spec for WorkloadEndpointSpec {
    const KIND: &'static str = "WorkloadEndpoint";
    const PLURAL: &'static str = "workloadendpoints";
    const NAMESPACED: bool = true;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn port_and_nat_fields_of_a_newer_calico_are_preserved() {
        let stored = json!({
            "ipNATs": [{"internalIP": "10.65.0.9", "externalIP": "192.0.2.7", "future": [1]}],
            "ports": [
                {
                    "name": "web", "protocol": "TCP", "port": 80, "hostPort": 0, "hostIP": "",
                    "future": {"a": "b"},
                },
            ],
        });
        let spec = serde_json::from_value::<WorkloadEndpointSpec>(stored.clone()).unwrap();
        assert_eq!(serde_json::to_value(spec).unwrap(), stored);
    }

    #[test]
    fn endpoint_networks_may_lack_a_prefix_length() {
        let texts = ["10.65.0.9", "10.65.0.10/32", "fd65::9", "no address"];
        let spec = WorkloadEndpointSpec {
            ip_networks: texts.map(str::to_owned).into(),
            ..WorkloadEndpointSpec::default()
        };
        let networks: Vec<_> = spec.networks().map(|network| network.to_string()).collect();
        assert_eq!(networks, ["10.65.0.9/32", "10.65.0.10/32", "fd65::9/128"]);
    }
}
