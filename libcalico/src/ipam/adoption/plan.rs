//! [`plan_adoption`]: decides for each claim what happens to its address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use time::{Duration, OffsetDateTime};

use super::{Claim, Claimant, UnprovenOwner};
use crate::api::{IpPool, parse_time, seconds_in_utc};
use crate::ipam::{
    AllocatedAddress, Allocation, AllocationOwner, Block, CorruptBlock, HandleId, PoolRejection,
    any_pool_of,
};
use crate::net::Cidr;

/// The objects from which an adoption is planned.
#[derive(Debug, Clone)]
pub struct AdoptionInputs<'a> {
    /// The workloads of the whole cluster that use each address, according to the nodes.
    pub users: &'a BTreeMap<IpAddr, BTreeSet<Claimant>>,
    /// All pools, also those that are disabled.
    pub pools: &'a [IpPool],
    /// The ranges of all blocks, also of those that cannot be read.
    pub ranges: &'a BTreeSet<Cidr>,
    /// The readable blocks that contain a claimed address.
    pub blocks: &'a BTreeMap<Cidr, Block>,
    /// The cooldown of released addresses in seconds.
    pub cooldown_seconds: i64,
    /// The time of the read.
    pub now: OffsetDateTime,
}

/// The decision about the address of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adoption {
    /// The address is free: allocate it to this handle in this block, which may have to be created.
    Allocate {
        /// The handle.
        handle: HandleId,
        /// The block.
        block: Cidr,
    },
    /// The address is allocated to the workload already.
    Held {
        /// The block.
        block: Cidr,
    },
    /// A person has to decide.
    Conflict(AdoptionConflict),
}

/// The reason why an address is not adopted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdoptionConflict {
    /// Other workloads use the address too.
    #[error("{} uses it too; delete one of the pods", joined(.0))]
    SeveralUsers(Vec<Claimant>),
    /// The workload's handle is not proven.
    #[error(transparent)]
    Unproven(UnprovenOwner),
    /// The address is allocated to another owner.
    #[error(
        "allocated to another owner: {0}; delete the pod, or if that owner is gone, `calico-ipam \
         release --force` the address and adopt again"
    )]
    HeldByAnother(AllocatedAddress),
    /// The address is allocated to another container of the same pod.
    #[error(
        "allocated to another container of the pod: {0}; if that container is gone, `calico-ipam \
         release --force` the address and adopt again"
    )]
    HeldByOtherContainer(AllocatedAddress),
    /// The address was released a short while ago.
    #[error("cooling down until {until} after a release; adopt it then")]
    Cooling {
        /// The end of the cooldown, in RFC 3339.
        until: String,
    },
    /// No pool contains the address.
    #[error("no IP pool contains it")]
    NotInPool,
    /// The pool that contains the address cannot have blocks.
    #[error("IP pool {pool}: {refusal}")]
    UnusablePool {
        /// The pool's name.
        pool: String,
        /// The reason.
        refusal: PoolRejection,
    },
    /// Several blocks have the address, or the block that it needs would overlap with others.
    #[error("blocks of different sizes overlap there: {}", joined(.0))]
    OverlappingBlocks(Vec<Cidr>),
    /// The block cannot be read, or is being deleted.
    #[error("block {0} cannot be read or is being deleted; `calico-ipam check` names the reason")]
    UnreadableBlock(Cidr),
    /// The block contradicts itself.
    #[error("{0}; `calico-ipam check` names the repair")]
    Corrupt(CorruptBlock),
    /// A write found another state than the plan.
    #[error("{0}")]
    NotWritten(String),
}

fn joined<T: ToString>(items: &[T]) -> String {
    items
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(" and ")
}

/// Returns the decision about a claim. Pools that are disabled or for other uses, their selectors,
/// reservations, strict affinity and limits of blocks do not matter, because the address is in use.
pub fn plan_adoption(inputs: &AdoptionInputs<'_>, claim: &Claim) -> Adoption {
    decide(inputs, claim).unwrap_or_else(Adoption::Conflict)
}

