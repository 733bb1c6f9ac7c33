//! For tests: checks that the redundant data of the index agree, and measures its size.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use super::block_reclaim::BlockReclaim;
use super::conflicts::Conflicts;
use super::gauges::{AddressCounts, CountsByPoolAndNode, Gauges};
use super::index::Index;
use super::leaks::{LeakStage, Postponement};
use super::rows::{AddressRow, BlockRow, CalicoNode, CompactHandle, NEVER, OwnerState};
use super::table::{NONE, RowId};
use crate::ipam::{OwnerKind, ReportedAddresses};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) addresses: usize,
    pub(super) blocks: usize,
    /// The number of owners, including those that are only named.
    pub(super) owners: usize,
    /// The number of nodes, including those that are only named.
    pub(super) nodes: usize,
    /// The approximate size of the data in bytes, without the allocator's overhead.
    pub(super) bytes: usize,
}

impl Index {
    pub(super) fn size(&self) -> Size {
        let lists = |block: &BlockRow| {
            size_of_val(&*block.addresses)
                + size_of_val(&*block.without_handle)
                + size_of_val(&*block.withheld)
        };
        let blocks: usize = self.blocks.iter().map(|(_, block)| lists(block)).sum();
        let owners = self
            .owners
            .iter()
            .map(|(_, owner)| owner.name.len() + heap_of(&owner.state));
        let handles = self.handles.iter().map(|(_, handle)| match &handle.id {
            CompactHandle::Container { .. } => 0,
            CompactHandle::Other(text) => text.len(),
        });
        let nodes = self.nodes.iter().map(|(_, node)| {
            let lists = [&node.addresses, &node.blocks, &node.calico_names];
            node.name.len()
                + lists
                    .iter()
                    .map(|list| list.capacity() * size_of::<RowId>())
                    .sum::<usize>()
        });
        let tables = [
            self.blocks.bytes(),
            self.addresses.bytes(),
            self.owners.bytes(),
            self.nodes.bytes(),
            self.handles.bytes(),
            self.namespaces.bytes(),
            self.networks.bytes(),
            self.pools.bytes(),
        ];
        let names = self
            .owner_pods
            .values()
            .flatten()
            .map(|(namespace, pod)| 32 + namespace.len() + pod.len());
        let rest = [
            self.dirty.capacity() * size_of::<RowId>(),
            self.leaks.bytes(),
            self.reclaim.bytes(),
            self.gauges.bytes(),
            self.conflicts.bytes(),
            self.owner_pods.capacity() * (size_of::<(RowId, usize, usize)>() + 1)
                + names.sum::<usize>(),
        ];
        Size {
            addresses: self.addresses.len(),
            blocks: self.blocks.len(),
            owners: self.owners.len(),
            nodes: self.nodes.len(),
            bytes: blocks
                + owners
                    .chain(handles)
                    .chain(nodes)
                    .chain(tables)
                    .chain(rest)
                    .sum::<usize>(),
        }
    }

    /// Searches the whole index for contradictions and describes the first one.
    pub(super) fn verify(&self) -> Result<(), String> {
        self.verify_addresses()?;
        self.verify_blocks()?;
        self.verify_rows()?;
        self.verify_names()?;
        self.verify_leaks()?;
        self.verify_gauges()
    }

