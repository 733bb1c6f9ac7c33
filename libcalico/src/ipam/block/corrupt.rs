//! Operations on a block that contradicts itself (IPAM-64): DEL gives back what is its container's, and a repair puts the
//! block in order.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use time::OffsetDateTime;

use super::create::MAX_BLOCK_CAPACITY;
use super::{Attribute, Block};
use crate::ipam::HandleId;
use crate::ipam::stored_time::{parse_stored, stored_seconds};

/// A pod, container or tunnel that has an address, as an allocation notes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The handle; `None` where it cannot be told.
    pub handle: Option<HandleId>,
    /// The attributes: node, and pod and namespace or type.
    pub attributes: BTreeMap<String, String>,
}

/// A block put in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Repaired {
    /// The block.
    pub block: Block,
    /// Addresses that are free now. Before they were neither allocated nor free, or allocated to nobody who can be told.
    pub freed: Vec<IpAddr>,
    /// Addresses that are allocated now because a pod reports them, or because they are a node's tunnel's.
    pub kept: Vec<IpAddr>,
}

impl Block {
    /// Gives back every address of `handle`, whatever else is wrong with the block, and leaves each ordinal at most once in
    /// the free list. Returns how many addresses were given back.
    ///
    /// Attributes keep their places: an allocation that points at none would point at another's otherwise.
    pub fn release_from_corrupt(&mut self, handle: &HandleId, cooldown_seconds: i64, now: OffsetDateTime) -> usize {
        let ordinals: Vec<usize> = self.ordinals_of(handle).collect();
        self.unallocated.retain(|ordinal| !ordinals.contains(ordinal));
        if cooldown_seconds > 0 {
            let resting = Attribute { released_at: Some(stored_seconds(now)), ..Attribute::default() };
            for index in self.attributes_of(handle) {
                self.attributes[index] = resting.clone();
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

    /// Returns true if the block does not contradict itself.
    pub fn is_in_order(&self) -> bool {
        self.verify().is_ok() && self.lost_ordinal().is_none()
    }

    /// The block with every ordinal either allocated or once in the free list; `None` where nothing is to be repaired, or the
    /// block is larger than any may be.
    ///
    /// An allocated ordinal stays allocated. An ordinal that is not, or whose allocation points at no attribute, is allocated to
    /// the pod or tunnel that has its address, as `holder_of` tells, and free when none has. An address whose time of release
    /// cannot be read rests from now on.
    pub fn repaired(&self, now: OffsetDateTime, holder_of: impl Fn(IpAddr) -> Option<Holder>) -> Option<Repaired> {
        if self.capacity() > MAX_BLOCK_CAPACITY || self.is_in_order() {
            return None;
        }
        let mut block = self.clone();
        block.allocations.resize(self.capacity() as usize, None);
        let (mut freed, mut kept) = (Vec::new(), Vec::new());
        for ordinal in 0..block.allocations.len() {
            let Some(ip) = self.address_at(ordinal) else { continue };
            let holder = block.allocations[ordinal].and_then(|index| self.attributes.get(index));
            if holder.is_some_and(|holder| !holder.rests_since_nobody_knows()) {
                continue;
            }
            if let Some(Holder { handle, attributes }) = holder_of(ip) {
                block.allocations[ordinal] = Some(block.attribute_of(handle.as_ref(), attributes));
                block.sequence_number_for_allocation.insert(ordinal.to_string(), block.sequence_number);
                kept.push(ip);
            } else if holder.is_none() {
                let was_free = block.allocations[ordinal].take().is_none() && self.unallocated.contains(&ordinal);
                freed.extend((!was_free).then_some(ip));
            }
        }
        block.list_free();
        for attribute in block.attributes.iter_mut().filter(|attribute| attribute.rests_since_nobody_knows()) {
            attribute.released_at = Some(stored_seconds(now));
        }
        Some(Repaired { block, freed, kept })
    }

    /// Makes the free list name each free ordinal once: those that it names in their order, others behind them.
    fn list_free(&mut self) {
        let mut left: BTreeSet<usize> =
            (0..self.allocations.len()).filter(|&n| self.allocations[n].is_none()).collect();
        self.unallocated.retain(|ordinal| left.remove(ordinal));
        self.unallocated.extend(left);
        let Block { allocations, sequence_number_for_allocation, .. } = self;
        sequence_number_for_allocation.retain(|text, _| {
            let ordinal = text.parse::<usize>().ok().filter(|ordinal| ordinal.to_string() == *text);
            ordinal.is_some_and(|ordinal| allocations.get(ordinal).is_some_and(Option::is_some))
        });
    }
}

impl Attribute {
    /// Returns true when the time of the release cannot be read.
    fn rests_since_nobody_knows(&self) -> bool {
        self.released_at.as_deref().is_some_and(|text| parse_stored(text).is_none())
    }
}
