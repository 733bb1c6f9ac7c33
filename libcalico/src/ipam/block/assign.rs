//! Taking addresses out of a block (IPAM-165..IPAM-168).

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Attribute, Block, CorruptBlock};
use crate::ipam::{HandleId, Owner, Reservations};

/// For whom addresses are taken.
#[derive(Debug, Clone, Copy)]
pub struct AssignRequest<'a> {
    /// The handle that will hold them.
    pub handle: Option<&'a HandleId>,
    /// What is noted with them (IPAM-27).
    pub attributes: &'a BTreeMap<String, String>,
    /// Who asks.
    pub requester: &'a Owner,
    /// Refuse a block that is not the requester's: strict affinity (IPAM-104).
    pub check_affinity: bool,
}

/// Why nothing was assigned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssignError {
    /// The block is another's, and affinity is strict.
    #[error("block affinity ({affinity}) does not match provided ({requester})")]
    AffinityMismatch {
        /// The block's.
        affinity: String,
        /// Who asked.
        requester: Owner,
    },
    /// The block is nobody's, and affinity is strict.
    #[error("attempt to assign from block {0} with no affinity")]
    NoAffinity(String),
    /// The address is taken or cooling down. The text is upstream's (appendix B).
    #[error("Address already assigned in block")]
    AlreadyAssigned(IpAddr),
    /// The address lies elsewhere.
    #[error("IP {ip} not in block {cidr}")]
    NotInBlock {
        /// The address.
        ip: IpAddr,
        /// The block.
        cidr: String,
    },
    /// The block cannot be trusted.
    #[error(transparent)]
    Corrupt(#[from] CorruptBlock),
}

impl Block {
    /// Takes up to `n` addresses in the order of the free list, leaving reserved ones where they are (IPAM-165). Fewer,
    /// or none, is not an error.
    pub fn assign(
        &mut self,
        n: usize,
        request: &AssignRequest<'_>,
        reservations: &Reservations,
    ) -> Result<Vec<IpAddr>, AssignError> {
        self.verify()?;
        self.admit(request)?;
        let chosen: Vec<(usize, IpAddr)> =
            self.free_addresses().filter(|(_, ip)| !reservations.contains(*ip)).take(n).collect();
        self.take(chosen.iter().map(|&(ordinal, _)| ordinal), request);
        Ok(chosen.into_iter().map(|(_, ip)| ip).collect())
    }

    /// Takes one asked-for address. Reservations do not matter (IPAM-101, IPAM-134).
    pub fn assign_address(&mut self, ip: IpAddr, request: &AssignRequest<'_>) -> Result<(), AssignError> {
        self.verify()?;
        self.admit(request)?;
        let ordinal = self.ordinal_of(ip).ok_or_else(|| AssignError::NotInBlock { ip, cidr: self.cidr.to_string() })?;
        if !self.unallocated.contains(&ordinal) {
            return Err(AssignError::AlreadyAssigned(ip));
        }
        self.take(std::iter::once(ordinal), request);
        Ok(())
    }

    fn admit(&self, request: &AssignRequest<'_>) -> Result<(), AssignError> {
        if !request.check_affinity {
            return Ok(());
        }
        match self.owner() {
            None => Err(AssignError::NoAffinity(self.cidr.to_string())),
            Some(owner) if owner == *request.requester => Ok(()),
            Some(owner) => {
                Err(AssignError::AffinityMismatch { affinity: owner.to_string(), requester: request.requester.clone() })
            }
        }
    }

    /// Moves free ordinals from the free list to one attribute.
    fn take(&mut self, ordinals: impl ExactSizeIterator<Item = usize>, request: &AssignRequest<'_>) {
        if ordinals.len() == 0 {
            return;
        }
        let index = self.attribute_of(request.handle, request.attributes.clone());
        for ordinal in ordinals {
            self.allocations[ordinal] = Some(index);
            self.sequence_number_for_allocation.insert(ordinal.to_string(), self.sequence_number);
        }
        self.unallocated.retain(|&ordinal| self.allocations[ordinal].is_none());
    }

    /// The attribute of a new allocation: one that says exactly this, or a new one at the end (IPAM-168).
    pub(super) fn attribute_of(&mut self, handle: Option<&HandleId>, attributes: BTreeMap<String, String>) -> usize {
        let wanted =
            Attribute { handle_id: handle.map(ToString::to_string), active_owner: attributes, ..Attribute::default() };
        if let Some(index) = self.attributes.iter().position(|attribute| *attribute == wanted) {
            return index;
        }
        self.attributes.push(wanted);
        self.attributes.len() - 1
    }
}
