//! [`Index`]: the state of a cluster for garbage collection, as the watches reported it.

mod blocks;
mod conflicts;
mod gauges;
mod links;
mod nodes;
mod owners;
mod pools;
mod reclaim;
mod rooms;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use super::block_reclaim::BlockReclaim;
use super::conflicts::Conflicts;
use super::gauges::Gauges;
use super::leaks::Leaks;
use super::room::Rooms;
use super::rows::{AddressRow, BlockRow, HandleRow, NodeRow, OwnerRow};
use super::table::{NONE, NameTable, RowId, Slots, Table};
use crate::ipam::{OwnerKind, Reservations};
use crate::net::Cidr;

pub use self::blocks::UnreadableBlock;
pub use self::pools::{PoolShape, PoolSize};
pub use self::rooms::NamedRoom;

/// The settings of garbage collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GcSettings {
    /// The grace period, `leakGracePeriod`. Without one, or with 0, only addresses of deleted nodes
    /// and of VMIs are released (KC-438).
    pub leak_grace: Option<Duration>,
    /// The cooldown of a released address in seconds, `ipCooldownSeconds`.
    pub cooldown: i64,
    /// The availability of information about VMIs.
    pub vmis: VmiAvailability,
    /// True once Services are watched. Until then, their addresses count as in use.
    pub services: bool,
}

/// The availability of information about VMIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VmiAvailability {
    /// VMIs are not watched. Their addresses count as in use.
    #[default]
    Unwatched,
    /// VMIs are watched.
    Watched,
    /// KubeVirt is not installed.
    Undefined,
}

/// A kind of object that the index receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WatchedKind {
    /// Blocks.
    Blocks,
    /// Pods.
    Pods,
    /// VirtualMachines.
    VirtualMachines,
    /// VirtualMachineInstances (VMIs).
    Vmis,
    /// Services.
    Services,
    /// Calico nodes.
    CalicoNodes,
    /// Kubernetes nodes.
    KubernetesNodes,
    /// Pools.
    Pools,
    /// Reservations.
    Reservations,
}

/// The indexed state of a cluster.
#[derive(Debug, Default)]
pub struct Index {
    pub(super) settings: GcSettings,
    pub(super) blocks: Table<BlockRow>,
    pub(super) addresses: Slots<AddressRow>,
    pub(super) owners: Table<OwnerRow>,
    pub(super) nodes: Table<NodeRow>,
    pub(super) handles: Table<HandleRow>,
    pub(super) namespaces: NameTable,
    pub(super) networks: NameTable,
    pub(super) pools: Table<pools::PoolRow>,
    pub(super) reservations: BTreeMap<String, (Vec<Cidr>, u8)>,
    pub(super) reserved: Reservations,
    pub(super) dirty: Vec<RowId>,
    /// Nodes all of whose addresses are to be examined.
    pub(super) dirty_nodes: BTreeSet<RowId>,
    pub(super) leaks: Leaks,
    pub(super) reclaim: BlockReclaim,
    pub(super) conflicts: Conflicts,
    /// The owners that allocations for VMIs name, by the row of the address.
    pub(super) owner_pods: HashMap<RowId, OwnerPods>,
    pub(super) gauges: Gauges,
    pub(super) rooms: Rooms,
    /// Empty blocks that are marked for deletion.
    pub(super) marked: BTreeSet<Cidr>,
    pub(super) lists: HashMap<WatchedKind, u8>,
    /// The VirtualMachines and the VMIs in the present list. They share a row, so a list number in
    /// the row cannot distinguish them.
    pub(super) listed_vmis: HashMap<WatchedKind, HashSet<RowId>>,
}

/// Namespaces and names of the pods that an allocation for a VMI names as its owners.
type OwnerPods = Box<[(Box<str>, Box<str>)]>;

impl Index {
    /// Creates an empty index.
    pub fn new(settings: GcSettings) -> Self {
        Index {
            settings,
            ..Index::default()
        }
    }

    /// Returns the current settings.
    pub fn settings(&self) -> &GcSettings {
        &self.settings
    }

    /// Returns the number of pods, VMIs and Services, including those that only an address names.
    pub fn owners(&self) -> usize {
        self.owners.len()
    }

    /// Returns true if any address is allocated to a VMI whose name is known.
    pub fn has_vmis(&self) -> bool {
        let is_used =
            |owner: &OwnerRow| owner.kind == OwnerKind::Vmi && owner.first_address != NONE;
        self.owners.iter().any(|(_, owner)| is_used(owner))
    }

    /// Changes the settings. The next examination of an address applies them.
    pub fn set_settings(&mut self, settings: GcSettings) {
        if settings == self.settings {
            return;
        }
        let earlier = std::mem::replace(&mut self.settings, settings);
        // Without a grace period, addresses of missing owners are no leaks.
        let starts_grace = earlier.leak_grace.is_none() && settings.leak_grace.is_some();
        let rows = if starts_grace {
            self.addresses.rows()
        } else {
            self.leaks.rows()
        };
        rows.into_iter().for_each(|row| self.mark_dirty(row));
        let affected = |owner: &OwnerRow| matches!(owner.kind, OwnerKind::Vmi | OwnerKind::Service);
        let owners: Vec<RowId> = self
            .owners
            .iter()
            .filter(|(_, owner)| affected(owner))
            .map(|(row, _)| row)
            .collect();
        owners
            .into_iter()
            .for_each(|owner| self.mark_owner_dirty(owner));
        self.reset_excess_timers();
    }

    /// Starts a full list of a kind of object: put every existing object again.
    pub fn begin_list(&mut self, kind: WatchedKind) {
        let list = self.lists.entry(kind).or_default();
        *list = list.wrapping_add(1);
        if matches!(kind, WatchedKind::VirtualMachines | WatchedKind::Vmis) {
            self.listed_vmis.insert(kind, HashSet::new());
        }
    }

    /// Ends the full list and removes the objects that it did not contain.
    pub fn end_list(&mut self, kind: WatchedKind) {
        match kind {
            WatchedKind::Blocks => self.drop_unlisted_blocks(),
            WatchedKind::Pods
            | WatchedKind::Services
            | WatchedKind::VirtualMachines
            | WatchedKind::Vmis => self.drop_unlisted_owners(kind),
            WatchedKind::CalicoNodes | WatchedKind::KubernetesNodes => {
                self.drop_unlisted_nodes(kind)
            }
            WatchedKind::Pools => self.drop_unlisted_pools(),
            WatchedKind::Reservations => self.drop_unlisted_reservations(),
        }
    }

    pub(super) fn list(&self, kind: WatchedKind) -> u8 {
        self.lists.get(&kind).copied().unwrap_or_default()
    }

    /// Marks an address for examination, and ends the postponement of its handle.
    pub(super) fn mark_dirty(&mut self, row: RowId) {
        let Some(tracked) = self.addresses.get_mut(row) else {
            return;
        };
        let (handle, dirty) = (tracked.handle, tracked.is(AddressRow::DIRTY));
        tracked.set(AddressRow::DIRTY, true);
        if !dirty {
            self.dirty.push(row);
        }
        self.leaks.end_postponement(handle);
    }

    pub(super) fn mark_node_dirty(&mut self, node: RowId) {
        if let Some(row) = self.nodes.get_mut(node).filter(|row| !row.dirty) {
            row.dirty = true;
            self.dirty_nodes.insert(node);
        }
    }

    pub(super) fn node_name(&self, node: RowId) -> &str {
        if node == NONE {
            ""
        } else {
            self.nodes.get(node).map_or("", |row| &row.name)
        }
    }
}