    fn verify_addresses(&self) -> Result<(), String> {
        let (mut of_handles, mut of_owners, mut of_blocks) = (0, 0, 0);
        for (handle, row) in self.handles.iter() {
            let rows = self.rows_of(handle);
            ensure(!rows.is_empty() && rows[0] == row.first_address, || {
                format!("handle {handle} has no address")
            })?;
            of_handles += rows.len();
            for row in rows {
                ensure(
                    self.addresses.get(row).is_some_and(|t| t.handle == handle),
                    || format!("address {row} is not in the list of handle {handle}"),
                )?;
            }
        }
        for (owner, row) in self.owners.iter() {
            let mut at = row.first_address;
            while let Some(tracked) = self.addresses.get(at) {
                ensure(tracked.owner == owner, || {
                    format!("address {at} has another owner than {}", row.name)
                })?;
                of_owners += 1;
                at = tracked.next_of_owner;
            }
            let is_used = row.first_address != NONE || row.state != OwnerState::Absent;
            ensure(is_used, || format!("owner {} is unused", row.name))?;
        }
        for (block, row) in self.blocks.iter() {
            of_blocks += row.addresses.len();
            let ordinals: Vec<u16> = row
                .addresses
                .iter()
                .filter_map(|&at| Some(self.addresses.get(at)?.ordinal))
                .collect();
            ensure(
                ordinals.len() == row.addresses.len() && ordinals.is_sorted_by(|a, b| a < b),
                || {
                    format!(
                        "the ordinals of block {} are unsorted: {ordinals:?}",
                        row.cidr
                    )
                },
            )?;
            for &at in &row.addresses {
                ensure(
                    self.addresses.get(at).is_some_and(|t| t.block == block),
                    || format!("address {at} is in another block than {}", row.cidr),
                )?;
            }
        }
        let with_owner = self
            .addresses
            .iter()
            .filter(|(_, tracked)| tracked.owner != NONE)
            .count();
        ensure(
            of_handles == self.addresses.len()
                && of_blocks == of_handles
                && of_owners == with_owner,
            || {
                format!(
                    "{} addresses, {of_handles} of handles, {of_blocks} of blocks",
                    self.addresses.len()
                )
            },
        )?;
        for (at, tracked) in self.addresses.iter() {
            let filed = self
                .nodes
                .get(tracked.node)
                .map(|node| node.addresses.get(tracked.in_node as usize));
            ensure(filed.is_none_or(|filed| filed == Some(&at)), || {
                format!("address {at} is not in the list of its node")
            })?;
            let of_block = self
                .blocks
                .get(tracked.block)
                .map_or(NONE, |block| block.owner);
            let is_filed = tracked.is(AddressRow::NAMES_NODE) || tracked.node == of_block;
            ensure(is_filed, || {
                format!("address {at} names no node and is not in the list of the block's node")
            })?;
            let is_queued = !tracked.is(AddressRow::DIRTY) || self.dirty.contains(&at);
            ensure(is_queued, || format!("address {at} is never examined"))?;
        }
        Ok(())
    }

    fn verify_blocks(&self) -> Result<(), String> {
        let filed: usize = self
            .nodes
            .iter()
            .map(|(_, node)| node.addresses.len())
            .sum();
        let under = self
            .addresses
            .iter()
            .filter(|(_, tracked)| tracked.node != NONE)
            .count();
        ensure(filed == under, || {
            format!("the nodes list {filed} addresses, {under} have a node")
        })?;
        let listed: usize = self.nodes.iter().map(|(_, node)| node.blocks.len()).sum();
        let owned = self
            .blocks
            .iter()
            .filter(|(_, block)| block.owner != NONE)
            .count();
        ensure(listed == owned, || {
            format!("the nodes list {listed} blocks, {owned} have an owner")
        })?;
        for (row, block) in self.blocks.iter() {
            let listed = self
                .nodes
                .get(block.owner)
                .map(|node| node.blocks.get(block.in_node as usize));
            ensure(listed.is_none_or(|listed| listed == Some(&row)), || {
                format!("block {} is not in the list of its node", block.cidr)
            })?;
            ensure(self.pool_of(&block.cidr) == block.pool, || {
                format!("block {} is in the wrong pool", block.cidr)
            })?;
            ensure(
                block.cooling_since == NEVER || self.reclaim.has_cooling(row, block.cooling_since),
                || format!("block {} is not among the cooling blocks", block.cidr),
            )?;
        }
        self.conflicts
            .verify(self.blocks.len(), |row| self.owners.get(row).is_some())?;
        ensure(
            self.owner_pods
                .keys()
                .all(|row| self.addresses.get(*row).is_some()),
            || "owners of an address that does not exist".into(),
        )?;
        self.reclaim.verify(
            |row| self.blocks.get(row).is_some(),
            |row| self.nodes.get(row).is_some(),
        )
    }

