//! [`ReleaseStep`]: the step for one address, handle or block. Each change is a compare-and-swap
//! against the objects read.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use datastore::Datastore;
use libcalico::ipam::{
    AllocatedAddress, Allocation, AllocationOwner, Block, HandleId, ReleaseError, ReleaseRequest,
    Repaired, SuspectHandle,
};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Store, StoreError};

use crate::cli::error::CliError;
use allocation::error::IpamError;
use allocation::exhausted::ReleaseGuard;
use allocation::release::handle_repair::repair_unwatched_handles;
use allocation::release::release_from_blocks;
use allocation::write_gate::OpenGate;
use os::clock::SystemClock;
use os::node_files::NodeFiles;

#[derive(Debug, PartialEq)]
pub(super) struct ReleaseStep {
    pub(super) target: String,
    pub(super) verdict: StepVerdict,
}

#[derive(Debug, PartialEq)]
pub(super) enum StepVerdict {
    Do(ReleaseChange),
    /// No change is necessary, or none that this command makes. The text is the reason.
    Leave(String),
    Refuse(String),
}

impl StepVerdict {
    pub(super) fn repair(&self) -> Option<&BlockRepair> {
        let StepVerdict::Do(ReleaseChange::Block(repair)) = self else {
            return None;
        };
        Some(repair)
    }
}

#[derive(Debug, PartialEq)]
pub(super) enum ReleaseChange {
    /// Releases the address, if its allocation is unchanged since it was read.
    Release {
        held: AllocatedAddress,
        /// The [`AllocationOwner::fingerprint`] of the allocation; `None` if its attributes are
        /// missing.
        fingerprint: Option<u32>,
    },
    /// Corrects the handle's counts, if the handle is still at the revision read.
    Handle(HandleFix),
    /// Repairs the block, if it is still at the revision read.
    Block(Box<BlockRepair>),
}

impl ReleaseChange {
    pub(super) fn name(&self) -> &'static str {
        match self {
            ReleaseChange::Release { .. } => "released",
            ReleaseChange::Handle(HandleFix { suspect, held }) => {
                match (&suspect.revision, held.is_empty()) {
                    (_, true) => "deleted",
                    (None, false) => "created",
                    (Some(_), false) => "corrected",
                }
            }
            ReleaseChange::Block(_) => "repaired",
        }
    }

    pub(super) fn reason(&self) -> String {
        match self {
            ReleaseChange::Release { held, .. } => owner_of(held),
            ReleaseChange::Handle(HandleFix { held, .. }) if held.is_empty() => {
                "no block names it".into()
            }
            ReleaseChange::Handle(HandleFix { held, .. }) => {
                let counts: Vec<String> = held
                    .iter()
                    .map(|(block, n)| format!("{n} in {block}"))
                    .collect();
                format!("it holds {}", counts.join(", "))
            }
            ReleaseChange::Block(repair) => repair.reason(),
        }
    }
}

#[derive(Debug, PartialEq)]
pub(super) struct HandleFix {
    pub(super) suspect: SuspectHandle,
    /// Number of the handle's addresses in each block. An empty map deletes the handle.
    pub(super) held: BTreeMap<Cidr, i64>,
}

#[derive(Debug, PartialEq)]
pub(super) struct BlockRepair {
    pub(super) read: Entry<Block>,
    pub(super) repaired: Repaired,
}

impl BlockRepair {
    pub(super) fn resolved_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let Repaired { freed, kept, .. } = &self.repaired;
        freed.iter().chain(kept).copied()
    }

    pub(super) fn repaired(&self) -> &Block {
        &self.repaired.block
    }

    pub(super) fn handles(&self) -> impl Iterator<Item = HandleId> {
        let Repaired { block, kept, .. } = &self.repaired;
        kept.iter().filter_map(|ip| block.allocation(*ip)?.handle())
    }

    pub(super) fn reason(&self) -> String {
        let Repaired { freed, kept, .. } = &self.repaired;
        let of = |addresses: &[IpAddr]| match addresses {
            [] => "no address".to_owned(),
            some => some
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", "),
        };
        format!(
            "free again: {}; kept for the recorded owners: {}",
            of(freed),
            of(kept)
        )
    }
}

