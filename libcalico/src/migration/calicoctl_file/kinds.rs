//! [`KINDS`]: the kinds of v3 objects in a file.

use serde_json::Value;

use crate::api::{OBJECT_ROOT, ObjectKey};

/// A kind of v3 objects in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportedKind {
    /// The name of the kind.
    pub kind: &'static str,
    /// The lower-case plural in paths.
    pub plural: &'static str,
    /// True if objects of the kind are namespaced.
    pub namespaced: bool,
    /// True for policies with a tier, whose names are also stored in an annotation.
    pub(super) is_policy: bool,
}

const fn global(kind: &'static str, plural: &'static str) -> ExportedKind {
    ExportedKind {
        kind,
        plural,
        namespaced: false,
        is_policy: false,
    }
}

const fn namespaced(kind: &'static str, plural: &'static str) -> ExportedKind {
    ExportedKind {
        namespaced: true,
        ..global(kind, plural)
    }
}

const fn policy(of: ExportedKind) -> ExportedKind {
    ExportedKind {
        is_policy: true,
        ..of
    }
}

/// The kinds, in the order of their lists.
pub static KINDS: [ExportedKind; 17] = [
    global("IPPool", "ippools"),
    global("BGPPeer", "bgppeers"),
    global("Tier", "tiers"),
    policy(global("GlobalNetworkPolicy", "globalnetworkpolicies")),
    policy(global(
        "StagedGlobalNetworkPolicy",
        "stagedglobalnetworkpolicies",
    )),
    global("GlobalNetworkSet", "globalnetworksets"),
    global("HostEndpoint", "hostendpoints"),
    global(
        "KubeControllersConfiguration",
        "kubecontrollersconfigurations",
    ),
    policy(namespaced("NetworkPolicy", "networkpolicies")),
    policy(namespaced("StagedNetworkPolicy", "stagednetworkpolicies")),
    namespaced(
        "StagedKubernetesNetworkPolicy",
        "stagedkubernetesnetworkpolicies",
    ),
    namespaced("NetworkSet", "networksets"),
    global("Node", "nodes"),
    global("BGPConfiguration", "bgpconfigurations"),
    global("FelixConfiguration", "felixconfigurations"),
    global("IPReservation", "ipreservations"),
    global("BGPFilter", "bgpfilters"),
];

impl ExportedKind {
    /// Returns the kind of an object.
    pub fn of(object: &Value) -> Option<&'static ExportedKind> {
        let kind = object["kind"].as_str()?;
        KINDS.iter().find(|known| known.kind == kind)
    }

    /// Returns the name of an object of this kind, with its namespace if the kind has one. Returns
    /// `None` if the object has no valid name.
    pub fn key_of(&self, object: &Value) -> Option<ObjectKey> {
        let segment = |field: &str| {
            let text = object["metadata"][field].as_str()?;
            (!text.is_empty() && !text.contains('/')).then(|| text.to_owned())
        };
        let namespace = if self.namespaced {
            Some(segment("namespace")?)
        } else {
            None
        };
        Some(ObjectKey {
            namespace,
            name: segment("name")?,
        })
    }

    /// Returns the path of an object in etcd.
    pub fn path(&self, key: &ObjectKey) -> String {
        format!("{}{key}", self.prefix())
    }

    /// Returns the beginning of the paths of this kind.
    pub fn prefix(&self) -> String {
        format!("{OBJECT_ROOT}{}/", self.plural)
    }
}

/// Returns the plural in the path of a v3 object.
pub(super) fn plural_of(path: &str) -> Option<&str> {
    path.strip_prefix(OBJECT_ROOT)?
        .split_once('/')
        .map(|(plural, _)| plural)
}
