//! Kinds of which no more is known than what of them belongs to a node, so that they go with it (KC-472).

use serde::{Deserialize, Serialize};

use super::{Object, Spec, Unknown};

/// A neighbour that nodes exchange routes with.
pub type BgpPeer = Object<BgpPeerSpec>;
/// Settings of routing: those of one node are called `node.NAME`.
pub type BgpConfiguration = Object<BgpConfigurationSpec>;
/// Settings of calico-node: those of one node are called `node.NAME`.
pub type FelixConfiguration = Object<FelixConfigurationSpec>;

/// `spec` of a BGPPeer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BgpPeerSpec {
    /// The one node whose neighbour it is; empty for a neighbour of many.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `spec` of a BGPConfiguration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BgpConfigurationSpec {
    /// All of it.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `spec` of a FelixConfiguration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FelixConfigurationSpec {
    /// All of it.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Spec for BgpPeerSpec {
    const KIND: &'static str = "BGPPeer";
    const PLURAL: &'static str = "bgppeers";
}

impl Spec for BgpConfigurationSpec {
    const KIND: &'static str = "BGPConfiguration";
    const PLURAL: &'static str = "bgpconfigurations";
}

impl Spec for FelixConfigurationSpec {
    const KIND: &'static str = "FelixConfiguration";
    const PLURAL: &'static str = "felixconfigurations";
}

/// What the configurations of `node` are called.
pub fn configuration_of_node(node: &str) -> String {
    format!("node.{node}")
}
