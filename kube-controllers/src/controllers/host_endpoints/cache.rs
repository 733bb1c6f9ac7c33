//! [`HostEndpointCache`]: the nodes, and the automatic endpoints of each node.

use std::collections::{BTreeMap, BTreeSet};

use libcalico::api::{HostEndpoint, Node as CalicoNode, ObjectKey};
use libcalico::host_endpoints::{HostNode, is_ours};
use libcalico::store::Entry;

use crate::watches::{Cache, Event};

/// The cached nodes and endpoints. Endpoints that users created are not cached.
#[derive(Debug, Default)]
pub struct HostEndpointCache {
    nodes: Cache<ObjectKey, HostNode>,
    endpoints: Cache<ObjectKey, Entry<HostEndpoint>>,
    /// The node of each endpoint, and the endpoints of each node.
    node_of: BTreeMap<ObjectKey, String>,
    of_node: BTreeMap<String, BTreeSet<ObjectKey>>,
}

/// The state of one node.
#[derive(Debug)]
pub(super) struct NodeState {
    /// The node; `None` if it is missing.
    pub(super) node: Option<HostNode>,
    /// The automatic endpoints that name the node.
    pub(super) endpoints: Vec<Entry<HostEndpoint>>,
}

impl HostEndpointCache {
    /// Applies an event. Returns the nodes to reconcile.
    pub(super) fn apply_node(&mut self, event: &Event<'_, Entry<CalicoNode>>) -> Vec<String> {
        let first = self.is_first(event, self.nodes.is_synced());
        let changed = self.nodes.apply(event, |entry| Some(HostNode::of(&entry.value)));
        if first { self.all_if_synced() } else { changed.into_iter().map(|key| key.name).collect() }
    }

    /// Applies an event. Returns the nodes to reconcile.
    pub(super) fn apply_endpoint(&mut self, event: &Event<'_, Entry<HostEndpoint>>) -> Vec<String> {
        let first = self.is_first(event, self.endpoints.is_synced());
        let changed = self.endpoints.apply(event, |entry| is_ours(&entry.value).then(|| entry.clone()));
        let mut touched = Vec::new();
        for key in changed {
            if let Some(node) = self.node_of.remove(&key) {
                if let Some(keys) = self.of_node.get_mut(&node) {
                    keys.remove(&key);
                    if keys.is_empty() {
                        self.of_node.remove(&node);
                    }
                }
                touched.push(node);
            }
            if let Some(entry) = self.endpoints.get(&key) {
                let node = entry.value.spec.node.clone();
                self.of_node.entry(node.clone()).or_default().insert(key.clone());
                self.node_of.insert(key, node.clone());
                touched.push(node);
            }
        }
        if first { self.all_if_synced() } else { touched }
    }

    /// Returns true at the end of the first list. No node has been reconciled before.
    fn is_first<T: crate::watched::Watched>(&self, event: &Event<'_, T>, was_synced: bool) -> bool {
        matches!(event, Event::ListEnd) && !was_synced
    }

    fn all_if_synced(&self) -> Vec<String> {
        if self.is_synced() { self.names() } else { Vec::new() }
    }

    fn is_synced(&self) -> bool {
        self.nodes.is_synced() && self.endpoints.is_synced()
    }

    /// Returns every node that exists or that an automatic endpoint names.
    pub(super) fn names(&self) -> Vec<String> {
        let nodes: BTreeSet<&str> = self.nodes.iter().map(|(key, _)| key.name.as_str()).collect();
        let named = self.of_node.keys().map(String::as_str);
        nodes.into_iter().chain(named).collect::<BTreeSet<_>>().into_iter().map(str::to_owned).collect()
    }

    /// Returns the state of `node`, or `None` before both kinds have been listed.
    pub(super) fn state_of(&self, node: &str) -> Option<NodeState> {
        let keys = self.of_node.get(node).into_iter().flatten();
        self.is_synced().then(|| NodeState {
            node: self.nodes.get(&ObjectKey::global(node)).cloned(),
            endpoints: keys.filter_map(|key| self.endpoints.get(key).cloned()).collect(),
        })
    }
}
