//! Giving addresses back (IPAM-144, IPAM-169, IPAM-170).

use std::collections::BTreeMap;
use std::net::IpAddr;

use time::OffsetDateTime;

use super::{Attribute, Block, CorruptBlock};
use crate::ipam::HandleId;
use crate::ipam::stored_time::stored_seconds;

/// One address to give back, and what must be true of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseRequest {
    /// The address.
    pub ip: IpAddr,
    /// Only if this handle holds it.
    pub handle: Option<HandleId>,
    /// Only if its sequence number is this one.
    pub sequence: Option<u64>,
}

/// What a release did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Released {
    /// Addresses given back.
    pub released: Vec<IpAddr>,
    /// Addresses that were free or cooling down already, or are not of this block: no error (IPAM-173).
    pub unallocated: Vec<IpAddr>,
    /// Addresses given back per handle; those held without one are not counted.
    pub per_handle: BTreeMap<HandleId, usize>,
}

/// Why nothing was released: one mismatch refuses the whole list (IPAM-144).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// Allocated anew since the caller looked.
    #[error("the given sequence number ({given}) does not match ({stored}) when attempting to release IP {ip}")]
    Sequence {
        /// The address.
        ip: IpAddr,
        /// What the caller expected.
        given: u64,
        /// What the block says, 0 for nothing.
        stored: u64,
    },
    /// Held by another.
    #[error("the given handle ({given}) does not match ({stored}) when attempting to release IP {ip}")]
    Handle {
        /// The address.
        ip: IpAddr,
        /// What the caller expected.
        given: HandleId,
        /// What the block says, empty for nothing.
        stored: String,
    },
    /// The block cannot be trusted.
    #[error(transparent)]
    Corrupt(#[from] CorruptBlock),
}

impl Block {
    /// Gives addresses back: marks them as released and collects what has rested long enough, which with a cooldown of
    /// zero is all of them (IPAM-164). Nothing changes when the answer is an error or names no released address.
    pub fn release(
        &mut self,
        requests: &[ReleaseRequest],
        cooldown_seconds: i64,
        now: OffsetDateTime,
    ) -> Result<Released, ReleaseError> {
        self.verify()?;
        let mut outcome = Released::default();
        let mut ordinals = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            if requests[..i].iter().any(|earlier| earlier.ip == request.ip) {
                continue;
            }
            match self.releasable(request)? {
                Some((ordinal, handle)) => {
                    ordinals.push(ordinal);
                    outcome.released.push(request.ip);
                    if let Some(handle) = handle {
                        *outcome.per_handle.entry(handle).or_default() += 1;
                    }
                }
                None => outcome.unallocated.push(request.ip),
            }
        }
        for ordinal in &ordinals {
            self.sequence_number_for_allocation.insert(ordinal.to_string(), self.sequence_number);
        }
        self.rest(&ordinals, cooldown_seconds, now)?;
        Ok(outcome)
    }

    /// Gives back those of the addresses that are still held as the requests say. One that is held otherwise is refused
    /// and does not keep the others; one that is free or resting is unallocated whatever number it carries now, so that a
    /// release whose answer was lost can be repeated (D34).
    pub fn release_unchanged(
        &mut self,
        requests: &[ReleaseRequest],
        cooldown_seconds: i64,
        now: OffsetDateTime,
    ) -> Result<(Released, Vec<ReleaseError>), CorruptBlock> {
        self.verify()?;
        let (mut wanted, mut unallocated, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for request in requests {
            if self.allocation(request.ip).is_none_or(|held| held.is_cooling()) {
                unallocated.push(request.ip);
                continue;
            }
            match self.releasable(request) {
                Ok(_) => wanted.push(request.clone()),
                Err(refusal) => refused.push(refusal),
            }
        }
        match self.release(&wanted, cooldown_seconds, now) {
            Ok(mut released) => {
                released.unallocated.append(&mut unallocated);
                Ok((released, refused))
            }
            Err(ReleaseError::Corrupt(problem)) => Err(problem),
            // None of these is among the wanted.
            Err(refusal) => {
                refused.push(refusal);
                Ok((Released { unallocated, ..Released::default() }, refused))
            }
        }
    }

    /// Gives back every address of `handle`, if a sequence number is given only those that carry it. Returns how many.
    /// Unlike [`Block::release`] it leaves the sequence entries of resting addresses as they are (IPAM-170, D33).
    pub fn release_by_handle(
        &mut self,
        handle: &HandleId,
        sequence: Option<u64>,
        cooldown_seconds: i64,
        now: OffsetDateTime,
    ) -> Result<usize, CorruptBlock> {
        self.verify()?;
        let numbered = |ordinal| sequence.is_none_or(|wanted| self.sequence_of(ordinal).unwrap_or_default() == wanted);
        let ordinals: Vec<usize> = self.ordinals_of(handle).filter(|&ordinal| numbered(ordinal)).collect();
        self.rest(&ordinals, cooldown_seconds, now)?;
        Ok(ordinals.len())
    }

    /// Requests for those addresses of `handle` whose attribute `is_wanted`, each as it is held now.
    pub fn requests_of(&self, handle: &HandleId, is_wanted: impl Fn(&Attribute) -> bool) -> Vec<ReleaseRequest> {
        let held = self.allocated().filter(|held| held.handle().as_ref() == Some(handle));
        let wanted = held.filter(|held| held.attribute.is_some_and(&is_wanted));
        wanted.map(|held| ReleaseRequest { ip: held.ip, handle: held.handle(), sequence: held.sequence }).collect()
    }

    /// The ordinal to release and who holds it, or `None` when there is nothing to release. The sequence number is
    /// checked first, even of a free address (D34).
    pub(super) fn releasable(
        &self,
        request: &ReleaseRequest,
    ) -> Result<Option<(usize, Option<HandleId>)>, ReleaseError> {
        let Some(ordinal) = self.ordinal_of(request.ip) else { return Ok(None) };
        let stored = self.sequence_of(ordinal).unwrap_or_default();
        if let Some(given) = request.sequence.filter(|&given| given != stored) {
            return Err(ReleaseError::Sequence { ip: request.ip, given, stored });
        }
        let Some(held) = self.allocation(request.ip).filter(|held| !held.is_cooling()) else { return Ok(None) };
        let holder = held.handle();
        if let Some(given) = request.handle.clone().filter(|given| Some(given) != holder.as_ref()) {
            let stored = holder.map(|handle| handle.to_string()).unwrap_or_default();
            return Err(ReleaseError::Handle { ip: request.ip, given, stored });
        }
        Ok(Some((ordinal, holder)))
    }

    /// Lets ordinals rest under one new attribute, then collects.
    fn rest(&mut self, ordinals: &[usize], cooldown_seconds: i64, now: OffsetDateTime) -> Result<(), CorruptBlock> {
        if ordinals.is_empty() {
            return Ok(());
        }
        let index = self.attributes.len();
        self.attributes.push(Attribute { released_at: Some(stored_seconds(now)), ..Attribute::default() });
        for &ordinal in ordinals {
            self.allocations[ordinal] = Some(index);
        }
        self.collect_garbage(cooldown_seconds, now)?;
        Ok(())
    }
}
