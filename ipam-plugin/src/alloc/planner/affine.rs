//! Plans addresses from the blocks that the node owns, in upstream's order (IPAM-112), and repairs unfinished
//! affinities on the way (IPAM-123).

use libcalico::ipam::{AffinityState, BlockAffinity};
use libcalico::store::Entry;

use super::{FamilyPlanner, PlannerStep};
use crate::alloc::repair::AffinityRepair;
use crate::alloc::snapshot::{BlockRead, MissingReads, Snapshot};
use crate::block_writes::PriorAffinity;
use crate::error::IpamError;

impl FamilyPlanner<'_> {
    /// Returns a step for the first own block, in list order, that has a free address; `None` if no own block has one.
    pub(super) fn take_from_affine_blocks(
        &self,
        snapshot: &Snapshot,
        remaining: usize,
    ) -> Result<Option<PlannerStep>, IpamError> {
        for cidr in self.affine_blocks(snapshot) {
            let Some(affinity) = snapshot.own_affinities(self.version).find(|entry| entry.key.cidr == cidr) else {
                continue;
            };
            if let Some(step) = self.take_from_claimed_block(snapshot, affinity, remaining)? {
                return Ok(Some(step));
            }
        }
        Ok(None)
    }

    /// Returns the step for one block of the node. An unfinished affinity is repaired first.
    pub(super) fn take_from_claimed_block(
        &self,
        snapshot: &Snapshot,
        affinity: &Entry<BlockAffinity>,
        remaining: usize,
    ) -> Result<Option<PlannerStep>, IpamError> {
        let cidr = &affinity.key.cidr;
        let block = match snapshot.block(cidr) {
            Some(BlockRead::Surveyed(room)) if room.has_free => {
                return Ok(Some(PlannerStep::Read(MissingReads::blocks([*cidr]))));
            }
            None | Some(BlockRead::Corrupt | BlockRead::Surveyed(_)) => return Ok(None),
            Some(BlockRead::Absent) if snapshot.ranges(self.version).is_none() => {
                return Ok(Some(PlannerStep::Read(MissingReads::ranges(self.version))));
            }
            Some(BlockRead::Absent) => {
                let assignment =
                    self.take(snapshot, cidr, remaining, Some(PriorAffinity::Affinity(affinity.clone())))?;
                return Ok(assignment.map(PlannerStep::Assign));
            }
            Some(BlockRead::Present(block)) => block,
        };
        if block.value.owner().as_ref() != Some(&self.owner) {
            if snapshot.may_predate_affinities(cidr) {
                return Ok(Some(PlannerStep::Read(MissingReads::blocks([*cidr]))));
            }
            return Ok(Some(PlannerStep::Repair(AffinityRepair::Drop { affinity: affinity.clone() })));
        }
        let claim = match affinity.value.state {
            AffinityState::Confirmed | AffinityState::Unset => None,
            AffinityState::Pending | AffinityState::PendingDeletion => Some(PriorAffinity::Affinity(affinity.clone())),
        };
        let unconfirmed = claim.is_some();
        match self.take(snapshot, cidr, remaining, claim)? {
            Some(assignment) => Ok(Some(PlannerStep::Assign(assignment))),
            None if unconfirmed => Ok(Some(PlannerStep::Repair(AffinityRepair::Confirm {
                affinity: affinity.clone(),
                block: Entry::clone(block),
            }))),
            None => Ok(None),
        }
    }
}
