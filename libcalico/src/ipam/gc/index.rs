//! [`Index`]: blocks, addresses, pods and nodes as the feeds told them.

mod blocks;
mod links;
mod nodes;
mod pools;
mod subjects;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use super::balance::Balance;
use super::conflicts::Conflicts;
use super::leaks::Leaks;
use super::numbers::Numbers;
use super::rows::{BlockRow, HandleRow, NodeRow, Subject, Tracked};
use super::table::{NONE, Names, Row, Slots, Table};
use crate::ipam::{ClaimKind, Reservations};
use crate::net::Cidr;

pub use self::blocks::UnreadableBlock;
pub use self::pools::PoolNumbers;

/// How long things must be without holder before they go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// `leakGracePeriod`. Without one only addresses of gone nodes and of virtual machines go; 0 only counts (KC-438).
    pub leak_grace: Option<Duration>,
    /// How long an address rests after its release, in seconds (`ipCooldownSeconds`).
    pub cooldown: i64,
    /// What is known of virtual machines at all.
    pub machines: Machines,
    /// Whether Services are watched. Their addresses are held until then.
    pub services: bool,
}

/// Whether virtual machines can be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Machines {
    /// They are not watched. Their addresses are held (KC-436).
    #[default]
    Unwatched,
    /// They are watched.
    Watched,
    /// KubeVirt is not installed.
    Undefined,
}

/// What a full list may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Feed {
    /// Blocks.
    Blocks,
    /// Pods.
    Pods,
    /// Virtual machines.
    Machines,
    /// Instances of virtual machines.
    Instances,
    /// Services.
    Services,
    /// Nodes of Calico.
    CalicoNodes,
    /// Nodes of Kubernetes.
    KubernetesNodes,
    /// Pools.
    Pools,
    /// Reservations.
    Reservations,
}

/// What is known of a cluster.
///
/// After [`Index::list_begins`] of a feed everything that exists is put once more; what was not put by
/// [`Index::list_ends`] is gone.
#[derive(Debug, Default)]
pub struct Index {
    pub(super) settings: Settings,
    pub(super) blocks: Table<BlockRow>,
    pub(super) tracked: Slots<Tracked>,
    pub(super) subjects: Table<Subject>,
    pub(super) nodes: Table<NodeRow>,
    pub(super) handles: Table<HandleRow>,
    pub(super) namespaces: Names,
    pub(super) networks: Names,
    pub(super) pools: Table<pools::PoolRow>,
    pub(super) reservations: BTreeMap<String, (Vec<Cidr>, u8)>,
    pub(super) reserved: Reservations,
    /// Addresses to examine.
    pub(super) dirty: Vec<Row>,
    /// Nodes all of whose addresses are to be examined.
    pub(super) dirty_nodes: BTreeSet<Row>,
    pub(super) leaks: Leaks,
    pub(super) balance: Balance,
    pub(super) conflicts: Conflicts,
    /// Owners that allocations for virtual machines name, by the row of the address.
    pub(super) owners: HashMap<Row, Owners>,
    pub(super) numbers: Numbers,
    pub(super) lists: HashMap<Feed, u8>,
    /// Machines and instances that the list under way named. They share a row, so the row cannot tell.
    pub(super) named: HashMap<Feed, HashSet<Row>>,
}

/// Pods that an allocation for a virtual machine names as its owners: namespace and name.
type Owners = Box<[(Box<str>, Box<str>)]>;

impl Index {
    /// Knows nothing yet.
    pub fn new(settings: Settings) -> Self {
        Index { settings, ..Index::default() }
    }

    /// What is in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// About how many pods, machines and Services the cluster has: those that exist, and those that only an address names.
    pub fn subjects(&self) -> usize {
        self.subjects.len()
    }

    /// Returns whether any address is for a virtual machine.
    pub fn has_machines(&self) -> bool {
        let is_used = |subject: &Subject| subject.kind == ClaimKind::Machine && subject.tracked != NONE;
        self.subjects.iter().any(|(_, subject)| is_used(subject))
    }

    /// Puts other settings in force. What is without holder is judged by them at the next examination.
    pub fn set_settings(&mut self, settings: Settings) {
        if settings == self.settings {
            return;
        }
        self.settings = settings;
        for row in self.leaks.rows() {
            self.mark(row);
        }
        let affected = |subject: &Subject| matches!(subject.kind, ClaimKind::Machine | ClaimKind::Service);
        let subjects: Vec<Row> =
            self.subjects.iter().filter(|(_, subject)| affected(subject)).map(|(row, _)| row).collect();
        for subject in subjects {
            self.mark_subject(subject);
        }
        self.rebalance_all();
    }

    /// A full list of a feed begins. One that was under way counts for nothing.
    pub fn list_begins(&mut self, feed: Feed) {
        let list = self.lists.entry(feed).or_default();
        *list = list.wrapping_add(1);
        if matches!(feed, Feed::Machines | Feed::Instances) {
            self.named.insert(feed, HashSet::new());
        }
    }

    /// The full list that began is complete: what it did not name is gone.
    pub fn list_ends(&mut self, feed: Feed) {
        match feed {
            Feed::Blocks => self.drop_unlisted_blocks(),
            Feed::Pods | Feed::Services | Feed::Machines | Feed::Instances => self.drop_unlisted_subjects(feed),
            Feed::CalicoNodes | Feed::KubernetesNodes => self.drop_unlisted_nodes(feed),
            Feed::Pools => self.drop_unlisted_pools(),
            Feed::Reservations => self.drop_unlisted_reservations(),
        }
    }

    pub(super) fn list(&self, feed: Feed) -> u8 {
        self.lists.get(&feed).copied().unwrap_or_default()
    }

    /// To be examined, and its handle to be tried again.
    pub(super) fn mark(&mut self, row: Row) {
        let Some(tracked) = self.tracked.get_mut(row) else { return };
        let (handle, dirty) = (tracked.handle, tracked.is(Tracked::DIRTY));
        tracked.set(Tracked::DIRTY, true);
        if !dirty {
            self.dirty.push(row);
        }
        self.leaks.unpark(handle);
    }

    pub(super) fn mark_node(&mut self, node: Row) {
        if let Some(row) = self.nodes.get_mut(node).filter(|row| !row.dirty) {
            row.dirty = true;
            self.dirty_nodes.insert(node);
        }
    }

    /// The name of a node; empty for [`NONE`].
    pub(super) fn node_name(&self, node: Row) -> &str {
        if node == NONE { "" } else { self.nodes.get(node).map_or("", |row| &row.name) }
    }
}