/// Returns a description of an address's owner, without the address.
pub(super) fn owner_of(held: &AllocatedAddress) -> String {
    let text = held.to_string();
    let owner = text
        .strip_prefix(&format!("{} (", held.address))
        .and_then(|rest| rest.strip_suffix(')'));
    owner.unwrap_or(&text).to_owned()
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChangeOutcome {
    Applied,
    /// The change was not made, for this reason.
    Refused(String),
}

fn refused(reason: impl Into<String>) -> ChangeOutcome {
    ChangeOutcome::Refused(reason.into())
}

/// Releases addresses, each if its handle and sequence number are still the same. A block is
/// written once for all of its addresses, and a handle once. Returns the outcomes in the order of
/// `addresses`.
pub(super) async fn release_together(
    store: &Datastore,
    addresses: &[(AllocatedAddress, Option<u32>)],
) -> Vec<Result<ChangeOutcome, CliError>> {
    let _releasing = ReleaseGuard::of_node(&NodeFiles::of_this_node());
    let blocks: BTreeSet<Cidr> = addresses.iter().map(|(held, _)| held.block).collect();
    let requests = |block: &Block| {
        let in_block = addresses
            .iter()
            .filter(|(held, _)| held.block == block.cidr);
        let unchanged =
            in_block.filter(|(held, fingerprint)| has_same_owner(block, held, *fingerprint));
        unchanged.map(|(held, _)| request_for(held)).collect()
    };
    let batch = match release_from_blocks(store, &SystemClock::start(), blocks, requests).await {
        Ok(batch) => batch,
        Err(error) => {
            return addresses
                .iter()
                .map(|_| Err(error.clone().into()))
                .collect();
        }
    };
    let mut outcomes = BTreeMap::new();
    outcomes.extend(
        batch
            .released
            .iter()
            .map(|(_, ip)| (*ip, ChangeOutcome::Applied)),
    );
    outcomes.extend(
        batch
            .refused
            .iter()
            .filter_map(|(_, refusal)| match refusal {
                ReleaseError::Sequence { ip, .. } | ReleaseError::Handle { ip, .. } => {
                    Some((*ip, refused(refusal.to_string())))
                }
                ReleaseError::Corrupt(_) => None,
            }),
    );
    let released_by_others = batch
        .unallocated
        .iter()
        .map(|(_, ip)| (*ip, refused("another process released the address")));
    outcomes.extend(released_by_others);
    let outcome =
        |held: &AllocatedAddress| match batch.failed.iter().find(|(block, _)| *block == held.block)
        {
            Some((_, IpamError::Corrupt(corrupt))) => Ok(refused(corrupt.to_string())),
            Some((_, error)) => Err(error.clone().into()),
            None if batch.missing.contains(&held.block) => {
                Ok(refused("another process released the address"))
            }
            None => Ok(outcomes.remove(&held.address).unwrap_or_else(|| {
                refused("another process released the address or changed its owner")
            })),
        };
    addresses
        .iter()
        .map(|(held, _)| held)
        .map(outcome)
        .collect()
}

/// Returns false if the address has another owner and [`request_for`] would release it all the
/// same: it compares only the handle and the sequence number that the allocation had, and a
/// restarted virtual machine keeps both (KC-422).
fn has_same_owner(block: &Block, held: &AllocatedAddress, fingerprint: Option<u32>) -> bool {
    let Some(current) = block.allocation(held.address) else {
        return true;
    };
    let is_same_handle = current.handle() == held.handle.as_deref().map(HandleId::new);
    let is_same_sequence = current.sequence == held.sequence_number;
    match (is_same_handle, is_same_sequence) {
        (true, true) => fingerprint_of(&current) == fingerprint,
        (false, _) if held.handle.is_some() => true,
        (_, false) if held.sequence_number.is_some() => true,
        _ => false,
    }
}

fn request_for(held: &AllocatedAddress) -> ReleaseRequest {
    let handle = held.handle.as_deref().map(HandleId::new);
    ReleaseRequest {
        ip: held.address,
        handle,
        sequence: held.sequence_number,
    }
}

pub(super) fn fingerprint_of(allocation: &Allocation<'_>) -> Option<u32> {
    allocation.attribute.map(AllocationOwner::fingerprint)
}

/// Stores the counts of handles, each unless the handle or its blocks have changed. Returns the
/// outcomes in the order of `fixes`.
pub(super) async fn execute_fixes(
    store: &Datastore,
    fixes: Vec<HandleFix>,
) -> Vec<Result<ChangeOutcome, CliError>> {
    let _releasing = ReleaseGuard::of_node(&NodeFiles::of_this_node());
    let suspects: Vec<SuspectHandle> = fixes.into_iter().map(|fix| fix.suspect).collect();
    let mut outcomes = fix_together(store, &suspects).await;
    if suspects.len() > 1 {
        // A change of one block concerns all handles that count addresses of it, but no other ones.
        for (outcome, suspect) in outcomes.iter_mut().zip(&suspects) {
            if matches!(outcome, Ok(ChangeOutcome::Refused(_))) {
                let alone = fix_together(store, std::slice::from_ref(suspect))
                    .await
                    .pop();
                alone.into_iter().for_each(|alone| *outcome = alone);
            }
        }
    }
    outcomes
}

async fn fix_together(
    store: &Datastore,
    suspects: &[SuspectHandle],
) -> Vec<Result<ChangeOutcome, CliError>> {
    let repaired = match repair_unwatched_handles(store, &OpenGate, suspects).await {
        Ok(repaired) => repaired,
        Err(error) => return suspects.iter().map(|_| Err(error.clone().into())).collect(),
    };
    let outcome = |suspect: &SuspectHandle| {
        if let Some((_, error)) = repaired.failed.iter().find(|(id, _)| *id == suspect.id) {
            return Err(error.clone().into());
        }
        if repaired.unchanged.contains(&suspect.id) {
            return Ok(refused(
                "another process changed the handle or a block of it, or a block is corrupt",
            ));
        }
        Ok(ChangeOutcome::Applied)
    };
    suspects.iter().map(outcome).collect()
}

pub(super) async fn store_block(
    store: &Datastore,
    repair: BlockRepair,
) -> Result<ChangeOutcome, CliError> {
    let _releasing = ReleaseGuard::of_node(&NodeFiles::of_this_node());
    let BlockRepair {
        read,
        repaired: Repaired { mut block, .. },
    } = repair;
    block.count_write();
    match store
        .update::<Block>(&read.key, &block, &read.revision)
        .await
    {
        Ok(_) => Ok(ChangeOutcome::Applied),
        Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => {
            Ok(refused("another process changed the block"))
        }
        Err(error) => Err(error.into()),
    }
}
