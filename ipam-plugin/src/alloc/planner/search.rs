//! [`Search`]: the identity of a search for a free address. This module also determines which reads a note of an
//! earlier search saves.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

use libcalico::ipam::{AffinityState, Owner, PoolChoice};
use libcalico::net::{Cidr, IpVersion};

use super::FamilyPlanner;
use crate::alloc::inputs::AllocationInputs;
use crate::alloc::snapshot::{MissingReads, Snapshot};
use crate::error::Exhaustion;
use crate::exhausted::{FullBlock, Note, Outcome, Search};

/// Returns the identity of the search of `owner` in the chosen pools.
pub(super) fn of(owner: &Owner, version: IpVersion, choice: &PoolChoice, inputs: &AllocationInputs) -> Search {
    let strict = inputs.config.strict_affinity;
    let mut key = format!("IPv{version} of {owner}{}", if strict { ", strict" } else { "" });
    for pool in &choice.chosen {
        // Writing to a String cannot fail.
        _ = write!(key, ", {} in /{}", pool.cidr, pool.block_prefix);
    }
    let mut state = DefaultHasher::new();
    for pool in &inputs.pools {
        (&pool.value.metadata.name, &pool.value.metadata.uid, &pool.revision).hash(&mut state);
    }
    for reservation in &inputs.reservations {
        (&reservation.value.metadata.name, &reservation.revision).hash(&mut state);
    }
    inputs.config_revision.hash(&mut state);
    Search { key, state: state.finish() }
}

impl FamilyPlanner<'_> {
    /// Returns the note of an earlier equal search, if the note is valid and this plan has not searched itself.
    pub(super) fn note(&self, snapshot: &Snapshot) -> Option<&Note> {
        self.request.notes.of(&self.search).filter(|_| !snapshot.knows_all_blocks(self.version))
    }

    /// Returns the reads of own blocks that were not read yet. For blocks that are full by the note, only their
    /// revisions are read.
    pub(super) fn look_at(&self, snapshot: &Snapshot, unknown: Vec<Cidr>) -> MissingReads {
        let mut missing = MissingReads::default();
        for cidr in unknown {
            match self.noted_full(snapshot, &cidr) {
                Some(full) => _ = missing.full.insert(cidr, full.clone()),
                None => _ = missing.blocks.insert(cidr),
            }
        }
        missing
    }

    /// Returns the note's entry for an own block that was full, if no read contradicts the entry.
    pub(super) fn noted_full(&self, snapshot: &Snapshot, cidr: &Cidr) -> Option<&FullBlock> {
        let full = self.note(snapshot)?.own.get(cidr)?;
        (!snapshot.has_changed(cidr) && self.is_confirmed(snapshot, cidr)).then_some(full)
    }

    /// Returns true if the owner's affinity to the block is confirmed.
    pub(super) fn is_confirmed(&self, snapshot: &Snapshot, cidr: &Cidr) -> bool {
        let is_settled = |state| matches!(state, AffinityState::Confirmed | AffinityState::Unset);
        snapshot.own_affinities(self.version).any(|entry| entry.key.cidr == *cidr && is_settled(entry.value.state))
    }

    /// Returns the reason for a shortfall by the note, or `None` without a note.
    pub(super) fn short_by_note(&self, snapshot: &Snapshot) -> Option<Exhaustion> {
        self.note(snapshot).map(|_| self.exhaustion(snapshot))
    }

    /// Returns the reason for a search without a free address.
    pub(super) fn exhaustion(&self, snapshot: &Snapshot) -> Exhaustion {
        match snapshot.config().strict_affinity {
            true => Exhaustion::StrictAffinity,
            false => Exhaustion::PoolsFull { pools: self.pools().iter().map(|pool| pool.cidr).collect() },
        }
    }

    /// Returns the outcome of the search for the node's notes, or `None` if there was no search or the search did not
    /// end. `release` is the number of this node's last release when the search began.
    pub(crate) fn outcome(
        &self,
        snapshot: &Snapshot,
        exhausted: Option<&Exhaustion>,
        release: Option<u64>,
    ) -> Option<Outcome> {
        let is_exhausted = match exhausted {
            // A block that was skipped because its affinity could not be repaired may give an address soon.
            Some(_) if !self.spared.is_empty() => return None,
            Some(Exhaustion::StrictAffinity | Exhaustion::PoolsFull { .. }) => true,
            Some(Exhaustion::BlockLimit { .. } | Exhaustion::AutoAllocateOff) => return None,
            None => false,
        };
        let search = self.search.clone();
        if !snapshot.knows_all_blocks(self.version) {
            let note = self.note(snapshot).filter(|_| is_exhausted)?;
            return Some(Outcome::Noted(note.clone(), self.full_blocks(snapshot)));
        }
        if !is_exhausted {
            return Some(Outcome::Found(search));
        }
        let pools = self.pools().iter().map(|pool| snapshot.searched(&pool.cidr)).collect();
        Some(Outcome::Exhausted { search, release, pools, own: self.full_blocks(snapshot) })
    }

    /// Returns the own blocks that stay full until they are written. A block with a cooling-down address does not,
    /// because the address becomes free without a write.
    fn full_blocks(&self, snapshot: &Snapshot) -> BTreeMap<Cidr, FullBlock> {
        let note = self.note(snapshot);
        let full = |cidr: Cidr| match snapshot.readable_block(&cidr) {
            Some(block) => {
                let is_full = block.value.unallocated.is_empty();
                let rests = block.value.allocated().any(|held| held.is_cooling());
                (is_full && !rests).then(|| {
                    let revision = block.revision.resource_version().to_owned();
                    (cidr, FullBlock { revision, in_use: snapshot.in_use(&cidr) })
                })
            }
            None => note.and_then(|note| Some((cidr, note.own.get(&cidr)?.clone()))),
        };
        self.looked_at_first(snapshot).filter_map(full).collect()
    }
}
