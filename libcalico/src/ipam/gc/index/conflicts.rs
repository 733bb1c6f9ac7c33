//! Methods of [`Index`] for conflicts between the addresses that pods report and the blocks.

use std::net::IpAddr;
use std::time::Duration;

use super::super::conflicts::{Conflict, MIN_CONFLICT_DURATION};
use super::super::examine::Scope;
use super::super::rows::OwnerState;
use super::super::table::RowId;
use super::Index;
use crate::ipam::OwnerKind;
use crate::net::{Cidr, IpVersion};

impl Index {
    /// Processes a change or deletion of a pod.
    pub(in crate::ipam::gc) fn pod_changed(&mut self, pod: RowId) {
        let reported = self.reported_addresses(pod);
        self.conflicts
            .suspected
            .retain(|(row, address)| *row != pod || reported.contains(address));
        self.conflicts
            .reported
            .retain(|(row, address)| *row != pod || reported.contains(address));
        match reported.is_empty() {
            true => self.conflicts.pods_to_check.remove(&pod),
            false => self.conflicts.pods_to_check.insert(pod),
        };
    }

    /// Ends the conflicts about an address for the pods to which it is now allocated.
    pub(in crate::ipam::gc) fn allocation_added(&mut self, tracked: RowId) {
        let Some(address) = self
            .addresses
            .get(tracked)
            .and_then(|tracked| self.address_of(tracked))
        else {
            return;
        };
        for pod in self.pods_of(tracked) {
            self.conflicts.clear(&(pod, address));
        }
    }

    /// Processes the end of an allocation, whose pods are then examined again.
    pub(in crate::ipam::gc) fn allocation_removed(&mut self, tracked: RowId) {
        self.allocation_added(tracked);
        self.conflicts.pods_to_check.extend(self.pods_of(tracked));
    }

    fn pods_of(&self, tracked: RowId) -> Vec<RowId> {
        let owners = self.owner_pods.get(&tracked).into_iter().flatten();
        let pods =
            owners.filter_map(|(namespace, name)| self.find_owner(OwnerKind::Pod, namespace, name));
        let own = self
            .addresses
            .get(tracked)
            .filter(|tracked| tracked.kind == OwnerKind::Pod);
        pods.chain(own.map(|tracked| tracked.owner)).collect()
    }

    /// Returns the addresses in the status of a pod that runs.
    fn reported_addresses(&self, pod: RowId) -> Vec<IpAddr> {
        match self.owners.get(pod).map(|owner| &owner.state) {
            Some(OwnerState::Pod {
                addresses,
                runs: true,
                ..
            }) => addresses.in_status().collect(),
            _ => Vec::new(),
        }
    }

    pub(in crate::ipam::gc) fn examine_reported_addresses(&mut self, now: Duration, scope: Scope) {
        let mut pods = std::mem::take(&mut self.conflicts.pods_to_check);
        if std::mem::take(&mut self.conflicts.check_all_pods) || scope == Scope::Everything {
            pods = self.owners.iter().map(|(row, _)| row).collect();
        }
        pods.extend(self.conflicts.suspected.keys().map(|(row, _)| *row));
        for pod in pods {
            for address in self.reported_addresses(pod) {
                match self.find_contradiction(pod, address) {
                    Some(_) => self.conflicts.suspected.suspect((pod, address), (), now),
                    None => self.conflicts.clear(&(pod, address)),
                }
            }
        }
    }

