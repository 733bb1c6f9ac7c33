//! Plans addresses from a block that the node does not own yet (IPAM-116).

use std::collections::BTreeSet;

use libcalico::ipam::{AffinityKey, BlockWalk, UsableBlock, usable_block};
use libcalico::net::Cidr;

use super::{FamilyPlan, Step};
use crate::error::{Exhaustion, IpamError};
use crate::knowledge::{Knowledge, Known, Wants};
use crate::mend::Mend;
use crate::take::ClaimFrom;

/// Number of blocks at the start of the walk that are read before all blocks of the cluster are.
const PROBES: usize = 8;

/// Number of the node's affinities that may be too new for a cache.
const UNSEEN_CLAIMS: usize = 4;

impl FamilyPlan<'_> {
    /// Returns the next step towards addresses from another block, or `None` if every block is taken.
    ///
    /// Close to the limit, the affinities are read again without a cache, together with any other reads. A cache may
    /// lack some of them, and no write would detect that the node exceeds its limit.
    pub(super) fn claim_and_take(&self, known: &Knowledge, remaining: usize) -> Result<Option<Step>, IpamError> {
        let step = self.claim(known, remaining)?;
        if !known.claims_lag() || self.owned(known) + UNSEEN_CLAIMS < self.block_limit(known) {
            return Ok(step);
        }
        Ok(step.map(|step| match step {
            Step::Read(wants) => Step::Read(wants.and_claims()),
            Step::Short(Exhaustion::AutoAllocateOff) => step,
            Step::Take(_) | Step::Mend(_) | Step::Held(_) | Step::Short(_) => Step::Read(Wants::default().and_claims()),
        }))
    }

    /// Returns the number of the owner's blocks that count towards the limit.
    fn owned(&self, known: &Knowledge) -> usize {
        known.own_affinities(self.version).filter(|entry| self.is_allowed(&entry.key.cidr)).count()
    }

    fn claim(&self, known: &Knowledge, remaining: usize) -> Result<Option<Step>, IpamError> {
        let limit = self.block_limit(known);
        if self.owned(known) >= limit {
            return Ok(Some(Step::Short(Exhaustion::BlockLimit { limit })));
        }
        if !known.config().auto_allocate_blocks {
            return Ok(Some(Step::Short(Exhaustion::AutoAllocateOff)));
        }
        if let Some(exhaustion) = self.short_by_note(known) {
            return Ok(Some(Step::Short(exhaustion)));
        }
        let room_of = |cidr: &Cidr| match known.block(cidr) {
            None | Some(Known::Absent) => None,
            Some(block) => Some(known.room(block).filter(|_| !self.spared.contains(cidr))),
        };
        let none = BTreeSet::new();
        let ranges = known.ranges(self.version).unwrap_or(&none);
        match usable_block(self.pools(), &room_of, ranges, &known.reservations, &self.owner, known.now) {
            UsableBlock::Claim(cidr) | UsableBlock::Use(cidr) => self.take_from_unclaimed_block(known, cidr, remaining),
            UsableBlock::Reclaim(_) if !known.knows_all_blocks(self.version) => {
                Ok(Some(Step::Read(Wants::list(self.version))))
            }
            UsableBlock::Reclaim(candidates) => Ok(self.by_reclaim(known, &candidates)),
        }
    }

    /// Returns the step for the block at which the walk stops. The block is unclaimed, or the node's own without a
    /// known affinity.
    fn take_from_unclaimed_block(
        &self,
        known: &Knowledge,
        cidr: Cidr,
        remaining: usize,
    ) -> Result<Option<Step>, IpamError> {
        let ranges_known = known.ranges(self.version).is_some();
        match known.block(&cidr) {
            None => return Ok(Some(Step::Read(self.probe(known, cidr)))),
            Some(Known::Seen(_)) => return Ok(Some(Step::Read(Wants::blocks([cidr])))),
            Some(Known::Absent) if !ranges_known => return Ok(Some(Step::Read(Wants::ranges(self.version)))),
            _ => {}
        }
        let key = AffinityKey { owner: self.owner.clone(), cidr };
        let step = match (known.block(&cidr), known.affinity(&key)) {
            (Some(Known::Absent), None | Some(None)) => {
                self.take(known, &cidr, remaining, Some(ClaimFrom::Nothing))?.map(Step::Take)
            }
            (_, None) => Some(Step::Read(Wants::affinity(key))),
            (_, Some(None)) => self.take(known, &cidr, remaining, Some(ClaimFrom::Nothing))?.map(Step::Take),
            (_, Some(Some(affinity))) => self.take_from_claimed_block(known, affinity, remaining)?,
        };
        Ok(step)
    }

    /// Returns the reads of the walk's first blocks, of which usually at least one is usable. They include the ranges
    /// of all blocks, because a block of another size may overlap. Beyond the first blocks, all blocks of the family
    /// are read.
    fn probe(&self, known: &Knowledge, cidr: Cidr) -> Wants {
        let walk = self
            .pools()
            .iter()
            .flat_map(|pool| BlockWalk::new(pool.cidr, pool.block_prefix, self.owner.name(), known.now).take(PROBES));
        let first: Vec<Cidr> = walk.take(PROBES).filter(|cidr| known.block(cidr).is_none()).collect();
        if !first.contains(&cidr) {
            return Wants::list(self.version);
        }
        let mut wants = Wants::blocks(first);
        if known.ranges(self.version).is_none() {
            wants.merge(Wants::ranges(self.version));
        }
        wants
    }

    /// Returns a step for the first reclaimable empty block of another owner. Its affinity must be released first.
    fn by_reclaim(&self, known: &Knowledge, candidates: &[Cidr]) -> Option<Step> {
        for cidr in candidates {
            if let Some(Known::Seen(_)) = known.block(cidr) {
                return Some(Step::Read(Wants::blocks([*cidr])));
            }
            let Some(block) = known.readable_block(cidr) else { continue };
            let Some(owner) = block.value.owner() else { continue };
            let key = AffinityKey { owner, cidr: *cidr };
            match known.affinity(&key) {
                None => return Some(Step::Read(Wants::affinity(key))),
                Some(None) => {}
                Some(Some(affinity)) => {
                    return Some(Step::Mend(Mend::GiveUp { affinity: affinity.clone(), block: block.clone() }));
                }
            }
        }
        None
    }
}
