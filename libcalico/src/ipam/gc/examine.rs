//! [`Index::examine`]: finds the addresses without owner, and measures for how long they have had none.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use super::index::Index;
use super::leaks::{Grace, Leak, LeakTransition};
use super::rows::Tracked;
use super::suspect::{Holder, Suspect};
use super::table::{NONE, Row};
use crate::ipam::{ClaimKind, Evidence, HandleId, Holding, Keeper};
use crate::net::Cidr;

/// The minimum grace period for a VMI's address, as in upstream (KC-433).
const MACHINE_GRACE: Duration = Duration::from_secs(300);

/// The addresses to examine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Addresses that changed since the last examination, and candidates whose grace period has elapsed.
    Changed,
    /// Every address. The examination finds more than with `Changed` only if events were lost.
    Everything,
}

/// A change in the state of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The kind of change.
    pub kind: ChangeKind,
    /// The address's block.
    pub block: Cidr,
    /// The address.
    pub address: IpAddr,
    /// The address's handle.
    pub handle: HandleId,
    /// The owner for which the address was allocated.
    pub holder: Holder,
    /// The Calico node that the allocation names.
    pub node: Option<String>,
}

/// The kind of a [`Change`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// The address has no owner; its grace period begins.
    Candidate(Evidence),
    /// The address has no owner, and its grace period has elapsed.
    Confirmed(Evidence),
    /// The address is in use after all.
    Cleared,
}

impl Index {
    /// Examines addresses and returns the changes in their states. `now` must not decrease between calls.
    pub fn examine(&mut self, now: Duration, scope: Scope) -> Vec<Change> {
        let nodes = match scope {
            Scope::Changed => std::mem::take(&mut self.dirty_nodes),
            Scope::Everything => {
                self.dirty_nodes.clear();
                self.nodes.rows().into_iter().collect()
            }
        };
        let rows = self.rows_to_examine(now, scope, &nodes);
        let mut changes = Vec::new();
        let mut concerned = nodes.clone();
        for row in rows {
            if let Some(tracked) = self.tracked.get_mut(row) {
                tracked.set(Tracked::DIRTY, false);
                concerned.insert(tracked.node);
                self.examine_one(row, now, &mut changes);
            }
        }
        for &node in &concerned {
            self.examine_node(node, now, &mut changes);
        }
        for node in nodes {
            self.drop_unused_node(node);
        }
        self.examine_reports(now, scope);
        changes
    }

