//! [`NetworkPolicySpec`]: a network policy of Kubernetes' own, as far as Calico understands it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `spec` of a `networking.k8s.io/v1` NetworkPolicy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkPolicySpec {
    /// Which pods; absent selects all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
    /// What may reach them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<IngressRule>,
    /// What they may reach.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<EgressRule>,
    /// For which directions: `Ingress`, `Egress`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policy_types: Vec<String>,
}

/// One rule of `ingress`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IngressRule {
    /// On which ports; none listed means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PolicyPort>,
    /// From where; nothing listed means anywhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<PolicyPeer>,
}

/// One rule of `egress`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EgressRule {
    /// On which ports; none listed means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PolicyPort>,
    /// Where to; nothing listed means anywhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<PolicyPeer>,
}

/// Ports of one protocol.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyPort {
    /// The protocol; TCP if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The port; all of the protocol if absent.
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
    /// By number.
    Number(i64),
    /// By name.
    Name(String),
}

/// The other side of a rule: pods, or a network.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyPeer {
    /// Which pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
    /// In which namespaces; absent means in that of the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// A network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_block: Option<IpBlock>,
}

/// A network with holes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IpBlock {
    /// The network.
    pub cidr: String,
    /// The holes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<String>,
}

/// Objects by their labels; an empty one selects all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels with these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// And all of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<LabelExpression>,
}

/// What a label must be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LabelExpression {
    /// The label.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// The values of `In` and `NotIn`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}
