//! Plans addresses from existing blocks: the node's own, in upstream's order (IPAM-112), whose
//! unfinished affinities are repaired on the way (IPAM-123), and others, to borrow from.

use libcalico::ipam::{BlockAffinity, borrow_order};
use libcalico::net::Cidr;
use libcalico::store::Entry;

use super::new_block::is_unverified_overlap;
use super::own_blocks::BlockSize;
use super::{FamilyPlanner, PlannerStep, read_step};
use crate::alloc::repair::AffinityRepair;
use crate::alloc::snapshot::{BlockRead, MissingReads, Snapshot};
use crate::block_writes::PriorAffinity;
use crate::error::Result;

impl FamilyPlanner<'_> {
    /// Returns the step for the first own block of a size, in list order, that has a free address
    /// or first needs a read or a repair. Returns `None` if no own block of that size gives an
    /// address.
    pub(super) fn assign_from_own_blocks(
        &self,
        snapshot: &Snapshot,
        size: BlockSize,
        remaining: usize,
    ) -> Result<Option<PlannerStep>> {
        for affinity in self.own_blocks_of(snapshot, size) {
            if let Some(step) = self.assign_from_own_block(snapshot, affinity, remaining)? {
                return Ok(Some(step));
            }
        }
        Ok(None)
    }

    /// Returns the step for one block of the node, which may be a read or repair first. Returns
    /// `None` if the block gives no address.
    pub(super) fn assign_from_own_block(
        &self,
        snapshot: &Snapshot,
        affinity: &Entry<BlockAffinity>,
        remaining: usize,
    ) -> Result<Option<PlannerStep>> {
        let cidr = &affinity.key.cidr;
        let block = match snapshot.block(cidr) {
            Some(BlockRead::Surveyed(room)) if room.has_free => {
                return read_step(MissingReads::blocks([*cidr]));
            }
            None | Some(BlockRead::Corrupt | BlockRead::Surveyed(_)) => return Ok(None),
            // A block of the former size is not created again. Garbage collection deletes a pending
            // affinity to it.
            Some(BlockRead::Absent) if self.size_of(cidr) == BlockSize::Former => return Ok(None),
            Some(BlockRead::Absent) if snapshot.ranges(self.version).is_none() => {
                return read_step(MissingReads::ranges(self.version));
            }
            Some(BlockRead::Absent) => {
                let assignment = self.assign(
                    snapshot,
                    cidr,
                    remaining,
                    Some(PriorAffinity::Existing(affinity.clone())),
                )?;
                return Ok(assignment.map(PlannerStep::Assign));
            }
            Some(BlockRead::Present(block)) => block,
        };
        if block.value.owner().as_ref() != Some(&self.owner) {
            if snapshot.may_predate_affinities(cidr) {
                return read_step(MissingReads::blocks([*cidr]));
            }
            return Ok(Some(PlannerStep::Repair(AffinityRepair::Delete {
                affinity: affinity.clone(),
            })));
        }
        let unconfirmed = affinity.value.state.is_unfinished();
        let prior_affinity = unconfirmed.then(|| PriorAffinity::Existing(affinity.clone()));
        // A process that was killed after it created the block may not have read the ranges.
        if unconfirmed && snapshot.ranges(self.version).is_none() {
            return read_step(MissingReads::ranges(self.version));
        }
        // Garbage collection deletes the block. A lost creation of it may still be in progress
        // here.
        if unconfirmed && snapshot.may_overlap(cidr) {
            return Ok(None);
        }
        match self.assign(snapshot, cidr, remaining, prior_affinity)? {
            Some(assignment) => Ok(Some(PlannerStep::Assign(assignment))),
            None if unconfirmed => Ok(Some(PlannerStep::Repair(AffinityRepair::Confirm {
                affinity: affinity.clone(),
                block: Entry::clone(block),
            }))),
            None => Ok(None),
        }
    }

    /// Returns a step for the first block with room, in the order of the pools. The block's
    /// affinity stays unchanged; only the attribute `node` of the allocation names the borrowing
    /// node (IPAM-120).
    pub(super) fn borrow(&self, snapshot: &Snapshot, remaining: usize) -> Result<PlannerStep> {
        if !snapshot.has_all_blocks(self.version) {
            return Ok(PlannerStep::Read(MissingReads::list(self.version)));
        }
        let of_family = snapshot
            .blocks
            .iter()
            .filter(|(cidr, _)| cidr.version() == self.version);
        let with_room: Vec<Cidr> = of_family
            .filter(|(cidr, block)| {
                let room = snapshot
                    .room(block)
                    .filter(|room| !is_unverified_overlap(snapshot, cidr, room));
                room.is_some_and(|room| room.has_free)
            })
            .map(|(cidr, _)| *cidr)
            .collect();
        for cidr in borrow_order(self.pools(), &with_room, &self.owner, snapshot.now) {
            if let Some(BlockRead::Surveyed(_)) = snapshot.block(&cidr) {
                return Ok(PlannerStep::Read(MissingReads::blocks([cidr])));
            }
            if let Some(assignment) = self.assign(snapshot, &cidr, remaining, None)? {
                return Ok(PlannerStep::Assign(assignment));
            }
        }
        Ok(PlannerStep::Exhausted(self.exhaustion(snapshot)))
    }
}
