use std::collections::BTreeSet;

use libcalico::api::{HostEndpoint, Node as CalicoNode, ObjectKey};
use libcalico::host_endpoints::{HostNode, is_ours};
use libcalico::store::Entry;

use crate::controllers::node_names::Grouping;
use crate::watches::{Cache, Event};

/// The cached nodes and endpoints. Endpoints that users created are not cached.
#[derive(Debug, Default)]
pub struct HostEndpointCache {
    nodes: Cache<ObjectKey, HostNode>,
    endpoints: Cache<ObjectKey, Entry<HostEndpoint>>,
    node_of: Grouping<ObjectKey, String>,
}

impl HostEndpointCache {
    /// Applies an event. Returns the nodes to reconcile.
    pub(super) fn apply_node(&mut self, event: &Event<'_, Entry<CalicoNode>>) -> Vec<String> {
        let first = matches!(event, Event::ListEnd) && !self.nodes.is_synced();
        let changed = self
            .nodes
            .apply(event, |entry| Some(HostNode::of(&entry.value)));
        if first {
            self.all_if_synced()
        } else {
            changed.into_iter().map(|key| key.name).collect()
        }
    }

    pub(super) fn apply_endpoint(&mut self, event: &Event<'_, Entry<HostEndpoint>>) -> Vec<String> {
        let first = matches!(event, Event::ListEnd) && !self.endpoints.is_synced();
        let changed = self
            .endpoints
            .apply(event, |entry| is_ours(&entry.value).then(|| entry.clone()));
        let mut touched = Vec::new();
        for key in changed {
            let node = self
                .endpoints
                .get(&key)
                .map(|entry| entry.value.spec.node.clone());
            touched.extend(self.node_of.set(&key, node.clone()));
            touched.extend(node);
        }
        if first { self.all_if_synced() } else { touched }
    }

    /// Returns all nodes if both kinds have been listed, and no node before.
    fn all_if_synced(&self) -> Vec<String> {
        if self.is_synced() {
            self.names()
        } else {
            Vec::new()
        }
    }

    fn is_synced(&self) -> bool {
        self.nodes.is_synced() && self.endpoints.is_synced()
    }

    /// Returns every node that exists or that an automatic endpoint names.
    pub(super) fn names(&self) -> Vec<String> {
        let nodes: BTreeSet<&str> = self
            .nodes
            .iter()
            .map(|(key, _)| key.name.as_str())
            .collect();
        let named = self.node_of.groups().map(String::as_str);
        nodes
            .into_iter()
            .chain(named)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .map(str::to_owned)
            .collect()
    }

    /// Returns the node (`None` if it does not exist) and the automatic endpoints that name it. The
    /// outer `None` means that nodes and host endpoints have not both been listed.
    pub(super) fn state_of(
        &self,
        node: &str,
    ) -> Option<(Option<HostNode>, Vec<Entry<HostEndpoint>>)> {
        let endpoints = self
            .node_of
            .members(node)
            .filter_map(|key| self.endpoints.get(key).cloned());
        self.is_synced().then(|| {
            (
                self.nodes.get(&ObjectKey::global(node)).cloned(),
                endpoints.collect(),
            )
        })
    }
}
