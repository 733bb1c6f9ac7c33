//! Methods of [`Index`] for excess empty blocks, deleted nodes and blocks with elapsed cooldowns.

use std::collections::HashMap;
use std::time::Duration;

use time::OffsetDateTime;

use super::super::block_reclaim::{DeletedNode, ExcessBlock, ExcessReason, PAUSE_AFTER_COOLDOWN};
use super::super::leaks::Postponement;
use super::super::rows::CalicoNode;
use super::super::table::RowId;
use super::Index;
use crate::ipam::block::is_of_wrong_clock;
use crate::net::{Cidr, IpVersion};

impl Index {
    pub(in crate::ipam::gc) fn mark_blocks_changed(&mut self, node: RowId) {
        if let Some(row) = self.nodes.get_mut(node).filter(|row| !row.blocks_changed) {
            row.blocks_changed = true;
            self.reclaim.changed_nodes.insert(node);
        }
    }

    pub(in crate::ipam::gc) fn reset_excess_timers(&mut self) {
        self.reclaim.due_times.clear();
        self.reclaim.due.clear();
        self.nodes
            .rows()
            .into_iter()
            .for_each(|node| self.mark_blocks_changed(node));
    }

    /// Returns the empty blocks that have been in excess for the grace period; none if the grace
    /// period is missing or
    /// 0. A node keeps at least one of its blocks of each family, not counting those of a former
    ///    size.
    pub fn excess_blocks(&mut self, now: Duration) -> Vec<ExcessBlock> {
        let grace = self.settings.leak_grace.filter(|grace| !grace.is_zero());
        for node in std::mem::take(&mut self.reclaim.changed_nodes) {
            self.update_excess_timers(node, now, grace);
        }
        let Some(grace) = grace else {
            return Vec::new();
        };
        let mut remaining: HashMap<(RowId, IpVersion), usize> = HashMap::new();
        let mut excess = Vec::new();
        let due: Vec<RowId> = self
            .reclaim
            .due
            .iter()
            .take_while(|(due, _)| *due <= now)
            .map(|(_, row)| *row)
            .collect();
        for row in due {
            let Some(block) = self.blocks.get(row) else {
                continue;
            };
            let (cidr, node, version) = (block.cidr, block.owner, block.cidr.version());
            let reason = if self.has_former_size(block) {
                Some(ExcessReason::FormerSize)
            } else {
                let remaining = remaining
                    .entry((node, version))
                    .or_insert_with(|| self.blocks_of(node, version));
                let is_spare = *remaining > 1;
                *remaining -= usize::from(is_spare);
                is_spare.then_some(ExcessReason::OtherBlocks)
            };
            self.reclaim.stop_timer(row);
            if let Some(reason) = reason {
                self.reclaim.start_timer(row, now, grace);
                excess.push(ExcessBlock {
                    block: cidr,
                    node: self.node_name(node).to_owned(),
                    reason,
                });
            }
        }
        excess
    }

    /// Starts and stops the timers of a node's empty blocks. A node that is migrating from Flannel
    /// keeps all blocks (KC-457).
    fn update_excess_timers(&mut self, node: RowId, now: Duration, grace: Option<Duration>) {
        let is_migrating = self.is_migrating(node);
        let is_deleted = self.is_node_deleted(node);
        let Some(row) = self.nodes.get_mut(node) else {
            return;
        };
        row.blocks_changed = false;
        let blocks = row.blocks.clone();
        let (v4, v6) = (
            self.blocks_of(node, IpVersion::V4),
            self.blocks_of(node, IpVersion::V6),
        );
        for row in blocks {
            let Some(block) = self.blocks.get(row) else {
                continue;
            };
            let of_family = if block.cidr.version() == IpVersion::V4 {
                v4
            } else {
                v6
            };
            let is_needless = of_family > 1 || self.has_former_size(block);
            let is_excess = block.allocated == 0 && !is_migrating && !is_deleted && is_needless;
            match grace.filter(|_| is_excess) {
                Some(grace) => self.reclaim.start_timer(row, now, grace),
                None => self.reclaim.stop_timer(row),
            }
        }
    }

    fn is_migrating(&self, node: RowId) -> bool {
        match self.nodes.get(node).map(|node| node.calico) {
            Some(CalicoNode::Kubernetes(name)) => {
                self.nodes.get(name).is_some_and(|node| node.migrating)
            }
            _ => false,
        }
    }

    /// Returns the number of the node's blocks of a family, without those of a former size.
    fn blocks_of(&self, node: RowId, version: IpVersion) -> usize {
        let blocks = self
            .nodes
            .get(node)
            .map(|node| node.blocks.as_slice())
            .unwrap_or_default();
        let blocks = blocks.iter().filter_map(|&row| self.blocks.get(row));
        blocks
            .filter(|block| block.cidr.version() == version && !self.has_former_size(block))
            .count()
    }

