//! [`BlockAffinity`]: the assignment of a block to an owner.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::block::{cidr_path, parse_cidr_path};
use crate::api::Unknown;
use crate::net::{Cidr, IpVersion};
use crate::store::Kind;

/// The owner of a block.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AffinityOwner {
    /// A node.
    Host(String),
    /// An owner other than a node. Upstream's only virtual owner is `load-balancer`.
    Virtual(String),
}

/// The name of the virtual owner of the blocks for Services, also used as the node of their
/// addresses (KC-500).
pub const LOAD_BALANCER_HOST: &str = "load-balancer";

impl AffinityOwner {
    /// Returns the owner of the blocks for Services.
    pub fn of_services() -> Self {
        AffinityOwner::Virtual(LOAD_BALANCER_HOST.to_owned())
    }

    /// Parses a block's `affinity` field; `None` without a known prefix.
    pub fn parse(affinity: &str) -> Option<Self> {
        let (kind, name) = affinity.split_once(':')?;
        Self::of_kind(kind, name)
    }

    /// Returns the owner with this kind, `host` or `virtual`, and this name.
    pub(crate) fn of_kind(kind: &str, name: &str) -> Option<Self> {
        match kind {
            "host" => Some(AffinityOwner::Host(name.to_owned())),
            "virtual" => Some(AffinityOwner::Virtual(name.to_owned())),
            _ => None,
        }
    }

    /// Returns `host` or `virtual`.
    pub fn kind(&self) -> &'static str {
        match self {
            AffinityOwner::Host(_) => "host",
            AffinityOwner::Virtual(_) => "virtual",
        }
    }

    /// Returns the owner's name.
    pub fn name(&self) -> &str {
        match self {
            AffinityOwner::Host(name) | AffinityOwner::Virtual(name) => name,
        }
    }
}

impl fmt::Display for AffinityOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind(), self.name())
    }
}

/// The progress of claiming a block or giving it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum AffinityState {
    /// The claim is complete.
    #[serde(rename = "confirmed")]
    Confirmed,
    /// The owner is claiming the block.
    #[serde(rename = "pending")]
    Pending,
    /// The owner is giving the block up.
    #[serde(rename = "pendingDeletion")]
    PendingDeletion,
    /// Stored without a state, as by old Calico versions. The allocator treats it as confirmed
    /// (IPAM-68).
    #[default]
    #[serde(rename = "")]
    Unset,
}

impl AffinityState {
    /// Returns true if a process of the owner is claiming the block or giving it up, or was
    /// interrupted meanwhile.
    pub fn is_unfinished(self) -> bool {
        matches!(
            self,
            AffinityState::Pending | AffinityState::PendingDeletion
        )
    }
}

/// The stored affinity.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockAffinity {
    /// The progress of claiming the block or giving it up.
    #[serde(default)]
    pub state: AffinityState,
    /// True if the affinity is marked for deletion, as upstream does in Kubernetes before the
    /// deletion (DS-72).
    #[serde(default)]
    pub deleted: bool,
    /// Fields that this version does not model.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The key of an affinity.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AffinityKey {
    /// The owner.
    pub owner: AffinityOwner,
    /// The range of the block.
    pub cidr: Cidr,
}

impl fmt::Display for AffinityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cidr={}, host={}, affinityType={}",
            self.cidr,
            self.owner.name(),
            self.owner.kind()
        )
    }
}

/// The affinities to list; by default those of all hosts, but of no virtual owner, as in upstream
/// (IPAM-80).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AffinitySelect {
    /// The owner whose affinities are listed.
    pub owner: Option<AffinityOwner>,
    /// The address family to list, if an owner is given; `None` for both.
    pub version: Option<IpVersion>,
    /// Whether to list only the affinities without labels, which old Calico versions wrote to
    /// Kubernetes. A list by owner misses them (DS-70).
    pub without_labels: bool,
}

impl AffinitySelect {
    /// Selects the affinities of an owner.
    pub fn of(owner: AffinityOwner) -> Self {
        AffinitySelect {
            owner: Some(owner),
            ..Self::default()
        }
    }

    /// Selects the affinities without labels, which lists by owner miss.
    pub fn without_labels() -> Self {
        AffinitySelect {
            without_labels: true,
            ..Self::default()
        }
    }
}

/// The path prefix that selects the affinities without labels. No object has such a path; the
/// Kubernetes datastore translates it.
pub(crate) const WITHOUT_LABELS: &str = "/calico/ipam/v2/unlabelled/";

/// The beginning of the paths of all affinities.
pub(crate) const ROOT: &str = "/calico/ipam/v2/";

impl Kind for BlockAffinity {
    const KIND: &'static str = "BlockAffinity";
    type Key = AffinityKey;
    type Select = AffinitySelect;

    fn path(key: &AffinityKey) -> String {
        format!(
            "{ROOT}{}/{}/{}",
            key.owner.kind(),
            key.owner.name(),
            cidr_path(&key.cidr)
        )
    }

    fn parse_path(path: &str) -> Option<AffinityKey> {
        let (kind, rest) = path.strip_prefix(ROOT)?.split_once('/')?;
        let (name, tail) = rest.split_once('/')?;
        Some(AffinityKey {
            owner: AffinityOwner::of_kind(kind, name)?,
            cidr: parse_cidr_path(tail)?,
        })
    }

    fn prefix(select: &AffinitySelect) -> String {
        if select.without_labels {
            return WITHOUT_LABELS.to_owned();
        }
        match (&select.owner, select.version) {
            (None, _) => format!("{ROOT}host/"),
            (Some(owner), None) => format!("{ROOT}{}/{}/", owner.kind(), owner.name()),
            (Some(owner), Some(version)) => format!(
                "{ROOT}{}/{}/ipv{version}/block/",
                owner.kind(),
                owner.name()
            ),
        }
    }

    fn decode(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        // Calico before v3 wrote an empty value (DS-34).
        if bytes.is_empty() {
            Ok(Self::default())
        } else {
            serde_json::from_slice(bytes)
        }
    }
}
