//! [`Index::examine`]: finds leaked addresses, and applies their grace periods.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use super::index::Index;
use super::leaks::{GracePeriod, LeakTimer, LeakTransition};
use super::rows::AddressRow;
use super::suspect::{Suspect, SuspectOwner};
use super::table::{NONE, RowId};
use crate::ipam::{HandleId, InUseReason, LeakReason, OwnerKind, Verdict};
use crate::net::Cidr;

/// The minimum grace period for a VMI's address on an existing node, as in upstream (KC-433), or
/// without KubeVirt.
const VMI_GRACE: Duration = Duration::from_secs(300);

/// The addresses to examine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Addresses that may have changed since the last examination, and candidates whose grace
    /// period has elapsed.
    Changed,
    /// Every address, in case events were lost.
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
    pub owner: SuspectOwner,
    /// The Calico node that the allocation names.
    pub node: Option<String>,
}

/// The kind of a [`Change`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// The address looks leaked, and the leak is not confirmed yet.
    Candidate(LeakReason),
    /// The address is leaked: the grace period has elapsed or is not needed.
    Confirmed(LeakReason),
    /// The address no longer counts as a leak, or its grace period has to start again.
    Cleared,
}

impl Index {
    /// Examines addresses and returns the changes in their states. `now` must not decrease between
    /// calls.
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
        let mut affected_nodes = nodes.clone();
        for row in rows {
            if let Some(tracked) = self.addresses.get_mut(row) {
                tracked.set(AddressRow::DIRTY, false);
                affected_nodes.insert(tracked.node);
                self.examine_address(row, now, &mut changes);
            }
        }
        for &node in &affected_nodes {
            self.examine_node(node, now, &mut changes);
        }
        for node in nodes {
            self.drop_unused_node(node);
        }
        self.examine_reported_addresses(now, scope);
        changes
    }

    fn rows_to_examine(
        &mut self,
        now: Duration,
        scope: Scope,
        nodes: &BTreeSet<RowId>,
    ) -> Vec<RowId> {
        let mut rows = std::mem::take(&mut self.dirty);
        if scope == Scope::Everything {
            return self.addresses.rows();
        }
        rows.extend(self.leaks.due(now));
        for &node in nodes {
            rows.extend(
                self.nodes
                    .get(node)
                    .map(|node| node.addresses.as_slice())
                    .unwrap_or_default(),
            );
        }
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    fn examine_address(&mut self, row: RowId, now: Duration, changes: &mut Vec<Change>) {
        let Some(tracked) = self.addresses.get(row) else {
            return;
        };
        let is_node_deleted =
            tracked.is(AddressRow::NAMES_NODE) && self.is_node_deleted(tracked.node);
        if tracked.kind == OwnerKind::Tunnel && is_node_deleted {
            // `examine_node` decides about the tunnel's address.
            return;
        }
        let (grace, kind) = (self.settings.leak_grace, tracked.kind);
        match self.assess(row) {
            Verdict::InUse(_) => changes.extend(self.record_in_use(row)),
            Verdict::Leaked(reason) => {
                let is_new = |leak: &LeakTimer| reason.needs_full_grace() && leak.reason != reason;
                if self.leaks.get(row).is_some_and(is_new) {
                    // KubeVirt must be missing for all of the grace period.
                    changes.extend(self.record_in_use(row));
                }
                let vmi_grace = GracePeriod::After(grace.unwrap_or_default().max(VMI_GRACE));
                let grace = match grace {
                    _ if reason.needs_full_grace() => vmi_grace,
                    _ if is_node_deleted => GracePeriod::AtOnce,
                    _ if kind == OwnerKind::Vmi => vmi_grace,
                    None => return changes.extend(self.record_in_use(row)),
                    Some(Duration::ZERO) => GracePeriod::Never,
                    Some(grace) => GracePeriod::After(grace),
                };
                changes.extend(self.record_leak(row, now, reason, grace));
            }
        }
    }

    /// Queues a deleted node for the release of its affinities. Its tunnel addresses are confirmed
    /// as leaks only after all other addresses that name the node (KC-439).
    fn examine_node(&mut self, node: RowId, now: Duration, changes: &mut Vec<Change>) {
        let Some(row) = self.nodes.get_mut(node) else {
            return;
        };
        row.dirty = false;
        let addresses = row.addresses.clone();
        let has_entries = !addresses.is_empty() || !row.blocks.is_empty();
        if !self.is_node_deleted(node) {
            self.reclaim.deleted_nodes.remove(&node);
            return;
        }
        if has_entries {
            self.reclaim.deleted_nodes.entry(node).or_default();
        }
        let is_tunnel = |row: &RowId| {
            self.addresses
                .get(*row)
                .is_some_and(|tracked| tracked.kind == OwnerKind::Tunnel)
        };
        let (tunnels, others): (Vec<RowId>, Vec<RowId>) =
            addresses.into_iter().partition(is_tunnel);
        let all_confirmed = others
            .into_iter()
            .all(|row| self.leaks.is_confirmed(row) || !self.names_node(row));
        for tunnel in tunnels {
            changes.extend(match self.assess(tunnel) {
                Verdict::Leaked(reason) if all_confirmed => {
                    self.record_leak(tunnel, now, reason, GracePeriod::AtOnce)
                }
                _ => self.record_in_use(tunnel),
            });
        }
    }

    /// Returns true if the allocation of an address names its node. One that names none does not
    /// prevent the release of the node's affinities.
    pub(super) fn names_node(&self, row: RowId) -> bool {
        self.addresses
            .get(row)
            .is_some_and(|tracked| tracked.is(AddressRow::NAMES_NODE))
    }

    fn record_leak(
        &mut self,
        row: RowId,
        now: Duration,
        reason: LeakReason,
        grace: GracePeriod,
    ) -> Option<Change> {
        let was_leak = self.leaks.get(row).is_some();
        let transition = self.leaks.set(row, now, reason, grace);
        if !was_leak {
            self.count_candidate(row, 1);
        }
        let kind = match transition {
            LeakTransition::Started => ChangeKind::Candidate(reason),
            LeakTransition::Confirmed => ChangeKind::Confirmed(reason),
            LeakTransition::Cleared | LeakTransition::Unchanged => return None,
        };
        self.change(row, kind)
    }

    fn record_in_use(&mut self, row: RowId) -> Option<Change> {
        if self.clear_leak(row) {
            self.change(row, ChangeKind::Cleared)
        } else {
            None
        }
    }

    pub(super) fn clear_leak(&mut self, row: RowId) -> bool {
        let cleared = self.leaks.clear(row) == LeakTransition::Cleared;
        if cleared {
            self.count_candidate(row, -1);
        }
        cleared
    }

    fn change(&self, row: RowId, kind: ChangeKind) -> Option<Change> {
        let tracked = self.addresses.get(row)?;
        let block = self.blocks.get(tracked.block)?.cidr;
        let handle = self
            .handles
            .get(tracked.handle)?
            .id
            .to_handle_id(&self.networks);
        let (owner, node) = (self.owner_of(tracked), self.node_of(tracked));
        Some(Change {
            kind,
            block,
            address: self.address_of(tracked)?,
            handle,
            owner,
            node,
        })
    }

    fn owner_of(&self, tracked: &AddressRow) -> SuspectOwner {
        let owner = self.owners.get(tracked.owner);
        let names = owner.map(|owner| {
            (
                self.namespaces.text(owner.namespace).to_owned(),
                owner.name.to_string(),
            )
        });
        SuspectOwner {
            kind: tracked.kind,
            names,
        }
    }

    fn node_of(&self, tracked: &AddressRow) -> Option<String> {
        let node = tracked.named_node();
        (node != NONE).then(|| self.node_name(node).to_owned())
    }

    pub(super) fn address_of(&self, tracked: &AddressRow) -> Option<IpAddr> {
        self.blocks
            .get(tracked.block)?
            .cidr
            .nth(u128::from(tracked.ordinal))
    }

    /// Returns addresses of confirmed leaks, at least `limit` if there are as many. A handle is
    /// returned with all of its addresses, and only if all of them are confirmed (KC-445).
    /// Postponed handles are left out.
    pub fn suspects(&self, now: Duration, limit: usize) -> Vec<Suspect> {
        let mut handles = BTreeSet::new();
        let mut suspects = Vec::new();
        for row in self.leaks.confirmed() {
            let Some(handle) = self.addresses.get(row).map(|tracked| tracked.handle) else {
                continue;
            };
            if !handles.insert(handle) || self.leaks.is_postponed(handle, now) {
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

    pub(super) fn rows_of(&self, handle: RowId) -> Vec<RowId> {
        let mut rows = Vec::new();
        let mut at = self
            .handles
            .get(handle)
            .map_or(NONE, |handle| handle.first_address);
        while let Some(tracked) = self.addresses.get(at) {
            rows.push(at);
            at = tracked.next_of_handle;
        }
        rows
    }

    fn suspect(&self, row: RowId) -> Option<Suspect> {
        let owned =
            |(namespace, name): &(Box<str>, Box<str>)| (namespace.to_string(), name.to_string());
        let (tracked, leak) = (self.addresses.get(row)?, self.leaks.get(row)?);
        let block = self.blocks.get(tracked.block)?;
        Some(Suspect {
            block: block.cidr,
            address: self.address_of(tracked)?,
            handle: self
                .handles
                .get(tracked.handle)?
                .id
                .to_handle_id(&self.networks),
            sequence: tracked.sequence(),
            fingerprint: tracked.fingerprint,
            owner: self.owner_of(tracked),
            owners: self
                .owner_pods
                .get(&row)
                .into_iter()
                .flatten()
                .map(owned)
                .collect(),
            node: self.node_of(tracked),
            kubernetes_node: self
                .kubernetes_name(tracked.named_node())
                .map(str::to_owned),
            pool: self.pool_name(block.pool).map(str::to_owned),
            reason: leak.reason,
            by_node: leak.by_node,
        })
    }

    /// Returns the row of a suspect, if the index still has its allocation.
    fn row_of(&self, suspect: &Suspect) -> Option<RowId> {
        let ordinal = u16::try_from(suspect.block.offset_of(suspect.address)?).ok()?;
        let block = self.blocks.get(self.blocks.find(suspect.block)?)?;
        block.addresses.iter().copied().find(|row| {
            self.addresses.get(*row).is_some_and(|tracked| {
                tracked.ordinal == ordinal
                    && tracked.sequence() == suspect.sequence
                    && tracked.fingerprint == suspect.fingerprint
                    && self.find_handle(suspect.handle.as_str()) == Some(tracked.handle)
            })
        })
    }

    /// Processes the decision to keep an address. For [`InUseReason::NotLookedUp`], the suspect's
    /// handle is postponed; otherwise the address is no longer a leak.
    pub fn kept(&mut self, suspect: &Suspect, in_use_reason: InUseReason, now: Duration) {
        let Some(row) = self.row_of(suspect) else {
            return;
        };
        if in_use_reason == InUseReason::NotLookedUp {
            self.postpone_handle(row, now);
        } else {
            self.clear_leak(row);
        }
    }

    /// Postpones the handle of a suspect whose release failed.
    pub fn postpone(&mut self, suspect: &Suspect, now: Duration) {
        if let Some(row) = self.row_of(suspect) {
            self.postpone_handle(row, now);
        }
    }

    fn postpone_handle(&mut self, row: RowId, now: Duration) {
        if let Some(tracked) = self.addresses.get(row) {
            self.leaks.postpone(tracked.handle, now);
        }
    }

    /// Counts a released address for the metrics and removes it from the index before the watch
    /// does.
    pub fn released(&mut self, suspect: &Suspect) {
        self.gauges.reclaimed(suspect);
        let Some(row) = self.row_of(suspect) else {
            return;
        };
        let block = self
            .addresses
            .get(row)
            .map_or(NONE, |tracked| tracked.block);
        if let Some(block) = self.blocks.get_mut(block) {
            block.addresses = block
                .addresses
                .iter()
                .copied()
                .filter(|other| *other != row)
                .collect();
        }
        self.untrack(row);
    }

    /// Returns the time of the next action that needs no event. It may be past.
    pub fn next_deadline(&self, now: Duration) -> Option<Duration> {
        let next = self
            .leaks
            .next_deadline(now)
            .into_iter()
            .chain(self.next_reclaim(now));
        next.chain(self.next_conflict(now)).min()
    }
}
