//! Checks each block, and compares blocks with each other, with the pools and with the affinities.

use std::collections::HashMap;

use super::{Finding, Inventory};
use crate::ipam::{AffinityKey, AffinityOwner, AffinityState, BlockAffinity, PackedBlock};
use crate::net::Cidr;
use crate::store::Entry;

pub(super) fn findings(inventory: &Inventory<'_>) -> Vec<Finding> {
    let single = inventory
        .blocks
        .iter()
        .flat_map(|block| single_block_findings(block, inventory.pools));
    let mut findings: Vec<Finding> = single.collect();
    findings.extend(overlaps(inventory));
    findings.extend(affinity_findings(inventory));
    findings
}

fn single_block_findings(block: &PackedBlock, pools: &[Cidr]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(problem) = block.contradiction() {
        findings.push(Finding::CorruptBlock {
            block: block.cidr,
            problem: problem.to_owned(),
        });
    }
    if block.awaits_deletion() {
        findings.push(Finding::UnfinishedDeletion { block: block.cidr });
    }
    if !pools.iter().any(|pool| pool.covers(&block.cidr)) {
        let (owner, in_use) = (block.affinity().map(str::to_owned), block.in_use());
        findings.push(Finding::BlockOutsidePools {
            block: block.cidr,
            owner,
            in_use,
        });
    }
    findings
}

/// Returns every pair of overlapping blocks. A block overlaps exactly those earlier blocks in the
/// sorted list that contain it.
fn overlaps(inventory: &Inventory<'_>) -> Vec<Finding> {
    let mut sorted: Vec<Cidr> = inventory.blocks.iter().map(|block| block.cidr).collect();
    sorted.sort();
    let mut open: Vec<Cidr> = Vec::new();
    let mut findings = Vec::new();
    for inner in sorted {
        open.retain(|outer| outer.covers(&inner));
        findings.extend(
            open.iter()
                .map(|&outer| Finding::OverlappingBlocks { outer, inner }),
        );
        open.push(inner);
    }
    findings
}

fn affinity_findings(inventory: &Inventory<'_>) -> Vec<Finding> {
    let blocks: HashMap<Cidr, &PackedBlock> = inventory
        .blocks
        .iter()
        .map(|block| (block.cidr, block))
        .collect();
    let mut findings = blocks_without_affinity(inventory, blocks.values().copied());
    let finding = |entry: &Entry<BlockAffinity>| {
        affinity_finding(entry, blocks.get(&entry.key.cidr).copied())
    };
    findings.extend(inventory.affinities.iter().filter_map(finding));
    findings
}

/// Returns a finding for each block whose owner has no confirmed affinity for it. An unfinished
/// affinity is sufficient for an empty block, and none is necessary for a block that is about to be
/// deleted.
fn blocks_without_affinity<'a>(
    inventory: &Inventory<'_>,
    blocks: impl Iterator<Item = &'a PackedBlock>,
) -> Vec<Finding> {
    let states: HashMap<(&AffinityOwner, Cidr), AffinityState> = inventory
        .affinities
        .iter()
        .map(|entry| ((&entry.key.owner, entry.key.cidr), entry.value.state))
        .collect();
    let without_affinity = blocks.filter_map(|block| {
        let owner = block.owner().filter(|_| !block.awaits_deletion())?;
        let state = match states.get(&(&owner, block.cidr)) {
            None => None,
            Some(state) => Some(unfinished(*state).filter(|_| !block.is_empty())?),
        };
        Some((block.cidr, owner, state))
    });
    let mut sorted: Vec<(Cidr, AffinityOwner, Option<&str>)> = without_affinity.collect();
    sorted.sort();
    let finding = |(block, owner, state): (Cidr, AffinityOwner, Option<&str>)| {
        Finding::BlockWithoutAffinity {
            block,
            owner: owner.to_string(),
            state: state.map(str::to_owned),
        }
    };
    sorted.into_iter().map(finding).collect()
}

fn affinity_finding(
    affinity: &Entry<BlockAffinity>,
    block: Option<&PackedBlock>,
) -> Option<Finding> {
    let AffinityKey {
        owner: claimant,
        cidr,
    } = &affinity.key;
    let owner = block.and_then(PackedBlock::owner);
    let is_owner = owner.as_ref() == Some(claimant);
    let (claimant, revision) = (claimant.to_string(), affinity.revision.to_string());
    match unfinished(affinity.value.state) {
        Some(_) if is_owner && block.is_some_and(|block| !block.is_empty()) => None,
        Some(state) => Some(Finding::UnfinishedClaim {
            block: *cidr,
            claimant,
            revision,
            state: state.to_owned(),
        }),
        None if is_owner => None,
        None => {
            let owner = owner.map(|owner| owner.to_string());
            Some(Finding::AffinityWithoutBlock {
                block: *cidr,
                claimant,
                revision,
                owner,
            })
        }
    }
}

/// Returns the name of an unfinished state. An affinity in such a state gives no ownership of the
/// block (IPAM-121).
fn unfinished(state: AffinityState) -> Option<&'static str> {
    match state {
        AffinityState::Confirmed | AffinityState::Unset => None,
        AffinityState::Pending => Some("pending"),
        AffinityState::PendingDeletion => Some("pendingDeletion"),
    }
}
