//! The rows of the index. Their sizes determine the memory use for a large cluster.

use data_encoding::HEXLOWER;

use super::table::{Keyed, NONE, NameTable, RowId};
use crate::ipam::{EndedPod, HandleId, OwnerKind, ReportedAddresses};
use crate::net::Cidr;

/// A tracked address: allocated with a handle, and not cooling down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AddressRow {
    pub(super) sequence: u64,
    pub(super) block: RowId,
    pub(super) handle: RowId,
    /// The next address of the same handle, or [`NONE`].
    pub(super) next_of_handle: RowId,
    /// The pod, VMI or Service, or [`NONE`].
    pub(super) owner: RowId,
    /// The next address of the same owner, or [`NONE`].
    pub(super) next_of_owner: RowId,
    /// The Calico node whose list contains the address, or [`NONE`].
    pub(super) node: RowId,
    /// The position in the node's list.
    pub(super) in_node: u32,
    /// The [`crate::ipam::AllocationOwner::fingerprint`] of the allocation.
    pub(super) fingerprint: u32,
    pub(super) ordinal: u16,
    pub(super) kind: OwnerKind,
    pub(super) flags: u8,
}

impl AddressRow {
    /// The flag for an allocation with a sequence number.
    pub(super) const NUMBERED: u8 = 1;
    /// The flag for an allocation that names its node. Upstream never examines others (IPAM-231).
    pub(super) const NAMES_NODE: u8 = 2;
    /// The flag for an address to be examined.
    pub(super) const DIRTY: u8 = 4;

    pub(super) fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn set(&mut self, flag: u8, on: bool) {
        self.flags = if on {
            self.flags | flag
        } else {
            self.flags & !flag
        };
    }

    pub(super) fn sequence(&self) -> Option<u64> {
        self.is(Self::NUMBERED).then_some(self.sequence)
    }

    /// Returns the node that the allocation itself names, or [`NONE`].
    pub(super) fn named_node(&self) -> RowId {
        if self.is(Self::NAMES_NODE) {
            self.node
        } else {
            NONE
        }
    }
}

#[derive(Debug)]
pub(super) struct BlockRow {
    pub(super) cidr: Cidr,
    /// The node that owns the block, or [`NONE`].
    pub(super) owner: RowId,
    /// The position in the node's list.
    pub(super) in_node: u32,
    pub(super) pool: RowId,
    /// The tracked addresses, sorted by ordinal.
    pub(super) addresses: Box<[RowId]>,
    /// Ordinals that were allocated without a handle.
    pub(super) without_handle: Box<[u16]>,
    /// Ordinals that are neither allocated with or without a handle nor in the free list: those
    /// that are cooling down, and those that the block has lost.
    pub(super) withheld: Box<[u16]>,
    /// The number of allocated ordinals, including those that are cooling down or reserved by a
    /// host.
    pub(super) allocated: u16,
    /// The number of allocated ordinals that no host reserves.
    pub(super) used: u16,
    /// The earliest release time of an address that is cooling down, in Unix seconds; [`NEVER`] if
    /// there is none.
    pub(super) cooling_since: i64,
    pub(super) list: u8,
}

/// The value of a time that does not exist.
pub(super) const NEVER: i64 = i64::MAX;

impl Keyed for BlockRow {
    type Key<'k> = Cidr;

    fn key(&self) -> Cidr {
        self.cidr
    }
}

/// A pod, VMI or Service that exists, or to which an address is allocated.
#[derive(Debug)]
pub(super) struct OwnerRow {
    pub(super) kind: OwnerKind,
    pub(super) namespace: RowId,
    pub(super) name: Box<str>,
    pub(super) state: OwnerState,
    /// The first address of this owner, or [`NONE`].
    pub(super) first_address: RowId,
    pub(super) list: u8,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum OwnerState {
    Absent,
    Pod {
        node: RowId,
        addresses: ReportedAddresses,
        ended: Option<EndedPod>,
        /// The value of [`crate::ipam::PodState::runs`].
        runs: bool,
    },
    /// A VirtualMachine, a VirtualMachineInstance, or both.
    Vmi {
        has_vm: bool,
        has_vmi: bool,
    },
    Service,
}

impl Keyed for OwnerRow {
    type Key<'k> = (OwnerKind, RowId, &'k str);

    fn key(&self) -> (OwnerKind, RowId, &str) {
        (self.kind, self.namespace, &self.name)
    }
}

/// A Calico node, a Kubernetes node, or a node that is only named.
#[derive(Debug, Default)]
pub(super) struct NodeRow {
    pub(super) name: Box<str>,
    pub(super) calico: CalicoNode,
    pub(super) kubernetes: bool,
    /// True while the node migrates from Flannel (KC-457).
    pub(super) migrating: bool,
    pub(super) addresses: Vec<RowId>,
    pub(super) blocks: Vec<RowId>,
    /// The number of pods on the node.
    pub(super) references: u32,
    /// The Calico nodes that name this Kubernetes node.
    pub(super) calico_names: Vec<RowId>,
    pub(super) lists: [u8; 2],
    pub(super) dirty: bool,
    pub(super) blocks_changed: bool,
}

/// The state of a Calico node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum CalicoNode {
    /// There is no Calico node of this name.
    #[default]
    Absent,
    /// The Calico node is not a Kubernetes node (KC-402).
    Foreign,
    /// The Calico node is this Kubernetes node.
    Kubernetes(RowId),
}

impl Keyed for NodeRow {
    type Key<'k> = &'k str;

    fn key(&self) -> &str {
        &self.name
    }
}

/// A handle with tracked addresses.
#[derive(Debug)]
pub(super) struct HandleRow {
    pub(super) id: CompactHandle,
    /// The first address of the handle.
    pub(super) first_address: RowId,
}

/// A handle's ID. That of a container, `<network>.<64 lower-case hexadecimal digits>`, takes half
/// the memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum CompactHandle {
    Container { network: RowId, id: [u8; 32] },
    Other(Box<str>),
}

impl Keyed for HandleRow {
    type Key<'k> = &'k CompactHandle;

    fn key(&self) -> &CompactHandle {
        &self.id
    }
}

impl CompactHandle {
    /// Converts an ID. Returns `None` if `network`, which returns the row of a network's name,
    /// does.
    pub(super) fn parse(
        handle: &str,
        mut network: impl FnMut(&str) -> Option<RowId>,
    ) -> Option<Self> {
        match Self::split(handle) {
            Some((name, id)) => Some(CompactHandle::Container {
                network: network(name)?,
                id,
            }),
            None => Some(CompactHandle::Other(handle.into())),
        }
    }

    fn split(handle: &str) -> Option<(&str, [u8; 32])> {
        let (network, text) = handle.rsplit_once('.')?;
        let mut id = [0; 32];
        // Decoding would panic on a wrong length. It accepts only lower-case digits, so the text
        // can be restored.
        (text.len() == 64 && HEXLOWER.decode_mut(text.as_bytes(), &mut id).is_ok())
            .then_some((network, id))
    }

    pub(super) fn to_handle_id(&self, networks: &NameTable) -> HandleId {
        match self {
            Self::Container { network, id } => {
                HandleId::for_container(networks.text(*network), &HEXLOWER.encode(id))
            }
            Self::Other(text) => HandleId::new(text),
        }
    }
}
