//! [`Take`]: addresses chosen in memory, and the block as it has to be written to have them.

use std::net::IpAddr;

use libcalico::ipam::{
    AffinityKey, AffinityState, Allocation, AssignError, AssignRequest as BlockRequest, Block, BlockAffinity, Owner,
};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Revision, StoreError, Write};

use crate::error::IpamError;
use crate::knowledge::Knowledge;
use crate::request::AssignRequest;

/// Addresses of one block, taken in memory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Take {
    /// The addresses.
    pub(crate) addresses: Vec<IpAddr>,
    /// The block with them taken, counted as written.
    pub(crate) block: Block,
    /// The revision the block was read at; `None` creates it.
    pub(crate) revision: Option<Revision>,
    /// The claim that has to be made around the write: pending before, confirmed after (IPAM-121).
    pub(crate) claim: Option<ClaimFrom>,
}

/// What there is of a claim before it is made.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ClaimFrom {
    /// Nothing.
    Nothing,
    /// An affinity of an earlier attempt, in whatever state. It is written as pending again, so that whoever is about
    /// to release it finds out (IPAM-122).
    Affinity(Entry<BlockAffinity>),
}

impl ClaimFrom {
    /// The write that makes `owner`'s claim to `cidr` pending.
    pub(crate) fn pending(&self, owner: &Owner, cidr: Cidr) -> Result<Write, StoreError> {
        let key = AffinityKey { owner: owner.clone(), cidr };
        match self {
            ClaimFrom::Nothing => Write::create::<BlockAffinity>(&key, &self.value()),
            ClaimFrom::Affinity(read) => Write::update::<BlockAffinity>(&key, &self.value(), &read.revision),
        }
    }

    /// The claim that was written as pending at `revision`.
    pub(crate) fn written(&self, owner: &Owner, cidr: Cidr, revision: Revision) -> Entry<BlockAffinity> {
        Entry { key: AffinityKey { owner: owner.clone(), cidr }, value: self.value(), revision }
    }

    /// Whether nobody has changed what there was.
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
    /// Up to `n` addresses of an existing block; `None` when it has none for this owner.
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

    /// Up to `n` addresses of a block to be created.
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

    /// One asked-for address of a block that exists or is to be created.
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

    /// Whether `stored` holds the addresses as this take would have written them: what tells, after a write of unknown
    /// outcome, that it was applied (IPAM-184). The attributes carry the time, so that no other request's look the same.
    pub(crate) fn is_in(&self, request: &AssignRequest, stored: &Block) -> bool {
        self.addresses.iter().all(|ip| stored.allocation(*ip).is_some_and(|held| is_as_taken(request, &held)))
    }
}

/// Returns true if an allocation is as `request` has written it.
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
