//! WorkloadEndpoint: one interface of one pod or container (CNI-135).

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Object, Spec, Unknown};
use crate::net::Cidr;

/// One interface of one pod or container.
pub type WorkloadEndpoint = Object<WorkloadEndpointSpec>;

/// `spec` of a WorkloadEndpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadEndpointSpec {
    /// `k8s` or `cni`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub orchestrator: String,
    /// Workload of orchestrators that name one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub workload: String,
    /// Node the endpoint lives on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Sandbox id.
    #[serde(rename = "containerID", skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// Pod name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod: String,
    /// Interface name inside the container.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// Service account of the pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_account_name: String,
    /// Addresses, as /32 or /128.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ip_networks: Vec<String>,
    /// Floating addresses.
    #[serde(rename = "ipNATs", skip_serializing_if = "Vec::is_empty")]
    pub ip_nats: Vec<IpNat>,
    /// IPv4 gateway; not written by the CNI plugin.
    #[serde(rename = "ipv4Gateway", skip_serializing_if = "String::is_empty")]
    pub ipv4_gateway: String,
    /// IPv6 gateway; not written by the CNI plugin.
    #[serde(rename = "ipv6Gateway", skip_serializing_if = "String::is_empty")]
    pub ipv6_gateway: String,
    /// Profiles that apply.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<String>,
    /// Host side interface.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interface_name: String,
    /// MAC of the container side, lower case with colons.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// Named and host ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<EndpointPort>,
    /// Source prefixes the pod may use beside its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_spoofed_source_prefixes: Vec<String>,
    /// Traffic limits; written by others.
    #[serde(rename = "qosControls", skip_serializing_if = "Option::is_none")]
    pub qos_controls: Option<Value>,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl WorkloadEndpointSpec {
    /// Returns the networks of the endpoint's addresses, which may be written without a prefix length. Any other text is left out.
    pub fn networks(&self) -> impl Iterator<Item = Cidr> {
        self.ip_networks.iter().filter_map(|text| Cidr::parse_or_host(text))
    }

    /// Returns the name of the host's end of the interface, and the addresses that the host routes to it.
    pub fn host_link(&self) -> (String, Vec<IpAddr>) {
        (self.interface_name.clone(), self.networks().map(|network| network.network()).collect())
    }
}

/// A floating address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpNat {
    /// The endpoint's own address.
    #[serde(rename = "internalIP")]
    pub internal_ip: String,
    /// The address seen from outside.
    #[serde(rename = "externalIP")]
    pub external_ip: String,
}

/// A named or host port (CNI-116). All five keys are always written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointPort {
    /// Port name.
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: Value,
    /// Port in the container.
    pub port: u16,
    /// Port on the host, 0 for none.
    pub host_port: u16,
    /// Host address the port is bound to.
    #[serde(rename = "hostIP")]
    pub host_ip: String,
}

impl Spec for WorkloadEndpointSpec {
    const KIND: &'static str = "WorkloadEndpoint";
    const PLURAL: &'static str = "workloadendpoints";
    const NAMESPACED: bool = true;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_an_endpoint_may_be_written_without_a_prefix_length() {
        let texts = ["10.65.0.9", "10.65.0.10/32", "fd65::9", "no address"];
        let spec =
            WorkloadEndpointSpec { ip_networks: texts.map(str::to_owned).into(), ..WorkloadEndpointSpec::default() };
        let networks: Vec<_> = spec.networks().map(|network| network.to_string()).collect();
        assert_eq!(networks, ["10.65.0.9/32", "10.65.0.10/32", "fd65::9/128"]);
    }
}
