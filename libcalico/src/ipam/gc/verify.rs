//! Checks the invariants of the index, for tests: redundant data agrees, and no unused entry remains. Measures the size
//! of the index.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use super::balance::Balance;
use super::conflicts::Conflicts;
use super::index::Index;
use super::leaks::{Postponement, Stage};
use super::numbers::{Counts, CountsByPlace, Numbers};
use super::rows::{BlockRow, CalicoNode, CompactHandle, NEVER, SubjectState, Tracked};
use super::table::{NONE, Row};
use crate::ipam::{ClaimKind, ReportedAddresses};

/// The size of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    /// The number of tracked addresses.
    pub(super) addresses: usize,
    /// The number of blocks.
    pub(super) blocks: usize,
    /// The number of pods, VMIs and Services, including those that are only named.
    pub(super) subjects: usize,
    /// The number of nodes, including those that are only named.
    pub(super) nodes: usize,
    /// The size of all data in bytes, without the allocator's overhead.
    pub(super) bytes: usize,
}

impl Index {
    /// Returns the size of the index, computed from its parts.
    pub(super) fn size(&self) -> Size {
        let lists = |block: &BlockRow| size_of_val(&*block.tracked) + size_of_val(&*block.nameless);
        let blocks: usize = self.blocks.iter().map(|(_, block)| lists(block)).sum();
        let subjects = self.subjects.iter().map(|(_, subject)| subject.name.len() + heap_of(&subject.state));
        let handles = self.handles.iter().map(|(_, handle)| match &handle.id {
            CompactHandle::Container { .. } => 0,
            CompactHandle::Other(text) => text.len(),
        });
        let nodes = self.nodes.iter().map(|(_, node)| {
            let lists = [&node.tracked, &node.blocks, &node.calico_names];
            node.name.len() + lists.iter().map(|list| list.capacity() * size_of::<Row>()).sum::<usize>()
        });
        let tables = [
            self.blocks.bytes(),
            self.tracked.bytes(),
            self.subjects.bytes(),
            self.nodes.bytes(),
            self.handles.bytes(),
            self.namespaces.bytes(),
            self.networks.bytes(),
            self.pools.bytes(),
        ];
        let names = self.owners.values().flatten().map(|(namespace, pod)| 32 + namespace.len() + pod.len());
        let rest = [
            self.dirty.capacity() * size_of::<Row>(),
            self.leaks.bytes(),
            self.balance.bytes(),
            self.numbers.bytes(),
            self.conflicts.bytes(),
            self.owners.capacity() * (size_of::<(Row, usize, usize)>() + 1) + names.sum::<usize>(),
        ];
        Size {
            addresses: self.tracked.len(),
            blocks: self.blocks.len(),
            subjects: self.subjects.len(),
            nodes: self.nodes.len(),
            bytes: blocks + subjects.chain(handles).chain(nodes).chain(tables).chain(rest).sum::<usize>(),
        }
    }

    /// Searches the whole index for contradictions and describes the first one found. The search is slow.
    pub(super) fn verify(&self) -> Result<(), String> {
        self.verify_addresses()?;
        self.verify_blocks()?;
        self.verify_rows()?;
        self.verify_names()?;
        self.verify_leaks()?;
        self.verify_numbers()
    }

    fn verify_addresses(&self) -> Result<(), String> {
        let (mut of_handles, mut of_subjects, mut of_blocks) = (0, 0, 0);
        for (handle, row) in self.handles.iter() {
            let rows = self.rows_of(handle);
            ensure(!rows.is_empty() && rows[0] == row.tracked, || format!("handle {handle} has no address"))?;
            of_handles += rows.len();
            for row in rows {
                ensure(self.tracked.get(row).is_some_and(|t| t.handle == handle), || {
                    format!("address {row} is not in the list of handle {handle}")
                })?;
            }
        }
        for (subject, row) in self.subjects.iter() {
            let mut at = row.tracked;
            while let Some(tracked) = self.tracked.get(at) {
                ensure(tracked.subject == subject, || format!("address {at} has another owner than {}", row.name))?;
                of_subjects += 1;
                at = tracked.subject_next;
            }
            let used = row.tracked != NONE || row.state != SubjectState::Absent;
            ensure(used, || format!("owner {} is unused", row.name))?;
        }
        for (block, row) in self.blocks.iter() {
            of_blocks += row.tracked.len();
            let ordinals: Vec<u16> = row.tracked.iter().filter_map(|&at| Some(self.tracked.get(at)?.ordinal)).collect();
            ensure(ordinals.len() == row.tracked.len() && ordinals.is_sorted_by(|a, b| a < b), || {
                format!("the ordinals of block {} are unsorted: {ordinals:?}", row.cidr)
            })?;
            for &at in &row.tracked {
                ensure(self.tracked.get(at).is_some_and(|t| t.block == block), || {
                    format!("address {at} is in another block than {}", row.cidr)
                })?;
            }
        }
        let with_subject = self.tracked.iter().filter(|(_, tracked)| tracked.subject != NONE).count();
        ensure(of_handles == self.tracked.len() && of_blocks == of_handles && of_subjects == with_subject, || {
            format!("{} addresses, {of_handles} of handles, {of_blocks} of blocks", self.tracked.len())
        })?;
        for (at, tracked) in self.tracked.iter() {
            let filed = self.nodes.get(tracked.node).map(|node| node.tracked.get(tracked.in_node as usize));
            ensure(filed.is_none_or(|filed| filed == Some(&at)), || {
                format!("address {at} is not in the list of its node")
            })?;
            let of_block = self.blocks.get(tracked.block).map_or(NONE, |block| block.owner);
            let right = tracked.is(Tracked::NAMES_NODE) || tracked.node == of_block;
            ensure(right, || format!("address {at} names no node and is not in the list of the block's node"))?;
            let queued = !tracked.is(Tracked::DIRTY) || self.dirty.contains(&at);
            ensure(queued, || format!("address {at} is never examined"))?;
        }
        Ok(())
    }

