//! Assigns addresses from a block.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Attribute, Block, CorruptBlock};
use crate::ipam::{AffinityOwner, HandleId, Reservations};

/// The requester and the attributes of new allocations.
#[derive(Debug, Clone, Copy)]
pub struct BlockRequest<'a> {
    /// The handle of the allocations.
    pub handle: Option<&'a HandleId>,
    /// The attributes to store with the allocations, such as `node` and `pod`.
    pub attributes: &'a BTreeMap<String, String>,
    /// The owner that requests the addresses.
    pub requester: &'a AffinityOwner,
    /// Whether to refuse a block of another owner or none, as strict affinity demands.
    pub check_affinity: bool,
}

/// The reason why no address was assigned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssignError {
    /// The block belongs to another owner, and affinity is strict.
    #[error("block affinity ({affinity}) does not match provided ({requester})")]
    AffinityMismatch {
        /// The block's owner.
        affinity: String,
        /// The requester.
        requester: AffinityOwner,
    },
    /// The block has no owner, and affinity is strict.
    #[error("attempt to assign from block {0} with no affinity")]
    NoAffinity(String),
    /// The address is not in the free list. Upstream's text.
    #[error("Address already assigned in block")]
    AlreadyAssigned(IpAddr),
    /// The address is outside the block.
    #[error("IP {ip} not in block {cidr}")]
    NotInBlock {
        /// The address.
        ip: IpAddr,
        /// The block.
        cidr: String,
    },
    /// The block is corrupt.
    #[error(transparent)]
    Corrupt(#[from] CorruptBlock),
}

impl Block {
    /// Assigns up to `n` addresses in the order of the free list. Reserved ones are skipped
    /// (IPAM-101).
    pub fn assign(
        &mut self,
        n: usize,
        request: &BlockRequest<'_>,
        reservations: &Reservations,
    ) -> Result<Vec<IpAddr>, AssignError> {
        self.verify()?;
        self.check_owner(request)?;
        let chosen: Vec<_> = self
            .free_addresses()
            .filter(|(_, ip)| !reservations.contains(*ip))
            .take(n)
            .collect();
        self.allocate(chosen.iter().map(|&(ordinal, _)| ordinal), request);
        Ok(chosen.into_iter().map(|(_, ip)| ip).collect())
    }

    /// Assigns a requested address, even one that an IPReservation covers (IPAM-101).
    pub fn assign_address(
        &mut self,
        ip: IpAddr,
        request: &BlockRequest<'_>,
    ) -> Result<(), AssignError> {
        self.verify()?;
        self.check_owner(request)?;
        let ordinal = self.ordinal_of(ip).ok_or_else(|| AssignError::NotInBlock {
            ip,
            cidr: self.cidr.to_string(),
        })?;
        if !self.unallocated.contains(&ordinal) {
            return Err(AssignError::AlreadyAssigned(ip));
        }
        self.allocate(std::iter::once(ordinal), request);
        Ok(())
    }

    fn check_owner(&self, request: &BlockRequest<'_>) -> Result<(), AssignError> {
        if !request.check_affinity {
            return Ok(());
        }
        match self.owner() {
            None => Err(AssignError::NoAffinity(self.cidr.to_string())),
            Some(owner) if owner == *request.requester => Ok(()),
            Some(owner) => Err(AssignError::AffinityMismatch {
                affinity: owner.to_string(),
                requester: request.requester.clone(),
            }),
        }
    }

    fn allocate(
        &mut self,
        ordinals: impl ExactSizeIterator<Item = usize>,
        request: &BlockRequest<'_>,
    ) {
        if ordinals.len() == 0 {
            return;
        }
        let index = self.attribute_of(request.handle, request.attributes.clone());
        for ordinal in ordinals {
            self.allocations[ordinal] = Some(index);
            self.sequence_number_for_allocation
                .insert(ordinal.to_string(), self.sequence_number);
        }
        self.unallocated
            .retain(|&ordinal| self.allocations[ordinal].is_none());
    }

    /// Returns the index of an identical attribute, or appends one (IPAM-168).
    pub(super) fn attribute_of(
        &mut self,
        handle: Option<&HandleId>,
        active_owner: BTreeMap<String, String>,
    ) -> usize {
        let wanted = Attribute {
            handle_id: handle.map(ToString::to_string),
            active_owner,
            ..Attribute::default()
        };
        if let Some(index) = self
            .attributes
            .iter()
            .position(|attribute| *attribute == wanted)
        {
            return index;
        }
        self.attributes.push(wanted);
        self.attributes.len() - 1
    }
}
