//! Handles that no block names, that count wrongly, or that are missing (IPAM-230, W1, W2, W4).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use super::index::Index;
use super::table::Row;
use super::watchlist::Watchlist;
use crate::ipam::audit::miscounted;
use crate::ipam::{Handle, HandleId, SuspectHandle};
use crate::net::Cidr;
use crate::store::{Entry, Revision};

/// Handles that disagree with the blocks. The list of all handles goes through here from time to time; only what is wrong
/// is remembered.
#[derive(Debug, Default)]
pub struct OrphanHandles {
    /// By id, with the revision that was seen; none for a handle that is not there.
    wrong: Watchlist<HandleId, Option<Revision>>,
    blocks: BTreeMap<HandleId, BTreeSet<Cidr>>,
    /// Of the list under way: handles that blocks name.
    named: HashSet<Row>,
    /// Of the list under way: handles that are wrong.
    seen: HashSet<HandleId>,
}

impl OrphanHandles {
    /// A list of all handles begins.
    pub fn list_begins(&mut self) {
        self.named.clear();
        self.seen.clear();
    }

    /// The list names this handle.
    pub fn listed(&mut self, entry: &Entry<Handle>, index: &Index, now: Duration) {
        let cut = HandleId::new(entry.key.as_str());
        if let Some(row) = index.find_handle(cut.as_str()) {
            self.named.insert(row);
        }
        let held = index.held_by(&cut);
        let counted = &entry.value.block;
        let right = !held.is_empty() && miscounted(counted, &held).next().is_none();
        if right || entry.value.deleted {
            return;
        }
        self.seen.insert(entry.key.clone());
        self.blocks.insert(entry.key.clone(), counted.keys().chain(held.keys()).copied().collect());
        self.wrong.suspect(entry.key.clone(), Some(entry.revision.clone()), now);
    }

    /// The list is complete: handles that blocks name and it did not are missing.
    pub fn list_ends(&mut self, index: &Index, now: Duration) {
        for (row, id) in index.handle_ids() {
            if !self.named.contains(&row) && !self.seen.contains(&id) {
                self.blocks.insert(id.clone(), index.held_by(&id).into_keys().collect());
                self.wrong.suspect(id.clone(), None, now);
                self.seen.insert(id);
            }
        }
        let seen = std::mem::take(&mut self.seen);
        self.named = HashSet::new();
        self.wrong.retain(|id| seen.contains(id));
        self.blocks.retain(|id, _| seen.contains(id));
    }

    /// Handles that have been wrong, and untouched, for `grace`. It must be longer than an ADD may take, since that writes
    /// the handle before the block (IPAM-128).
    pub fn due(&self, now: Duration, grace: Duration) -> Vec<SuspectHandle> {
        let suspect = |id: HandleId| SuspectHandle {
            revision: self.wrong.state(&id).cloned().flatten(),
            blocks: self.blocks.get(&id).cloned().unwrap_or_default(),
            id,
        };
        self.wrong.due(now, grace).into_iter().map(suspect).collect()
    }

    /// It was mended, or there was nothing to mend.
    pub fn done(&mut self, id: &HandleId) {
        self.wrong.clear(id);
        self.blocks.remove(id);
    }

    /// It could not be mended: to be tried again later.
    pub fn failed(&mut self, id: &HandleId, now: Duration) {
        self.wrong.failed(id, now);
    }

    /// When the next one is due.
    pub fn next_deadline(&self, now: Duration, grace: Duration) -> Option<Duration> {
        self.wrong.next_deadline(now, grace)
    }

    /// Whether it is wrong.
    pub fn is_wrong(&self, id: &HandleId) -> bool {
        self.wrong.state(id).is_some()
    }

    /// How many are wrong.
    pub fn len(&self) -> usize {
        self.wrong.len()
    }

    /// Whether none is wrong.
    pub fn is_empty(&self) -> bool {
        self.wrong.is_empty()
    }
}

impl Index {
    /// How many addresses a handle holds in each block.
    pub fn held_by(&self, handle: &HandleId) -> BTreeMap<Cidr, usize> {
        let mut held = BTreeMap::new();
        let Some(handle) = self.find_handle(handle.as_str()) else { return held };
        for row in self.rows_of(handle) {
            if let Some(block) = self.tracked.get(row).and_then(|tracked| self.blocks.get(tracked.block)) {
                *held.entry(block.cidr).or_default() += 1;
            }
        }
        held
    }

    /// Handles of addresses that an object should stand for: what Windows keeps for itself has none.
    fn handle_ids(&self) -> impl Iterator<Item = (Row, HandleId)> {
        use crate::ipam::ClaimKind::HostReserved;
        let counts = |row: Row| self.tracked.get(row).is_some_and(|tracked| tracked.kind != HostReserved);
        let handles = self.handles.iter().filter(move |(_, handle)| counts(handle.tracked));
        handles.map(|(row, handle)| (row, handle.id.write(&self.networks)))
    }
}
