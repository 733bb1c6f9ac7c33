//! Frees addresses after their cooldown, or at once, and drops unreferenced attributes.

use time::{Duration, OffsetDateTime};

use super::{Attribute, Block, CorruptBlock, ReleaseError, ReleaseRequest};
use crate::api::parse_time;

impl Block {
    /// Frees addresses whose cooldown has elapsed and compacts the attributes. Returns true if the block changed.
    ///
    /// Call it on every block that is read for address management. As in upstream, an ADD or DEL does not write the
    /// block for this change alone (IPAM-162).
    pub fn collect_garbage(&mut self, cooldown_seconds: i64, now: OffsetDateTime) -> Result<bool, CorruptBlock> {
        self.verify()?;
        let cooled = self.cooled_attributes(cooldown_seconds, now);
        let freed = self.free_where(&cooled);
        let dropped = self.compact_attributes();
        Ok(freed || dropped)
    }

    /// Frees the addresses named in `requests` without a cooldown, and returns their number. Skips addresses that are
    /// free, cooling down or outside the block.
    ///
    /// # Errors
    /// If the block is corrupt, or a request does not match its allocation, no address is freed. As in upstream, a
    /// wrong sequence number is an error even for a free address (IPAM-144).
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

    /// Returns true for each attribute whose cooldown has elapsed.
    fn cooled_attributes(&self, cooldown_seconds: i64, now: OffsetDateTime) -> Vec<bool> {
        let threshold = now.checked_sub(Duration::seconds(cooldown_seconds.max(0)));
        let has_elapsed = |at: OffsetDateTime| match threshold {
            // The release may be of the current second (IPAM-164).
            Some(threshold) if cooldown_seconds == 0 => at <= threshold,
            Some(threshold) => cooldown_seconds < 0 || at < threshold,
            None => false,
        };
        let released = |attribute: &Attribute| attribute.released_at.as_deref().and_then(parse_time);
        self.attributes.iter().map(|attribute| released(attribute).is_some_and(has_elapsed)).collect()
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
        self.sequence_number_for_allocation.remove(&ordinal.to_string());
    }

    /// Drops unreferenced attributes and renumbers the others. Returns true if an attribute was dropped.
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
