//! Finds handles that disagree with the blocks. Upstream never looks for such handles (IPAM-230).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use super::grace_tracker::GraceTracker;
use super::index::Index;
use super::table::RowId;
use crate::ipam::audit::miscounted;
use crate::ipam::{Handle, HandleId, SuspectHandle};
use crate::net::Cidr;
use crate::store::{Entry, Revision};

/// Handles that disagree with the blocks. Only these remain stored after a list of all handles.
#[derive(Debug, Default)]
pub struct OrphanHandles {
    /// The suspect handles, with the revision that was read; `None` for a missing handle.
    suspects: GraceTracker<HandleId, Option<Revision>>,
    blocks: BTreeMap<HandleId, BTreeSet<Cidr>>,
    /// The handles of the present list that blocks name.
    named_by_blocks: HashSet<RowId>,
    listed_suspects: HashSet<HandleId>,
}

impl OrphanHandles {
    /// Starts a list of all handles.
    pub fn begin_list(&mut self) {
        self.named_by_blocks.clear();
        self.listed_suspects.clear();
    }

    /// Processes a handle of the list, and records it if it disagrees with the blocks.
    pub fn listed(&mut self, entry: &Entry<Handle>, index: &Index, now: Duration) {
        let id = HandleId::new(entry.key.as_str());
        if let Some(row) = index.find_handle(id.as_str()) {
            self.named_by_blocks.insert(row);
        }
        let held = index.addresses_of_handle(&id);
        let counted = &entry.value.block;
        let is_right = !held.is_empty() && miscounted(counted, &held).next().is_none();
        if is_right || entry.value.deleted {
            return;
        }
        self.listed_suspects.insert(entry.key.clone());
        self.blocks.insert(
            entry.key.clone(),
            counted.keys().chain(held.keys()).copied().collect(),
        );
        self.suspects
            .suspect(entry.key.clone(), Some(entry.revision.clone()), now);
    }

    /// Ends the list. Records handles that blocks name but the list did not contain, and drops
    /// those that were not suspect in it.
    pub fn end_list(&mut self, index: &Index, now: Duration) {
        for (row, id) in index.handle_ids() {
            if !self.named_by_blocks.contains(&row) && !self.listed_suspects.contains(&id) {
                self.blocks.insert(
                    id.clone(),
                    index.addresses_of_handle(&id).into_keys().collect(),
                );
                self.suspects.suspect(id.clone(), None, now);
                self.listed_suspects.insert(id);
            }
        }
        let listed = std::mem::take(&mut self.listed_suspects);
        self.named_by_blocks = HashSet::new();
        self.suspects.retain(|id| listed.contains(id));
        self.blocks.retain(|id, _| listed.contains(id));
    }

    /// Returns the handles that have been suspect and unchanged for `grace`, unless postponed.
    /// `grace` must exceed the duration of an ADD, which writes the handle before the block
    /// (IPAM-128).
    pub fn due(&self, now: Duration, grace: Duration) -> Vec<SuspectHandle> {
        let suspect = |id: HandleId| SuspectHandle {
            revision: self.suspects.state(&id).cloned().flatten(),
            blocks: self.blocks.get(&id).cloned().unwrap_or_default(),
            id,
        };
        self.suspects
            .due(now, grace)
            .into_iter()
            .map(suspect)
            .collect()
    }

    /// Drops a handle that was repaired or needed no repair.
    pub fn done(&mut self, id: &HandleId) {
        self.suspects.clear(id);
        self.blocks.remove(id);
    }

    /// Postpones a handle that could not be repaired.
    pub fn postpone(&mut self, id: &HandleId, now: Duration) {
        self.suspects.postpone(id, now);
    }

    /// Returns the time after `now` at which the next handle is due.
    pub fn next_deadline(&self, now: Duration, grace: Duration) -> Option<Duration> {
        self.suspects.next_deadline(now, grace)
    }

    /// Returns true if the handle is suspect.
    pub fn is_suspect(&self, id: &HandleId) -> bool {
        self.suspects.state(id).is_some()
    }

    /// Returns the number of suspect handles.
    pub fn len(&self) -> usize {
        self.suspects.len()
    }

    /// Returns true if no handle is suspect.
    pub fn is_empty(&self) -> bool {
        self.suspects.is_empty()
    }
}

impl Index {
    /// Returns the number of addresses that a handle has in each block.
    pub fn addresses_of_handle(&self, handle: &HandleId) -> BTreeMap<Cidr, usize> {
        let mut addresses = BTreeMap::new();
        let Some(handle) = self.find_handle(handle.as_str()) else {
            return addresses;
        };
        for row in self.rows_of(handle) {
            if let Some(block) = self
                .addresses
                .get(row)
                .and_then(|tracked| self.blocks.get(tracked.block))
            {
                *addresses.entry(block.cidr).or_default() += 1;
            }
        }
        addresses
    }

    /// Returns the handles that blocks name, except that of Windows, which has no object.
    fn handle_ids(&self) -> impl Iterator<Item = (RowId, HandleId)> {
        use crate::ipam::OwnerKind::HostReserved;
        let has_object = |row: RowId| {
            self.addresses
                .get(row)
                .is_some_and(|tracked| tracked.kind != HostReserved)
        };
        let handles = self
            .handles
            .iter()
            .filter(move |(_, handle)| has_object(handle.first_address));
        handles.map(|(row, handle)| (row, handle.id.to_handle_id(&self.networks)))
    }
}
