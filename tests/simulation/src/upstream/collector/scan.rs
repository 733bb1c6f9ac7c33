//! Examines the allocations of nodes.

use std::collections::BTreeSet;

use libcalico::api::{Node, ObjectKey};
use libcalico::ipam::WINDOWS_RESERVED_HANDLE;
use libcalico::store::{Store, StoreError};
use time::OffsetDateTime;

use super::{AllocationId, Collector};
use crate::upstream::client::Client;

impl Collector {
    /// Examines all nodes or those that changed. Returns the deleted nodes whose blocks can be
    /// given up.
    pub(super) async fn scan<S: Store>(&mut self, client: &Client<'_, S>) -> Vec<String> {
        let mut nodes = self.dirty_nodes.clone();
        if std::mem::take(&mut self.full_scan) {
            let filed = self.allocations.values();
            nodes = filed.filter_map(|held| held.filed_under.clone()).collect();
            nodes.extend(self.blocks_of_node.keys().cloned());
        }
        let mut deleted = Vec::new();
        for node in nodes {
            let Some(kubernetes_node) = self.kubernetes_node(client, &node).await else {
                self.dirty_nodes.remove(&node);
                continue;
            };
            if self.examine(client, &node, &kubernetes_node) {
                // The node stays dirty until its blocks are given up.
                deleted.push(node);
            } else {
                self.dirty_nodes.remove(&node);
            }
        }
        deleted
    }

    /// Returns the name in Kubernetes of a Calico node, which is empty for a deleted node. Returns
    /// `None` for a node outside Kubernetes, and after a failed read (KC-431).
    async fn kubernetes_node<S: Store>(
        &self,
        client: &Client<'_, S>,
        node: &str,
    ) -> Option<String> {
        let cached = self.kubernetes_names.get(node);
        if let Some(name) = cached.filter(|name| !name.is_empty()) {
            return Some(name.clone());
        }
        match client.store.get::<Node>(&ObjectKey::global(node)).await {
            Ok(entry) => entry.value.spec.kubernetes_name().map(str::to_owned),
            Err(StoreError::NotFound { .. }) => Some(String::new()),
            Err(_) => None,
        }
    }

    /// Examines the allocations of a node. Returns true if the node is deleted and all of its
    /// allocations are leaked.
    fn examine<S>(&mut self, client: &Client<'_, S>, node: &str, kubernetes_node: &str) -> bool {
        let exists = self.kubernetes_nodes.contains(kubernetes_node);
        let mut may_be_released = true;
        let mut tunnels = Vec::new();
        for id in self.filed_under(node) {
            let Some(tracked) = self.allocations.get_mut(&id) else {
                continue;
            };
            tracked.kubernetes_node = kubernetes_node.to_owned();
            let tracked = tracked.clone();
            if id.0 == WINDOWS_RESERVED_HANDLE {
                continue;
            }
            if tracked.is_tunnel() {
                tunnels.push(id);
            } else if tracked.pod().is_none() {
                may_be_released = false;
            } else if self.is_valid_by_cache(&tracked, id.1) {
                may_be_released = false;
                if let Some(tracked) = self.allocations.get_mut(&id) {
                    tracked.mark_valid();
                }
            } else {
                self.mark_leak(&id, exists, (client.now)());
            }
        }
        if exists || !may_be_released {
            return false;
        }
        for id in tunnels {
            self.confirm(&id);
        }
        true
    }

    fn mark_leak(&mut self, id: &AllocationId, node_exists: bool, now: OffsetDateTime) {
        let grace = self.grace;
        let Some(tracked) = self.allocations.get_mut(id) else {
            return;
        };
        if !node_exists {
            return self.confirm(id);
        }
        if let Some(grace) = grace {
            tracked.mark_leaked(grace, now);
        }
        if tracked.is_confirmed {
            self.confirmed_leaks.insert(id.clone());
        } else {
            self.confirmed_leaks.remove(id);
        }
    }

    fn confirm(&mut self, id: &AllocationId) {
        if let Some(tracked) = self.allocations.get_mut(id) {
            tracked.is_confirmed = true;
            self.confirmed_leaks.insert(id.clone());
        }
    }

    fn filed_under(&self, node: &str) -> BTreeSet<AllocationId> {
        let of_node = self
            .allocations
            .iter()
            .filter(|(_, tracked)| tracked.filed_under.as_deref() == Some(node));
        of_node.map(|(id, _)| id.clone()).collect()
    }
}
