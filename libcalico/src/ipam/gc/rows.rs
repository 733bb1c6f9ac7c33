//! The rows of the index. Their sizes are the memory of a large cluster: see the test of sizes.

use data_encoding::HEXLOWER;

use super::table::{Keyed, NONE, Names, Row};
use crate::ipam::{ClaimKind, Ended, HandleId, ReportedAddresses};
use crate::net::Cidr;

/// A tracked address: allocated, with a handle, not resting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tracked {
    pub(super) sequence: u64,
    pub(super) block: Row,
    pub(super) handle: Row,
    /// The next address of the same handle, or [`NONE`].
    pub(super) handle_next: Row,
    /// The pod, machine or Service it is for, or [`NONE`].
    pub(super) subject: Row,
    /// The next address for the same subject, or [`NONE`].
    pub(super) subject_next: Row,
    /// The Calico node it is filed under, or [`NONE`].
    pub(super) node: Row,
    /// Where it stands in that node's list.
    pub(super) in_node: u32,
    /// [`crate::ipam::Claim::fingerprint`].
    pub(super) fingerprint: u32,
    pub(super) ordinal: u16,
    pub(super) kind: ClaimKind,
    pub(super) flags: u8,
}

impl Tracked {
    /// It has a sequence number.
    pub(super) const NUMBERED: u8 = 1;
    /// The allocation itself names the node; otherwise it is filed under its block's (B-07).
    pub(super) const NAMES_NODE: u8 = 2;
    /// To be examined.
    pub(super) const DIRTY: u8 = 4;

    pub(super) fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn set(&mut self, flag: u8, on: bool) {
        self.flags = if on { self.flags | flag } else { self.flags & !flag };
    }

    pub(super) fn sequence(&self) -> Option<u64> {
        self.is(Self::NUMBERED).then_some(self.sequence)
    }

    /// The node that the allocation itself names, or [`NONE`].
    pub(super) fn named_node(&self) -> Row {
        if self.is(Self::NAMES_NODE) { self.node } else { NONE }
    }
}

/// Whose a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockOwner {
    Nobody,
    /// Something that is no node.
    Virtual,
    Node(Row),
}

impl BlockOwner {
    pub(super) fn node(self) -> Row {
        match self {
            BlockOwner::Node(node) => node,
            BlockOwner::Nobody | BlockOwner::Virtual => NONE,
        }
    }
}

#[derive(Debug)]
pub(super) struct BlockRow {
    pub(super) cidr: Cidr,
    pub(super) owner: BlockOwner,
    /// Where it stands in its node's list.
    pub(super) in_node: u32,
    pub(super) pool: Row,
    /// Tracked addresses, by ordinal.
    pub(super) tracked: Box<[Row]>,
    /// Ordinals that were allocated without a handle, which nobody tracks.
    pub(super) nameless: Box<[u16]>,
    /// Taken ordinals, resting and host-reserved ones included.
    pub(super) taken: u16,
    /// Those that are not host-reserved.
    pub(super) used: u16,
    /// When the first of its resting addresses was released, in Unix seconds; [`NEVER`] for none.
    pub(super) cold: i64,
    pub(super) list: u8,
}

/// No time.
pub(super) const NEVER: i64 = i64::MAX;

impl Keyed for BlockRow {
    type Key<'k> = Cidr;

    fn key(&self) -> Cidr {
        self.cidr
    }
}

/// A pod, machine or Service: one that exists, one that an address is for, or both.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) kind: ClaimKind,
    pub(super) namespace: Row,
    pub(super) name: Box<str>,
    /// Whether it exists.
    pub(super) state: SubjectState,
    /// The first address for it, or [`NONE`].
    pub(super) tracked: Row,
    pub(super) list: u8,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum SubjectState {
    Absent,
    Pod {
        node: Row,
        addresses: ReportedAddresses,
        ended: Option<Ended>,
        /// [`crate::ipam::PodFacts::runs`].
        runs: bool,
    },
    /// A machine may be a VirtualMachine, an instance, or both.
    Machine {
        machine: bool,
        instance: bool,
    },
    Service,
}

impl Keyed for Subject {
    type Key<'k> = (ClaimKind, Row, &'k str);

    fn key(&self) -> (ClaimKind, Row, &str) {
        (self.kind, self.namespace, &self.name)
    }
}

/// A node of Calico, of Kubernetes, or one that is only named.
#[derive(Debug)]
pub(super) struct NodeRow {
    pub(super) name: Box<str>,
    pub(super) calico: CalicoNode,
    /// It exists in Kubernetes.
    pub(super) kubernetes: bool,
    /// It is being moved here from Flannel (KC-457).
    pub(super) migrating: bool,
    /// Addresses filed under it.
    pub(super) tracked: Vec<Row>,
    /// Its blocks.
    pub(super) blocks: Vec<Row>,
    /// Pods on it, and Calico nodes that are it.
    pub(super) references: u32,
    /// Calico nodes that are this node of Kubernetes.
    pub(super) calico_names: Vec<Row>,
    pub(super) lists: [u8; 2],
    pub(super) dirty: bool,
    pub(super) unbalanced: bool,
}

/// What is known of a Calico node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CalicoNode {
    /// There is none of this name.
    Absent,
    /// It is none of Kubernetes (KC-402).
    Foreign,
    /// It is this node of Kubernetes.
    Kubernetes(Row),
}

impl Keyed for NodeRow {
    type Key<'k> = &'k str;

    fn key(&self) -> &str {
        &self.name
    }
}

/// A handle that holds tracked addresses.
#[derive(Debug)]
pub(super) struct HandleRow {
    pub(super) id: CompactHandle,
    /// The first of its addresses.
    pub(super) tracked: Row,
}

/// A handle's id. That of a container, `<network>.<64 hexadecimal digits>`, takes half the room.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum CompactHandle {
    Container { network: Row, id: [u8; 32] },
    Other(Box<str>),
}

impl Keyed for HandleRow {
    type Key<'k> = &'k CompactHandle;

    fn key(&self) -> &CompactHandle {
        &self.id
    }
}

impl CompactHandle {
    /// Uses the network's name once, if the id has one. `None` when the name is new and may not be taken.
    pub(super) fn read(handle: &str, mut network: impl FnMut(&str) -> Option<Row>) -> Option<Self> {
        match Self::split(handle) {
            Some((name, id)) => Some(CompactHandle::Container { network: network(name)?, id }),
            None => Some(CompactHandle::Other(handle.into())),
        }
    }

    fn split(handle: &str) -> Option<(&str, [u8; 32])> {
        let (network, text) = handle.rsplit_once('.')?;
        let mut id = [0; 32];
        // Decoding would panic on a wrong length, and takes lower-case digits only, so the text can be made again.
        (text.len() == 64 && HEXLOWER.decode_mut(text.as_bytes(), &mut id).is_ok()).then_some((network, id))
    }

    pub(super) fn write(&self, networks: &Names) -> HandleId {
        match self {
            CompactHandle::Container { network, id } => {
                HandleId::new(format!("{}.{}", networks.text(*network), HEXLOWER.encode(id)))
            }
            CompactHandle::Other(text) => HandleId::new(text),
        }
    }

    pub(super) fn heap(&self) -> usize {
        match self {
            CompactHandle::Container { .. } => 0,
            CompactHandle::Other(text) => text.len(),
        }
    }
}
