//! [`BlockAffinity`]: a node's claim to a block (IPAM-68).

use std::fmt;

use serde::{Deserialize, Serialize};

use super::block::{cidr_path, parse_cidr_path};
use crate::api::Unknown;
use crate::net::{Cidr, IpVersion};
use crate::store::Kind;

/// Who owns a block.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// A node.
    Host(String),
    /// Something that is no node; upstream's only one is `load-balancer`.
    Virtual(String),
}

impl Owner {
    /// Parses a block's `affinity` field. Text without a known prefix has no owner (IPAM-66).
    pub fn parse(affinity: &str) -> Option<Self> {
        if let Some(name) = affinity.strip_prefix("host:") {
            return Some(Owner::Host(name.to_owned()));
        }
        affinity.strip_prefix("virtual:").map(|name| Owner::Virtual(name.to_owned()))
    }

    /// `host` or `virtual`.
    pub fn kind(&self) -> &'static str {
        match self {
            Owner::Host(_) => "host",
            Owner::Virtual(_) => "virtual",
        }
    }

    /// The owner's name.
    pub fn name(&self) -> &str {
        match self {
            Owner::Host(name) | Owner::Virtual(name) => name,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind(), self.name())
    }
}

/// How far a claim has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum AffinityState {
    /// The block is the owner's.
    #[serde(rename = "confirmed")]
    Confirmed,
    /// The owner is about to create the block.
    #[serde(rename = "pending")]
    Pending,
    /// The owner is about to give the block up.
    #[serde(rename = "pendingDeletion")]
    PendingDeletion,
    /// Data of old releases: counts as confirmed when a block is loaded (IPAM-68).
    #[default]
    #[serde(rename = "")]
    Unset,
}

/// The stored claim.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockAffinity {
    /// How far the claim has come.
    #[serde(default)]
    pub state: AffinityState,
    /// Tombstone (Kubernetes datastore only).
    #[serde(default)]
    pub deleted: bool,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Name of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AffinityKey {
    /// Who claims.
    pub owner: Owner,
    /// What is claimed.
    pub cidr: Cidr,
}

impl fmt::Display for AffinityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cidr={}, host={}, affinityType={}", self.cidr, self.owner.name(), self.owner.kind())
    }
}

/// What claims to list. Without an owner only those of hosts are found, as upstream (IPAM-80).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AffinitySelect {
    /// Only this owner's.
    pub owner: Option<Owner>,
    /// Only this family's; needs an owner.
    pub version: Option<IpVersion>,
    /// Instead: what a release from before the labels wrote in Kubernetes, which lists by owner do not find (DS-70).
    /// Elsewhere there is none.
    pub without_labels: bool,
}

impl AffinitySelect {
    /// All of an owner.
    pub fn of(owner: Owner) -> Self {
        AffinitySelect { owner: Some(owner), ..Self::default() }
    }

    /// Those that lists by owner do not find.
    pub fn without_labels() -> Self {
        AffinitySelect { without_labels: true, ..Self::default() }
    }
}

/// Where no affinity is: stands for those that only Kubernetes has.
pub(crate) const WITHOUT_LABELS: &str = "/calico/ipam/v2/unlabelled/";

const ROOT: &str = "/calico/ipam/v2/";

impl Kind for BlockAffinity {
    const KIND: &'static str = "BlockAffinity";
    type Key = AffinityKey;
    type Select = AffinitySelect;

    fn path(key: &AffinityKey) -> String {
        format!("{ROOT}{}/{}/{}", key.owner.kind(), key.owner.name(), cidr_path(&key.cidr))
    }

    fn parse_path(path: &str) -> Option<AffinityKey> {
        let (kind, rest) = path.strip_prefix(ROOT)?.split_once('/')?;
        let (name, tail) = rest.split_once('/')?;
        let owner = match kind {
            "host" => Owner::Host(name.to_owned()),
            "virtual" => Owner::Virtual(name.to_owned()),
            _ => return None,
        };
        Some(AffinityKey { owner, cidr: parse_cidr_path(tail)? })
    }

    fn prefix(select: &AffinitySelect) -> String {
        if select.without_labels {
            return WITHOUT_LABELS.to_owned();
        }
        match (&select.owner, select.version) {
            (None, _) => format!("{ROOT}host/"),
            (Some(owner), None) => format!("{ROOT}{}/{}/", owner.kind(), owner.name()),
            (Some(owner), Some(version)) => {
                format!("{ROOT}{}/{}/ipv{version}/block/", owner.kind(), owner.name())
            }
        }
    }

    fn decode(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        // Releases before v3 wrote no value at all (DS-34).
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_slice(bytes)
    }
}
