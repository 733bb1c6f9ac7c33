//! What a block says, without changing it. Reads tolerate a corrupt block: what cannot be understood counts as taken.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Attribute, Block};
use crate::ipam::stored_time::parse_stored;
use crate::ipam::{HandleId, Owner, Reservations};

/// The handle of addresses that Windows keeps for itself; they do not make a block non-empty (IPAM-171).
pub const WINDOWS_RESERVED_HANDLE: &str = "windows-reserved-ipam-handle";

/// A block whose parts contradict each other. Nothing is taken from such a block: an address that it calls free may be in use.
/// Only what a handle holds is given back ([`Block::release_from_corrupt`]), and a repair puts it in order
/// ([`Block::repaired`]).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CorruptBlock {
    /// Not one allocation slot per address.
    #[error("block {cidr} is corrupt: it has {found} allocation slots for {capacity} addresses")]
    Slots {
        /// The block.
        cidr: String,
        /// Slots stored.
        found: usize,
        /// Addresses in the block's range.
        capacity: u128,
    },
    /// An allocation points at an attribute that is not there.
    #[error("block {cidr} is corrupt: ordinal {ordinal} refers to attribute {index}, of {attributes}")]
    Attribute {
        /// The block.
        cidr: String,
        /// The allocated ordinal.
        ordinal: usize,
        /// What it points at.
        index: usize,
        /// How many attributes there are.
        attributes: usize,
    },
    /// The free list names an ordinal outside the block, one that is taken, or one twice.
    #[error("block {cidr} is corrupt: ordinal {ordinal} in its free list is {problem}")]
    FreeList {
        /// The block.
        cidr: String,
        /// The ordinal.
        ordinal: usize,
        /// `out of range`, `allocated` or `listed twice`.
        problem: &'static str,
    },
    /// A release time that is no RFC 3339 time.
    #[error("block {cidr} is corrupt: attribute {index} was released at `{text}`, which is no time")]
    ReleaseTime {
        /// The block.
        cidr: String,
        /// The attribute.
        index: usize,
        /// What is stored.
        text: String,
    },
}

/// One taken address of a block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Allocation<'a> {
    /// The address.
    pub ip: IpAddr,
    /// Its offset in the block.
    pub ordinal: usize,
    /// Who holds it; `None` when the block is corrupt here.
    pub attribute: Option<&'a Attribute>,
    /// The block's sequence number when it was allocated (IPAM-167); `None` for host-reserved addresses.
    pub sequence: Option<u64>,
}

impl<'a> Allocation<'a> {
    /// The holder's handle, cut as [`HandleId::new`] cuts.
    pub fn handle(&self) -> Option<HandleId> {
        self.attribute?.handle()
    }

    /// The active owner's attributes: `node`, `pod`, `namespace`, `timestamp` … (IPAM-27).
    pub fn attributes(&self) -> Option<&'a BTreeMap<String, String>> {
        self.attribute.map(|attribute| &attribute.active_owner)
    }

    /// Released, but not yet handed back to the free list.
    pub fn is_cooling(&self) -> bool {
        self.attribute.is_some_and(|attribute| attribute.released_at.is_some())
    }
}

impl Attribute {
    /// The handle, cut as [`HandleId::new`] cuts; `None` when absent or empty.
    pub fn handle(&self) -> Option<HandleId> {
        self.handle_id.as_deref().filter(|id| !id.is_empty()).map(HandleId::new)
    }

    fn is_held_by(&self, handle: &HandleId) -> bool {
        self.handle_id
            .as_deref()
            .is_some_and(|id| !id.is_empty() && HandleId::cut(id) == HandleId::cut(handle.as_str()))
    }

    pub(in crate::ipam) fn is_windows_reserved(&self) -> bool {
        self.handle_id.as_deref().is_some_and(|id| id.eq_ignore_ascii_case(WINDOWS_RESERVED_HANDLE))
    }
}

impl Block {
    /// Number of addresses, from the range and not from the arrays (IPAM-65).
    pub fn capacity(&self) -> u128 {
        self.cidr.size()
    }

    /// Whose block it is; `None` for nobody's (IPAM-66).
    pub fn owner(&self) -> Option<Owner> {
        self.affinity.as_deref().and_then(Owner::parse)
    }

    /// No address is taken but those Windows reserves. Cooling-down addresses count as taken (IPAM-171). A block that
    /// contradicts itself is never empty: what it says of its addresses cannot be trusted.
    pub fn is_empty(&self) -> bool {
        let reserved = |&index: &usize| self.attributes.get(index).is_some_and(Attribute::is_windows_reserved);
        self.allocations.iter().flatten().all(reserved) && self.verify().is_ok()
    }

