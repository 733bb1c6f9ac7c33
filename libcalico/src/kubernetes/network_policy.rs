//! [`NetworkPolicySpec`]: a Kubernetes network policy, with the fields that Calico supports.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `spec` of a `networking.k8s.io/v1` NetworkPolicy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkPolicySpec {
    /// The selector of the pods; a missing selector selects all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
    /// The rules for traffic to the pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<IngressRule>,
    /// The rules for traffic from the pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<EgressRule>,
    /// The directions of traffic to which the policy applies: `Ingress`, `Egress`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policy_types: Vec<String>,
}

/// A rule of `ingress`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IngressRule {
    /// The ports; an empty list means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PolicyPort>,
    /// The sources; an empty list means any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<PolicyPeer>,
}

/// A rule of `egress`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EgressRule {
    /// The ports; an empty list means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PolicyPort>,
    /// The destinations; an empty list means any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<PolicyPeer>,
}

/// The ports of a protocol.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyPort {
    /// The protocol; TCP if missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The port; all ports of the protocol if missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<NumberOrName>,
    /// The last port of a range that begins with `port`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_port: Option<i64>,
}

/// A port by number or name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum NumberOrName {
    /// The number.
    Number(i64),
    /// The name.
    Name(String),
}

/// A peer of a rule: pods, or a network.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyPeer {
    /// The selector of the pods; if missing, all pods of the namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
    /// The selector of the namespaces; if missing, the policy's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// A network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_block: Option<IpBlock>,
}

/// A network with exceptions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IpBlock {
    /// The network.
    pub cidr: String,
    /// The exceptions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<String>,
}

/// A selector of objects by their labels; an empty one selects all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// The labels that an object must have, with their values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Further conditions, which must all be true.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<LabelExpression>,
}

/// A condition on a label.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LabelExpression {
    /// The key of the label.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// The values of `In` and `NotIn`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}