    fn rows_to_examine(&mut self, now: Duration, scope: Scope, nodes: &BTreeSet<Row>) -> Vec<Row> {
        let dirty = std::mem::take(&mut self.dirty);
        if scope == Scope::Everything {
            return self.tracked.rows();
        }
        let mut rows = dirty;
        rows.extend(self.leaks.due(now));
        for &node in nodes {
            rows.extend(self.nodes.get(node).map(|node| node.tracked.as_slice()).unwrap_or_default());
        }
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    fn examine_one(&mut self, row: Row, now: Duration, changes: &mut Vec<Change>) {
        let Some(tracked) = self.tracked.get(row) else { return };
        let gone = tracked.is(Tracked::NAMES_NODE) && self.is_gone(tracked.node);
        if tracked.kind == ClaimKind::Tunnel && gone {
            // `examine_node` decides after all other addresses of the node.
            return;
        }
        let (grace, kind) = (self.settings.leak_grace, tracked.kind);
        match self.judge(row) {
            Holding::Held(_) => self.cleared(row, changes),
            Holding::Leaked(evidence) => {
                let is_new = |leak: &Leak| evidence == Evidence::NoKubeVirt && leak.evidence != evidence;
                if self.leaks.get(row).is_some_and(is_new) {
                    // The grace period starts again, because KubeVirt must be missing for all of it.
                    self.cleared(row, changes);
                }
                let of_machine = Grace::After(grace.unwrap_or_default().max(MACHINE_GRACE));
                let grace = match grace {
                    _ if evidence == Evidence::NoKubeVirt => of_machine,
                    _ if gone => Grace::AtOnce,
                    _ if kind == ClaimKind::Machine => of_machine,
                    None => return self.cleared(row, changes),
                    Some(Duration::ZERO) => Grace::Never,
                    Some(grace) => Grace::After(grace),
                };
                self.leaked(row, now, evidence, grace, changes);
            }
        }
    }

    /// Prepares the release of a deleted node's affinities. The node's tunnel addresses are confirmed as leaks once no
    /// other address keeps the node (KC-439).
    fn examine_node(&mut self, node: Row, now: Duration, changes: &mut Vec<Change>) {
        let Some(row) = self.nodes.get_mut(node) else { return };
        row.dirty = false;
        let tracked = row.tracked.clone();
        let holds = !tracked.is_empty() || !row.blocks.is_empty();
        if !self.is_gone(node) {
            return self.balance.stay(node);
        }
        if holds {
            self.balance.depart(node);
        }
        let is_tunnel = |row: &Row| self.tracked.get(*row).is_some_and(|tracked| tracked.kind == ClaimKind::Tunnel);
        let (tunnels, others): (Vec<Row>, Vec<Row>) = tracked.into_iter().partition(is_tunnel);
        let settled = others.into_iter().all(|row| self.leaks.is_confirmed(row) || !self.names_node(row));
        for tunnel in tunnels {
            match self.judge(tunnel) {
                Holding::Leaked(evidence) if settled => {
                    self.leaked(tunnel, now, evidence, Grace::AtOnce, changes);
                }
                _ => self.cleared(tunnel, changes),
            }
        }
    }

    /// Returns true if the allocation names its node. Other allocations are filed under the node of their block, and
    /// do not prevent the release of the node's affinities.
    pub(super) fn names_node(&self, row: Row) -> bool {
        self.tracked.get(row).is_some_and(|tracked| tracked.is(Tracked::NAMES_NODE))
    }

    fn leaked(&mut self, row: Row, now: Duration, evidence: Evidence, grace: Grace, changes: &mut Vec<Change>) {
        let known = self.leaks.get(row).is_some();
        let transition = self.leaks.leaked(row, now, evidence, grace);
        if !known {
            self.count_candidate(row, 1);
        }
        let kind = match transition {
            LeakTransition::Became => ChangeKind::Candidate(evidence),
            LeakTransition::Confirmed => ChangeKind::Confirmed(evidence),
            LeakTransition::Cleared | LeakTransition::Unchanged => return,
        };
        changes.extend(self.change(row, kind));
    }

    fn cleared(&mut self, row: Row, changes: &mut Vec<Change>) {
        if self.clear_leak(row) {
            changes.extend(self.change(row, ChangeKind::Cleared));
        }
    }

    pub(super) fn clear_leak(&mut self, row: Row) -> bool {
        let cleared = self.leaks.clear(row) == LeakTransition::Cleared;
        if cleared {
            self.count_candidate(row, -1);
        }
        cleared
    }

    fn change(&self, row: Row, kind: ChangeKind) -> Option<Change> {
        let tracked = self.tracked.get(row)?;
        let block = self.blocks.get(tracked.block)?.cidr;
        let handle = self.handles.get(tracked.handle)?.id.write(&self.networks);
        let (holder, node) = (self.holder_of(tracked), self.node_of(tracked));
        Some(Change { kind, block, address: self.address_of(tracked)?, handle, holder, node })
    }

    fn holder_of(&self, tracked: &Tracked) -> Holder {
        let subject = self.subjects.get(tracked.subject);
        let names = subject.map(|found| (self.namespaces.text(found.namespace).to_owned(), found.name.to_string()));
        Holder { kind: tracked.kind, names }
    }

    fn node_of(&self, tracked: &Tracked) -> Option<String> {
        let node = tracked.named_node();
        (node != NONE).then(|| self.node_name(node).to_owned())
    }

    pub(super) fn address_of(&self, tracked: &Tracked) -> Option<IpAddr> {
        self.blocks.get(tracked.block)?.cidr.nth(u128::from(tracked.ordinal))
    }

    /// Returns the addresses of confirmed leaks, about `limit` at most. A handle is returned with all of its
    /// addresses, and only if all of them are confirmed (KC-445). Handles whose release failed recently are left out,
    /// so that they are not read again in every pass.
    pub fn suspects(&self, now: Duration, limit: usize) -> Vec<Suspect> {
        let mut handles = BTreeSet::new();
        let mut suspects = Vec::new();
        for row in self.leaks.confirmed() {
            let Some(handle) = self.tracked.get(row).map(|tracked| tracked.handle) else { continue };
            if !handles.insert(handle) || self.leaks.is_parked(handle, now) {
                continue;
            }
            let rows = self.rows_of(handle);
            if rows.iter().all(|&row| self.leaks.is_confirmed(row)) {
                suspects.extend(rows.into_iter().filter_map(|row| self.suspect(row)));
            }
            if suspects.len() >= limit {
                break;
            }
        }
        suspects
    }

    pub(super) fn rows_of(&self, handle: Row) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut at = self.handles.get(handle).map_or(NONE, |handle| handle.tracked);
        while let Some(tracked) = self.tracked.get(at) {
            rows.push(at);
            at = tracked.handle_next;
        }
        rows
    }

