//! Methods that read a block without changing it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use time::OffsetDateTime;

use super::{Attribute, Block};
use crate::api::parse_time;
use crate::ipam::{AffinityOwner, HandleId, Reservations};

/// The handle of addresses that Windows reserves. A block in which only these are allocated counts
/// as empty.
pub const WINDOWS_RESERVED_HANDLE: &str = "windows-reserved-ipam-handle";

/// A contradiction between the parts of a block. No address is assigned from such a block, because
/// an address in its free list may be in use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CorruptBlock {
    /// The number of allocation slots differs from the number of addresses.
    #[error("block {cidr} is corrupt: it has {found} allocation slots for {capacity} addresses")]
    Slots {
        /// The block.
        cidr: String,
        /// The number of stored slots.
        found: usize,
        /// The number of addresses in the block's range.
        capacity: u128,
    },
    /// An allocation refers to a missing attribute.
    #[error(
        "block {cidr} is corrupt: ordinal {ordinal} refers to attribute {index} of only \
         {attributes}"
    )]
    Attribute {
        /// The block.
        cidr: String,
        /// The allocated ordinal.
        ordinal: usize,
        /// The index of the missing attribute.
        index: usize,
        /// The number of attributes.
        attributes: usize,
    },
    /// The free list names an ordinal that is outside the block, allocated, or listed twice.
    #[error("block {cidr} is corrupt: ordinal {ordinal} in its free list is {problem}")]
    FreeList {
        /// The block.
        cidr: String,
        /// The ordinal.
        ordinal: usize,
        /// The contradiction.
        problem: &'static str,
    },
    /// A release time is not an RFC 3339 time.
    #[error("block {cidr} is corrupt: the release time `{text}` of attribute {index} is invalid")]
    ReleaseTime {
        /// The block.
        cidr: String,
        /// The index of the attribute.
        index: usize,
        /// The stored text.
        text: String,
    },
}

/// An allocated address of a block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Allocation<'a> {
    /// The address.
    pub ip: IpAddr,
    /// The address's offset in the block.
    pub ordinal: usize,
    /// The allocation's attribute; `None` if the block is corrupt here.
    pub attribute: Option<&'a Attribute>,
    /// The sequence number that the block stores for the address, if any.
    pub sequence: Option<u64>,
}

impl<'a> Allocation<'a> {
    /// Returns the allocation's handle, cut as by [`HandleId::new`]; `None` if it is missing or
    /// empty.
    pub fn handle(&self) -> Option<HandleId> {
        self.attribute?.handle()
    }

    /// Returns the active owner's attributes.
    pub fn attributes(&self) -> Option<&'a BTreeMap<String, String>> {
        self.attribute.map(|attribute| &attribute.active_owner)
    }

    /// Returns true if the address is released but not yet back in the free list.
    pub fn is_cooling(&self) -> bool {
        self.attribute
            .is_some_and(|attribute| attribute.released_at.is_some())
    }

    /// Returns the time of the release, at which the cooldown began; `None` if the address is in
    /// use, or if the stored time is invalid.
    pub fn released_at(&self) -> Option<OffsetDateTime> {
        self.attribute?.released_at.as_deref().and_then(parse_time)
    }
}

impl Attribute {
    /// Returns the handle, cut as by [`HandleId::new`]; `None` if it is missing or empty.
    pub fn handle(&self) -> Option<HandleId> {
        self.handle_id
            .as_deref()
            .filter(|id| !id.is_empty())
            .map(HandleId::new)
    }

    fn has_handle(&self, handle: &HandleId) -> bool {
        let id = self.handle_id.as_deref().filter(|id| !id.is_empty());
        id.is_some_and(|id| HandleId::cut(id) == HandleId::cut(handle.as_str()))
    }

    pub(in crate::ipam) fn is_windows_reserved(&self) -> bool {
        self.handle_id
            .as_deref()
            .is_some_and(Self::is_handle_of_windows)
    }

    pub(in crate::ipam) fn is_handle_of_windows(id: &str) -> bool {
        id.eq_ignore_ascii_case(WINDOWS_RESERVED_HANDLE)
    }
}

impl Block {
    /// Returns the number of addresses in the range. A corrupt block's arrays may have another
    /// length.
    pub fn capacity(&self) -> u128 {
        self.cidr.size()
    }

    /// Returns the block's owner; `None` if `affinity` is missing or has an unknown prefix.
    pub fn owner(&self) -> Option<AffinityOwner> {
        self.affinity.as_deref().and_then(AffinityOwner::parse)
    }

    /// Returns true if no address is allocated or cooling down, except those that Windows reserves
    /// (IPAM-171). A corrupt block is never empty, because its allocations cannot be trusted.
    pub fn is_empty(&self) -> bool {
        let is_reserved = |&index: &usize| {
            self.attributes
                .get(index)
                .is_some_and(Attribute::is_windows_reserved)
        };
        self.allocations.iter().flatten().all(is_reserved) && self.verify().is_ok()
    }

    /// Returns true for an empty block that is marked for deletion: its deleter was interrupted, or
    /// is about to delete the block (DS-72).
    pub fn awaits_deletion(&self) -> bool {
        self.deleted && self.is_empty()
    }

    /// Returns the number of addresses in the free list that `reservations` do not cover.
    pub fn free(&self, reservations: &Reservations) -> usize {
        self.free_addresses()
            .filter(|(_, ip)| !reservations.contains(*ip))
            .count()
    }

