//! Compares handles with the blocks.
//!
//! Upstream's kube-controllers never lists handles, so orphaned handles accumulate there
//! (IPAM-230).

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::{AllocatedAddress, Finding, Inventory};
use crate::ipam::{Block, Handle, HandleId, PackedBlock, PackedHandle};
use crate::net::Cidr;
use crate::store::{Entry, Revision};

/// The handle and the block of each allocated address, in order. A map for each handle would take
/// much more memory.
struct HandlesInUse<'a>(Vec<(&'a str, Cidr)>);

impl<'a> HandlesInUse<'a> {
    fn of(inventory: &Inventory<'a>) -> Self {
        let of_block = |block: &'a PackedBlock| {
            block
                .allocated()
                .filter_map(|allocation| Some((allocation.handle_text()?, block.cidr)))
        };
        let mut held = Vec::with_capacity(inventory.blocks.iter().map(PackedBlock::in_use).sum());
        held.extend(inventory.blocks.iter().flat_map(of_block));
        held.sort_unstable();
        HandlesInUse(held)
    }

    /// Returns the number of addresses that each block has allocated to a handle.
    fn addresses_of(&self, handle: &str) -> BTreeMap<Cidr, usize> {
        let first = self.0.partition_point(|(id, _)| *id < handle);
        let mut held = BTreeMap::new();
        for (_, block) in self.0[first..].iter().take_while(|(id, _)| *id == handle) {
            *held.entry(*block).or_default() += 1;
        }
        held
    }
}

pub(super) fn findings(inventory: &Inventory<'_>) -> Vec<Finding> {
    let held = HandlesInUse::of(inventory);
    let mut findings: Vec<Finding> = inventory
        .handles
        .iter()
        .flat_map(|entry| handle_findings(entry, &held))
        .collect();
    findings.extend(missing_handles(inventory));
    findings
}

fn handle_findings(entry: &PackedHandle, held: &HandlesInUse<'_>) -> Vec<Finding> {
    let (handle, revision) = (entry.id_text().to_owned(), entry.revision().0);
    let counted = entry.counts();
    let held = held.addresses_of(HandleId::cut(entry.id_text()));
    if held.is_empty() {
        return vec![Finding::OrphanHandle {
            handle,
            revision,
            blocks: counted,
        }];
    }
    let finding = |(block, counted, held)| {
        let (handle, revision) = (handle.clone(), revision.clone());
        Finding::HandleCount {
            handle,
            revision,
            block,
            counted,
            held,
        }
    };
    miscounted(&counted, &held).map(finding).collect()
}

/// Returns the blocks in which a handle's count is wrong, each with the counted and the actual
/// number of addresses.
pub(in crate::ipam) fn miscounted<'a>(
    counted: &'a BTreeMap<Cidr, i64>,
    held: &'a BTreeMap<Cidr, usize>,
) -> impl Iterator<Item = (Cidr, i64, usize)> + 'a {
    let blocks: BTreeSet<Cidr> = counted.keys().chain(held.keys()).copied().collect();
    let counts = |cidr: Cidr| {
        (
            cidr,
            counted.get(&cidr).copied().unwrap_or(0),
            held.get(&cidr).copied().unwrap_or(0),
        )
    };
    blocks
        .into_iter()
        .map(counts)
        .filter(|&(_, counted, held)| usize::try_from(counted) != Ok(held))
}

/// Returns the addresses whose handle is missing. Those that Windows reserves never have a handle
/// object.
fn missing_handles(inventory: &Inventory<'_>) -> Vec<Finding> {
    let existing: HashSet<&str> = inventory
        .handles
        .iter()
        .map(|entry| HandleId::cut(entry.id_text()))
        .collect();
    let mut findings = Vec::new();
    for block in inventory.blocks {
        for allocation in block.allocated() {
            if !allocation.is_windows_reserved()
                && allocation
                    .handle_text()
                    .is_some_and(|handle| !existing.contains(handle))
            {
                findings.push(Finding::MissingHandle(
                    allocation.read(|held| AllocatedAddress::new(block.cidr, held)),
                ));
            }
        }
    }
    findings
}

/// A handle that has disagreed with the blocks for the grace period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuspectHandle {
    /// The handle.
    pub id: HandleId,
    /// The handle's revision throughout the grace period; `None` if the handle was missing.
    pub revision: Option<Revision>,
    /// The blocks to read before [`repair`].
    pub blocks: BTreeSet<Cidr>,
}

/// The correction of a handle.
#[derive(Debug, Clone, PartialEq)]
pub enum HandleRepair {
    /// No correction.
    Keep,
    /// Deletes the handle at the revision that was read.
    Delete,
    /// Stores this value in place of the handle, or creates the handle if it is missing.
    Write(Handle),
}

/// Returns the correction of a handle, given the handle and its blocks as just read.
///
/// `block` returns `None` for a block that was not read or is unreadable, `Some(None)` for a
/// missing one. When in doubt, the handle is kept.
pub fn repair<'b>(
    suspect: &SuspectHandle,
    handle: Option<&Entry<Handle>>,
    block: impl Fn(&Cidr) -> Option<Option<&'b Block>>,
) -> HandleRepair {
    if handle.map(|entry| &entry.revision) != suspect.revision.as_ref() {
        return HandleRepair::Keep;
    }
    let handle = handle.map(|entry| &entry.value);
    let id = HandleId::new(suspect.id.as_str());
    let mut held = BTreeMap::new();
    for cidr in handle
        .into_iter()
        .flat_map(|handle| handle.block.keys())
        .chain(&suspect.blocks)
    {
        match block(cidr) {
            Some(Some(block)) if block.verify().is_ok() => match block.addresses_of(&id).len() {
                0 => {}
                n => _ = held.insert(*cidr, n),
            },
            Some(None) => {}
            Some(Some(_)) | None => return HandleRepair::Keep,
        }
    }
    match handle {
        None if held.is_empty() => HandleRepair::Keep,
        Some(_) if held.is_empty() => HandleRepair::Delete,
        Some(handle) if handle.deleted => HandleRepair::Keep,
        Some(handle) if miscounted(&handle.block, &held).next().is_none() => HandleRepair::Keep,
        handle => {
            let mut repaired = handle.cloned().unwrap_or_default();
            repaired.block.clear();
            held.into_iter()
                .for_each(|(cidr, n)| repaired.increment(cidr, n));
            HandleRepair::Write(repaired)
        }
    }
}
