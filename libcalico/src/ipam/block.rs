//! [`Block`]: the stored block, which is written as a whole by compare-and-swap.
//!
//! `create`, `assign`, `release` and `garbage` follow the life of an address in a block.

mod assign;
mod corrupt;
mod create;
mod garbage;
mod inspect;
mod owners;
mod release;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

pub use self::assign::{AssignError, BlockRequest};
pub use self::corrupt::{RecordedOwner, Repaired};
pub use self::create::{BlockTooLarge, MAX_BLOCK_CAPACITY};
#[cfg(feature = "gc")]
pub(in crate::ipam) use self::garbage::is_of_wrong_clock;
pub use self::inspect::{Allocation, CorruptBlock, WINDOWS_RESERVED_HANDLE};
pub use self::owners::OwnerSlot;
pub use self::release::{OldHandle, ReleaseError, ReleaseRequest, Released};

use crate::api::Unknown;
use crate::net::{Cidr, IpVersion};
use crate::store::Kind;

/// A slice of a pool: the allocated ordinals, their owners, and the free ordinals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// The block's range.
    pub cidr: Cidr,
    /// The owner, `host:<node>` or `virtual:<name>`.
    #[serde(default)]
    pub affinity: Option<String>,
    /// The time at which the owner claimed the block: RFC 3339, UTC, whole seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity_claim_time: Option<String>,
    /// For each ordinal, its index into `attributes`, or `None` if it is free.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub allocations: Vec<Option<usize>>,
    /// Free ordinals, in the order in which they will be assigned.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub unallocated: Vec<usize>,
    /// The attributes of the allocations, `null` in upstream's new blocks.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub attributes: Vec<Attribute>,
    /// A number that grows by one per write. It starts at the clock in nanoseconds and exceeds
    /// 2^53.
    #[serde(rename = "sequenceNumber", default)]
    pub sequence_number: u64,
    /// For an allocated ordinal, in decimal: the block's sequence number before the write that
    /// allocated it (IPAM-167). A release may replace the number (IPAM-170).
    #[serde(
        rename = "sequenceNumberForAllocation",
        default,
        deserialize_with = "null_as_empty"
    )]
    pub sequence_number_for_allocation: BTreeMap<String, u64>,
    /// True if the block is marked for deletion, as upstream does in Kubernetes before the deletion
    /// (DS-72).
    #[serde(default)]
    pub deleted: bool,
    /// Fields that this version does not model.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The owner of an allocation, or the mark of an address that is cooling down after its release.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Attribute {
    /// The handle of the allocation.
    #[serde(rename = "handle_id", default, skip_serializing_if = "Option::is_none")]
    pub handle_id: Option<String>,
    /// The active owner's attributes. The JSON key is historical.
    #[serde(rename = "secondary", default, deserialize_with = "null_as_empty")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub active_owner: BTreeMap<String, String>,
    /// The alternate owner's attributes, set during a live migration.
    #[serde(
        rename = "alternateOwnerAttrs",
        default,
        deserialize_with = "null_as_empty"
    )]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub alternate_owner: BTreeMap<String, String>,
    /// The time of the release, at which the cooldown began; `None` if the address is in use.
    #[serde(
        rename = "releasedAt",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub released_at: Option<String>,
    /// Fields that this version does not model.
    #[serde(flatten)]
    pub unknown: Unknown,
}

pub(super) fn null_as_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

const ROOT: &str = "/calico/ipam/v2/assignment/";

/// Returns the end of the path of a block or affinity, such as `ipv4/block/10.0.0.0-26`.
pub(super) fn cidr_path(cidr: &Cidr) -> String {
    format!(
        "ipv{}/block/{}-{}",
        cidr.version(),
        cidr.network(),
        cidr.prefix()
    )
}

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
        select.map_or_else(|| ROOT.to_owned(), |version| format!("{ROOT}ipv{version}/"))
    }
}