fn decide(inputs: &AdoptionInputs<'_>, claim: &Claim) -> Result<Adoption, AdoptionConflict> {
    let users = inputs.users.get(&claim.address).into_iter().flatten();
    let others: Vec<Claimant> = users
        .filter(|user| **user != claim.claimant)
        .cloned()
        .collect();
    if !others.is_empty() {
        return Err(AdoptionConflict::SeveralUsers(others));
    }
    let containing: Vec<Cidr> = inputs
        .ranges
        .iter()
        .filter(|range| range.contains(claim.address))
        .copied()
        .collect();
    let pool = any_pool_of(inputs.pools, claim.address);
    if containing.is_empty() && pool.is_none() {
        return Err(AdoptionConflict::NotInPool);
    }
    let handle = claim.handle.clone().map_err(AdoptionConflict::Unproven)?;
    match containing[..] {
        [] => {}
        [range] => {
            let block = inputs.blocks.get(&range).filter(|block| !block.deleted);
            let mut block = block
                .cloned()
                .ok_or(AdoptionConflict::UnreadableBlock(range))?;
            block
                .collect_garbage(inputs.cooldown_seconds, inputs.now)
                .map_err(AdoptionConflict::Corrupt)?;
            return match block.allocation(claim.address) {
                Some(held) => decide_held(inputs, claim, &handle, range, &held),
                None if pool.is_none() => Err(AdoptionConflict::NotInPool),
                None => Ok(Adoption::Allocate {
                    handle,
                    block: range,
                }),
            };
        }
        _ => return Err(AdoptionConflict::OverlappingBlocks(containing)),
    }
    let pool = pool.ok_or(AdoptionConflict::NotInPool)?;
    let unusable = |refusal| AdoptionConflict::UnusablePool {
        pool: pool.name.clone(),
        refusal,
    };
    pool.check_block_size().map_err(unusable)?;
    let block = pool
        .block_of(claim.address)
        .ok_or(AdoptionConflict::NotInPool)?;
    let overlapping: Vec<Cidr> = inputs
        .ranges
        .iter()
        .filter(|range| range.conflicts_with(&block))
        .copied()
        .collect();
    if !overlapping.is_empty() {
        return Err(AdoptionConflict::OverlappingBlocks(overlapping));
    }
    Ok(Adoption::Allocate { handle, block })
}

fn decide_held(
    inputs: &AdoptionInputs<'_>,
    claim: &Claim,
    handle: &HandleId,
    block: Cidr,
    held: &Allocation<'_>,
) -> Result<Adoption, AdoptionConflict> {
    if held.is_cooling() {
        let released = held
            .attribute
            .and_then(|attribute| parse_time(attribute.released_at.as_deref()?));
        let end = released
            .unwrap_or(inputs.now)
            .checked_add(Duration::seconds(inputs.cooldown_seconds.max(0)));
        return Err(AdoptionConflict::Cooling {
            until: seconds_in_utc(end.unwrap_or(inputs.now)),
        });
    }
    let named = || AllocatedAddress::new(block, held);
    let names_claimant = match &claim.claimant {
        Claimant::Pod { namespace, name } => held.attribute.is_some_and(|attribute| {
            AllocationOwner::owners(attribute).any(|pod| pod == (namespace.as_str(), name.as_str()))
        }),
        Claimant::Container(_) | Claimant::Tunnel(_) => false,
    };
    match held.handle() {
        // A virtual machine's handle is the same for each of its pods.
        Some(found) if found == *handle && (names_claimant || !handle.may_be_of_vmi()) => {
            Ok(Adoption::Held { block })
        }
        _ if names_claimant => Err(AdoptionConflict::HeldByOtherContainer(named())),
        _ => Err(AdoptionConflict::HeldByAnother(named())),
    }
}
