//! Frees addresses after their cooldown, or at once, and drops unreferenced attributes.

use time::{Duration, OffsetDateTime};

use super::{Attribute, Block, CorruptBlock, ReleaseError, ReleaseRequest};
use crate::api::{parse_time, seconds_in_utc};
use crate::ipam::audit::owner_time;

/// The longest cooldown. A clock is assumed to be wrong by no more than this.
const CLOCK_TOLERANCE: Duration = Duration::seconds(1200);

/// Returns true for a release time that lies so far in the future that the clock of its writer was
/// wrong.
///
/// The correction is safe because a reader whose clock is behind by at most [`CLOCK_TOLERANCE`]
/// takes no release time of a correct clock for a wrong one, and a release time within the
/// tolerance extends its cooldown by no more than that.
pub(in crate::ipam) fn is_of_wrong_clock(released_at: OffsetDateTime, now: OffsetDateTime) -> bool {
    released_at - now > CLOCK_TOLERANCE
}

impl Block {
    /// Frees addresses whose cooldown has elapsed and compacts the attributes. Returns true if the
    /// block changed. A release time of a wrong clock becomes `now`, so that the cooldown begins
    /// with the write of the first reader that writes the block. If the time of an allocation is as
    /// wrong, the clock may be that of the reader, so nothing is corrected; kube-controllers does
    /// that with [`Block::correct_release_times`].
    ///
    /// Call it on every block that is read for address management. As in upstream, an ADD or DEL
    /// does not write the block for this change alone (IPAM-162).
    pub fn collect_garbage(
        &mut self,
        cooldown_seconds: i64,
        now: OffsetDateTime,
    ) -> Result<bool, CorruptBlock> {
        self.verify()?;
        let corrected = !self.has_allocation_of_wrong_clock(now) && self.correct_release_times(now);
        let cooled = self.cooled_attributes(cooldown_seconds, now);
        let freed = self.free_where(&cooled);
        let dropped = self.compact_attributes();
        Ok(corrected || freed || dropped)
    }

    /// Frees the addresses named in `requests` without a cooldown, and returns their number. Skips
    /// addresses that are free, cooling down or outside the block.
    ///
    /// # Errors
    /// If the block is corrupt, or a request does not match its allocation, no address is freed. As
    /// in upstream, a wrong sequence number is an error even for a free address (IPAM-144).
    pub fn free_at_once(&mut self, requests: &[ReleaseRequest]) -> Result<usize, ReleaseError> {
        self.verify()?;
        let mut ordinals = Vec::new();
        for request in requests {
            let ordinal = self.releasable(request)?.map(|(ordinal, _)| ordinal);
            // An ordinal must not be in the free list twice.
            ordinals.extend(ordinal.filter(|ordinal| !ordinals.contains(ordinal)));
        }
        for &ordinal in &ordinals {
            self.free_ordinal(ordinal);
        }
        self.compact_attributes();
        Ok(ordinals.len())
    }

    fn has_allocation_of_wrong_clock(&self, now: OffsetDateTime) -> bool {
        let in_use = self
            .attributes
            .iter()
            .filter(|attribute| attribute.released_at.is_none());
        let mut allocated = in_use.filter_map(|attribute| owner_time(&attribute.active_owner));
        allocated.any(|at| is_of_wrong_clock(at, now))
    }

    /// Replaces the release times of wrong clocks by `now`, a time that is known to be right.
    /// Returns true if there was one.
    pub fn correct_release_times(&mut self, now: OffsetDateTime) -> bool {
        let mut corrected = false;
        for released_at in self
            .attributes
            .iter_mut()
            .filter_map(|attribute| attribute.released_at.as_mut())
        {
            if parse_time(released_at).is_some_and(|at| is_of_wrong_clock(at, now)) {
                *released_at = seconds_in_utc(now);
                corrected = true;
            }
        }
        corrected
    }

    /// Returns true for each attribute whose cooldown has elapsed.
    fn cooled_attributes(&self, cooldown_seconds: i64, now: OffsetDateTime) -> Vec<bool> {
        let threshold = now.checked_sub(Duration::seconds(cooldown_seconds.max(0)));
        let has_elapsed = |at: OffsetDateTime| match threshold {
            // The release may be of the current second (IPAM-164).
            Some(threshold) if cooldown_seconds == 0 => at <= threshold,
            Some(threshold) => cooldown_seconds < 0 || at < threshold,
            None => false,
        };
        let released =
            |attribute: &Attribute| attribute.released_at.as_deref().and_then(parse_time);
        self.attributes
            .iter()
            .map(|attribute| released(attribute).is_some_and(has_elapsed))
            .collect()
    }

    fn free_where(&mut self, cooled: &[bool]) -> bool {
        let before = self.unallocated.len();
        for ordinal in 0..self.allocations.len() {
            if self.allocations[ordinal].is_some_and(|index| cooled[index]) {
                self.free_ordinal(ordinal);
            }
        }
        self.unallocated.len() != before
    }

    /// Frees an ordinal. In a consistent block, ordinals return to the free list only here.
    fn free_ordinal(&mut self, ordinal: usize) {
        self.allocations[ordinal] = None;
        self.unallocated.push(ordinal);
        self.sequence_number_for_allocation
            .remove(&ordinal.to_string());
    }

    /// Drops unreferenced attributes and renumbers the others. Returns true if an attribute was
    /// dropped.
    fn compact_attributes(&mut self) -> bool {
        let mut used = vec![false; self.attributes.len()];
        for &index in self.allocations.iter().flatten() {
            used[index] = true;
        }
        if used.iter().all(|&used| used) {
            return false;
        }
        let (mut renumbered, mut next) = (Vec::with_capacity(used.len()), 0);
        for &used in &used {
            renumbered.push(next);
            next += usize::from(used);
        }
        for index in self.allocations.iter_mut().flatten() {
            *index = renumbered[*index];
        }
        let mut used = used.into_iter();
        self.attributes.retain(|_| used.next().unwrap_or(true));
        true
    }
}
