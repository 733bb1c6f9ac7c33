//! Finds the affinities that an interrupted ADD or release leaves behind. Upstream repairs them
//! only when the same node uses the block again (IPAM-123).

use std::collections::HashSet;
use std::time::Duration;

use super::grace_tracker::GraceTracker;
use super::index::Index;
use crate::ipam::{AffinityKey, AffinityOwner, BlockAffinity};
use crate::net::Cidr;
use crate::store::{Entry, Revision};

/// The minimum time for which an affinity must be unchanged before its repair. It exceeds the
/// duration of an ADD or a release.
const MIN_GRACE: Duration = Duration::from_secs(300);

/// Affinities that are unfinished, or whose block does not belong to their node. Only these are
/// stored of the list of all affinities.
#[derive(Debug, Default)]
pub struct UnfinishedAffinities {
    suspects: GraceTracker<AffinityKey, Revision>,
    listed_suspects: HashSet<AffinityKey>,
}

impl UnfinishedAffinities {
    /// Starts a list of all affinities.
    pub fn begin_list(&mut self) {
        self.listed_suspects.clear();
    }

    /// Processes an affinity of the list, and records it if it is suspect. The affinities of a
    /// deleted node are released with the node. An affinity of a virtual owner is suspect only if
    /// it is unfinished, because the index records only nodes as owners of blocks.
    pub fn listed(&mut self, entry: &Entry<BlockAffinity>, index: &Index, now: Duration) {
        let is_unfinished = entry.value.state.is_unfinished();
        let is_suspect = match &entry.key.owner {
            AffinityOwner::Host(node) => {
                let has_node = index
                    .nodes
                    .find(&**node)
                    .is_some_and(|row| index.node_exists(row));
                has_node && (is_unfinished || !index.owns(node, entry.key.cidr))
            }
            AffinityOwner::Virtual(_) => is_unfinished,
        };
        if !is_suspect || entry.value.deleted {
            return;
        }
        self.listed_suspects.insert(entry.key.clone());
        self.suspects
            .suspect(entry.key.clone(), entry.revision.clone(), now);
    }

    /// Ends the list, and drops affinities that were not suspect in it.
    pub fn end_list(&mut self) {
        let listed = std::mem::take(&mut self.listed_suspects);
        self.suspects.retain(|key| listed.contains(key));
    }

    /// Returns the affinities that have been suspect and unchanged for `grace`, and for at least
    /// five minutes, unless postponed.
    pub fn due(&self, now: Duration, grace: Duration) -> Vec<(AffinityKey, Revision)> {
        let due = self.suspects.due(now, grace.max(MIN_GRACE)).into_iter();
        due.filter_map(|key| Some((key.clone(), self.suspects.state(&key)?.clone())))
            .collect()
    }

    /// Drops an affinity that was repaired or needed no repair.
    pub fn done(&mut self, key: &AffinityKey) {
        self.suspects.clear(key);
    }

    /// Postpones an affinity that could not be repaired.
    pub fn postpone(&mut self, key: &AffinityKey, now: Duration) {
        self.suspects.postpone(key, now);
    }

    /// Returns the time after `now` at which the next affinity is due.
    pub fn next_deadline(&self, now: Duration, grace: Duration) -> Option<Duration> {
        self.suspects.next_deadline(now, grace.max(MIN_GRACE))
    }

    /// Returns true if the affinity is suspect.
    pub fn is_suspect(&self, key: &AffinityKey) -> bool {
        self.suspects.state(key).is_some()
    }
}

impl Index {
    fn owns(&self, node: &str, block: Cidr) -> bool {
        let owner = self
            .blocks
            .find(block)
            .and_then(|block| self.blocks.get(block))
            .map(|block| block.owner);
        owner.is_some() && owner == self.nodes.find(node)
    }
}
