//! [`Block`]: the unit of compare-and-swap, as stored (IPAM-60..IPAM-67, DS-34).

mod assign;
mod corrupt;
mod create;
mod garbage;
mod inspect;
mod owners;
mod release;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

pub use self::assign::{AssignError, AssignRequest};
pub use self::corrupt::{Holder, Repaired};
pub use self::create::{BlockTooLarge, HostReserved, MAX_BLOCK_CAPACITY};
pub use self::inspect::{Allocation, CorruptBlock, WINDOWS_RESERVED_HANDLE};
pub use self::owners::OwnerSlot;
pub use self::release::{ReleaseError, ReleaseRequest, Released};

use crate::api::Unknown;
use crate::net::{Cidr, IpVersion};
use crate::store::Kind;

/// A CIDR-aligned slice of a pool: which ordinals are taken, by whom, and in which order the free ones are handed out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// The block's range.
    pub cidr: Cidr,
    /// `host:<node>` or `virtual:<name>`; `None` for a block without owner, written as `null`.
    #[serde(default)]
    pub affinity: Option<String>,
    /// When the owner claimed it: RFC 3339, UTC, whole seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity_claim_time: Option<String>,
    /// Per ordinal: index into `attributes`, or `None` when free.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub allocations: Vec<Option<usize>>,
    /// Free ordinals in the order they will be handed out.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub unallocated: Vec<usize>,
    /// What is known about allocations. A fresh block of upstream has `null` here.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub attributes: Vec<Attribute>,
    /// Starts at the clock in nanoseconds, grows by one per write (IPAM-67). Exceeds 2^53.
    #[serde(rename = "sequenceNumber", default)]
    pub sequence_number: u64,
    /// Per allocated ordinal: the sequence number before the write that allocated it (IPAM-167).
    #[serde(rename = "sequenceNumberForAllocation", default, deserialize_with = "null_as_empty")]
    pub sequence_number_for_allocation: BTreeMap<String, u64>,
    /// Tombstone (Kubernetes datastore only).
    #[serde(default)]
    pub deleted: bool,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// One allocation's owner, or the mark that its address is resting (IPAM-61).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Attribute {
    /// The handle that holds the address.
    #[serde(rename = "handle_id", default, skip_serializing_if = "Option::is_none")]
    pub handle_id: Option<String>,
    /// The active owner's attributes; the key is historical.
    #[serde(
        rename = "secondary",
        default,
        deserialize_with = "null_as_empty",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub active_owner: BTreeMap<String, String>,
    /// The alternate owner's attributes (live migration).
    #[serde(
        rename = "alternateOwnerAttrs",
        default,
        deserialize_with = "null_as_empty",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub alternate_owner: BTreeMap<String, String>,
    /// When the address was released and began to rest: RFC 3339, UTC, whole seconds.
    #[serde(rename = "releasedAt", default, skip_serializing_if = "Option::is_none")]
    pub released_at: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

pub(super) fn null_as_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

const ROOT: &str = "/calico/ipam/v2/assignment/";

/// `ipv4/block/10.0.0.0-26`: the tail shared by block and affinity paths; only the slash of the CIDR is replaced.
pub(super) fn cidr_path(cidr: &Cidr) -> String {
    format!("ipv{}/block/{}-{}", cidr.version(), cidr.network(), cidr.prefix())
}

/// The inverse of [`cidr_path`].
pub(super) fn parse_cidr_path(tail: &str) -> Option<Cidr> {
    let (version, rest) = tail.split_once("/block/")?;
    let (network, prefix) = rest.rsplit_once('-')?;
    let cidr: Cidr = format!("{network}/{prefix}").parse().ok()?;
    (version == format!("ipv{}", cidr.version())).then_some(cidr)
}

impl Kind for Block {
    const KIND: &'static str = "IPAMBlock";
    type Key = Cidr;
    /// `None` selects both families.
    type Select = Option<IpVersion>;

    fn path(key: &Cidr) -> String {
        format!("{ROOT}{}", cidr_path(key))
    }

    fn parse_path(path: &str) -> Option<Cidr> {
        parse_cidr_path(path.strip_prefix(ROOT)?)
    }

    fn belongs_to(&self, key: &Cidr) -> bool {
        self.cidr == *key
    }

    fn prefix(select: &Self::Select) -> String {
        match select {
            Some(version) => format!("{ROOT}ipv{version}/"),
            None => ROOT.to_owned(),
        }
    }
}
