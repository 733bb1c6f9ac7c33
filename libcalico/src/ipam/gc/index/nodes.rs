//! Changes of Calico nodes and Kubernetes nodes.

use super::super::rows::CalicoNode;
use super::super::table::RowId;
use super::{Index, WatchedKind};

impl Index {
    /// Adds or updates a Calico node. `kubernetes` is the node's name in Kubernetes, if it is a
    /// Kubernetes node (KC-402).
    pub fn put_calico_node(&mut self, name: &str, kubernetes: Option<&str>) {
        let row = self.node_row(name);
        let list = self.list(WatchedKind::CalicoNodes);
        let calico = kubernetes.map_or(CalicoNode::Foreign, |name| {
            CalicoNode::Kubernetes(self.node_row(name))
        });
        self.set_calico(row, calico);
        if let Some(node) = self.nodes.get_mut(row) {
            node.lists[0] = list;
        }
    }

    /// Removes a deleted Calico node.
    pub fn remove_calico_node(&mut self, name: &str) {
        if let Some(row) = self.nodes.find(name) {
            self.set_calico(row, CalicoNode::Absent);
        }
    }

    /// Adds or updates a Kubernetes node. `from_flannel` is true while the node is migrating from
    /// Flannel (KC-457).
    pub fn put_kubernetes_node(&mut self, name: &str, from_flannel: bool) {
        let row = self.node_row(name);
        let list = self.list(WatchedKind::KubernetesNodes);
        if let Some(node) = self.nodes.get_mut(row) {
            node.lists[1] = list;
        }
        self.set_kubernetes(row, true, from_flannel);
    }

    /// Removes a deleted Kubernetes node.
    pub fn remove_kubernetes_node(&mut self, name: &str) {
        if let Some(row) = self.nodes.find(name) {
            self.set_kubernetes(row, false, false);
        }
    }

    /// Processes an affinity that names a Calico node, which is queued for the release of its
    /// affinities if it is deleted. Upstream cannot release an affinity without a block (IPAM-126).
    pub fn add_affinity(&mut self, node: &str) {
        let row = self.node_row(node);
        if self.is_node_deleted(row) {
            self.reclaim.deleted_nodes.entry(row).or_default();
            self.mark_node_dirty(row);
        }
    }

    fn set_calico(&mut self, row: RowId, calico: CalicoNode) {
        let Some(node) = self.nodes.get_mut(row).filter(|node| node.calico != calico) else {
            return;
        };
        let old = std::mem::replace(&mut node.calico, calico);
        if let CalicoNode::Kubernetes(new) = calico
            && let Some(node) = self.nodes.get_mut(new)
        {
            node.calico_names.push(row);
        }
        if let CalicoNode::Kubernetes(old) = old
            && let Some(node) = self.nodes.get_mut(old)
        {
            node.calico_names.retain(|other| *other != row);
            if old != row {
                self.drop_unused_node(old);
            }
        }
        if calico == CalicoNode::Absent {
            self.reclaim.deleted_nodes.entry(row).or_default();
        }
        self.mark_node_dirty(row);
        self.mark_blocks_changed(row);
    }

    fn set_kubernetes(&mut self, row: RowId, exists: bool, migrating: bool) {
        let Some(node) = self.nodes.get_mut(row) else {
            return;
        };
        if (node.kubernetes, node.migrating) != (exists, migrating) {
            (node.kubernetes, node.migrating) = (exists, migrating);
            for calico in node.calico_names.clone() {
                self.mark_node_dirty(calico);
                self.mark_blocks_changed(calico);
            }
        }
        self.drop_unused_node(row);
    }

    pub(super) fn drop_unlisted_nodes(&mut self, kind: WatchedKind) {
        let list = self.list(kind);
        for row in self.nodes.rows() {
            let Some(node) = self.nodes.get(row) else {
                continue;
            };
            match kind {
                WatchedKind::CalicoNodes if node.lists[0] != list => {
                    self.set_calico(row, CalicoNode::Absent)
                }
                WatchedKind::KubernetesNodes if node.kubernetes && node.lists[1] != list => {
                    self.set_kubernetes(row, false, false);
                }
                _ => {}
            }
        }
    }

    /// Returns true if the node exists in Calico and Kubernetes; `None` for a Calico node that is
    /// not a Kubernetes node.
    fn node_existence(&self, node: RowId) -> Option<bool> {
        match self.nodes.get(node)?.calico {
            CalicoNode::Foreign => None,
            CalicoNode::Kubernetes(name) => {
                Some(self.nodes.get(name).is_some_and(|node| node.kubernetes))
            }
            CalicoNode::Absent => Some(false),
        }
    }

    pub(in super::super) fn node_exists(&self, node: RowId) -> bool {
        self.node_existence(node) == Some(true)
    }

    pub(in super::super) fn is_node_deleted(&self, node: RowId) -> bool {
        self.node_existence(node) == Some(false)
    }

    /// Returns the name in Kubernetes of a Calico node, if it is known.
    pub(in super::super) fn kubernetes_name(&self, node: RowId) -> Option<&str> {
        match self.nodes.get(node)?.calico {
            CalicoNode::Kubernetes(name) => Some(self.node_name(name)),
            CalicoNode::Foreign | CalicoNode::Absent => None,
        }
    }

    /// Returns the existing Calico nodes.
    pub fn calico_nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes
            .iter()
            .filter(|(_, node)| node.calico != CalicoNode::Absent)
            .map(|(_, node)| &*node.name)
    }
}
