//! Blocks that a node has too many of, nodes that are gone, and addresses that have rested (KC-450..KC-461).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use time::OffsetDateTime;

use super::index::Index;
use super::leaks::backoff;
use super::rows::{CalicoNode, NEVER};
use super::table::Row;
use crate::ipam::Sight;
use crate::net::{Cidr, IpVersion};

/// A block whose addresses have rested is not asked for again this long unless it changed.
const COLD_AGAIN: Duration = Duration::from_secs(30);

/// An empty block that its node does not need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surrender {
    /// The block.
    pub block: Cidr,
    /// Its Calico node.
    pub node: String,
}

/// A node that is gone, none of whose addresses is left: its affinities go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoneNode {
    /// Its name in Calico.
    pub calico: String,
    /// Its name in Kubernetes, if a Calico node that is there names it.
    pub kubernetes: Option<String>,
}

impl GoneNode {
    /// Whether fresh reads agree. Where there is a name in Kubernetes its node counts, else Calico's (KC-431).
    pub fn is_gone(&self, calico: Sight<()>, kubernetes: Sight<()>) -> bool {
        Sight::Absent == if self.kubernetes.is_some() { kubernetes } else { calico }
    }
}

#[derive(Debug, Default)]
pub(super) struct Balance {
    /// When empty blocks that were seen to be too many may go.
    empty: HashMap<Row, Duration>,
    due: BTreeSet<(Duration, Row)>,
    /// Nodes whose blocks changed.
    unbalanced: BTreeSet<Row>,
    departing: BTreeMap<Row, Departing>,
    /// Blocks with resting addresses, by when the first was released.
    cold: BTreeSet<(i64, Row)>,
    cold_asked: HashMap<Row, Duration>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Departing {
    failures: u32,
    again: Duration,
}

impl Balance {
    pub(super) fn forget_block(&mut self, row: Row, cold: i64) {
        self.stop(row);
        self.set_cold(row, cold, NEVER);
    }

    pub(super) fn forget_node(&mut self, node: Row) {
        self.unbalanced.remove(&node);
        self.departing.remove(&node);
    }

    pub(super) fn is_departing(&self, node: Row) -> bool {
        self.departing.contains_key(&node)
    }

    pub(super) fn depart(&mut self, node: Row) {
        self.departing.entry(node).or_default();
    }

    pub(super) fn stay(&mut self, node: Row) {
        self.departing.remove(&node);
    }

    pub(super) fn set_cold(&mut self, row: Row, old: i64, new: i64) {
        if old == new {
            return;
        }
        self.cold_asked.remove(&row);
        self.cold.remove(&(old, row));
        if new != NEVER {
            self.cold.insert((new, row));
        }
    }

    fn start(&mut self, row: Row, now: Duration, grace: Duration) {
        let due = *self.empty.entry(row).or_insert(now.saturating_add(grace));
        self.due.insert((due, row));
    }

    fn stop(&mut self, row: Row) {
        if let Some(due) = self.empty.remove(&row) {
            self.due.remove(&(due, row));
        }
    }

    pub(super) fn is_cold(&self, row: Row, at: i64) -> bool {
        self.cold.contains(&(at, row))
    }

    /// Whether everything in here is about blocks and nodes that are known, for [`Index::verify`].
    pub(super) fn verify(&self, block: impl Fn(Row) -> bool, node: impl Fn(Row) -> bool) -> Result<(), String> {
        let mut blocks = self.due.iter().map(|(_, row)| row).chain(self.cold.iter().map(|(_, row)| row));
        let mut nodes = self.unbalanced.iter().chain(self.departing.keys());
        if !blocks.all(|row| block(*row)) || !nodes.all(|row| node(*row)) || self.empty.len() != self.due.len() {
            return Err(format!("of what is gone something is left: {self:?}"));
        }
        Ok(())
    }

    pub(super) fn bytes(&self) -> usize {
        self.empty.capacity() * (size_of::<(Row, Duration)>() + 1)
            + (self.due.len() + self.cold.len()) * 2 * size_of::<(Duration, Row)>()
            + self.departing.len() * 2 * size_of::<(Row, Departing)>()
    }
}

impl Index {
    pub(super) fn unbalance(&mut self, node: Row) {
        if let Some(row) = self.nodes.get_mut(node).filter(|row| !row.unbalanced) {
            row.unbalanced = true;
            self.balance.unbalanced.insert(node);
        }
    }

    pub(super) fn rebalance_all(&mut self) {
        self.balance.empty.clear();
        self.balance.due.clear();
        self.nodes.rows().into_iter().for_each(|node| self.unbalance(node));
    }

    /// Empty blocks that have been too many for the grace period. Every node keeps one block of each family (B-25). What
    /// is named here is named again after another such period, unless [`Index::block_gone`] was told.
    pub fn surrender(&mut self, now: Duration) -> Vec<Surrender> {
        let grace = self.settings.leak_grace.filter(|grace| !grace.is_zero());
        for node in std::mem::take(&mut self.balance.unbalanced) {
            self.rebalance(node, now, grace);
        }
        let Some(grace) = grace else { return Vec::new() };
        let mut left: HashMap<(Row, IpVersion), usize> = HashMap::new();
        let mut surrendered = Vec::new();
        let due: Vec<Row> = self.balance.due.iter().take_while(|(due, _)| *due <= now).map(|(_, row)| *row).collect();
        for row in due {
            let Some(block) = self.blocks.get(row) else { continue };
            let (cidr, node) = (block.cidr, block.owner.node());
            let left = left.entry((node, cidr.version())).or_insert_with(|| self.blocks_of(node, cidr.version()));
            let spare = *left > 1;
            *left -= usize::from(spare);
            self.balance.stop(row);
            if spare {
                self.balance.start(row, now, grace);
                surrendered.push(Surrender { block: cidr, node: self.node_name(node).to_owned() });
            }
        }
        surrendered
    }

