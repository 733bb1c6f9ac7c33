//! Methods of [`Index`] for addresses that pods report and blocks contradict.

use std::net::IpAddr;
use std::time::Duration;

use super::super::conflicts::{Conflict, SETTLED};
use super::super::examine::Scope;
use super::super::rows::SubjectState;
use super::super::table::Row;
use super::Index;
use crate::ipam::ClaimKind;
use crate::net::{Cidr, IpVersion};

impl Index {
    /// Processes a change or deletion of a pod. Conflicts about addresses that the pod no longer reports end.
    pub(in crate::ipam::gc) fn pod_changed(&mut self, pod: Row) {
        let reported = self.reports(pod);
        self.conflicts.watched.retain(|(row, address)| *row != pod || reported.contains(address));
        self.conflicts.reported.retain(|(row, address)| *row != pod || reported.contains(address));
        match reported.is_empty() {
            true => self.conflicts.pods.remove(&pod),
            false => self.conflicts.pods.insert(pod),
        };
    }

    /// Ends the conflicts about an address that was allocated to a pod, even if the allocation is released soon after.
    pub(in crate::ipam::gc) fn holder_came(&mut self, tracked: Row) {
        let Some(address) = self.tracked.get(tracked).and_then(|tracked| self.address_of(tracked)) else { return };
        for pod in self.pods_of(tracked) {
            self.conflicts.clear(&(pod, address));
        }
    }

    /// Processes the end of a pod's allocation.
    pub(in crate::ipam::gc) fn holder_went(&mut self, tracked: Row) {
        self.holder_came(tracked);
        for pod in self.pods_of(tracked) {
            self.conflicts.pods.insert(pod);
        }
    }

    /// Returns the pods to which a block allocates the address.
    fn pods_of(&self, tracked: Row) -> Vec<Row> {
        let owners = self.owners.get(&tracked).into_iter().flatten();
        let mut pods: Vec<Row> =
            owners.filter_map(|(namespace, name)| self.find_subject(ClaimKind::Pod, namespace, name)).collect();
        pods.extend(self.tracked.get(tracked).filter(|held| held.kind == ClaimKind::Pod).map(|held| held.subject));
        pods
    }

    /// Returns the addresses in the status of a pod, if the pod is running.
    fn reports(&self, pod: Row) -> Vec<IpAddr> {
        match self.subjects.get(pod).map(|subject| &subject.state) {
            Some(SubjectState::Pod { addresses, runs: true, .. }) => addresses.of_kubelet().collect(),
            _ => Vec::new(),
        }
    }

    /// Compares the addresses that pods report with the blocks.
    pub(in crate::ipam::gc) fn examine_reports(&mut self, now: Duration, scope: Scope) {
        let mut pods = std::mem::take(&mut self.conflicts.pods);
        if std::mem::take(&mut self.conflicts.all) || scope == Scope::Everything {
            pods = self.subjects.iter().map(|(row, _)| row).collect();
        }
        pods.extend(self.conflicts.watched.keys().map(|(row, _)| *row));
        for pod in pods {
            for address in self.reports(pod) {
                match self.contradicting(pod, address) {
                    Some(_) => self.conflicts.watched.suspect((pod, address), (), now),
                    None => self.conflicts.clear(&(pod, address)),
                }
            }
        }
    }

    /// Returns the block in which `address` is free or belongs to another owner than the pod, and true if it is free.
    fn contradicting(&self, pod: Row, address: IpAddr) -> Option<(Cidr, bool)> {
        let mut found = None;
        for &(_, prefix) in self.conflicts.sizes.keys().filter(|(version, _)| *version == IpVersion::of(address)) {
            let Some(block) = Cidr::new(address, prefix).and_then(|cidr| self.blocks.get(self.blocks.find(cidr)?))
            else {
                continue;
            };
            let ordinal = block.cidr.offset_of(address).and_then(|offset| u16::try_from(offset).ok())?;
            let ordinal_of = |row: &Row| self.tracked.get(*row).map_or(u16::MAX, |tracked| tracked.ordinal);
            match block.tracked.binary_search_by_key(&ordinal, ordinal_of) {
                Ok(at) if self.may_be_for(block.tracked[at], pod) => return None,
                Ok(_) => found = Some((block.cidr, false)),
                Err(_) if block.nameless.contains(&ordinal) => return None,
                Err(_) => found = Some((block.cidr, true)),
            }
        }
        found
    }

    fn may_be_for(&self, tracked: Row, pod: Row) -> bool {
        let Some(held) = self.tracked.get(tracked) else { return true };
        let namespace = |subject: Row| self.subjects.get(subject).map(|subject| subject.namespace);
        match held.kind {
            ClaimKind::Unnamed => true,
            ClaimKind::Machine if !self.owners.contains_key(&tracked) => namespace(held.subject) == namespace(pod),
            _ => self.pods_of(tracked).contains(&pod),
        }
    }

    /// Returns the lasting conflicts that were not reported yet, except those whose report failed recently. Check both
    /// sides again before reporting a conflict.
    pub fn conflicts(&self, now: Duration) -> Vec<Conflict> {
        let due = self.conflicts.watched.due(now, SETTLED).into_iter();
        let unreported = due.filter(|key| !self.conflicts.reported.contains(key));
        let conflict = |(pod, address): (Row, IpAddr)| {
            let (block, _) = self.contradicting(pod, address)?;
            let subject = self.subjects.get(pod)?;
            let namespace = self.namespaces.text(subject.namespace).to_owned();
            Some(Conflict { namespace, name: subject.name.to_string(), address, block })
        };
        unreported.filter_map(conflict).collect()
    }

    /// Returns the numbers of lasting conflicts about free addresses and about addresses of other owners.
    pub fn conflicting(&self, now: Duration) -> (usize, usize) {
        let settled = self.conflicts.watched.settled(now, SETTLED);
        settled
            .filter_map(|&(pod, address)| self.contradicting(pod, address))
            .fold((0, 0), |(free, another), found| if found.1 { (free + 1, another) } else { (free, another + 1) })
    }

    /// Marks a conflict as reported to operators.
    pub fn conflict_reported(&mut self, conflict: &Conflict) {
        if let Some(key) = self.conflict_key(conflict) {
            self.conflicts.reported.insert(key);
        }
    }

    /// Postpones a conflict that could not be reported. The pause grows with each failure.
    pub fn conflict_postponed(&mut self, conflict: &Conflict, now: Duration) {
        if let Some(key) = self.conflict_key(conflict) {
            self.conflicts.watched.failed(&key, now);
        }
    }

    /// Ends a conflict that a fresh read did not confirm. If the index still contains it, its time starts again.
    pub fn conflict_over(&mut self, conflict: &Conflict) {
        if let Some(key) = self.conflict_key(conflict) {
            self.conflicts.clear(&key);
            self.conflicts.pods.insert(key.0);
        }
    }

    fn conflict_key(&self, conflict: &Conflict) -> Option<(Row, IpAddr)> {
        let pod = self.find_subject(ClaimKind::Pod, &conflict.namespace, &conflict.name)?;
        let key = (pod, conflict.address);
        self.conflicts.watched.state(&key).is_some().then_some(key)
    }

    pub(in crate::ipam::gc) fn next_conflict(&self, now: Duration) -> Option<Duration> {
        self.conflicts.watched.next_deadline(now, SETTLED)
    }
}