    fn verify_blocks(&self) -> Result<(), String> {
        let filed: usize = self.nodes.iter().map(|(_, node)| node.tracked.len()).sum();
        let under = self.tracked.iter().filter(|(_, tracked)| tracked.node != NONE).count();
        ensure(filed == under, || format!("the nodes list {filed} addresses, {under} have a node"))?;
        let listed: usize = self.nodes.iter().map(|(_, node)| node.blocks.len()).sum();
        let owned = self.blocks.iter().filter(|(_, block)| block.owner != NONE).count();
        ensure(listed == owned, || format!("the nodes list {listed} blocks, {owned} have an owner"))?;
        for (row, block) in self.blocks.iter() {
            let listed = self.nodes.get(block.owner).map(|node| node.blocks.get(block.in_node as usize));
            ensure(listed.is_none_or(|listed| listed == Some(&row)), || {
                format!("block {} is not in the list of its node", block.cidr)
            })?;
            ensure(self.pool_of(&block.cidr) == block.pool, || format!("block {} is in the wrong pool", block.cidr))?;
            ensure(block.cold == NEVER || self.balance.is_cold(row, block.cold), || {
                format!("block {} is not among the cooling blocks", block.cidr)
            })?;
        }
        self.conflicts.verify(self.blocks.len(), |row| self.subjects.get(row).is_some())?;
        ensure(self.owners.keys().all(|row| self.tracked.get(*row).is_some()), || {
            "owners of an address that does not exist".into()
        })?;
        self.balance.verify(|row| self.blocks.get(row).is_some(), |row| self.nodes.get(row).is_some())
    }

    fn verify_rows(&self) -> Result<(), String> {
        let mut references: HashMap<Row, u32> = HashMap::new();
        for (_, subject) in self.subjects.iter() {
            if let SubjectState::Pod { node, .. } = subject.state {
                *references.entry(node).or_default() += 1;
            }
        }
        for (row, node) in self.nodes.iter() {
            let pods = references.get(&row).copied().unwrap_or_default();
            ensure(node.references == pods, || format!("node {} has {pods} pods, not {}", node.name, node.references))?;
            let names: BTreeSet<Row> = node.calico_names.iter().copied().collect();
            let truth = self.nodes.iter().filter(|(_, other)| other.calico == CalicoNode::Kubernetes(row));
            let truth: BTreeSet<Row> = truth.map(|(row, _)| row).collect();
            ensure(names == truth && names.len() == node.calico_names.len(), || {
                format!("the Calico names of node {} are wrong", node.name)
            })?;
            let used = pods > 0
                || node.kubernetes
                || node.calico != CalicoNode::Absent
                || !names.is_empty()
                || !node.tracked.is_empty()
                || !node.blocks.is_empty()
                || node.dirty
                || self.balance.is_departing(row);
            ensure(used, || format!("node {} is unused", node.name))?;
            ensure(node.dirty == self.dirty_nodes.contains(&row), || format!("node {} is never examined", node.name))?;
        }
        Ok(())
    }

    fn verify_names(&self) -> Result<(), String> {
        let namespaces: BTreeSet<Row> = self.subjects.iter().map(|(_, subject)| subject.namespace).collect();
        let networks: BTreeSet<Row> = self
            .handles
            .iter()
            .filter_map(|(_, handle)| match handle.id {
                CompactHandle::Container { network, .. } => Some(network),
                CompactHandle::Other(_) => None,
            })
            .collect();
        ensure(namespaces.len() == self.namespaces.len(), || "a namespace is unused".into())?;
        ensure(networks.len() == self.networks.len(), || "a network is unused".into())
    }

    fn verify_leaks(&self) -> Result<(), String> {
        for row in self.leaks.rows() {
            ensure(self.tracked.get(row).is_some(), || format!("the leak {row} is not tracked"))?;
            let confirmed = self.leaks.get(row).is_some_and(|leak| leak.stage == Stage::Confirmed);
            ensure(confirmed == self.leaks.is_confirmed(row), || {
                format!("the two records of the confirmation of leak {row} disagree")
            })?;
        }
        Ok(())
    }

