//! Selects excess empty blocks, the affinities of deleted nodes, and blocks with elapsed cooldowns.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::leaks::Postponement;
use super::rows::NEVER;
use super::table::Row;
use crate::ipam::Sight;
use crate::net::Cidr;

/// The time for which a returned block with elapsed cooldowns is not returned again, unless it changed.
pub(super) const COLD_AGAIN: Duration = Duration::from_secs(30);

/// An empty block that its node does not need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surrender {
    /// The block.
    pub block: Cidr,
    /// The block's Calico node.
    pub node: String,
}

/// A deleted node without addresses, whose affinities are to be released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoneNode {
    /// The node's name in Calico.
    pub calico: String,
    /// The node's name in Kubernetes, if an existing Calico node gives it.
    pub kubernetes: Option<String>,
}

impl GoneNode {
    /// Returns true if fresh reads find that the node is deleted. If the node's name in Kubernetes is known, the
    /// Kubernetes node decides, otherwise the Calico node (KC-431).
    pub fn is_gone(&self, calico: Sight<()>, kubernetes: Sight<()>) -> bool {
        Sight::Absent == if self.kubernetes.is_some() { kubernetes } else { calico }
    }
}

#[derive(Debug, Default)]
pub(super) struct Balance {
    /// The time at which each excess empty block may be released.
    pub(super) empty: HashMap<Row, Duration>,
    pub(super) due: BTreeSet<(Duration, Row)>,
    /// Nodes whose blocks changed.
    pub(super) unbalanced: BTreeSet<Row>,
    pub(super) departing: BTreeMap<Row, Postponement>,
    /// Blocks with addresses that are cooling down, by the earliest release time.
    pub(super) cold: BTreeSet<(i64, Row)>,
    pub(super) cold_asked: HashMap<Row, Duration>,
}

impl Balance {
    pub(super) fn forget_block(&mut self, row: Row, cold: i64) {
        self.stop(row);
        self.set_cold(row, cold, NEVER);
    }

    pub(super) fn forget_node(&mut self, node: Row) {
        self.unbalanced.remove(&node);
        self.departing.remove(&node);
    }

    pub(super) fn is_departing(&self, node: Row) -> bool {
        self.departing.contains_key(&node)
    }

    pub(super) fn depart(&mut self, node: Row) {
        self.departing.entry(node).or_default();
    }

    pub(super) fn stay(&mut self, node: Row) {
        self.departing.remove(&node);
    }

    pub(super) fn set_cold(&mut self, row: Row, old: i64, new: i64) {
        if old == new {
            return;
        }
        self.cold_asked.remove(&row);
        self.cold.remove(&(old, row));
        if new != NEVER {
            self.cold.insert((new, row));
        }
    }

    pub(super) fn start(&mut self, row: Row, now: Duration, grace: Duration) {
        let due = *self.empty.entry(row).or_insert(now.saturating_add(grace));
        self.due.insert((due, row));
    }

    pub(super) fn stop(&mut self, row: Row) {
        if let Some(due) = self.empty.remove(&row) {
            self.due.remove(&(due, row));
        }
    }
}