    fn verify_rows(&self) -> Result<(), String> {
        let mut references: HashMap<RowId, u32> = HashMap::new();
        for (_, owner) in self.owners.iter() {
            if let OwnerState::Pod { node, .. } = owner.state {
                *references.entry(node).or_default() += 1;
            }
        }
        for (row, node) in self.nodes.iter() {
            let pods = references.get(&row).copied().unwrap_or_default();
            ensure(node.references == pods, || {
                format!(
                    "node {} has {pods} pods, not {}",
                    node.name, node.references
                )
            })?;
            let names: BTreeSet<RowId> = node.calico_names.iter().copied().collect();
            let expected = self
                .nodes
                .iter()
                .filter(|(_, other)| other.calico == CalicoNode::Kubernetes(row));
            let expected: BTreeSet<RowId> = expected.map(|(row, _)| row).collect();
            ensure(
                names == expected && names.len() == node.calico_names.len(),
                || format!("the Calico names of node {} are wrong", node.name),
            )?;
            let is_used = pods > 0
                || node.kubernetes
                || node.calico != CalicoNode::Absent
                || !names.is_empty()
                || !node.addresses.is_empty()
                || !node.blocks.is_empty()
                || node.dirty
                || self.reclaim.deleted_nodes.contains_key(&row);
            ensure(is_used, || format!("node {} is unused", node.name))?;
            ensure(node.dirty == self.dirty_nodes.contains(&row), || {
                format!("node {} is never examined", node.name)
            })?;
        }
        Ok(())
    }

    fn verify_names(&self) -> Result<(), String> {
        let namespaces: BTreeSet<RowId> = self
            .owners
            .iter()
            .map(|(_, owner)| owner.namespace)
            .collect();
        let networks: BTreeSet<RowId> = self
            .handles
            .iter()
            .filter_map(|(_, handle)| match handle.id {
                CompactHandle::Container { network, .. } => Some(network),
                CompactHandle::Other(_) => None,
            })
            .collect();
        ensure(namespaces.len() == self.namespaces.len(), || {
            "a namespace is unused".into()
        })?;
        ensure(networks.len() == self.networks.len(), || {
            "a network is unused".into()
        })
    }

    fn verify_leaks(&self) -> Result<(), String> {
        for row in self.leaks.rows() {
            ensure(self.addresses.get(row).is_some(), || {
                format!("the leak {row} is not tracked")
            })?;
            let confirmed = self
                .leaks
                .get(row)
                .is_some_and(|leak| leak.stage == LeakStage::Confirmed);
            ensure(confirmed == self.leaks.is_confirmed(row), || {
                format!("the two records of the confirmation of leak {row} disagree")
            })?;
        }
        Ok(())
    }

    fn verify_gauges(&self) -> Result<(), String> {
        let (stored, counted) = (&self.gauges.counts, self.recount());
        let places: BTreeSet<_> = stored.keys().chain(counted.keys()).collect();
        let differences: BTreeMap<_, _> = places
            .into_iter()
            .filter(|place| stored.get(place) != counted.get(place))
            .map(|place| (place, (stored.get(place), counted.get(place))))
            .collect();
        ensure(differences.is_empty(), || {
            format!("wrong counts (stored, recounted): {differences:?}")
        })
    }

    fn recount(&self) -> CountsByPoolAndNode {
        let mut counts = CountsByPoolAndNode::new();
        for (_, block) in self.blocks.iter() {
            counts.entry((block.pool, block.owner)).or_default().blocks += 1;
            for &row in &block.addresses {
                let Some(tracked) = self.addresses.get(row) else {
                    continue;
                };
                let node = tracked.named_node();
                let counts = counts.entry((block.pool, node)).or_default();
                counts.in_use += 1;
                counts.borrowed += i64::from(node != NONE && node != block.owner);
                counts.candidates += i64::from(self.leaks.get(row).is_some());
                let is_unknown = matches!(tracked.kind, OwnerKind::Foreign | OwnerKind::Unnamed);
                counts.unknown_owner += i64::from(is_unknown);
            }
        }
        counts.retain(|_, counts| *counts != AddressCounts::default());
        counts
    }
}