    /// Returns the deleted nodes that no allocation names, unless postponed. A block with other
    /// nodes' addresses stays until these are released (KC-461).
    pub fn nodes_to_release(&self, now: Duration) -> Vec<DeletedNode> {
        let is_ready = |&(&node, pause): &(&RowId, &Postponement)| {
            pause.until <= now
                && self.is_node_deleted(node)
                && self.nodes.get(node).is_some_and(|row| {
                    let is_empty = |&block: &RowId| {
                        self.blocks.get(block).is_some_and(|block| block.used == 0)
                    };
                    let may_succeed = row.blocks.is_empty()
                        || pause.failures == 0
                        || row.blocks.iter().any(is_empty);
                    may_succeed && !row.addresses.iter().any(|&row| self.names_node(row))
                })
        };
        let deleted_node = |(&node, _): (&RowId, &Postponement)| DeletedNode {
            calico: self.node_name(node).to_owned(),
            kubernetes: self.kubernetes_name(node).map(str::to_owned),
        };
        self.reclaim
            .deleted_nodes
            .iter()
            .filter(is_ready)
            .map(deleted_node)
            .collect()
    }

    /// Removes a deleted node after all of its affinities were released.
    pub fn remove_released_node(&mut self, name: &str) {
        self.gauges.remove_node(name);
        let Some(row) = self.nodes.find(name) else {
            return;
        };
        self.reclaim.deleted_nodes.remove(&row);
        self.drop_unused_node(row);
    }

    /// Postpones a deleted node some of whose affinities could not be released.
    pub fn postpone_node(&mut self, name: &str, now: Duration) {
        if let Some(postponement) = self
            .nodes
            .find(name)
            .and_then(|row| self.reclaim.deleted_nodes.get_mut(&row))
        {
            postponement.fail(now);
        }
    }

    /// Returns the blocks with an address whose cooldown has elapsed. `now` is the time of day at
    /// the monotonic time `mono`. A block is not returned again for a while.
    pub fn cooled_blocks(&mut self, now: OffsetDateTime, mono: Duration) -> Vec<Cidr> {
        let cooldown = self.settings.cooldown;
        let now = now.unix_timestamp();
        // The release may be of the current second (IPAM-164).
        let has_cooled = |released: i64| {
            released.saturating_add(cooldown.max(0)) < now + i64::from(cooldown <= 0)
        };
        let cooled: Vec<RowId> = self
            .reclaim
            .cooling
            .iter()
            .take_while(|(at, _)| has_cooled(*at))
            .map(|(_, row)| *row)
            .collect();
        let returned_until = &mut self.reclaim.returned_until;
        let mut blocks = Vec::new();
        for row in cooled {
            if returned_until.get(&row).is_some_and(|until| *until > mono) {
                continue;
            }
            returned_until.insert(row, mono.saturating_add(PAUSE_AFTER_COOLDOWN));
            blocks.extend(self.blocks.get(row).map(|block| block.cidr));
        }
        blocks
    }

    /// Returns the blocks of which every address that cools down has a release time of a wrong
    /// clock at `now`.
    pub fn blocks_of_wrong_clocks(&self, now: OffsetDateTime) -> Vec<Cidr> {
        let is_wrong = |at: i64| {
            OffsetDateTime::from_unix_timestamp(at).is_ok_and(|at| is_of_wrong_clock(at, now))
        };
        let wrong = self
            .reclaim
            .cooling
            .iter()
            .rev()
            .take_while(|(at, _)| is_wrong(*at));
        wrong
            .filter_map(|(_, row)| self.blocks.get(*row))
            .map(|block| block.cidr)
            .collect()
    }

    /// Returns the duration from `now` until the next cooldown elapses, 0 if it already has.
    pub fn next_cooldown_end(&self, now: OffsetDateTime) -> Option<Duration> {
        let (released, _) = self.reclaim.cooling.first()?;
        let due = released
            .saturating_add(self.settings.cooldown.max(0))
            .saturating_add(1);
        Some(Duration::from_secs(
            u64::try_from(due - now.unix_timestamp()).unwrap_or(0),
        ))
    }

    pub(in crate::ipam::gc) fn next_reclaim(&self, now: Duration) -> Option<Duration> {
        let postponements = self
            .reclaim
            .deleted_nodes
            .values()
            .map(|postponement| postponement.until);
        let due = self.reclaim.due.first().map(|(due, _)| *due);
        postponements.filter(|until| *until > now).chain(due).min()
    }
}
