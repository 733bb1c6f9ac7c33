//! Finds handles that no block names, that count wrongly, or that are missing. Upstream never deletes such handles
//! (IPAM-230).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use super::index::Index;
use super::table::Row;
use super::watchlist::Watchlist;
use crate::ipam::audit::miscounted;
use crate::ipam::{Handle, HandleId, SuspectHandle};
use crate::net::Cidr;
use crate::store::{Entry, Revision};

/// Handles that disagree with the blocks. The caller passes the list of all handles from time to time; only the
/// suspect ones are stored.
#[derive(Debug, Default)]
pub struct OrphanHandles {
    /// The suspect handles by ID, with the revision that was read; `None` for a missing handle.
    wrong: Watchlist<HandleId, Option<Revision>>,
    blocks: BTreeMap<HandleId, BTreeSet<Cidr>>,
    /// The handles of the present list that blocks name.
    named: HashSet<Row>,
    /// The suspect handles of the present list.
    seen: HashSet<HandleId>,
}

impl OrphanHandles {
    /// Starts a list of all handles.
    pub fn list_begins(&mut self) {
        self.named.clear();
        self.seen.clear();
    }

    /// Processes a handle of the list.
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

    /// Ends the list. Handles that blocks name but the list did not contain are missing.
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

    /// Returns the handles that have been suspect and unchanged for `grace`. `grace` must exceed the duration of an
    /// ADD, which writes the handle before the block (IPAM-128).
    pub fn due(&self, now: Duration, grace: Duration) -> Vec<SuspectHandle> {
        let suspect = |id: HandleId| SuspectHandle {
            revision: self.wrong.state(&id).cloned().flatten(),
            blocks: self.blocks.get(&id).cloned().unwrap_or_default(),
            id,
        };
        self.wrong.due(now, grace).into_iter().map(suspect).collect()
    }

    /// Drops a handle that was repaired or needed no repair.
    pub fn done(&mut self, id: &HandleId) {
        self.wrong.clear(id);
        self.blocks.remove(id);
    }

    /// Postpones a handle that could not be repaired.
    pub fn failed(&mut self, id: &HandleId, now: Duration) {
        self.wrong.failed(id, now);
    }

    /// Returns the time at which the next handle is due.
    pub fn next_deadline(&self, now: Duration, grace: Duration) -> Option<Duration> {
        self.wrong.next_deadline(now, grace)
    }

    /// Returns true if the handle is suspect.
    pub fn is_wrong(&self, id: &HandleId) -> bool {
        self.wrong.state(id).is_some()
    }

    /// Returns the number of suspect handles.
    pub fn len(&self) -> usize {
        self.wrong.len()
    }

    /// Returns true if no handle is suspect.
    pub fn is_empty(&self) -> bool {
        self.wrong.is_empty()
    }
}

impl Index {
    /// Returns the number of addresses that a handle has in each block.
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

    /// Returns the handles in the blocks that should exist as objects. Addresses that Windows reserves have no handle
    /// object.
    fn handle_ids(&self) -> impl Iterator<Item = (Row, HandleId)> {
        use crate::ipam::ClaimKind::HostReserved;
        let counts = |row: Row| self.tracked.get(row).is_some_and(|tracked| tracked.kind != HostReserved);
        let handles = self.handles.iter().filter(move |(_, handle)| counts(handle.tracked));
        handles.map(|(row, handle)| (row, handle.id.write(&self.networks)))
    }
}
