//! Plans addresses from the blocks that the node owns, in upstream's order (IPAM-112), and repairs unfinished
//! affinities on the way (IPAM-123).

use libcalico::ipam::{AffinityState, BlockAffinity};
use libcalico::store::Entry;

use super::{FamilyPlan, Step};
use crate::error::IpamError;
use crate::knowledge::{Knowledge, Known, Wants};
use crate::mend::Mend;
use crate::take::ClaimFrom;

impl FamilyPlan<'_> {
    /// Returns a step for the first own block, in list order, that has a free address; `None` if no own block has one.
    pub(super) fn take_from_affine_blocks(
        &self,
        known: &Knowledge,
        remaining: usize,
    ) -> Result<Option<Step>, IpamError> {
        for cidr in self.affine_blocks(known) {
            let Some(affinity) = known.own_affinities(self.version).find(|entry| entry.key.cidr == cidr) else {
                continue;
            };
            if let Some(step) = self.take_from_claimed_block(known, affinity, remaining)? {
                return Ok(Some(step));
            }
        }
        Ok(None)
    }

    /// Returns the step for one block of the node. An unfinished affinity is repaired first.
    pub(super) fn take_from_claimed_block(
        &self,
        known: &Knowledge,
        affinity: &Entry<BlockAffinity>,
        remaining: usize,
    ) -> Result<Option<Step>, IpamError> {
        let cidr = &affinity.key.cidr;
        let block = match known.block(cidr) {
            Some(Known::Seen(room)) if room.has_free => return Ok(Some(Step::Read(Wants::blocks([*cidr])))),
            None | Some(Known::Corrupt | Known::Seen(_)) => return Ok(None),
            Some(Known::Absent) if known.ranges(self.version).is_none() => {
                return Ok(Some(Step::Read(Wants::ranges(self.version))));
            }
            Some(Known::Absent) => {
                let take = self.take(known, cidr, remaining, Some(ClaimFrom::Affinity(affinity.clone())))?;
                return Ok(take.map(Step::Take));
            }
            Some(Known::There(block)) => block,
        };
        if block.value.owner().as_ref() != Some(&self.owner) {
            if known.may_predate_claims(cidr) {
                return Ok(Some(Step::Read(Wants::blocks([*cidr]))));
            }
            return Ok(Some(Step::Mend(Mend::Drop { affinity: affinity.clone() })));
        }
        let claim = match affinity.value.state {
            AffinityState::Confirmed | AffinityState::Unset => None,
            AffinityState::Pending | AffinityState::PendingDeletion => Some(ClaimFrom::Affinity(affinity.clone())),
        };
        let unconfirmed = claim.is_some();
        match self.take(known, cidr, remaining, claim)? {
            Some(take) => Ok(Some(Step::Take(take))),
            None if unconfirmed => {
                Ok(Some(Step::Mend(Mend::Confirm { affinity: affinity.clone(), block: Entry::clone(block) })))
            }
            None => Ok(None),
        }
    }
}
