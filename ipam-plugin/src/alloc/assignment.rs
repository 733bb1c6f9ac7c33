//! [`BlockAssignment`]: addresses assigned in memory, with the block that has to be written to assign them.

use std::net::IpAddr;

use libcalico::ipam::{Allocation, AssignError, AssignRequest as BlockRequest, Block, Owner};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Revision};

use crate::alloc::request::AssignRequest;
use crate::alloc::snapshot::Snapshot;
use crate::block_writes::PriorAffinity;
use crate::error::IpamError;

/// Addresses of one block, assigned in memory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BlockAssignment {
    /// The addresses.
    pub(crate) addresses: Vec<IpAddr>,
    /// The block with the addresses assigned and its sequence number incremented.
    pub(crate) block: Block,
    /// The revision at which the block was read; `None` creates the block.
    pub(crate) revision: Option<Revision>,
    /// The affinity to write with the block: pending before the block, confirmed after it (IPAM-121).
    pub(crate) claim: Option<PriorAffinity>,
}

impl BlockAssignment {
    /// Assigns up to `n` addresses of an existing block. Returns `None` if the block has none for this owner.
    pub(crate) fn of_block(
        request: &AssignRequest,
        owner: &Owner,
        snapshot: &Snapshot,
        block: &Entry<Block>,
        n: usize,
        claim: Option<PriorAffinity>,
    ) -> Result<Option<BlockAssignment>, IpamError> {
        let revision = Some(block.revision.clone());
        Self::of(request, owner, snapshot, block.value.clone(), revision, n, claim)
    }

    /// Assigns up to `n` addresses of a block to be created.
    pub(crate) fn of_new_block(
        request: &AssignRequest,
        owner: &Owner,
        snapshot: &Snapshot,
        cidr: Cidr,
        n: usize,
        claim: PriorAffinity,
    ) -> Result<Option<BlockAssignment>, IpamError> {
        let block = Block::new(cidr, owner, snapshot.now)?;
        Self::of(request, owner, snapshot, block, None, n, Some(claim))
    }

    fn of(
        request: &AssignRequest,
        owner: &Owner,
        snapshot: &Snapshot,
        mut block: Block,
        revision: Option<Revision>,
        n: usize,
        claim: Option<PriorAffinity>,
    ) -> Result<Option<BlockAssignment>, IpamError> {
        let from = block_request(request, owner, snapshot.config().strict_affinity);
        match block.assign(n, &from, &snapshot.reservations) {
            Ok(addresses) if addresses.is_empty() => Ok(None),
            Ok(addresses) => {
                block.count_write();
                Ok(Some(BlockAssignment { addresses, block, revision, claim }))
            }
            Err(AssignError::AffinityMismatch { .. } | AssignError::NoAffinity(_) | AssignError::Corrupt(_)) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Assigns a requested address of a block that exists or is to be created.
    pub(crate) fn of_address(
        request: &AssignRequest,
        strict: bool,
        ip: IpAddr,
        mut block: Block,
        revision: Option<Revision>,
        claim: Option<PriorAffinity>,
    ) -> Result<BlockAssignment, AssignError> {
        block.assign_address(ip, &block_request(request, &request.owner(), strict))?;
        block.count_write();
        Ok(BlockAssignment { addresses: vec![ip], block, revision, claim })
    }

    pub(crate) fn cidr(&self) -> Cidr {
        self.block.cidr
    }

    /// Returns true if `stored` contains the addresses as this assignment writes them, which shows after an unknown outcome
    /// that the write was applied. The attributes contain the time, so the allocations of another request differ.
    pub(crate) fn is_in(&self, request: &AssignRequest, stored: &Block) -> bool {
        self.addresses.iter().all(|ip| stored.allocation(*ip).is_some_and(|held| is_as_taken(request, &held)))
    }
}

/// Returns true if an allocation equals the one that `request` writes.
pub(crate) fn is_as_taken(request: &AssignRequest, held: &Allocation<'_>) -> bool {
    held.handle().as_ref() == Some(&request.handle) && held.attributes() == Some(&request.attributes)
}

fn block_request<'a>(request: &'a AssignRequest, owner: &'a Owner, strict: bool) -> BlockRequest<'a> {
    BlockRequest {
        handle: Some(&request.handle),
        attributes: &request.attributes,
        requester: owner,
        check_affinity: strict,
    }
}
