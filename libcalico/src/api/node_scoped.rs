//! Kinds that are modeled only as far as needed to delete the objects that belong to a deleted node
//! (KC-472).

use serde::{Deserialize, Serialize};

use super::{Object, Unknown};

/// A BGP peer of nodes.
pub type BgpPeer = Object<BgpPeerSpec>;
/// BGP settings. The settings of one node are named `node.NAME`.
pub type BgpConfiguration = Object<BgpConfigurationSpec>;
/// Settings of Felix, a part of calico-node. The settings of one node are named `node.NAME`.
pub type FelixConfiguration = Object<FelixConfigurationSpec>;

/// `spec` of a BGPPeer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BgpPeerSpec {
    /// The only node that has this peer; empty if the peer does not name a node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `spec` of a BGPConfiguration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BgpConfigurationSpec {
    /// All fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `spec` of a FelixConfiguration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FelixConfigurationSpec {
    /// All fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Returns the name of the BGPConfiguration and the FelixConfiguration of `node`.
pub fn configuration_of_node(node: &str) -> String {
    format!("node.{node}")
}
