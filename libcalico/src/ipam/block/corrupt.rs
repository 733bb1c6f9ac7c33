//! Operations on a block whose parts contradict each other (IPAM-64).

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
    /// Addresses that the repair freed.
    pub freed: Vec<IpAddr>,
    /// Addresses that the repair allocated to their users.
    pub kept: Vec<IpAddr>,
}

impl Block {
    /// Releases every address of `handle`, whatever else is wrong with the block, and returns their
    /// number.
    ///
    /// Attributes keep their indices: otherwise an allocation with an invalid index could point at
    /// another's attribute.
    pub fn release_from_corrupt(
        &mut self,
        handle: &HandleId,
        cooldown_seconds: i64,
        now: OffsetDateTime,
    ) -> usize {
        let ordinals: Vec<usize> = self.ordinals_of(handle).collect();
        self.unallocated
            .retain(|ordinal| !ordinals.contains(ordinal));
        if cooldown_seconds > 0 {
            let cooling = Attribute {
                released_at: Some(seconds_in_utc(now)),
                ..Attribute::default()
            };
            for index in self.attributes_of(handle) {
                self.attributes[index] = cooling.clone();
            }
        } else {
            for &ordinal in &ordinals {
                self.allocations[ordinal] = None;
                self.sequence_number_for_allocation
                    .remove(&ordinal.to_string());
            }
            let capacity = self.capacity();
            self.unallocated.extend(
                ordinals
                    .iter()
                    .filter(|&&ordinal| (ordinal as u128) < capacity),
            );
        }
        let mut listed = BTreeSet::new();
        self.unallocated.retain(|ordinal| listed.insert(*ordinal));
        ordinals.len()
    }

    /// Returns true if no part contradicts another and each ordinal is allocated or in the free
    /// list.
    pub fn is_consistent(&self) -> bool {
        self.verify().is_ok() && self.lost_ordinal().is_none()
    }

    /// Returns the repaired block; `None` if it is consistent, or larger than any valid block.
    ///
    /// `owner_of` returns the pod, container or tunnel that uses an address. An address without a
    /// readable allocation is allocated to this user. Without a user, it is freed, or if only its
    /// release time is unreadable, its cooldown starts at `now`.
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
            let Some(ip) = self.address_at(ordinal) else {
                continue;
            };
            let attribute = block.allocations[ordinal].and_then(|index| self.attributes.get(index));
            if attribute.is_some_and(|attribute| !attribute.has_invalid_release_time()) {
                continue;
            }
            if let Some(RecordedOwner { handle, attributes }) = owner_of(ip) {
                block.allocations[ordinal] = Some(block.attribute_of(handle.as_ref(), attributes));
                block
                    .sequence_number_for_allocation
                    .insert(ordinal.to_string(), block.sequence_number);
                kept.push(ip);
            } else if attribute.is_none() {
                let was_free = block.allocations[ordinal].take().is_none()
                    && self.unallocated.contains(&ordinal);
                freed.extend((!was_free).then_some(ip));
            }
        }
        block.rebuild_free_list();
        for attribute in block
            .attributes
            .iter_mut()
            .filter(|attribute| attribute.has_invalid_release_time())
        {
            attribute.released_at = Some(seconds_in_utc(now));
        }
        Some(Repaired { block, freed, kept })
    }

    /// Makes the free list name each free ordinal once, and removes their sequence numbers.
    fn rebuild_free_list(&mut self) {
        let mut missing: BTreeSet<_> = (0..self.allocations.len())
            .filter(|&n| self.allocations[n].is_none())
            .collect();
        self.unallocated.retain(|ordinal| missing.remove(ordinal));
        self.unallocated.extend(missing);
        let Block {
            allocations,
            sequence_number_for_allocation,
            ..
        } = self;
        sequence_number_for_allocation.retain(|text, _| {
            let ordinal = text
                .parse::<usize>()
                .ok()
                .filter(|ordinal| ordinal.to_string() == *text);
            ordinal.is_some_and(|ordinal| allocations.get(ordinal).is_some_and(Option::is_some))
        });
    }
}

impl Attribute {
    fn has_invalid_release_time(&self) -> bool {
        self.released_at
            .as_deref()
            .is_some_and(|text| parse_time(text).is_none())
    }
}
