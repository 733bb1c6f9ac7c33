//! Blocks against themselves, each other, the pools and the affinities.

use std::collections::HashMap;

use super::{Finding, Inventory};
use crate::ipam::{AffinityState, Block, Owner};
use crate::net::Cidr;

pub(super) fn findings(inventory: &Inventory<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for block in inventory.blocks.iter().map(|entry| &entry.value) {
        findings.extend(alone(block, inventory.pools));
    }
    findings.extend(overlaps(inventory));
    findings.extend(claims(inventory));
    findings
}

fn alone(block: &Block, pools: &[Cidr]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Err(problem) = block.verify() {
        findings.push(Finding::CorruptBlock { block: block.cidr, problem: problem.to_string() });
    } else if let Some(ordinal) = lost_ordinal(block) {
        let problem = format!("block {} lost ordinal {ordinal}: it is neither allocated nor free", block.cidr);
        findings.push(Finding::CorruptBlock { block: block.cidr, problem });
    }
    if !pools.iter().any(|pool| pool.covers(&block.cidr)) {
        findings.push(Finding::BlockOutsidePools {
            block: block.cidr,
            owner: block.affinity.clone(),
            in_use: block.allocated().count(),
        });
    }
    findings
}

fn lost_ordinal(block: &Block) -> Option<usize> {
    let mut known: Vec<bool> = block.allocations.iter().map(Option::is_some).collect();
    for &ordinal in &block.unallocated {
        known[ordinal] = true;
    }
    known.iter().position(|known| !known)
}

/// Sorted ranges either nest or lie apart, so a block can only overlap one that is still open around it.
fn overlaps(inventory: &Inventory<'_>) -> Vec<Finding> {
    let mut sorted: Vec<Cidr> = inventory.blocks.iter().map(|entry| entry.value.cidr).collect();
    sorted.sort();
    let mut open: Vec<Cidr> = Vec::new();
    let mut findings = Vec::new();
    for inner in sorted {
        open.retain(|outer| outer.covers(&inner));
        findings.extend(open.iter().map(|&outer| Finding::OverlappingBlocks { outer, inner }));
        open.push(inner);
    }
    findings
}

fn claims(inventory: &Inventory<'_>) -> Vec<Finding> {
    let owners: HashMap<Cidr, Option<Owner>> =
        inventory.blocks.iter().map(|entry| (entry.value.cidr, entry.value.owner())).collect();
    let states: HashMap<(&Owner, Cidr), AffinityState> =
        inventory.affinities.iter().map(|entry| ((&entry.key.owner, entry.key.cidr), entry.value.state)).collect();
    let unclaimed = owners.iter().filter_map(|(&block, owner)| {
        let owner = owner.as_ref()?;
        let state = match states.get(&(owner, block)) {
            None => None,
            Some(AffinityState::Confirmed | AffinityState::Unset) => return None,
            Some(AffinityState::Pending) => Some("pending".to_owned()),
            Some(AffinityState::PendingDeletion) => Some("pendingDeletion".to_owned()),
        };
        Some(Finding::BlockWithoutAffinity { block, owner: owner.to_string(), state })
    });
    let mut findings: Vec<Finding> = unclaimed.collect();
    findings.sort_by_key(|finding| match finding {
        Finding::BlockWithoutAffinity { block, .. } => Some(*block),
        _ => None,
    });
    findings.extend(inventory.affinities.iter().filter_map(|entry| {
        let owner = owners.get(&entry.key.cidr).cloned().flatten();
        (owner.as_ref() != Some(&entry.key.owner)).then(|| Finding::AffinityWithoutBlock {
            block: entry.key.cidr,
            claimant: entry.key.owner.to_string(),
            revision: entry.revision.to_string(),
            owner: owner.map(|owner| owner.to_string()),
        })
    }));
    findings
}
