//! Claims of nodes that are there: begun and not ended, or for no block of the node (IPAM-121, W5..W8).

use std::collections::HashSet;
use std::time::Duration;

use super::index::Index;
use super::watchlist::Watchlist;
use crate::ipam::{AffinityKey, AffinityState, BlockAffinity, Owner};
use crate::net::Cidr;
use crate::store::{Entry, Revision};

/// The shortest time that a claim must have looked the same: longer than an ADD or a release may take.
const SHORTEST: Duration = Duration::from_secs(300);

/// Claims that nobody goes on with. The list of all affinities goes through here from time to time; only what is wrong is
/// remembered.
#[derive(Debug, Default)]
pub struct UnfinishedClaims {
    wrong: Watchlist<AffinityKey, Revision>,
    /// Of the list under way: claims that are wrong.
    seen: HashSet<AffinityKey>,
}

impl UnfinishedClaims {
    /// A list of all affinities begins.
    pub fn list_begins(&mut self) {
        self.seen.clear();
    }

    /// The list names this affinity. Those of a node that is gone go with it, and a Calico node that is none of Kubernetes is
    /// none of our concern.
    pub fn listed(&mut self, entry: &Entry<BlockAffinity>, index: &Index, now: Duration) {
        let Owner::Host(node) = &entry.key.owner else { return };
        let stands = match entry.value.state {
            AffinityState::Pending | AffinityState::PendingDeletion => false,
            AffinityState::Confirmed | AffinityState::Unset => index.owns(node, entry.key.cidr),
        };
        if stands || entry.value.deleted || !index.has_node(node) {
            return;
        }
        self.seen.insert(entry.key.clone());
        self.wrong.suspect(entry.key.clone(), entry.revision.clone(), now);
    }

    /// The list is complete.
    pub fn list_ends(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        self.wrong.retain(|key| seen.contains(key));
    }

    /// Claims that have been wrong, and untouched, for `grace`, and for five minutes at least; with their revisions.
    pub fn due(&self, now: Duration, grace: Duration) -> Vec<(AffinityKey, Revision)> {
        let due = self.wrong.due(now, grace.max(SHORTEST)).into_iter();
        due.filter_map(|key| Some((key.clone(), self.wrong.state(&key)?.clone()))).collect()
    }

    /// It was put in order, or there was nothing to do.
    pub fn done(&mut self, key: &AffinityKey) {
        self.wrong.clear(key);
    }

    /// It could not be put in order: to be tried again later.
    pub fn failed(&mut self, key: &AffinityKey, now: Duration) {
        self.wrong.failed(key, now);
    }

    /// When the next one is due.
    pub fn next_deadline(&self, now: Duration, grace: Duration) -> Option<Duration> {
        self.wrong.next_deadline(now, grace.max(SHORTEST))
    }

    /// Whether it is wrong.
    pub fn is_wrong(&self, key: &AffinityKey) -> bool {
        self.wrong.state(key).is_some()
    }
}

impl Index {
    /// Whether a Calico node is there, and is one of Kubernetes.
    pub fn has_node(&self, name: &str) -> bool {
        self.nodes.find(name).is_some_and(|node| self.is_there(node))
    }

    fn owns(&self, node: &str, block: Cidr) -> bool {
        let owner = self.blocks.find(block).and_then(|block| self.blocks.get(block)).map(|block| block.owner.node());
        owner.is_some() && owner == self.nodes.find(node)
    }
}