    fn suspect(&self, row: Row) -> Option<Suspect> {
        let owned = |(namespace, name): &(Box<str>, Box<str>)| (namespace.to_string(), name.to_string());
        let (tracked, leak) = (self.tracked.get(row)?, self.leaks.get(row)?);
        let block = self.blocks.get(tracked.block)?;
        Some(Suspect {
            block: block.cidr,
            address: self.address_of(tracked)?,
            handle: self.handles.get(tracked.handle)?.id.write(&self.networks),
            sequence: tracked.sequence(),
            fingerprint: tracked.fingerprint,
            holder: self.holder_of(tracked),
            owners: self.owners.get(&row).into_iter().flatten().map(owned).collect(),
            node: self.node_of(tracked),
            kubernetes_node: self.kubernetes_name(tracked.named_node()).map(str::to_owned),
            pool: self.pool_name(block.pool).map(str::to_owned),
            evidence: leak.evidence,
            by_node: leak.by_node,
        })
    }

    /// Returns the row of a suspect, if the index still has the same allocation.
    fn row_of(&self, suspect: &Suspect) -> Option<Row> {
        let ordinal = u16::try_from(suspect.block.offset_of(suspect.address)?).ok()?;
        let block = self.blocks.get(self.blocks.find(suspect.block)?)?;
        let row = block.tracked.iter().copied();
        let mut same = row.filter(|row| {
            self.tracked.get(*row).is_some_and(|tracked| {
                tracked.ordinal == ordinal
                    && tracked.sequence() == suspect.sequence
                    && tracked.fingerprint == suspect.fingerprint
                    && self.find_handle(suspect.handle.as_str()) == Some(tracked.handle)
            })
        });
        same.next()
    }

    /// Processes the decision to keep an address. If the owner could not be looked up, the suspect is postponed,
    /// longer with each failure. Otherwise the address is no longer a leak.
    pub fn kept(&mut self, suspect: &Suspect, keeper: Keeper, now: Duration) {
        let Some(row) = self.row_of(suspect) else { return };
        if keeper == Keeper::Unseen {
            self.park(row, now);
        } else {
            self.clear_leak(row);
        }
    }

    /// Postpones the handle of a suspect whose release failed.
    pub fn failed(&mut self, suspect: &Suspect, now: Duration) {
        if let Some(row) = self.row_of(suspect) {
            self.park(row, now);
        }
    }

    fn park(&mut self, row: Row, now: Duration) {
        if let Some(tracked) = self.tracked.get(row) {
            self.leaks.park(tracked.handle, now);
        }
    }

    /// Removes a released address from the index. The block's own event removes it, too, but arrives later.
    pub fn released(&mut self, suspect: &Suspect) {
        self.numbers.reclaimed(suspect);
        let Some(row) = self.row_of(suspect) else { return };
        let block = self.tracked.get(row).map_or(NONE, |tracked| tracked.block);
        if let Some(block) = self.blocks.get_mut(block) {
            block.tracked = block.tracked.iter().copied().filter(|other| *other != row).collect();
        }
        self.untrack(row);
    }

    /// Returns the time of the next action that needs no event: the end of a grace period, or a retry. Actions that
    /// are already due are not included.
    pub fn next_deadline(&self, now: Duration) -> Option<Duration> {
        let next = self.leaks.next_deadline(now).into_iter().chain(self.next_balance(now));
        next.chain(self.next_conflict(now)).min()
    }
}
