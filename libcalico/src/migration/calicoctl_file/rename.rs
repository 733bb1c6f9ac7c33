//! [`NodeNames`]: the names that nodes of etcd have in Kubernetes, wherever the exported objects
//! name a node.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::ipam::{AffinityKey, AffinityOwner, Tunnel};

/// The orchestrator of references to Kubernetes.
const KUBERNETES: &str = "k8s";
/// The prefix in the names of settings of one node.
const OF_NODE: &str = "node.";
/// Fields of FelixConfiguration that old versions of Calico stored in upper case.
const ACTIONS: [&str; 4] = [
    "defaultEndpointToHostAction",
    "iptablesFilterAllowAction",
    "iptablesFilterDenyAction",
    "iptablesMangleAllowAction",
];

/// For each node, by its name in etcd, the name in Kubernetes.
pub(super) struct NodeNames(BTreeMap<String, String>);

impl NodeNames {
    /// Reads the names from the nodes' references to Kubernetes.
    pub(super) fn of<'a>(nodes: impl Iterator<Item = &'a Value>) -> Result<Self, Failure> {
        let (mut names, mut owners) = (BTreeMap::new(), BTreeMap::<String, String>::new());
        for node in nodes {
            let name = node["metadata"]["name"].as_str().unwrap_or_default();
            let Some(new) = kubernetes_name(node) else {
                // Upstream's text up to `reference`.
                return Err(Failure::new(format_args!(
                    "node {name} missing a 'k8s' orchestrator reference. Unable to export data \
                     unless every node has a 'k8s' orchestrator reference"
                ))
                .way_out(
                    "add it to spec.orchRefs, or delete the node if it does not exist any more",
                ));
            };
            if let Some(other) = owners.insert(new.to_owned(), name.to_owned()) {
                return Err(Failure::new(format_args!(
                    "nodes {other} and {name} are both {new} in Kubernetes"
                ))
                .way_out("delete the one that does not exist any more"));
            }
            names.insert(name.to_owned(), new.to_owned());
        }
        Ok(NodeNames(names))
    }

    /// Renames the nodes in a v3 object.
    pub(super) fn rename_object(&self, object: &mut Value) {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        match kind.as_str() {
            "Node" => self.rename(object.pointer_mut("/metadata/name")),
            "HostEndpoint" | "BGPPeer" => self.rename(object.pointer_mut("/spec/node")),
            "BGPConfiguration" => self.rename_settings(object.pointer_mut("/metadata/name")),
            "FelixConfiguration" => {
                self.rename_settings(object.pointer_mut("/metadata/name"));
                for field in ACTIONS {
                    capitalize(object.pointer_mut(&format!("/spec/{field}")));
                }
            }
            _ => {}
        }
    }

    /// Renames the nodes in the value of a block.
    pub(super) fn rename_block(&self, block: &mut Value) {
        if let Some(AffinityOwner::Host(host)) =
            block["affinity"].as_str().and_then(AffinityOwner::parse)
        {
            let owner = AffinityOwner::Host(self.new_name(&host).to_owned());
            block["affinity"] = owner.to_string().into();
        }
        for attribute in objects(block.get_mut("attributes")) {
            for owner in ["secondary", "alternateOwnerAttrs"] {
                self.rename(
                    attribute
                        .get_mut(owner)
                        .and_then(|owner| owner.get_mut("node")),
                );
            }
            if let Some(handle) = attribute.get_mut("handle_id")
                && let Some(new) = handle.as_str().and_then(|id| self.new_handle(id))
            {
                *handle = new.into();
            }
        }
    }

    /// Returns the key of an affinity under the node's name in Kubernetes.
    pub(super) fn new_affinity(&self, key: AffinityKey) -> AffinityKey {
        match key.owner {
            AffinityOwner::Host(host) => AffinityKey {
                owner: AffinityOwner::Host(self.new_name(&host).to_owned()),
                cidr: key.cidr,
            },
            AffinityOwner::Virtual(_) => key,
        }
    }

    /// Returns the handle of a tunnel's address under the node's name in Kubernetes. Returns `None`
    /// for other handles.
    pub(super) fn new_handle(&self, id: &str) -> Option<String> {
        let (tunnel, node) = Tunnel::of_handle(id)?;
        Some(tunnel.handle_of(self.0.get(node)?).as_str().to_owned())
    }

    /// Returns the same name for an unknown node.
    fn new_name<'n>(&'n self, name: &'n str) -> &'n str {
        self.0.get(name).map_or(name, String::as_str)
    }

    fn rename(&self, name: Option<&mut Value>) {
        let Some(name) = name else { return };
        if let Some(new) = name.as_str().and_then(|name| self.0.get(name)) {
            *name = new.as_str().into();
        }
    }

    fn rename_settings(&self, name: Option<&mut Value>) {
        let Some(name) = name else { return };
        let node = name.as_str().and_then(|name| name.strip_prefix(OF_NODE));
        if let Some(new) = node.and_then(|node| self.0.get(node)) {
            *name = format!("{OF_NODE}{new}").into();
        }
    }
}

/// Returns the name in the last reference to Kubernetes, as calicoctl does.
fn kubernetes_name(node: &Value) -> Option<&str> {
    let references = node["spec"]["orchRefs"].as_array()?.iter();
    let last = references
        .rev()
        .find(|reference| reference["orchestrator"] == KUBERNETES)?;
    last["nodeName"]
        .as_str()
        .filter(|name| !name.is_empty() && !name.contains('/'))
}

fn objects(list: Option<&mut Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    list.and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
}

/// Makes the first letter upper case, and the others lower case.
fn capitalize(text: Option<&mut Value>) {
    let Some(text) = text else { return };
    let Some(word) = text.as_str().filter(|word| !word.is_empty()) else {
        return;
    };
    let mut letters = word.chars();
    let first: String = letters
        .next()
        .into_iter()
        .flat_map(char::to_uppercase)
        .collect();
    *text = format!("{first}{}", letters.as_str().to_lowercase()).into();
}