    fn verify_numbers(&self) -> Result<(), String> {
        let (kept, counted) = (&self.numbers.counts, self.recount());
        let places: BTreeSet<_> = kept.keys().chain(counted.keys()).collect();
        let differences: BTreeMap<_, _> = places
            .into_iter()
            .filter(|place| kept.get(place) != counted.get(place))
            .map(|place| (place, (kept.get(place), counted.get(place))))
            .collect();
        ensure(differences.is_empty(), || format!("wrong counts (stored, recounted): {differences:?}"))
    }

    fn recount(&self) -> CountsByPlace {
        let mut counts = CountsByPlace::new();
        for (_, block) in self.blocks.iter() {
            counts.entry((block.pool, block.owner)).or_default().blocks += 1;
            for &row in &block.tracked {
                let Some(tracked) = self.tracked.get(row) else { continue };
                let node = tracked.named_node();
                let counts = counts.entry((block.pool, node)).or_default();
                counts.in_use += 1;
                counts.borrowed += i64::from(node != NONE && node != block.owner);
                counts.candidates += i64::from(self.leaks.get(row).is_some());
                let unknown = matches!(tracked.kind, ClaimKind::Foreign | ClaimKind::Unnamed);
                counts.unknown_owner += i64::from(unknown);
            }
        }
        counts.retain(|_, counts| *counts != Counts::default());
        counts
    }
}

impl Balance {
    fn is_cold(&self, row: Row, at: i64) -> bool {
        self.cold.contains(&(at, row))
    }

    /// Checks that all entries concern existing blocks and nodes, for [`Index::verify`].
    fn verify(&self, block: impl Fn(Row) -> bool, node: impl Fn(Row) -> bool) -> Result<(), String> {
        let mut blocks = self.due.iter().map(|(_, row)| row).chain(self.cold.iter().map(|(_, row)| row));
        let mut nodes = self.unbalanced.iter().chain(self.departing.keys());
        if !blocks.all(|row| block(*row)) || !nodes.all(|row| node(*row)) || self.empty.len() != self.due.len() {
            return Err(format!("an entry of a removed block or node remains: {self:?}"));
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.empty.capacity() * (size_of::<(Row, Duration)>() + 1)
            + (self.due.len() + self.cold.len()) * 2 * size_of::<(Duration, Row)>()
            + self.departing.len() * 2 * size_of::<(Row, Postponement)>()
    }
}

impl Conflicts {
    fn verify(&self, blocks: usize, pod: impl Fn(Row) -> bool) -> Result<(), String> {
        let counted: usize = self.sizes.values().sum();
        let known = self.watched.keys().all(|(row, _)| pod(*row)) && self.reported.iter().all(|(row, _)| pod(*row));
        match counted == blocks && known {
            true => Ok(()),
            false => Err(format!("{blocks} blocks, and an entry of a removed pod remains: {self:?}")),
        }
    }

    fn bytes(&self) -> usize {
        (self.watched.len() * 2 + self.reported.len()) * size_of::<(Row, IpAddr, Duration)>()
            + self.pods.len() * 2 * size_of::<Row>()
    }
}

impl Numbers {
    fn bytes(&self) -> usize {
        self.counts.capacity() * (size_of::<((Row, Row), Counts)>() + 1) + self.reclaimed.len() * 160
    }
}

/// Returns the number of bytes that a state occupies on the heap.
fn heap_of(state: &SubjectState) -> usize {
    match state {
        SubjectState::Pod { addresses: ReportedAddresses::Several { addresses, .. }, .. } => size_of_val(&**addresses),
        _ => 0,
    }
}

fn ensure(right: bool, wrong: impl FnOnce() -> String) -> Result<(), String> {
    if right { Ok(()) } else { Err(wrong()) }
}

impl Index {
    /// Returns true if a change has not been examined yet.
    pub(super) fn has_changed(&self) -> bool {
        !self.dirty.is_empty() || !self.dirty_nodes.is_empty()
    }

    /// Returns the numbers of candidates and of confirmed leaks.
    pub(super) fn leaks(&self) -> (usize, usize) {
        let confirmed = self.leaks.confirmed().count();
        (self.leaks.rows().len() - confirmed, confirmed)
    }

    /// Returns the number of addresses that await examination.
    pub(super) fn dirty_addresses(&self) -> usize {
        self.tracked.iter().filter(|(_, tracked)| tracked.is(Tracked::DIRTY)).count()
    }

    /// Returns a text for each tracked address, for comparison.
    pub(super) fn tracked_addresses(&self) -> BTreeSet<String> {
        let words = |tracked: &Tracked| {
            let block = self.blocks.get(tracked.block)?;
            let handle = self.handles.get(tracked.handle)?.id.write(&self.networks);
            let subject = self.subjects.get(tracked.subject);
            let subject =
                subject.map(|subject| format!("{}/{}", self.namespaces.text(subject.namespace), subject.name));
            let (node, address) = (self.node_name(tracked.node), block.cidr.nth(u128::from(tracked.ordinal)));
            Some(format!("{address:?} {handle} {:?} {:?} {subject:?} {node}", tracked.sequence(), tracked.kind))
        };
        self.tracked.iter().filter_map(|(_, tracked)| words(tracked)).collect()
    }
}
