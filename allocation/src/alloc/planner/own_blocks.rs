//! Selects the node's own blocks: those that give an address, in their order, and those that the
//! node gives up.

use libcalico::ipam::{AffinityState, BlockAffinity, stale_blocks};
use libcalico::net::Cidr;
use libcalico::store::Entry;

use super::{FamilyPlanner, PlannerStep};
use crate::alloc::repair::AffinityRepair;
use crate::alloc::snapshot::{BlockRead, MissingReads, Snapshot};

/// The size of an own block, compared with the blocks of its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockSize {
    Present,
    /// The pool had this block size before.
    Former,
}

impl FamilyPlanner<'_> {
    /// Returns the node's blocks that are read before an address is taken from any of them.
    pub(crate) fn blocks_to_read_first<'k>(
        &'k self,
        snapshot: &'k Snapshot,
    ) -> impl Iterator<Item = Cidr> + 'k {
        let mut first: Vec<Cidr> = self
            .own_blocks(snapshot)
            .map(|entry| entry.key.cidr)
            .collect();
        for cidr in self.stale_own_blocks(snapshot) {
            if !first.contains(&cidr) {
                first.push(cidr);
            }
        }
        first.into_iter()
    }

    /// Returns the affinities to the node's blocks that the request may use, those to blocks of a
    /// former size last.
    pub(crate) fn own_blocks<'k>(
        &'k self,
        snapshot: &'k Snapshot,
    ) -> impl Iterator<Item = &'k Entry<BlockAffinity>> {
        self.own_blocks_of(snapshot, BlockSize::Present)
            .chain(self.own_blocks_of(snapshot, BlockSize::Former))
    }

    pub(super) fn own_blocks_of<'k>(
        &'k self,
        snapshot: &'k Snapshot,
        size: BlockSize,
    ) -> impl Iterator<Item = &'k Entry<BlockAffinity>> {
        let usable = snapshot
            .own_affinities(self.version)
            .filter(|entry| self.exclusion_reason(snapshot, &entry.key.cidr).is_none());
        usable.filter(move |entry| self.size_of(&entry.key.cidr) == size)
    }

    pub(super) fn size_of(&self, cidr: &Cidr) -> BlockSize {
        if self.choice.has_former_size(cidr) {
            BlockSize::Former
        } else {
            BlockSize::Present
        }
    }

    pub(super) fn exclusion_reason(
        &self,
        snapshot: &Snapshot,
        cidr: &Cidr,
    ) -> Option<&'static str> {
        if !self.is_allowed(cidr) {
            Some("its pool is not chosen for this request")
        } else if self.excluded.contains(cidr) {
            Some("its affinity cannot be repaired")
        } else if snapshot.reservations.covers(cidr) {
            Some("all its addresses are reserved, or the request skips them")
        } else {
            None
        }
    }

    pub(crate) fn is_allowed(&self, cidr: &Cidr) -> bool {
        self.choice
            .chosen
            .iter()
            .any(|pool| pool.cidr.contains(cidr.network()))
    }

    /// Returns the own block that probably gives the address, before any block was read.
    pub(crate) fn likely_block(&self, snapshot: &Snapshot) -> Option<Cidr> {
        let may_have_room = |cidr: &Cidr| {
            snapshot.block(cidr).is_none() && self.full_by_note(snapshot, cidr).is_none()
        };
        let mut blocks = self
            .own_blocks_of(snapshot, BlockSize::Present)
            .map(|entry| entry.key.cidr);
        blocks.find(|cidr| may_have_room(cidr) && self.is_confirmed(snapshot, cidr))
    }

    /// Returns the node's blocks to release if they are empty: their pools no longer select the
    /// node (IPAM-99), or have another block size now.
    fn stale_own_blocks(&self, snapshot: &Snapshot) -> Vec<Cidr> {
        let owned: Vec<Cidr> = snapshot
            .own_affinities(self.version)
            .map(|entry| entry.key.cidr)
            .collect();
        let mut stale = stale_blocks(&owned, &self.choice, &self.node_labels);
        stale.retain(|cidr| !self.excluded.contains(cidr));
        stale
    }

    /// Returns a step towards the release of the first empty stale block, or `None` if none is
    /// empty.
    pub(super) fn release_stale(&self, snapshot: &Snapshot) -> Option<PlannerStep> {
        let stale = self.stale_own_blocks(snapshot);
        let affinities = snapshot
            .own_affinities(self.version)
            .filter(|entry| stale.contains(&entry.key.cidr));
        affinities
            .into_iter()
            .find_map(|affinity| self.give_up(snapshot, affinity))
    }

    fn give_up(&self, snapshot: &Snapshot, affinity: &Entry<BlockAffinity>) -> Option<PlannerStep> {
        let cidr = affinity.key.cidr;
        if self.is_left_behind(snapshot, affinity) {
            return Some(if snapshot.may_predate_affinities(&cidr) {
                PlannerStep::Read(MissingReads::blocks([cidr]))
            } else {
                PlannerStep::Repair(AffinityRepair::Delete {
                    affinity: affinity.clone(),
                })
            });
        }
        let block = snapshot.readable_block(&cidr)?;
        if block.value.owner().as_ref() != Some(&self.owner) || !block.value.is_empty() {
            return None;
        }
        // Marking the affinity as pending deletion precedes the compare-and-swap of the block, so
        // the block must be current.
        if snapshot.may_lag(&block.key) {
            return Some(PlannerStep::Read(MissingReads::blocks([block.key])));
        }
        Some(PlannerStep::Repair(AffinityRepair::Release {
            affinity: affinity.clone(),
            block: block.clone(),
        }))
    }

    /// Returns true for the affinity of a former size whose block is deleted. While an affinity is
    /// pending, another process of the node may be about to create the block.
    fn is_left_behind(&self, snapshot: &Snapshot, affinity: &Entry<BlockAffinity>) -> bool {
        let cidr = &affinity.key.cidr;
        snapshot.block(cidr) == Some(&BlockRead::Absent)
            && self.size_of(cidr) == BlockSize::Former
            && affinity.value.state != AffinityState::Pending
    }
}
