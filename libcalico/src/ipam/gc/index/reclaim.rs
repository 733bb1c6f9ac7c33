//! Methods of [`Index`] for excess empty blocks, deleted nodes and blocks with elapsed cooldowns.

use std::collections::HashMap;
use std::time::Duration;

use time::OffsetDateTime;

use super::super::balance::{COLD_AGAIN, GoneNode, Surrender};
use super::super::leaks::Postponement;
use super::super::rows::CalicoNode;
use super::super::table::Row;
use super::Index;
use crate::net::{Cidr, IpVersion};

impl Index {
    pub(in crate::ipam::gc) fn unbalance(&mut self, node: Row) {
        if let Some(row) = self.nodes.get_mut(node).filter(|row| !row.unbalanced) {
            row.unbalanced = true;
            self.balance.unbalanced.insert(node);
        }
    }

    pub(in crate::ipam::gc) fn rebalance_all(&mut self) {
        self.balance.empty.clear();
        self.balance.due.clear();
        self.nodes.rows().into_iter().for_each(|node| self.unbalance(node));
    }

    /// Returns the empty blocks that have been in excess for the grace period. Every node keeps one block of each
    /// family. A returned block is returned again after another grace period, unless [`Index::block_gone`] removes it.
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
            let (cidr, node) = (block.cidr, block.owner);
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

    /// Starts and stops the timers of a node's empty blocks. A node that is migrating from Flannel keeps all blocks
    /// (KC-457). The blocks of a deleted node need no timer, because they are released with the node's affinities.
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

    /// Returns the deleted nodes that no allocation names. The affinities of their empty blocks can be released. A
    /// block with other nodes' addresses stays until these are released (KC-461).
    pub fn nodes_to_release(&self, now: Duration) -> Vec<GoneNode> {
        let ready = |&(&node, departing): &(&Row, &Postponement)| {
            departing.until <= now
                && self.is_gone(node)
                && self.nodes.get(node).is_some_and(|row| {
                    let empty = |&block: &Row| self.blocks.get(block).is_some_and(|block| block.used == 0);
                    let worth = row.blocks.is_empty() || departing.failures == 0 || row.blocks.iter().any(empty);
                    worth && !row.tracked.iter().any(|&row| self.names_node(row))
                })
        };
        let named = |(&node, _): (&Row, &Postponement)| GoneNode {
            calico: self.node_name(node).to_owned(),
            kubernetes: self.kubernetes_name(node).map(str::to_owned),
        };
        self.balance.departing.iter().filter(ready).map(named).collect()
    }

    /// Removes a deleted node after all of its affinities were released.
    pub fn node_released(&mut self, name: &str) {
        self.numbers.forget_node(name);
        let Some(row) = self.nodes.find(name) else { return };
        self.balance.stay(row);
        self.drop_unused_node(row);
    }

    /// Postpones a deleted node some of whose affinities could not be released. The pause grows with each failure.
    pub fn node_not_released(&mut self, name: &str, now: Duration) {
        if let Some(departing) = self.nodes.find(name).and_then(|row| self.balance.departing.get_mut(&row)) {
            departing.fail(now);
        }
    }

    /// Returns the blocks with an address whose cooldown has elapsed. `now` is the time of day at the monotonic time
    /// `mono`. A block is not returned again for a while, unless it changed.
    pub fn cold_blocks(&mut self, now: OffsetDateTime, mono: Duration) -> Vec<Cidr> {
        let cooldown = self.settings.cooldown;
        let now = now.unix_timestamp();
        // With no cooldown, the release time may be the current second (IPAM-164).
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

    /// Returns the time from `now` until the next cooldown elapses; `None` if no address is cooling down.
    pub fn next_cold(&self, now: OffsetDateTime) -> Option<Duration> {
        let (released, _) = self.balance.cold.first()?;
        let due = released.saturating_add(self.settings.cooldown.max(0)).saturating_add(1);
        Some(Duration::from_secs(u64::try_from(due - now.unix_timestamp()).unwrap_or(0)))
    }

    pub(in crate::ipam::gc) fn next_balance(&self, now: Duration) -> Option<Duration> {
        let departing = self.balance.departing.values().map(|departing| departing.until);
        let due = self.balance.due.first().map(|(due, _)| *due);
        departing.filter(|until| *until > now).chain(due).min()
    }
}
