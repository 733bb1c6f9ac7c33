//! [`BlockReclaim`]: the timers and sets from which `index::reclaim` selects blocks and deleted
//! nodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::leaks::Postponement;
use super::rows::NEVER;
use super::table::RowId;
use crate::ipam::Lookup;
use crate::net::Cidr;

/// The pause after which [`super::Index::cooled_blocks`] returns an unchanged block again.
pub(super) const PAUSE_AFTER_COOLDOWN: Duration = Duration::from_secs(30);

/// An empty block that its node does not need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExcessBlock {
    /// The block.
    pub block: Cidr,
    /// The block's Calico node.
    pub node: String,
    /// The reason why the node does not need the block.
    pub reason: ExcessReason,
}

/// The reason why a node does not need an empty block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExcessReason {
    /// The node has another block of the family.
    #[error("the node has other blocks")]
    OtherBlocks,
    /// The blocks of the pool have another size now. The node does not keep such a block as its
    /// last one.
    #[error("the pool has another block size")]
    FormerSize,
}

/// A deleted node that no allocation names. Its affinities are to be released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedNode {
    /// The node's name in Calico.
    pub calico: String,
    /// The node's name in Kubernetes, if an existing Calico node gives it.
    pub kubernetes: Option<String>,
}

impl DeletedNode {
    /// Returns true if the lookup found no node. The lookup of the Kubernetes node counts if its
    /// name is known, and otherwise that of the Calico node (KC-431).
    pub fn is_gone(&self, calico: Lookup<()>, kubernetes: Lookup<()>) -> bool {
        Lookup::Absent
            == if self.kubernetes.is_some() {
                kubernetes
            } else {
                calico
            }
    }
}

#[derive(Debug, Default)]
pub(super) struct BlockReclaim {
    /// The time at which each excess empty block may be released.
    pub(super) due_times: HashMap<RowId, Duration>,
    pub(super) due: BTreeSet<(Duration, RowId)>,
    pub(super) changed_nodes: BTreeSet<RowId>,
    pub(super) deleted_nodes: BTreeMap<RowId, Postponement>,
    /// Blocks with addresses that are cooling down, by their earliest release time in Unix seconds.
    pub(super) cooling: BTreeSet<(i64, RowId)>,
    pub(super) returned_until: HashMap<RowId, Duration>,
}

impl BlockReclaim {
    pub(super) fn set_cooling(&mut self, row: RowId, old: i64, new: i64) {
        if old == new {
            return;
        }
        self.returned_until.remove(&row);
        self.cooling.remove(&(old, row));
        if new != NEVER {
            self.cooling.insert((new, row));
        }
    }

    pub(super) fn start_timer(&mut self, row: RowId, now: Duration, grace: Duration) {
        let due = *self
            .due_times
            .entry(row)
            .or_insert(now.saturating_add(grace));
        self.due.insert((due, row));
    }

    pub(super) fn stop_timer(&mut self, row: RowId) {
        if let Some(due) = self.due_times.remove(&row) {
            self.due.remove(&(due, row));
        }
    }
}
