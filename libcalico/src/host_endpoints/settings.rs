//! What people ask for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Which HostEndpoints nodes get. By default none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AutoHostEndpoints {
    /// Whether there are any (`autoCreate`).
    pub enabled: bool,
    /// Whether each node has one for all its interfaces (`createDefaultHostEndpoint`).
    pub default_endpoint: bool,
    /// Further ones.
    pub templates: Vec<HostEndpointTemplate>,
}

/// A HostEndpoint for each node, or each interface, that it selects; as KubeControllersConfiguration has it (DS-106).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct HostEndpointTemplate {
    /// Part of the endpoints' names.
    #[cfg_attr(feature = "schema", schemars(length(max = 253)))]
    pub generate_name: String,
    /// The nodes' addresses in these ranges are the endpoint's.
    #[serde(rename = "interfaceCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub interface_cidrs: Vec<String>,
    /// A regular expression. Given, there is an endpoint for each interface in whose name it is found.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interface_pattern: String,
    /// Which nodes. Empty selects all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_selector: String,
    /// Labels of the endpoints, beside those of the node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the endpoints.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}