    /// Starts and stops the times of a node's empty blocks. One that takes over from Flannel keeps them all (KC-457), and
    /// those of a node that is gone go with it.
    fn rebalance(&mut self, node: Row, now: Duration, grace: Option<Duration>) {
        let migrating = self.is_migrating(node);
        let gone = self.is_gone(node);
        let Some(row) = self.nodes.get_mut(node) else { return };
        row.unbalanced = false;
        let blocks = row.blocks.clone();
        let (v4, v6) = (self.blocks_of(node, IpVersion::V4), self.blocks_of(node, IpVersion::V6));
        for row in blocks {
            let Some(block) = self.blocks.get(row) else { continue };
            let of_family = if block.cidr.version() == IpVersion::V4 { v4 } else { v6 };
            match grace {
                Some(grace) if block.taken == 0 && !migrating && !gone && of_family > 1 => {
                    self.balance.start(row, now, grace);
                }
                _ => self.balance.stop(row),
            }
        }
    }

    fn is_migrating(&self, node: Row) -> bool {
        match self.nodes.get(node).map(|node| node.calico) {
            Some(CalicoNode::Kubernetes(name)) => self.nodes.get(name).is_some_and(|node| node.migrating),
            _ => false,
        }
    }

    fn blocks_of(&self, node: Row, version: IpVersion) -> usize {
        let blocks = self.nodes.get(node).map(|node| node.blocks.as_slice()).unwrap_or_default();
        blocks.iter().filter(|&&row| self.blocks.get(row).is_some_and(|block| block.cidr.version() == version)).count()
    }

    /// Nodes that are gone and have no address left. Their affinities go next, those of empty blocks at least: a block in
    /// which other nodes have addresses stays until these are gone (KC-461).
    pub fn nodes_to_release(&self, now: Duration) -> Vec<GoneNode> {
        let ready = |&(&node, departing): &(&Row, &Departing)| {
            departing.again <= now
                && self.is_gone(node)
                && self.nodes.get(node).is_some_and(|row| {
                    let empty = |&block: &Row| self.blocks.get(block).is_some_and(|block| block.used == 0);
                    let worth = row.blocks.is_empty() || departing.failures == 0 || row.blocks.iter().any(empty);
                    worth && !row.tracked.iter().any(|&row| self.names_node(row))
                })
        };
        let named = |(&node, _): (&Row, &Departing)| GoneNode {
            calico: self.node_name(node).to_owned(),
            kubernetes: self.kubernetes_name(node).map(str::to_owned),
        };
        self.balance.departing.iter().filter(ready).map(named).collect()
    }

    /// The affinities of a gone node are gone.
    pub fn node_released(&mut self, name: &str) {
        self.numbers.forget_node(name);
        let Some(row) = self.nodes.find(name) else { return };
        self.balance.stay(row);
        self.drop_unused_node(row);
    }

    /// The affinities of a gone node are not all gone: to be tried again later, longer each time.
    pub fn node_not_released(&mut self, name: &str, now: Duration) {
        let Some(departing) = self.nodes.find(name).and_then(|row| self.balance.departing.get_mut(&row)) else {
            return;
        };
        departing.failures += 1;
        departing.again = now.saturating_add(backoff(departing.failures));
    }

    /// Blocks in which an address has rested long enough to be handed out again. `now` is the time of day at the time
    /// `mono`. A block is not named again for a while, unless it changed.
    pub fn cold_blocks(&mut self, now: OffsetDateTime, mono: Duration) -> Vec<Cidr> {
        let cooldown = self.settings.cooldown;
        let now = now.unix_timestamp();
        // With no cooldown the mark may carry this very second (IPAM-164).
        let rested = |released: i64| released.saturating_add(cooldown.max(0)) < now + i64::from(cooldown <= 0);
        let cold: Vec<Row> = self.balance.cold.iter().take_while(|(at, _)| rested(*at)).map(|(_, row)| *row).collect();
        let asked = &mut self.balance.cold_asked;
        let mut blocks = Vec::new();
        for row in cold {
            if asked.get(&row).is_some_and(|until| *until > mono) {
                continue;
            }
            asked.insert(row, mono.saturating_add(COLD_AGAIN));
            blocks.extend(self.blocks.get(row).map(|block| block.cidr));
        }
        blocks
    }

    /// How long after `now` the next address has rested; nothing while none rests.
    pub fn next_cold(&self, now: OffsetDateTime) -> Option<Duration> {
        let (released, _) = self.balance.cold.first()?;
        let due = released.saturating_add(self.settings.cooldown.max(0)).saturating_add(1);
        Some(Duration::from_secs(u64::try_from(due - now.unix_timestamp()).unwrap_or(0)))
    }

    pub(super) fn next_balance(&self, now: Duration) -> Option<Duration> {
        let departing = self.balance.departing.values().map(|departing| departing.again);
        let due = self.balance.due.first().map(|(due, _)| *due);
        departing.filter(|again| *again > now).chain(due).min()
    }
}
