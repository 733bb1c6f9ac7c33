//! [`Conflict`]: an address that a running pod reports although IPAM has it free or allocated to another owner.
//! Conflicts appear after a restore of the datastore: the pods kept running, and the blocks are those of the backup.
//! Conflicts are only reported to operators, not repaired.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use super::examine::Scope;
use super::index::Index;
use super::rows::SubjectState;
use super::table::Row;
use super::watchlist::Watchlist;
use crate::ipam::{Block, Claim, ClaimKind};
use crate::net::{Cidr, IpVersion};

/// The minimum duration of a conflict. ADD and DEL write the block and kubelet writes the status, one after the other,
/// so shorter contradictions are normal.
const SETTLED: Duration = Duration::from_secs(120);

/// An address that a running pod reports, and that has not been the pod's in its block for two minutes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The address.
    pub address: IpAddr,
    /// The address's block.
    pub block: Cidr,
}

/// The state in a block of an address that a pod reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rival {
    /// The address is free, so the next pod may get it.
    Free,
    /// The address belongs to the owner described here.
    Another(String),
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rival::Free => f.write_str("free"),
            Rival::Another(whom) => write!(f, "for {whom}"),
        }
    }
}

/// Returns the state in `block` of an `address` that a pod reports; `None` if the address belongs to the pod or its
/// owner cannot be determined.
pub fn rival(block: &Block, address: IpAddr, namespace: &str, name: &str) -> Option<Rival> {
    let Some(held) = block.allocation(address).filter(|held| !held.is_cooling()) else { return Some(Rival::Free) };
    let attribute = held.attribute.filter(|attribute| attribute.handle().is_some())?;
    let (claim, _) = Claim::of(attribute);
    let whom = match claim {
        Claim::Unnamed => return None,
        Claim::Pod { namespace: of, name: pod } if (of, pod) == (namespace, name) => return None,
        Claim::Machine { .. } if Claim::owners(attribute).any(|owner| owner == (namespace, name)) => return None,
        // The allocation names no pod of the VMI, so the pod may be the VMI's.
        Claim::Machine { namespace: of, .. } if of == namespace && Claim::owners(attribute).next().is_none() => {
            return None;
        }
        Claim::Pod { namespace, name } => format!("pod {namespace}/{name}"),
        Claim::Machine { namespace, name } => format!("virtual machine {namespace}/{name}"),
        Claim::Service { namespace, name } => format!("service {namespace}/{name}"),
        Claim::Tunnel => "the tunnel of a node".into(),
        Claim::HostReserved => "the host".into(),
        Claim::Foreign => "another use".into(),
    };
    Some(Rival::Another(whom))
}

#[derive(Debug, Default)]
pub(super) struct Conflicts {
    /// The suspected conflicts, by the pod's row.
    watched: Watchlist<(Row, IpAddr), ()>,
    told: BTreeSet<(Row, IpAddr)>,
    /// The pods to examine.
    pods: BTreeSet<Row>,
    /// Whether to examine all pods. Any pod may report the addresses of a new block.
    all: bool,
    /// The number of blocks of each size.
    sizes: BTreeMap<(IpVersion, u8), usize>,
}

impl Conflicts {
    pub(super) fn block_came(&mut self, cidr: Cidr) {
        self.all = true;
        *self.sizes.entry((cidr.version(), cidr.prefix())).or_default() += 1;
    }

    pub(super) fn block_went(&mut self, cidr: Cidr) {
        let size = (cidr.version(), cidr.prefix());
        let left = self.sizes.get_mut(&size).map(|left| {
            *left = left.saturating_sub(1);
            *left
        });
        if left == Some(0) {
            self.sizes.remove(&size);
        }
    }

    fn clear(&mut self, key: &(Row, IpAddr)) {
        self.watched.clear(key);
        self.told.remove(key);
    }

    pub(super) fn verify(&self, blocks: usize, pod: impl Fn(Row) -> bool) -> Result<(), String> {
        let counted: usize = self.sizes.values().sum();
        let known = self.watched.keys().all(|(row, _)| pod(*row)) && self.told.iter().all(|(row, _)| pod(*row));
        match counted == blocks && known {
            true => Ok(()),
            false => Err(format!("{blocks} blocks, and of what is gone something is left: {self:?}")),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        (self.watched.len() * 2 + self.told.len()) * size_of::<(Row, IpAddr, Duration)>()
            + self.pods.len() * 2 * size_of::<Row>()
    }
}

impl Index {
    /// Processes a change or deletion of a pod. Conflicts about addresses that the pod no longer reports end.
    pub(super) fn pod_changed(&mut self, pod: Row) {
        let reported = self.reports(pod);
        self.conflicts.watched.retain(|(row, address)| *row != pod || reported.contains(address));
        self.conflicts.told.retain(|(row, address)| *row != pod || reported.contains(address));
        match reported.is_empty() {
            true => self.conflicts.pods.remove(&pod),
            false => self.conflicts.pods.insert(pod),
        };
    }

    /// Ends the conflicts about an address that was allocated to a pod, even if the allocation is released soon after.
    pub(super) fn holder_came(&mut self, tracked: Row) {
        let Some(address) = self.tracked.get(tracked).and_then(|tracked| self.address_of(tracked)) else { return };
        for pod in self.pods_of(tracked) {
            self.conflicts.clear(&(pod, address));
        }
    }

    /// Processes the end of a pod's allocation.
    pub(super) fn holder_went(&mut self, tracked: Row) {
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
    pub(super) fn examine_reports(&mut self, now: Duration, scope: Scope) {
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
        let untold = due.filter(|key| !self.conflicts.told.contains(key));
        let conflict = |(pod, address): (Row, IpAddr)| {
            let (block, _) = self.contradicting(pod, address)?;
            let subject = self.subjects.get(pod)?;
            let namespace = self.namespaces.text(subject.namespace).to_owned();
            Some(Conflict { namespace, name: subject.name.to_string(), address, block })
        };
        untold.filter_map(conflict).collect()
    }

    /// Returns the numbers of lasting conflicts about free addresses and about addresses of other owners.
    pub fn conflicting(&self, now: Duration) -> (usize, usize) {
        let settled = self.conflicts.watched.settled(now, SETTLED);
        settled
            .filter_map(|&(pod, address)| self.contradicting(pod, address))
            .fold((0, 0), |(free, another), found| if found.1 { (free + 1, another) } else { (free, another + 1) })
    }

    /// Marks a conflict as reported to operators.
    pub fn conflict_told(&mut self, conflict: &Conflict) {
        if let Some(key) = self.conflict_key(conflict) {
            self.conflicts.told.insert(key);
        }
    }

    /// Postpones a conflict that could not be reported. The pause grows with each failure.
    pub fn conflict_untold(&mut self, conflict: &Conflict, now: Duration) {
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

    pub(super) fn next_conflict(&self, now: Duration) -> Option<Duration> {
        self.conflicts.watched.next_deadline(now, SETTLED)
    }
}
