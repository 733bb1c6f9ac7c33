//! [`Take`]: addresses assigned in memory, with the block that has to be written to assign them.

use std::net::IpAddr;

use libcalico::ipam::{
    AffinityKey, AffinityState, Allocation, AssignError, AssignRequest as BlockRequest, Block, BlockAffinity, Owner,
};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Revision, StoreError, Write};

use crate::error::IpamError;
use crate::knowledge::Knowledge;
use crate::request::AssignRequest;

/// Addresses of one block, assigned in memory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Take {
    /// The addresses.
    pub(crate) addresses: Vec<IpAddr>,
    /// The block with the addresses assigned and its sequence number incremented.
    pub(crate) block: Block,
    /// The revision at which the block was read; `None` creates the block.
    pub(crate) revision: Option<Revision>,
    /// The affinity to write with the block: pending before the block, confirmed after it (IPAM-121).
    pub(crate) claim: Option<ClaimFrom>,
}

/// The affinity from which a claim starts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ClaimFrom {
    /// No affinity exists.
    Nothing,
    /// An affinity of an earlier attempt, in any state. Writing it as pending again makes a concurrent release of the
    /// block fail.
    Affinity(Entry<BlockAffinity>),
}

impl ClaimFrom {
    /// Returns the write that makes `owner`'s affinity to `cidr` pending.
    pub(crate) fn pending(&self, owner: &Owner, cidr: Cidr) -> Result<Write, StoreError> {
        let key = AffinityKey { owner: owner.clone(), cidr };
        match self {
            ClaimFrom::Nothing => Write::create::<BlockAffinity>(&key, &self.value()),
            ClaimFrom::Affinity(read) => Write::update::<BlockAffinity>(&key, &self.value(), &read.revision),
        }
    }

    /// Returns the affinity that was written as pending at `revision`.
    pub(crate) fn written(&self, owner: &Owner, cidr: Cidr, revision: Revision) -> Entry<BlockAffinity> {
        Entry { key: AffinityKey { owner: owner.clone(), cidr }, value: self.value(), revision }
    }

    /// Returns true if the affinity is unchanged since it was read.
    pub(crate) fn is_still(&self, now: Option<&Entry<BlockAffinity>>) -> bool {
        match self {
            ClaimFrom::Nothing => now.is_none(),
            ClaimFrom::Affinity(read) => now.is_some_and(|now| now.revision == read.revision),
        }
    }

    fn value(&self) -> BlockAffinity {
        let before = match self {
            ClaimFrom::Nothing => BlockAffinity::default(),
            ClaimFrom::Affinity(read) => read.value.clone(),
        };
        BlockAffinity { state: AffinityState::Pending, ..before }
    }
}

impl Take {
    /// Assigns up to `n` addresses of an existing block. Returns `None` if the block has none for this owner.
    pub(crate) fn of_block(
        request: &AssignRequest,
        owner: &Owner,
        known: &Knowledge,
        block: &Entry<Block>,
        n: usize,
        claim: Option<ClaimFrom>,
    ) -> Result<Option<Take>, IpamError> {
        let revision = Some(block.revision.clone());
        Self::of(request, owner, known, block.value.clone(), revision, n, claim)
    }

    /// Assigns up to `n` addresses of a block to be created.
    pub(crate) fn of_new_block(
        request: &AssignRequest,
        owner: &Owner,
        known: &Knowledge,
        cidr: Cidr,
        n: usize,
        claim: ClaimFrom,
    ) -> Result<Option<Take>, IpamError> {
        let block = Block::new(cidr, owner, known.now)?;
        Self::of(request, owner, known, block, None, n, Some(claim))
    }

    fn of(
        request: &AssignRequest,
        owner: &Owner,
        known: &Knowledge,
        mut block: Block,
        revision: Option<Revision>,
        n: usize,
        claim: Option<ClaimFrom>,
    ) -> Result<Option<Take>, IpamError> {
        let from = block_request(request, owner, known.config().strict_affinity);
        match block.assign(n, &from, &known.reservations) {
            Ok(addresses) if addresses.is_empty() => Ok(None),
            Ok(addresses) => {
                block.count_write();
                Ok(Some(Take { addresses, block, revision, claim }))
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
        claim: Option<ClaimFrom>,
    ) -> Result<Take, AssignError> {
        block.assign_address(ip, &block_request(request, &request.owner(), strict))?;
        block.count_write();
        Ok(Take { addresses: vec![ip], block, revision, claim })
    }

    pub(crate) fn cidr(&self) -> Cidr {
        self.block.cidr
    }

    /// Returns true if `stored` contains the addresses as this take writes them, which shows after an unknown outcome
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
