//! Operations on a block whose parts contradict each other (IPAM-64): a DEL releases its own container's addresses,
//! and a repair makes the block consistent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use time::OffsetDateTime;

use super::create::MAX_BLOCK_CAPACITY;
use super::{Attribute, Block};
use crate::api::{parse_time, seconds_in_utc};
use crate::ipam::HandleId;

/// The owner of an address, as an allocation records it: a pod, container or tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedOwner {
    /// The handle; `None` if it cannot be determined.
    pub handle: Option<HandleId>,
    /// The attributes: node, and pod and namespace, or type.
    pub attributes: BTreeMap<String, String>,
}

/// The result of a repair.
#[derive(Debug, Clone, PartialEq)]
pub struct Repaired {
    /// The consistent block.
    pub block: Block,
    /// Addresses that the repair freed. They were neither allocated nor in the free list, or their allocation referred
    /// to a missing attribute.
    pub freed: Vec<IpAddr>,
    /// Addresses that the repair allocated to the pod, container or tunnel that uses them.
    pub kept: Vec<IpAddr>,
}

impl Block {
    /// Releases every address of `handle`, whatever else is wrong with the block, and removes duplicates from the free
    /// list. Returns the number of released addresses.
    ///
    /// Attributes keep their indices. Otherwise an allocation with an invalid index could point at another
    /// allocation's attribute.
    pub fn release_from_corrupt(&mut self, handle: &HandleId, cooldown_seconds: i64, now: OffsetDateTime) -> usize {
        let ordinals: Vec<usize> = self.ordinals_of(handle).collect();
        self.unallocated.retain(|ordinal| !ordinals.contains(ordinal));
        if cooldown_seconds > 0 {
            let cooling = Attribute { released_at: Some(seconds_in_utc(now)), ..Attribute::default() };
            for index in self.attributes_of(handle) {
                self.attributes[index] = cooling.clone();
            }
        } else {
            for &ordinal in &ordinals {
                self.allocations[ordinal] = None;
                self.sequence_number_for_allocation.remove(&ordinal.to_string());
            }
            let capacity = self.capacity();
            self.unallocated.extend(ordinals.iter().filter(|&&ordinal| (ordinal as u128) < capacity));
        }
        let mut listed = BTreeSet::new();
        self.unallocated.retain(|ordinal| listed.insert(*ordinal));
        ordinals.len()
    }

    /// Returns true if [`Block::verify`] finds no contradiction and each ordinal is allocated or in the free list.
    pub fn is_consistent(&self) -> bool {
        self.verify().is_ok() && self.lost_ordinal().is_none()
    }

    /// Returns the block with every ordinal either allocated or in the free list once. Returns `None` if the block is
    /// consistent, or larger than any valid block.
    ///
    /// `owner_of` returns the pod, container or tunnel that uses an address. An ordinal that is not allocated, or whose
    /// allocation refers to a missing attribute, is allocated to that owner, or freed if there is none. An ordinal with
    /// an unreadable release time is allocated to that owner; if there is none, its cooldown starts at `now`. Every
    /// other allocation stays as it is.
    pub fn repaired(
        &self,
        now: OffsetDateTime,
        owner_of: impl Fn(IpAddr) -> Option<RecordedOwner>,
    ) -> Option<Repaired> {
        if self.capacity() > MAX_BLOCK_CAPACITY || self.is_consistent() {
            return None;
        }
        let mut block = self.clone();
        block.allocations.resize(self.capacity() as usize, None);
        let (mut freed, mut kept) = (Vec::new(), Vec::new());
        for ordinal in 0..block.allocations.len() {
            let Some(ip) = self.address_at(ordinal) else { continue };
            let attribute = block.allocations[ordinal].and_then(|index| self.attributes.get(index));
            if attribute.is_some_and(|attribute| !attribute.has_invalid_release_time()) {
                continue;
            }
            if let Some(RecordedOwner { handle, attributes }) = owner_of(ip) {
                block.allocations[ordinal] = Some(block.attribute_of(handle.as_ref(), attributes));
                block.sequence_number_for_allocation.insert(ordinal.to_string(), block.sequence_number);
                kept.push(ip);
            } else if attribute.is_none() {
                let was_free = block.allocations[ordinal].take().is_none() && self.unallocated.contains(&ordinal);
                freed.extend((!was_free).then_some(ip));
            }
        }
        block.rebuild_free_list();
        for attribute in block.attributes.iter_mut().filter(|attribute| attribute.has_invalid_release_time()) {
            attribute.released_at = Some(seconds_in_utc(now));
        }
        Some(Repaired { block, freed, kept })
    }

    /// Rebuilds the free list so that it names each free ordinal once: the ordinals already listed in their order, then
    /// the others. Removes the sequence numbers of free ordinals.
    fn rebuild_free_list(&mut self) {
        let mut missing: BTreeSet<_> = (0..self.allocations.len()).filter(|&n| self.allocations[n].is_none()).collect();
        self.unallocated.retain(|ordinal| missing.remove(ordinal));
        self.unallocated.extend(missing);
        let Block { allocations, sequence_number_for_allocation, .. } = self;
        sequence_number_for_allocation.retain(|text, _| {
            let ordinal = text.parse::<usize>().ok().filter(|ordinal| ordinal.to_string() == *text);
            ordinal.is_some_and(|ordinal| allocations.get(ordinal).is_some_and(Option::is_some))
        });
    }
}

impl Attribute {
    /// Returns true if the address was released but the time of the release is unreadable.
    fn has_invalid_release_time(&self) -> bool {
        self.released_at.as_deref().is_some_and(|text| parse_time(text).is_none())
    }
}
