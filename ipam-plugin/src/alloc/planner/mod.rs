//! Plans the next step for one family of a request, as a function of the snapshot and without I/O.
//!
//! The order is upstream's (IPAM-110): first the node's own blocks in list order ([`existing_block`]), then another
//! block of the chosen pools ([`new_block`]), then other nodes' blocks ([`existing_block`]). [`search`] uses the notes
//! of earlier searches, and says why pools gave no more addresses.

mod existing_block;
mod family;
mod new_block;
mod search;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use libcalico::net::Cidr;

pub(crate) use self::family::{FamilyPlanner, PlannerStep};
use crate::alloc::repair::AffinityRepair;
use crate::alloc::snapshot::{BlockRead, MissingReads, Snapshot};
use crate::error::IpamError;

impl FamilyPlanner<'_> {
    /// Returns the next step towards `remaining` more addresses.
    pub(crate) fn next(&self, snapshot: &Snapshot, remaining: usize) -> Result<PlannerStep, IpamError> {
        if let Some(step) = self.already_held(snapshot, remaining)? {
            return Ok(step);
        }
        let unknown: Vec<Cidr> =
            self.blocks_to_read_first(snapshot).filter(|cidr| snapshot.block(cidr).is_none()).collect();
        if !unknown.is_empty() {
            return Ok(PlannerStep::Read(self.reads_for(snapshot, unknown)));
        }
        if let Some(step) = self.release_stale(snapshot) {
            return Ok(step);
        }
        if let Some(step) = self.assign_from_own_blocks(snapshot, remaining)? {
            return Ok(step);
        }
        let lagging_blocks: Vec<Cidr> = snapshot.lagging_blocks(self.version).collect();
        if !lagging_blocks.is_empty() {
            // An address may have been released in the meantime, which avoids taking one elsewhere.
            return Ok(PlannerStep::Read(MissingReads::blocks(lagging_blocks)));
        }
        match self.claim_and_assign(snapshot, remaining)? {
            Some(step) => Ok(step),
            None if snapshot.inputs.config.strict_affinity => Ok(PlannerStep::Exhausted(self.exhaustion(snapshot))),
            None => self.borrow(snapshot, remaining),
        }
    }

    /// Returns a step that releases the first stale block that is empty.
    fn release_stale(&self, snapshot: &Snapshot) -> Option<PlannerStep> {
        let stale = self.stale(snapshot);
        let affinities = snapshot.own_affinities(self.version).filter(|entry| stale.contains(&entry.key.cidr));
        affinities.into_iter().find_map(|affinity| {
            let block = snapshot.readable_block(&affinity.key.cidr)?;
            if block.value.owner().as_ref() != Some(&self.owner) || !block.value.is_empty() {
                return None;
            }
            // Marking the affinity as pending deletion precedes the compare-and-swap of the block, so the block must be
            // current.
            if snapshot.may_lag(&block.key) {
                return Some(PlannerStep::Read(MissingReads::blocks([block.key])));
            }
            Some(PlannerStep::Repair(AffinityRepair::Release { affinity: affinity.clone(), block: block.clone() }))
        })
    }

    /// Returns the addresses of a handle that has reached its limit, if they are as many as requested (IPAM-115).
    fn already_held(&self, snapshot: &Snapshot, remaining: usize) -> Result<Option<PlannerStep>, IpamError> {
        let limit = self.request.max_per_handle;
        if limit > 0 && snapshot.handle_is_unread() {
            return Ok(Some(PlannerStep::Read(MissingReads::handle())));
        }
        let Some(handle) = snapshot.handle().filter(|_| limit > 0) else { return Ok(None) };
        let Err(full) = handle.value.check_limit(&self.request.handle, self.version, remaining, limit) else {
            return Ok(None);
        };
        let blocks: Vec<Cidr> =
            handle.value.block.keys().filter(|cidr| cidr.version() == self.version).copied().collect();
        let is_unknown = |cidr: &&Cidr| matches!(snapshot.block(cidr), None | Some(BlockRead::Surveyed(_)));
        let unknown: Vec<Cidr> = blocks.iter().filter(is_unknown).copied().collect();
        if !unknown.is_empty() {
            return Ok(Some(PlannerStep::Read(MissingReads::blocks(unknown))));
        }
        let readable = blocks.iter().filter_map(|cidr| snapshot.readable_block(cidr));
        let mut held: Vec<IpAddr> = readable.flat_map(|block| block.value.addresses_of(&self.request.handle)).collect();
        if held.len() >= remaining {
            held.truncate(remaining);
            return Ok(Some(PlannerStep::AlreadyHeld(held)));
        }
        let is_readable = blocks.iter().all(|cidr| snapshot.block(cidr) != Some(&BlockRead::Corrupt));
        // A killed allocation may have counted addresses that it never took. Without this, a VMI with that handle would
        // wait forever.
        if is_readable && held.len() + remaining <= limit { Ok(None) } else { Err(full.into()) }
    }
}
