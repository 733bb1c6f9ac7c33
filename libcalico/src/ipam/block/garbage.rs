//! Returning rested addresses to the free list, and dropping attributes nobody refers to (IPAM-162..IPAM-164).

use time::{Duration, OffsetDateTime};

use super::{Attribute, Block, CorruptBlock, ReleaseError, ReleaseRequest};
use crate::ipam::stored_time::parse_stored;

impl Block {
    /// Frees addresses that have rested for `cooldown_seconds` and compacts the attributes; whether anything changed.
    ///
    /// To be called on every block that is read for any purpose of address management; what it changed is stored only
    /// if the operation writes the block anyway (IPAM-162).
    pub fn collect_garbage(&mut self, cooldown_seconds: i64, now: OffsetDateTime) -> Result<bool, CorruptBlock> {
        self.verify()?;
        let rested = self.rested_attributes(cooldown_seconds, now);
        let freed = self.free_where(&rested);
        let dropped = self.compact_attributes();
        Ok(freed || dropped)
    }

    /// Frees the addresses that `requests` name without a rest (`ipCooldownSeconds`). Other addresses that rest go on resting.
    /// Returns how many were freed.
    ///
    /// # Errors
    /// The block contradicts itself, or a request does not match what is held: nothing is freed.
    pub fn free_at_once(&mut self, requests: &[ReleaseRequest]) -> Result<usize, ReleaseError> {
        self.verify()?;
        let mut ordinals = Vec::new();
        for request in requests {
            ordinals.extend(self.releasable(request)?.map(|(ordinal, _)| ordinal));
        }
        for &ordinal in &ordinals {
            self.free_ordinal(ordinal);
        }
        self.compact_attributes();
        Ok(ordinals.len())
    }

    /// Per attribute: whether the addresses under it have rested long enough.
    fn rested_attributes(&self, cooldown_seconds: i64, now: OffsetDateTime) -> Vec<bool> {
        // A clock that can be subtracted no further has outlived no cooldown.
        let threshold = now.checked_sub(Duration::seconds(cooldown_seconds.max(0)));
        let rested = |at: OffsetDateTime| match threshold {
            // With no cooldown the mark may carry this very second, so equality counts as past (IPAM-164).
            Some(threshold) if cooldown_seconds == 0 => at <= threshold,
            Some(threshold) => cooldown_seconds < 0 || at < threshold,
            None => false,
        };
        let released = |attribute: &Attribute| attribute.released_at.as_deref().and_then(parse_stored);
        self.attributes.iter().map(|attribute| released(attribute).is_some_and(rested)).collect()
    }

    fn free_where(&mut self, rested: &[bool]) -> bool {
        let before = self.unallocated.len();
        for ordinal in 0..self.allocations.len() {
            if self.allocations[ordinal].is_some_and(|index| rested[index]) {
                self.free_ordinal(ordinal);
            }
        }
        self.unallocated.len() != before
    }

    /// Frees an allocated ordinal: the one way back to the free list of a block that does not contradict itself.
    fn free_ordinal(&mut self, ordinal: usize) {
        self.allocations[ordinal] = None;
        self.unallocated.push(ordinal);
        self.sequence_number_for_allocation.remove(&ordinal.to_string());
    }

    /// Drops attributes that no allocation refers to and renumbers the rest, keeping their order.
    fn compact_attributes(&mut self) -> bool {
        let mut used = vec![false; self.attributes.len()];
        for &index in self.allocations.iter().flatten() {
            used[index] = true;
        }
        if used.iter().all(|&used| used) {
            return false;
        }
        let mut next = 0;
        let renumbered: Vec<usize> = used
            .iter()
            .map(|&used| {
                let index = next;
                next += usize::from(used);
                index
            })
            .collect();
        for index in self.allocations.iter_mut().flatten() {
            *index = renumbered[*index];
        }
        let mut used = used.into_iter();
        self.attributes.retain(|_| used.next().unwrap_or(true));
        true
    }
}