impl BlockReclaim {
    fn has_cooling(&self, row: RowId, at: i64) -> bool {
        self.cooling.contains(&(at, row))
    }

    /// Checks that the entries concern existing blocks and nodes.
    fn verify(
        &self,
        block: impl Fn(RowId) -> bool,
        node: impl Fn(RowId) -> bool,
    ) -> Result<(), String> {
        let mut blocks = self
            .due
            .iter()
            .map(|(_, row)| row)
            .chain(self.cooling.iter().map(|(_, row)| row));
        let mut nodes = self.changed_nodes.iter().chain(self.deleted_nodes.keys());
        if !blocks.all(|row| block(*row))
            || !nodes.all(|row| node(*row))
            || self.due_times.len() != self.due.len()
        {
            return Err(format!(
                "an entry of a removed block or node remains: {self:?}"
            ));
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.due_times.capacity() * (size_of::<(RowId, Duration)>() + 1)
            + (self.due.len() + self.cooling.len()) * 2 * size_of::<(Duration, RowId)>()
            + self.deleted_nodes.len() * 2 * size_of::<(RowId, Postponement)>()
    }
}

impl Conflicts {
    fn verify(&self, blocks: usize, pod: impl Fn(RowId) -> bool) -> Result<(), String> {
        let counted: usize = self.sizes.values().sum();
        let exist = self.suspected.keys().all(|(row, _)| pod(*row))
            && self.reported.iter().all(|(row, _)| pod(*row));
        match counted == blocks && exist {
            true => Ok(()),
            false => Err(format!(
                "{blocks} blocks, and an entry of a removed pod remains: {self:?}"
            )),
        }
    }

    fn bytes(&self) -> usize {
        (self.suspected.len() * 2 + self.reported.len()) * size_of::<(RowId, IpAddr, Duration)>()
            + self.pods_to_check.len() * 2 * size_of::<RowId>()
    }
}

impl Gauges {
    fn bytes(&self) -> usize {
        self.counts.capacity() * (size_of::<((RowId, RowId), AddressCounts)>() + 1)
            + self.reclaimed.len() * 160
    }
}

fn heap_of(state: &OwnerState) -> usize {
    match state {
        OwnerState::Pod {
            addresses: ReportedAddresses::Several { addresses, .. },
            ..
        } => size_of_val(&**addresses),
        _ => 0,
    }
}

fn ensure(condition: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(message()) }
}

impl Index {
    pub(super) fn has_changed(&self) -> bool {
        !self.dirty.is_empty() || !self.dirty_nodes.is_empty()
    }

    pub(super) fn leaks(&self) -> (usize, usize) {
        let confirmed = self.leaks.confirmed().count();
        (self.leaks.rows().len() - confirmed, confirmed)
    }

    pub(super) fn dirty_addresses(&self) -> usize {
        self.addresses
            .iter()
            .filter(|(_, tracked)| tracked.is(AddressRow::DIRTY))
            .count()
    }

    pub(super) fn tracked_addresses(&self) -> BTreeSet<String> {
        let text = |tracked: &AddressRow| {
            let block = self.blocks.get(tracked.block)?;
            let handle = self
                .handles
                .get(tracked.handle)?
                .id
                .to_handle_id(&self.networks);
            let owner = self.owners.get(tracked.owner);
            let owner = owner
                .map(|owner| format!("{}/{}", self.namespaces.text(owner.namespace), owner.name));
            let (node, address) = (
                self.node_name(tracked.node),
                block.cidr.nth(u128::from(tracked.ordinal)),
            );
            Some(format!(
                "{address:?} {handle} {:?} {:?} {owner:?} {node}",
                tracked.sequence(),
                tracked.kind
            ))
        };
        self.addresses
            .iter()
            .filter_map(|(_, tracked)| text(tracked))
            .collect()
    }
}