    /// Addresses that automatic assignment could hand out now (IPAM-172).
    pub fn free(&self, reservations: &Reservations) -> usize {
        self.free_addresses().filter(|(_, ip)| !reservations.contains(*ip)).count()
    }

    /// Every taken address, ascending; cooling-down ones included.
    pub fn allocated(&self) -> impl Iterator<Item = Allocation<'_>> {
        self.allocations.iter().enumerate().filter_map(|(ordinal, slot)| self.allocation_at(ordinal, (*slot)?))
    }

    /// Who holds `ip`; `None` when it is free or not of this block.
    pub fn allocation(&self, ip: IpAddr) -> Option<Allocation<'_>> {
        let ordinal = self.ordinal_of(ip)?;
        self.allocation_at(ordinal, (*self.allocations.get(ordinal)?)?)
    }

    /// An ordinal that is neither allocated nor in the free list, of a block whose arrays have the right length.
    pub fn lost_ordinal(&self) -> Option<usize> {
        let mut known: Vec<bool> = self.allocations.iter().map(Option::is_some).collect();
        for &ordinal in &self.unallocated {
            if let Some(known) = known.get_mut(ordinal) {
                *known = true;
            }
        }
        known.iter().position(|known| !known)
    }

    /// The addresses held by `handle`, ascending (IPAM-146).
    pub fn addresses_of(&self, handle: &HandleId) -> Vec<IpAddr> {
        self.ordinals_of(handle).filter_map(|ordinal| self.address_at(ordinal)).collect()
    }

    /// Whether the parts of the block fit together, so that an operation can trust them. A free ordinal that the free
    /// list does not name is tolerated: it is lost, not dangerous.
    pub fn verify(&self) -> Result<(), CorruptBlock> {
        let cidr = || self.cidr.to_string();
        if self.allocations.len() as u128 != self.capacity() {
            let (found, capacity) = (self.allocations.len(), self.capacity());
            return Err(CorruptBlock::Slots { cidr: cidr(), found, capacity });
        }
        let attributes = self.attributes.len();
        for (ordinal, index) in self.allocations.iter().enumerate() {
            if let Some(index) = index.filter(|&index| index >= attributes) {
                return Err(CorruptBlock::Attribute { cidr: cidr(), ordinal, index, attributes });
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
            return Err(CorruptBlock::FreeList { cidr: cidr(), ordinal, problem });
        }
        for (index, text) in self.attributes.iter().enumerate().filter_map(|(n, a)| Some((n, a.released_at.as_ref()?)))
        {
            if parse_stored(text).is_none() {
                return Err(CorruptBlock::ReleaseTime { cidr: cidr(), index, text: text.clone() });
            }
        }
        Ok(())
    }

    /// The ordinals held by `handle`, ascending.
    pub(super) fn ordinals_of(&self, handle: &HandleId) -> impl Iterator<Item = usize> {
        let held = |slot: &Option<usize>| {
            slot.and_then(|index| self.attributes.get(index)).is_some_and(|attribute| attribute.is_held_by(handle))
        };
        self.allocations.iter().enumerate().filter(move |(_, slot)| held(slot)).map(|(ordinal, _)| ordinal)
    }

    /// Free ordinals and their addresses, in the order they will be handed out.
    pub(super) fn free_addresses(&self) -> impl Iterator<Item = (usize, IpAddr)> {
        self.unallocated.iter().filter_map(|&ordinal| Some((ordinal, self.address_at(ordinal)?)))
    }

    pub(super) fn ordinal_of(&self, ip: IpAddr) -> Option<usize> {
        self.cidr.offset_of(ip).and_then(|offset| usize::try_from(offset).ok())
    }

    pub(super) fn address_at(&self, ordinal: usize) -> Option<IpAddr> {
        self.cidr.nth(ordinal as u128)
    }

    pub(super) fn sequence_of(&self, ordinal: usize) -> Option<u64> {
        self.sequence_number_for_allocation.get(&ordinal.to_string()).copied()
    }

    fn allocation_at(&self, ordinal: usize, index: usize) -> Option<Allocation<'_>> {
        Some(Allocation {
            ip: self.address_at(ordinal)?,
            ordinal,
            attribute: self.attributes.get(index),
            sequence: self.sequence_of(ordinal),
        })
    }
}
