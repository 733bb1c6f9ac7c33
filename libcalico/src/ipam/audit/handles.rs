//! Compares handles with the blocks that they count addresses in and the blocks that name them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{Finding, HeldAddress, Inventory};
use crate::ipam::{Handle, HandleId};
use crate::net::Cidr;
use crate::store::Entry;

/// The number of addresses that each block has allocated to each handle.
type Held = HashMap<HandleId, BTreeMap<Cidr, usize>>;

pub(super) fn findings(inventory: &Inventory<'_>) -> Vec<Finding> {
    let held = held(inventory);
    let mut findings: Vec<Finding> = inventory.handles.iter().flat_map(|entry| of_handle(entry, &held)).collect();
    findings.extend(missing(inventory));
    findings
}

fn held(inventory: &Inventory<'_>) -> Held {
    let mut held = Held::new();
    for block in inventory.blocks.iter().map(|entry| &entry.value) {
        for handle in block.allocated().filter_map(|allocation| allocation.handle()) {
            *held.entry(handle).or_default().entry(block.cidr).or_default() += 1;
        }
    }
    held
}

fn of_handle(entry: &Entry<Handle>, held: &Held) -> Vec<Finding> {
    let (handle, revision) = (entry.key.to_string(), entry.revision.to_string());
    let counted = &entry.value.block;
    let Some(held) = held.get(&HandleId::new(entry.key.as_str())) else {
        return vec![Finding::OrphanHandle { handle, revision, blocks: counted.clone() }];
    };
    let finding = |(block, counted, held)| {
        let (handle, revision) = (handle.clone(), revision.clone());
        Finding::HandleCount { handle, revision, block, counted, held }
    };
    miscounted(counted, held).map(finding).collect()
}

/// Returns the blocks in which a handle's count is wrong, each with the counted and the actual number of addresses.
pub(in crate::ipam) fn miscounted<'a>(
    counted: &'a BTreeMap<Cidr, i64>,
    held: &'a BTreeMap<Cidr, usize>,
) -> impl Iterator<Item = (Cidr, i64, usize)> + 'a {
    let blocks: BTreeSet<Cidr> = counted.keys().chain(held.keys()).copied().collect();
    let counts =
        |block: Cidr| (block, counted.get(&block).copied().unwrap_or(0), held.get(&block).copied().unwrap_or(0));
    blocks.into_iter().map(counts).filter(|&(_, counted, held)| usize::try_from(counted) != Ok(held))
}

/// Returns the addresses whose handle is missing. Addresses that Windows reserves never have a handle object.
fn missing(inventory: &Inventory<'_>) -> Vec<Finding> {
    let known: HashSet<HandleId> = inventory.handles.iter().map(|entry| HandleId::new(entry.key.as_str())).collect();
    let mut findings = Vec::new();
    for block in inventory.blocks.iter().map(|entry| &entry.value) {
        for allocation in block.allocated() {
            let reserved = allocation.attribute.is_some_and(|attribute| attribute.is_windows_reserved());
            if !reserved && allocation.handle().is_some_and(|handle| !known.contains(&handle)) {
                findings.push(Finding::MissingHandle(HeldAddress::new(block.cidr, &allocation)));
            }
        }
    }
    findings
}
