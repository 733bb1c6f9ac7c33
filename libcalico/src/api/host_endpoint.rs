//! HostEndpoint: an interface of a host to which policies can apply.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Object, Unknown};

/// An interface of a host, or all of them with the interface name `*`.
pub type HostEndpoint = Object<HostEndpointSpec>;

/// `spec` of a HostEndpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct HostEndpointSpec {
    /// Name of the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 253)))]
    pub node: String,
    /// Name of the interface, or `*` for all. If empty, the interface is found by the expected
    /// addresses.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 15)))]
    pub interface_name: String,
    /// Addresses of the interface.
    #[serde(rename = "expectedIPs", skip_serializing_if = "Vec::is_empty")]
    pub expected_ips: Vec<String>,
    /// Profiles whose rules and labels apply to the endpoint.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<String>,
    /// Ports that policies may refer to by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<HostEndpointPort>,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A named port.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct HostEndpointPort {
    /// Name of the port.
    pub name: String,
    /// `TCP`, `UDP`, `SCTP`, or a number.
    #[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-int-or-string" = true)))]
    pub protocol: Value,
    /// Number of the port.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 65535)))]
    pub port: u16,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// An object as upstream's kube-controllers stores it.
    #[test]
    fn host_endpoint_stored_by_upstream_round_trips() {
        let stored = json!({
            "kind": "HostEndpoint", "apiVersion": "projectcalico.org/v3",
            "metadata": {
                "name": "node-1-auto-hep", "uid": "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7",
                "creationTimestamp": "2026-08-22T06:33:20Z",
                "labels": {
                    "kubernetes.io/hostname": "node-1",
                    "projectcalico.org/created-by": "calico-kube-controllers",
                },
            },
            "spec": {
                "node": "node-1", "interfaceName": "*", "expectedIPs": ["192.168.0.11"],
                "profiles": ["projectcalico-default-allow"],
                "ports": [{"name": "ssh", "protocol": 6, "port": 22}],
            },
        });
        let endpoint: HostEndpoint = serde_json::from_value(stored.clone()).unwrap();
        assert!(endpoint.spec.unknown.is_empty());
        assert_eq!(serde_json::to_value(&endpoint).unwrap(), stored);
    }
}