    /// Returns every allocated address in ascending order, including those that are cooling down.
    pub fn allocated(&self) -> impl Iterator<Item = Allocation<'_>> {
        self.allocations
            .iter()
            .enumerate()
            .filter_map(|(ordinal, slot)| self.allocation_at(ordinal, (*slot)?))
    }

    /// Returns the allocation of `ip`; `None` if the address is free or outside the block.
    pub fn allocation(&self, ip: IpAddr) -> Option<Allocation<'_>> {
        let ordinal = self.ordinal_of(ip)?;
        self.allocation_at(ordinal, (*self.allocations.get(ordinal)?)?)
    }

    /// Returns the first ordinal that is neither allocated nor in the free list. The block must
    /// have as many allocation slots as addresses.
    pub fn lost_ordinal(&self) -> Option<usize> {
        self.lost_ordinals().next()
    }

    /// Returns the reason why the parts of the block contradict each other, if they do.
    pub fn contradiction(&self) -> Option<String> {
        if let Err(problem) = self.verify() {
            return Some(problem.to_string());
        }
        let lost = |ordinal| {
            format!(
                "block {} is corrupt: ordinal {ordinal} is neither allocated nor free",
                self.cidr
            )
        };
        self.lost_ordinal().map(lost)
    }

    /// Returns the ordinals that are neither allocated nor in the free list, as
    /// [`Block::lost_ordinal`].
    pub(in crate::ipam) fn lost_ordinals(&self) -> impl Iterator<Item = usize> {
        let mut accounted: Vec<bool> = self.allocations.iter().map(Option::is_some).collect();
        for &ordinal in &self.unallocated {
            if let Some(slot) = accounted.get_mut(ordinal) {
                *slot = true;
            }
        }
        accounted
            .into_iter()
            .enumerate()
            .filter(|(_, is_accounted)| !is_accounted)
            .map(|(ordinal, _)| ordinal)
    }

    /// Returns the addresses of `handle` in ascending order.
    pub fn addresses_of(&self, handle: &HandleId) -> Vec<IpAddr> {
        self.ordinals_of(handle)
            .filter_map(|ordinal| self.address_at(ordinal))
            .collect()
    }

    /// Checks that the parts of the block are consistent. A free ordinal that is missing from the
    /// free list is tolerated.
    pub fn verify(&self) -> Result<(), CorruptBlock> {
        let cidr = || self.cidr.to_string();
        if self.allocations.len() as u128 != self.capacity() {
            let (found, capacity) = (self.allocations.len(), self.capacity());
            return Err(CorruptBlock::Slots {
                cidr: cidr(),
                found,
                capacity,
            });
        }
        let attributes = self.attributes.len();
        for (ordinal, index) in self.allocations.iter().enumerate() {
            if let Some(index) = index.filter(|&index| index >= attributes) {
                return Err(CorruptBlock::Attribute {
                    cidr: cidr(),
                    ordinal,
                    index,
                    attributes,
                });
            }
        }
        let mut listed = vec![false; self.allocations.len()];
        for &ordinal in &self.unallocated {
            let problem = match self.allocations.get(ordinal) {
                None => "out of range",
                Some(Some(_)) => "allocated",
                Some(None) if std::mem::replace(&mut listed[ordinal], true) => "listed twice",
                Some(None) => continue,
            };
            return Err(CorruptBlock::FreeList {
                cidr: cidr(),
                ordinal,
                problem,
            });
        }
        for (index, attribute) in self.attributes.iter().enumerate() {
            if let Some(text) = attribute
                .released_at
                .as_ref()
                .filter(|text| parse_time(text).is_none())
            {
                return Err(CorruptBlock::ReleaseTime {
                    cidr: cidr(),
                    index,
                    text: text.clone(),
                });
            }
        }
        Ok(())
    }

    /// Returns the ordinals of `handle` in ascending order.
    pub(super) fn ordinals_of(&self, handle: &HandleId) -> impl Iterator<Item = usize> {
        let has_handle = |slot: &Option<usize>| {
            slot.and_then(|index| self.attributes.get(index))
                .is_some_and(|attribute| attribute.has_handle(handle))
        };
        self.allocations
            .iter()
            .enumerate()
            .filter(move |(_, slot)| has_handle(slot))
            .map(|(ordinal, _)| ordinal)
    }

    /// Returns the ordinals and addresses of the free list in its order.
    pub(super) fn free_addresses(&self) -> impl Iterator<Item = (usize, IpAddr)> {
        self.unallocated
            .iter()
            .filter_map(|&ordinal| Some((ordinal, self.address_at(ordinal)?)))
    }

    pub(super) fn ordinal_of(&self, ip: IpAddr) -> Option<usize> {
        self.cidr
            .offset_of(ip)
            .and_then(|offset| usize::try_from(offset).ok())
    }

    pub(super) fn address_at(&self, ordinal: usize) -> Option<IpAddr> {
        self.cidr.nth(ordinal as u128)
    }

    pub(super) fn sequence_of(&self, ordinal: usize) -> Option<u64> {
        self.sequence_number_for_allocation
            .get(&ordinal.to_string())
            .copied()
    }

    fn allocation_at(&self, ordinal: usize, index: usize) -> Option<Allocation<'_>> {
        let (ip, sequence) = (self.address_at(ordinal)?, self.sequence_of(ordinal));
        Some(Allocation {
            ip,
            ordinal,
            attribute: self.attributes.get(index),
            sequence,
        })
    }
}
