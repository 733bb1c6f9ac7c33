//! Node: a host, in the form that etcd keeps (labels decide pool selection, IPAM-96).

use serde::{Deserialize, Serialize};

use super::{Object, Spec, Unknown};

/// a host, in the form that etcd keeps (labels decide pool selection, IPAM-96).
pub type Node = Object<NodeSpec>;

/// `spec` of Node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Spec for NodeSpec {
    const KIND: &'static str = "Node";
    const PLURAL: &'static str = "nodes";
}
