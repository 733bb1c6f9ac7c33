//! [`PodOnNode`]: a pod of a given node, so that the API server filters the list by node.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::pod::Pod;
use crate::store::Kind;

/// A pod, found by its node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodOnNode(pub Pod);

/// The key of such a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodOnNodeKey {
    /// The pod's node.
    pub node: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
}

impl fmt::Display for PodOnNodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} on {}", self.namespace, self.name, self.node)
    }
}

const ROOT: &str = "/kubernetes/podsonnodes/";

/// Returns the node of a path prefix.
pub(super) fn node_of_prefix(prefix: &str) -> Option<&str> {
    prefix.strip_prefix(ROOT)?.strip_suffix('/').filter(|node| !node.is_empty() && !node.contains('/'))
}

impl Kind for PodOnNode {
    const KIND: &'static str = "PodOnNode";
    type Key = PodOnNodeKey;
    /// The node.
    type Select = String;

    fn path(key: &PodOnNodeKey) -> String {
        format!("{ROOT}{}/{}/{}", key.node, key.namespace, key.name)
    }

    fn parse_path(path: &str) -> Option<PodOnNodeKey> {
        let mut parts = path.strip_prefix(ROOT)?.split('/').map(str::to_owned);
        let key = PodOnNodeKey { node: parts.next()?, namespace: parts.next()?, name: parts.next()? };
        parts.next().is_none().then_some(key)
    }

    fn prefix(node: &String) -> String {
        format!("{ROOT}{node}/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_back_to_their_keys() {
        let key = PodOnNodeKey { node: "n1".into(), namespace: "ns".into(), name: "web".into() };
        assert_eq!(PodOnNode::parse_path(&PodOnNode::path(&key)), Some(key));
        assert_eq!(node_of_prefix(&PodOnNode::prefix(&"n1".into())), Some("n1"));
        for other in ["/kubernetes/podsonnodes/n1/ns", "/kubernetes/podsonnodes/n1/ns/web/x", "/kubernetes/pods/ns/web"]
        {
            assert_eq!(PodOnNode::parse_path(other), None, "{other}");
        }
    }
}