    /// Returns the block in which `address` is free or belongs to another owner than the pod, and
    /// true if it is free.
    fn find_contradiction(&self, pod: RowId, address: IpAddr) -> Option<(Cidr, bool)> {
        let mut contradiction = None;
        for &(_, prefix) in self
            .conflicts
            .sizes
            .keys()
            .filter(|(version, _)| *version == IpVersion::of(address))
        {
            let row = Cidr::new(address, prefix).and_then(|cidr| self.blocks.find(cidr));
            let Some(block) = row.and_then(|row| self.blocks.get(row)) else {
                continue;
            };
            let ordinal = block
                .cidr
                .offset_of(address)
                .and_then(|offset| u16::try_from(offset).ok())?;
            let ordinal_of = |row: &RowId| {
                self.addresses
                    .get(*row)
                    .map_or(u16::MAX, |tracked| tracked.ordinal)
            };
            match block.addresses.binary_search_by_key(&ordinal, ordinal_of) {
                Ok(at) if self.may_belong_to(block.addresses[at], pod) => return None,
                Ok(_) => contradiction = Some((block.cidr, false)),
                Err(_) if block.without_handle.contains(&ordinal) => return None,
                Err(_) => contradiction = Some((block.cidr, true)),
            }
        }
        contradiction
    }

    fn may_belong_to(&self, tracked: RowId, pod: RowId) -> bool {
        let Some(allocation) = self.addresses.get(tracked) else {
            return true;
        };
        let namespace = |owner: RowId| self.owners.get(owner).map(|owner| owner.namespace);
        match allocation.kind {
            OwnerKind::Unnamed => true,
            OwnerKind::Vmi if !self.owner_pods.contains_key(&tracked) => {
                namespace(allocation.owner) == namespace(pod)
            }
            _ => self.pods_of(tracked).contains(&pod),
        }
    }

    /// Returns the conflicts that have lasted two minutes and were not reported yet, unless
    /// postponed. Read the pod and the block again before reporting a conflict.
    pub fn conflicts(&self, now: Duration) -> Vec<Conflict> {
        let due = self
            .conflicts
            .suspected
            .due(now, MIN_CONFLICT_DURATION)
            .into_iter();
        let unreported = due.filter(|key| !self.conflicts.reported.contains(key));
        let conflict = |(pod, address): (RowId, IpAddr)| {
            let (block, _) = self.find_contradiction(pod, address)?;
            let owner = self.owners.get(pod)?;
            let namespace = self.namespaces.text(owner.namespace).to_owned();
            Some(Conflict {
                namespace,
                name: owner.name.to_string(),
                address,
                block,
            })
        };
        unreported.filter_map(conflict).collect()
    }

    /// Returns the numbers of lasting conflicts about free addresses and about addresses of other
    /// owners.
    pub fn conflicting(&self, now: Duration) -> (usize, usize) {
        let lasting = self
            .conflicts
            .suspected
            .unchanged_for(now, MIN_CONFLICT_DURATION);
        let contradictions =
            lasting.filter_map(|&(pod, address)| self.find_contradiction(pod, address));
        contradictions.fold((0, 0), |(free, another), (_, is_free)| {
            if is_free {
                (free + 1, another)
            } else {
                (free, another + 1)
            }
        })
    }

    /// Marks a conflict as reported to operators.
    pub fn mark_conflict_reported(&mut self, conflict: &Conflict) {
        if let Some(key) = self.conflict_key(conflict) {
            self.conflicts.reported.insert(key);
        }
    }

    /// Postpones a conflict that could not be reported.
    pub fn postpone_conflict(&mut self, conflict: &Conflict, now: Duration) {
        if let Some(key) = self.conflict_key(conflict) {
            self.conflicts.suspected.postpone(&key, now);
        }
    }

    /// Ends a conflict that a fresh read did not confirm.
    pub fn end_conflict(&mut self, conflict: &Conflict) {
        if let Some(key) = self.conflict_key(conflict) {
            self.conflicts.clear(&key);
            self.conflicts.pods_to_check.insert(key.0);
        }
    }

    fn conflict_key(&self, conflict: &Conflict) -> Option<(RowId, IpAddr)> {
        let pod = self.find_owner(OwnerKind::Pod, &conflict.namespace, &conflict.name)?;
        let key = (pod, conflict.address);
        self.conflicts
            .suspected
            .state(&key)
            .is_some()
            .then_some(key)
    }

    pub(in crate::ipam::gc) fn next_conflict(&self, now: Duration) -> Option<Duration> {
        self.conflicts
            .suspected
            .next_deadline(now, MIN_CONFLICT_DURATION)
    }
}
