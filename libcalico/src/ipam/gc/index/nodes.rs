//! Nodes of Calico and of Kubernetes come and go (KC-425, KC-431, KC-432).

use super::super::rows::CalicoNode;
use super::super::table::Row;
use super::{Feed, Index};

/// Whether a Calico node's machine is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum NodeStatus {
    /// Kubernetes has it.
    There,
    /// It is none of Kubernetes, so nothing is known of it.
    Foreign,
    /// Kubernetes has it no longer, or there is no such Calico node.
    Gone,
}

impl Index {
    /// A Calico node is there: `kubernetes` is its name in Kubernetes, if it is one of its nodes (KC-402). Where Calico's
    /// nodes are views of those of Kubernetes, both are told, under one name.
    pub fn put_calico_node(&mut self, name: &str, kubernetes: Option<&str>) {
        let row = self.node_row(name);
        let list = self.list(Feed::CalicoNodes);
        let calico = kubernetes.map_or(CalicoNode::Foreign, |name| CalicoNode::Kubernetes(self.node_row(name)));
        self.set_calico(row, calico);
        if let Some(node) = self.nodes.get_mut(row) {
            node.lists[0] = list;
        }
    }

    /// A Calico node is gone.
    pub fn calico_node_gone(&mut self, name: &str) {
        if let Some(row) = self.nodes.find(name) {
            self.set_calico(row, CalicoNode::Absent);
        }
    }

    /// A node of Kubernetes is there. `from_flannel` while its pods are being moved here (KC-457).
    pub fn put_kubernetes_node(&mut self, name: &str, from_flannel: bool) {
        let row = self.node_row(name);
        let list = self.list(Feed::KubernetesNodes);
        if let Some(node) = self.nodes.get_mut(row) {
            node.lists[1] = list;
        }
        self.set_kubernetes(row, true, from_flannel);
    }

    /// A node of Kubernetes is gone.
    pub fn kubernetes_node_gone(&mut self, name: &str) {
        if let Some(row) = self.nodes.find(name) {
            self.set_kubernetes(row, false, false);
        }
    }

    /// An affinity names this Calico node: if the node is gone, the affinity goes too, even when it has no block (D21).
    pub fn affinity_names(&mut self, node: &str) {
        let row = self.node_row(node);
        if self.is_gone(row) {
            self.balance.depart(row);
            self.mark_node(row);
        }
    }

    fn set_calico(&mut self, row: Row, calico: CalicoNode) {
        let Some(node) = self.nodes.get_mut(row).filter(|node| node.calico != calico) else { return };
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
            self.balance.depart(row);
        }
        self.mark_node(row);
        self.unbalance(row);
    }

    fn set_kubernetes(&mut self, row: Row, there: bool, migrating: bool) {
        let Some(node) = self.nodes.get_mut(row) else { return };
        if (node.kubernetes, node.migrating) != (there, migrating) {
            (node.kubernetes, node.migrating) = (there, migrating);
            for calico in node.calico_names.clone() {
                self.mark_node(calico);
                self.unbalance(calico);
            }
        }
        self.drop_unused_node(row);
    }

    pub(super) fn drop_unlisted_nodes(&mut self, feed: Feed) {
        let list = self.list(feed);
        for row in self.nodes.rows() {
            let Some(node) = self.nodes.get(row) else { continue };
            match feed {
                Feed::CalicoNodes if node.calico != CalicoNode::Absent && node.lists[0] != list => {
                    self.set_calico(row, CalicoNode::Absent);
                }
                Feed::KubernetesNodes if node.kubernetes && node.lists[1] != list => {
                    self.set_kubernetes(row, false, false);
                }
                _ => {}
            }
        }
    }

    pub(in super::super) fn status(&self, node: Row) -> Option<NodeStatus> {
        Some(match self.nodes.get(node)?.calico {
            CalicoNode::Foreign => NodeStatus::Foreign,
            CalicoNode::Kubernetes(name) if self.nodes.get(name).is_some_and(|node| node.kubernetes) => {
                NodeStatus::There
            }
            CalicoNode::Kubernetes(_) | CalicoNode::Absent => NodeStatus::Gone,
        })
    }

    pub(in super::super) fn is_there(&self, node: Row) -> bool {
        self.status(node) == Some(NodeStatus::There)
    }

    pub(in super::super) fn is_gone(&self, node: Row) -> bool {
        self.status(node) == Some(NodeStatus::Gone)
    }

    /// The name in Kubernetes of a Calico node, if it is known (B-23).
    pub(in super::super) fn kubernetes_name(&self, node: Row) -> Option<&str> {
        match self.nodes.get(node)?.calico {
            CalicoNode::Kubernetes(name) => Some(self.node_name(name)),
            CalicoNode::Foreign | CalicoNode::Absent => None,
        }
    }

    /// The Calico nodes that exist.
    pub fn calico_nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().filter(|(_, node)| node.calico != CalicoNode::Absent).map(|(_, node)| &*node.name)
    }
}
