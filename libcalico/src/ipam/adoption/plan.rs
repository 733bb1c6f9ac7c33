//! [`plan_adoption`]: decides for each claim what happens to its address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use time::{Duration, OffsetDateTime};

use super::{Claim, Claimant};
use crate::api::{IpPool, parse_time, seconds_in_utc};
use crate::failure::{Failure, OrFail};
use crate::ipam::{AllocatedAddress, Allocation, AllocationOwner, Block, HandleId, any_pool_of};
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
    Conflict(Failure),
}

fn joined<T: ToString>(items: &[T]) -> String {
    items
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(" and ")
}

fn not_in_pool() -> Failure {
    Failure::new("no IP pool contains it")
}

fn unreadable(block: &Cidr) -> Failure {
    Failure::new(format_args!(
        "block {block} cannot be read or is being deleted"
    ))
    .way_out("`calico-ipam check` names the reason")
}

/// Returns the failure if several blocks have the address, or if the block that it needs would
/// overlap with others.
fn overlapping_blocks(blocks: &[Cidr]) -> Failure {
    Failure::new("blocks of different sizes overlap there").because(joined(blocks))
}

/// Returns the decision about a claim. Pools that are disabled or for other uses, their selectors,
/// reservations, strict affinity and limits of blocks do not matter, because the address is in use.
pub fn plan_adoption(inputs: &AdoptionInputs<'_>, claim: &Claim) -> Adoption {
    decide(inputs, claim).unwrap_or_else(Adoption::Conflict)
}

fn decide(inputs: &AdoptionInputs<'_>, claim: &Claim) -> Result<Adoption, Failure> {
    let users = inputs.users.get(&claim.address).into_iter().flatten();
    let others: Vec<Claimant> = users
        .filter(|user| **user != claim.claimant)
        .cloned()
        .collect();
    if !others.is_empty() {
        return Err(
            Failure::new(format_args!("{} uses it too", joined(&others)))
                .way_out("delete one of the pods"),
        );
    }
    let containing: Vec<Cidr> = inputs
        .ranges
        .iter()
        .filter(|range| range.contains(claim.address))
        .copied()
        .collect();
    let pool = any_pool_of(inputs.pools, claim.address);
    if containing.is_empty() && pool.is_none() {
        return Err(not_in_pool());
    }
    let handle = claim.handle.clone()?;
    match containing[..] {
        [] => {}
        [range] => {
            let block = inputs.blocks.get(&range).filter(|block| !block.deleted);
            let mut block = block.cloned().ok_or_else(|| unreadable(&range))?;
            block
                .collect_garbage(inputs.cooldown_seconds, inputs.now)
                .map_err(|error| {
                    Failure::new(error).way_out("`calico-ipam check` names the repair")
                })?;
            return match block.allocation(claim.address) {
                Some(held) => decide_held(inputs, claim, &handle, range, &held),
                None if pool.is_none() => Err(not_in_pool()),
                None => Ok(Adoption::Allocate {
                    handle,
                    block: range,
                }),
            };
        }
        _ => return Err(overlapping_blocks(&containing)),
    }
    let pool = pool.ok_or_else(not_in_pool)?;
    let usable = pool.check_block_size();
    usable.or_fail(format_args!("IP pool {}", pool.name))?;
    let block = pool.block_of(claim.address).ok_or_else(not_in_pool)?;
    let overlapping: Vec<Cidr> = inputs
        .ranges
        .iter()
        .filter(|range| range.conflicts_with(&block))
        .copied()
        .collect();
    if !overlapping.is_empty() {
        return Err(overlapping_blocks(&overlapping));
    }
    Ok(Adoption::Allocate { handle, block })
}

fn decide_held(
    inputs: &AdoptionInputs<'_>,
    claim: &Claim,
    handle: &HandleId,
    block: Cidr,
    held: &Allocation<'_>,
) -> Result<Adoption, Failure> {
    if held.is_cooling() {
        let released = held
            .attribute
            .and_then(|attribute| parse_time(attribute.released_at.as_deref()?));
        let end = released
            .unwrap_or(inputs.now)
            .checked_add(Duration::seconds(inputs.cooldown_seconds.max(0)));
        let until = seconds_in_utc(end.unwrap_or(inputs.now));
        return Err(
            Failure::new(format_args!("cooling down until {until} after a release"))
                .way_out("adopt it then"),
        );
    }
    let named = AllocatedAddress::new(block, held);
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
        _ if names_claimant => Err(Failure::new("allocated to another container of the pod")
            .because(named)
            .way_out(
                "if that container is gone, `calico-ipam release --force` the address and adopt \
                 again",
            )),
        _ => Err(Failure::new("allocated to another owner")
            .because(named)
            .way_out(
                "delete the pod, or if that owner is gone, `calico-ipam release --force` the \
                 address and adopt again",
            )),
    }
}
