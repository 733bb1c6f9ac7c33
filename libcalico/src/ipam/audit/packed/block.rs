//! [`PackedBlock`]: the allocated addresses of a block, and verdicts about its other parts.

use std::net::IpAddr;

use super::attribute::PackedAttribute;
use crate::ipam::{AffinityOwner, Allocation, Attribute, Block, HandleId};
use crate::net::Cidr;

/// A block without its free list.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedBlock {
    /// The block's range.
    pub cidr: Cidr,
    affinity: Option<Box<str>>,
    problem: Option<Box<str>>,
    is_empty: bool,
    is_deleted: bool,
    /// In ascending order.
    addresses: Box<[PackedAddress]>,
    attributes: Box<[PackedAttribute]>,
}

#[derive(Debug, Clone, PartialEq)]
struct PackedAddress {
    ordinal: u32,
    /// The index of the attribute, which a corrupt block lacks.
    attribute: u32,
    sequence: Option<u64>,
}

/// An allocated address of a [`PackedBlock`].
#[derive(Debug, Clone, Copy)]
pub struct PackedAllocation<'a> {
    /// The address.
    pub ip: IpAddr,
    address: &'a PackedAddress,
    attribute: Option<&'a PackedAttribute>,
}

impl PackedBlock {
    /// Packs a block.
    pub fn of(block: Block) -> Self {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let address = |held: Allocation<'_>| PackedAddress {
            ordinal: number(held.ordinal),
            attribute: block.allocations[held.ordinal].map_or(u32::MAX, number),
            sequence: held.sequence,
        };
        PackedBlock {
            cidr: block.cidr,
            affinity: block.affinity.as_deref().map(Box::from),
            problem: block.contradiction().map(Box::from),
            is_empty: block.is_empty(),
            is_deleted: block.deleted,
            addresses: block.allocated().map(address).collect(),
            attributes: block
                .attributes
                .into_iter()
                .map(PackedAttribute::of)
                .collect(),
        }
    }

    /// Returns the block's affinity as stored.
    pub fn affinity(&self) -> Option<&str> {
        self.affinity.as_deref()
    }

    /// Does the same as [`Block::owner`].
    pub fn owner(&self) -> Option<AffinityOwner> {
        self.affinity().and_then(AffinityOwner::parse)
    }

    /// Does the same as [`Block::contradiction`].
    pub fn contradiction(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Does the same as [`Block::is_empty`].
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Does the same as [`Block::awaits_deletion`].
    pub fn awaits_deletion(&self) -> bool {
        self.is_deleted && self.is_empty
    }

    /// Returns the number of allocated addresses, including those that are cooling down.
    pub fn in_use(&self) -> usize {
        self.addresses.len()
    }

    /// Does the same as [`Block::allocated`].
    pub fn allocated(&self) -> impl Iterator<Item = PackedAllocation<'_>> {
        self.addresses
            .iter()
            .filter_map(|address| self.allocation_at(address))
    }

    /// Does the same as [`Block::allocation`].
    pub fn allocation(&self, ip: IpAddr) -> Option<PackedAllocation<'_>> {
        let ordinal = u32::try_from(self.cidr.offset_of(ip)?).ok()?;
        let found = self
            .addresses
            .binary_search_by_key(&ordinal, |address| address.ordinal)
            .ok()?;
        self.allocation_at(&self.addresses[found])
    }

    fn allocation_at<'a>(&'a self, address: &'a PackedAddress) -> Option<PackedAllocation<'a>> {
        let ip = self.cidr.nth(u128::from(address.ordinal))?;
        Some(PackedAllocation {
            ip,
            address,
            attribute: self.attributes.get(address.attribute as usize),
        })
    }

    /// Returns the number of bytes, including those on the heap.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let texts = [&self.affinity, &self.problem]
            .into_iter()
            .flatten()
            .map(|text| text.len());
        let attributes = self.attributes.iter().map(PackedAttribute::bytes);
        size_of_val(self) + size_of_val(&*self.addresses) + texts.chain(attributes).sum::<usize>()
    }
}

impl<'a> PackedAllocation<'a> {
    /// Calls `read` with the whole allocation, which exists only during the call.
    pub fn read<T>(&self, read: impl FnOnce(&Allocation<'_>) -> T) -> T {
        let attribute = self.attribute.map(PackedAttribute::unpack);
        let (ordinal, sequence) = (self.address.ordinal as usize, self.address.sequence);
        read(&Allocation {
            ip: self.ip,
            ordinal,
            attribute: attribute.as_ref(),
            sequence,
        })
    }

    /// Returns the allocation's handle; `None` if it is missing or empty.
    pub fn handle(&self) -> Option<HandleId> {
        self.handle_text().map(HandleId::new)
    }

    /// Returns the text of [`PackedAllocation::handle`], without a copy.
    pub(in crate::ipam) fn handle_text(&self) -> Option<&'a str> {
        self.attribute?
            .handle()
            .filter(|id| !id.is_empty())
            .map(HandleId::cut)
    }

    pub(in crate::ipam) fn is_windows_reserved(&self) -> bool {
        self.attribute
            .and_then(PackedAttribute::handle)
            .is_some_and(Attribute::is_handle_of_windows)
    }

    /// Does the same as [`Allocation::is_cooling`].
    pub fn is_cooling(&self) -> bool {
        self.attribute.is_some_and(|attribute| attribute.is_cooling)
    }
}
