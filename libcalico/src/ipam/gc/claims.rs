//! Finds the affinities of existing nodes that are unfinished, or that name a block of another owner. An interrupted
//! ADD or release leaves them behind. Upstream repairs them only when the same node uses the block again (IPAM-123).

use std::collections::HashSet;
use std::time::Duration;

use super::index::Index;
use super::watchlist::Watchlist;
use crate::ipam::{AffinityKey, AffinityState, BlockAffinity, Owner};
use crate::net::Cidr;
use crate::store::{Entry, Revision};

/// The minimum time for which an affinity must be unchanged. It exceeds the duration of an ADD or a release.
const SHORTEST: Duration = Duration::from_secs(300);

/// Affinities whose creation or release was interrupted. The caller passes the list of all affinities from time to
/// time; only the suspect ones are stored.
#[derive(Debug, Default)]
pub struct UnfinishedClaims {
    wrong: Watchlist<AffinityKey, Revision>,
    /// The suspect affinities of the present list.
    seen: HashSet<AffinityKey>,
}

impl UnfinishedClaims {
    /// Starts a list of all affinities.
    pub fn list_begins(&mut self) {
        self.seen.clear();
    }

    /// Processes an affinity of the list. The affinities of a deleted node are released with the node. A Calico node
    /// that is not a Kubernetes node is not checked.
    pub fn listed(&mut self, entry: &Entry<BlockAffinity>, index: &Index, now: Duration) {
        let Owner::Host(node) = &entry.key.owner else { return };
        let stands = match entry.value.state {
            AffinityState::Pending | AffinityState::PendingDeletion => false,
            AffinityState::Confirmed | AffinityState::Unset => index.owns(node, entry.key.cidr),
        };
        let has_node = index.nodes.find(&**node).is_some_and(|row| index.is_there(row));
        if stands || entry.value.deleted || !has_node {
            return;
        }
        self.seen.insert(entry.key.clone());
        self.wrong.suspect(entry.key.clone(), entry.revision.clone(), now);
    }

    /// Ends the list. Affinities that are no longer suspect, or no longer exist, are dropped.
    pub fn list_ends(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        self.wrong.retain(|key| seen.contains(key));
    }

    /// Returns the affinities that have been suspect and unchanged for `grace`, and for at least five minutes, with
    /// their revisions.
    pub fn due(&self, now: Duration, grace: Duration) -> Vec<(AffinityKey, Revision)> {
        let due = self.wrong.due(now, grace.max(SHORTEST)).into_iter();
        due.filter_map(|key| Some((key.clone(), self.wrong.state(&key)?.clone()))).collect()
    }

    /// Drops an affinity that was repaired or needed no repair.
    pub fn done(&mut self, key: &AffinityKey) {
        self.wrong.clear(key);
    }

    /// Postpones an affinity that could not be repaired.
    pub fn failed(&mut self, key: &AffinityKey, now: Duration) {
        self.wrong.failed(key, now);
    }

    /// Returns the time at which the next affinity is due.
    pub fn next_deadline(&self, now: Duration, grace: Duration) -> Option<Duration> {
        self.wrong.next_deadline(now, grace.max(SHORTEST))
    }

    /// Returns true if the affinity is suspect.
    pub fn is_wrong(&self, key: &AffinityKey) -> bool {
        self.wrong.state(key).is_some()
    }
}

impl Index {
    fn owns(&self, node: &str, block: Cidr) -> bool {
        let owner = self.blocks.find(block).and_then(|block| self.blocks.get(block)).map(|block| block.owner);
        owner.is_some() && owner == self.nodes.find(node)
    }
}
