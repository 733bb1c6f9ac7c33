//! Plans addresses from a block that the node does not own yet, or to which it has no affinity
//! (IPAM-116).

use std::collections::BTreeSet;

use libcalico::ipam::{AffinityKey, BlockWalk, Room, UsableBlock, usable_block};
use libcalico::net::Cidr;

use super::{FamilyPlanner, PlannerStep, read_step};
use crate::alloc::repair::AffinityRepair;
use crate::alloc::snapshot::{BlockRead, MissingReads, Snapshot};
use crate::block_writes::PriorAffinity;
use crate::error::{Exhaustion, Result};

/// Number of blocks that are read, in the order in which the node tries new blocks, before all
/// blocks are read.
const PROBED_BLOCKS: usize = 8;

/// Assumed maximum number of the node's affinities that are too new for a cache.
const AFFINITIES_BEYOND_CACHE: usize = 4;

impl FamilyPlanner<'_> {
    /// Returns the next step towards addresses from another block, or `None` if the node can get no
    /// other block.
    ///
    /// Close to the limit, the affinities are read again without a cache. A cache may lack some of
    /// them, and no write would detect that the node exceeds its limit.
    pub(super) fn claim_and_assign(
        &self,
        snapshot: &Snapshot,
        remaining: usize,
    ) -> Result<Option<PlannerStep>> {
        let step = self.claim(snapshot, remaining)?;
        if !snapshot.inputs.affinities_may_lag
            || self.count_owned(snapshot) + AFFINITIES_BEYOND_CACHE < self.block_limit(snapshot)
        {
            return Ok(step);
        }
        Ok(step.map(|step| match step {
            PlannerStep::Read(missing) => PlannerStep::Read(missing.and_own_affinities()),
            PlannerStep::Exhausted(Exhaustion::AutoAllocateOff) => step,
            PlannerStep::Assign(_)
            | PlannerStep::Repair(_)
            | PlannerStep::AlreadyHeld(_)
            | PlannerStep::Exhausted(_) => {
                PlannerStep::Read(MissingReads::default().and_own_affinities())
            }
        }))
    }

    fn count_owned(&self, snapshot: &Snapshot) -> usize {
        snapshot
            .own_affinities(self.version)
            .filter(|entry| self.is_allowed(&entry.key.cidr))
            .count()
    }

    fn claim(&self, snapshot: &Snapshot, remaining: usize) -> Result<Option<PlannerStep>> {
        let limit = self.block_limit(snapshot);
        if self.count_owned(snapshot) >= limit {
            return Ok(Some(PlannerStep::Exhausted(Exhaustion::BlockLimit {
                limit,
            })));
        }
        if !snapshot.inputs.config.auto_allocate_blocks {
            return Ok(Some(PlannerStep::Exhausted(Exhaustion::AutoAllocateOff)));
        }
        if self.valid_note(snapshot).is_some() {
            return Ok(Some(PlannerStep::Exhausted(self.exhaustion(snapshot))));
        }
        let room_of = |cidr: &Cidr| match snapshot.block(cidr) {
            None | Some(BlockRead::Absent) => None,
            Some(block) => {
                let is_usable = |room: &Room| self.is_usable(snapshot, cidr, room);
                Some(snapshot.room(block).filter(is_usable))
            }
        };
        let none = BTreeSet::new();
        let ranges = snapshot.ranges(self.version).unwrap_or(&none);
        match usable_block(
            self.pools(),
            &room_of,
            ranges,
            &snapshot.reservations,
            &self.owner,
            snapshot.now,
        ) {
            UsableBlock::Claim(cidr) | UsableBlock::Use(cidr) => {
                self.assign_from_new_block(snapshot, cidr, remaining)
            }
            UsableBlock::Reclaim(_) if !snapshot.has_all_blocks(self.version) => {
                read_step(MissingReads::list(self.version))
            }
            UsableBlock::Reclaim(_) if !self.may_reclaim => {
                tracing::debug!(reason = "forbidden", "reclaiming no block");
                Ok(None)
            }
            UsableBlock::Reclaim(candidates) => Ok(self.reclaim(snapshot, &candidates)),
        }
    }

    fn is_usable(&self, snapshot: &Snapshot, cidr: &Cidr, room: &Room) -> bool {
        let reason = if self.excluded.contains(cidr) {
            "its affinity cannot be repaired"
        } else if is_unverified_overlap(snapshot, cidr, room) {
            "it may overlap"
        } else {
            return true;
        };
        tracing::debug!(block = %cidr, reason, "not using a block");
        false
    }

    /// Returns the step for `cidr`, the first usable block in the order in which the node tries new
    /// blocks.
    fn assign_from_new_block(
        &self,
        snapshot: &Snapshot,
        cidr: Cidr,
        remaining: usize,
    ) -> Result<Option<PlannerStep>> {
        let has_ranges = snapshot.ranges(self.version).is_some();
        match snapshot.block(&cidr) {
            None => return read_step(self.reads_of_first_blocks(snapshot, cidr)),
            Some(BlockRead::Surveyed(_)) => return read_step(MissingReads::blocks([cidr])),
            Some(BlockRead::Absent) if !has_ranges => {
                return read_step(MissingReads::ranges(self.version));
            }
            _ => {}
        }
        let key = AffinityKey {
            owner: self.owner.clone(),
            cidr,
        };
        match (snapshot.block(&cidr), snapshot.affinity(&key)) {
            (Some(BlockRead::Absent), None) | (_, Some(None)) => {
                let assignment =
                    self.assign(snapshot, &cidr, remaining, Some(PriorAffinity::Absent))?;
                Ok(assignment.map(PlannerStep::Assign))
            }
            (_, None) => read_step(MissingReads::affinity(key)),
            (_, Some(Some(affinity))) => self.assign_from_own_block(snapshot, affinity, remaining),
        }
    }

    /// Returns true if `step`, a result of [`FamilyPlanner::claim_and_assign`], leads to an address
    /// without a list of all blocks, and without a block of another node.
    pub(super) fn is_at_hand(&self, step: &PlannerStep) -> bool {
        match step {
            PlannerStep::Read(missing) => missing.lists.is_empty(),
            PlannerStep::Repair(repair) => !repair.is_reclaim(&self.owner),
            PlannerStep::Assign(_) | PlannerStep::AlreadyHeld(_) => true,
            PlannerStep::Exhausted(_) => false,
        }
    }

    /// Returns the reads of the first blocks that the node tries, and of the ranges of all blocks,
    /// because a block of another size may overlap. Passes over ranges that are known to overlap.
    /// If `cidr` is not among the first blocks, returns the read of all blocks of the family.
    fn reads_of_first_blocks(&self, snapshot: &Snapshot, cidr: Cidr) -> MissingReads {
        let none = BTreeSet::new();
        let ranges = snapshot.ranges(self.version).unwrap_or(&none);
        let walk = self.pools().iter().flat_map(|pool| {
            let walk = BlockWalk::new(
                pool.cidr,
                pool.block_prefix,
                self.owner.name(),
                snapshot.now,
            );
            walk.apart_from(ranges).take(PROBED_BLOCKS)
        });
        let first: Vec<Cidr> = walk
            .take(PROBED_BLOCKS)
            .filter(|cidr| snapshot.block(cidr).is_none())
            .collect();
        if !first.contains(&cidr) {
            return MissingReads::list(self.version);
        }
        let mut missing = MissingReads::blocks(first);
        if snapshot.ranges(self.version).is_none() {
            missing.merge(MissingReads::ranges(self.version));
        }
        missing
    }

    /// Returns a step towards the release of the first reclaimable block of another owner, or
    /// `None` if there is none.
    fn reclaim(&self, snapshot: &Snapshot, candidates: &[Cidr]) -> Option<PlannerStep> {
        for cidr in candidates {
            if let Some(BlockRead::Surveyed(_)) = snapshot.block(cidr) {
                return Some(PlannerStep::Read(MissingReads::blocks([*cidr])));
            }
            let Some(block) = snapshot.readable_block(cidr) else {
                continue;
            };
            let Some(owner) = block.value.owner() else {
                continue;
            };
            let key = AffinityKey { owner, cidr: *cidr };
            match snapshot.affinity(&key) {
                None => return Some(PlannerStep::Read(MissingReads::affinity(key))),
                Some(None) => {
                    tracing::debug!(block = %cidr, reason = "no affinity", "reclaiming no block");
                }
                Some(Some(affinity)) => {
                    let (affinity, block) = (affinity.clone(), block.clone());
                    return Some(PlannerStep::Repair(AffinityRepair::Release {
                        affinity,
                        block,
                    }));
                }
            }
        }
        None
    }
}

/// Returns true for a block of the node that may overlap with another block. The steps for the
/// node's confirmed blocks come before, so the creation of this block was not verified (IPAM-106).
pub(super) fn is_unverified_overlap(snapshot: &Snapshot, cidr: &Cidr, room: &Room) -> bool {
    room.is_own && snapshot.may_overlap(cidr)
}
