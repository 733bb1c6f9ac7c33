//! [`Finding`]: a contradiction in or between stored objects, or a note.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::ipam::Allocation;
use crate::net::Cidr;

/// An allocated address, with the facts that distinguish this allocation from a later one of the
/// same address.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedAddress {
    /// The address.
    pub address: IpAddr,
    /// The address's block.
    pub block: Cidr,
    /// The allocation's handle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<String>,
    /// The allocation's sequence number; `None` if the block stores none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence_number: Option<u64>,
    /// The attributes of the allocation's active owner.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

impl AllocatedAddress {
    pub(in crate::ipam) fn new(block: Cidr, held: &Allocation<'_>) -> Self {
        AllocatedAddress {
            address: held.ip,
            block,
            handle: held.handle().map(|handle| handle.to_string()),
            sequence_number: held.sequence,
            attributes: held.attributes().cloned().unwrap_or_default(),
        }
    }
}

impl fmt::Display for AllocatedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (", self.address)?;
        match &self.handle {
            Some(handle) => write!(f, "handle {handle}")?,
            None => f.write_str("no handle")?,
        }
        for (key, label) in [
            ("node", "node"),
            ("namespace", "namespace"),
            ("pod", "pod"),
            ("timestamp", "since"),
        ] {
            if let Some(value) = self.attributes.get(key) {
                write!(f, ", {label} {value}")?;
            }
        }
        f.write_str(")")
    }
}

/// A contradiction in or between stored objects, or a note; see [`Finding::is_note`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(
    tag = "finding",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum Finding {
    /// An allocated address that no endpoint has, and that is not expected to be without endpoint.
    #[error("address without endpoint: {0}")]
    AddressWithoutEndpoint(AllocatedAddress),
    /// An address that an endpoint has, but whose handle does not belong to the endpoint's
    /// container.
    #[error(
        "address of another container: {held} is on endpoint {endpoint} of container {container_id}"
    )]
    AddressOfAnother {
        /// The allocation.
        held: AllocatedAddress,
        /// The endpoint that has the address.
        endpoint: String,
        /// The endpoint's container.
        container_id: String,
    },
    /// An address that an endpoint has and a pool contains, but that is not allocated or is cooling
    /// down.
    #[error(
        "endpoint without address: {endpoint} on node {node} has {address}, which is not allocated"
    )]
    EndpointWithoutAddress {
        /// The address.
        address: IpAddr,
        /// The endpoint.
        endpoint: String,
        /// The endpoint's node.
        node: String,
    },
    /// An address that a node records for a tunnel, or that a Service publishes, and that an active
    /// pool has as free or as cooling down.
    #[error("owner without address: {owner} has {address}, which is not allocated")]
    OwnerWithoutAddress {
        /// The address.
        address: IpAddr,
        /// The node or the Service, such as `Node(node1)`.
        owner: String,
    },
    /// An address that several endpoints have, or that several blocks allocated.
    #[error("double allocation: {address} is held by {}", holders.join(" and "))]
    DoubleAllocation {
        /// The address.
        address: IpAddr,
        /// The endpoints, or the blocks with their handles, or both.
        holders: Vec<String>,
    },
    /// A handle that no block names.
    #[error(
        "orphan handle: {handle} counts {} addresses, but no block names the handle",
        sum(blocks)
    )]
    OrphanHandle {
        /// The handle.
        handle: String,
        /// The handle's revision at the time of the read.
        revision: String,
        /// The number of addresses that the handle counts per block.
        blocks: BTreeMap<Cidr, i64>,
    },
    /// An address whose handle is missing, so that a DEL does not find the address by its handle.
    #[error("missing handle: the handle of {0} does not exist")]
    MissingHandle(AllocatedAddress),
    /// A handle whose count differs from the number of its allocations in the block. If the count
    /// is too low, a release may delete the handle too early and leak addresses (IPAM-75).
    #[error(
        "count mismatch: handle {handle} counts {counted} addresses in {block}, but has {held}"
    )]
    HandleCount {
        /// The handle.
        handle: String,
        /// The handle's revision at the time of the read.
        revision: String,
        /// The block.
        block: Cidr,
        /// The number of addresses that the handle counts in the block.
        counted: i64,
        /// The number of addresses that the block has allocated to the handle.
        held: usize,
    },
    /// Two blocks that share addresses. Only a person can decide which of two pods keeps an
    /// address.
    #[error("overlapping blocks: {outer} and {inner}; see the block size of a pool in docs/faq.md")]
    OverlappingBlocks {
        /// The larger block, or the first of two equal ones.
        outer: Cidr,
        /// The other block.
        inner: Cidr,
    },
    /// A block that no pool contains.
    #[error(
        "block outside pools: {block} of {}, {in_use} addresses in use",
        owner.as_deref().unwrap_or("no owner")
    )]
    BlockOutsidePools {
        /// The block.
        block: Cidr,
        /// The block's owner.
        owner: Option<String>,
        /// The number of allocated addresses in the block.
        in_use: usize,
    },
    /// A block whose parts contradict each other.
    #[error("corrupt block: {problem}")]
    CorruptBlock {
        /// The block.
        block: Cidr,
        /// The contradiction.
        problem: String,
    },
    /// A block whose owner has no affinity for it, or a block in use whose owner has only an
    /// unfinished affinity.
    #[error("block without affinity: {block} of {owner}{}", affinity_state(state.as_deref()))]
    BlockWithoutAffinity {
        /// The block.
        block: Cidr,
        /// The block's owner.
        owner: String,
        /// The state of the affinity; `None` if there is no affinity.
        state: Option<String>,
    },
    /// A confirmed affinity for a block that is missing, or that has another owner or none.
    #[error(
        "affinity without block: {claimant} has an affinity to {block}{}",
        block_owner(owner.as_deref())
    )]
    AffinityWithoutBlock {
        /// The block.
        block: Cidr,
        /// The owner of the affinity.
        claimant: String,
        /// The affinity's revision at the time of the read.
        revision: String,
        /// The block's owner; `None` if the block is missing or has no owner.
        owner: Option<String>,
    },
    /// An affinity in an unfinished state, as a killed program leaves it, that gives no ownership
    /// of the block.
    #[error(
        "unfinished affinity: {claimant} to {block} is {state}; the owner's next use of the block \
         or garbage collection completes or deletes it"
    )]
    UnfinishedClaim {
        /// The block.
        block: Cidr,
        /// The owner of the affinity.
        claimant: String,
        /// The affinity's revision at the time of the read.
        revision: String,
        /// The state of the affinity.
        state: String,
    },
    /// An empty block that is marked for deletion, as a killed deleter leaves it.
    #[error(
        "unfinished deletion: block {block} is marked for deletion; an ADD that needs room or \
         garbage collection deletes it"
    )]
    UnfinishedDeletion {
        /// The block.
        block: Cidr,
    },
}

impl Finding {
    /// Returns true if nothing is wrong and no action is needed.
    pub fn is_note(&self) -> bool {
        matches!(
            self,
            Finding::UnfinishedClaim { .. } | Finding::UnfinishedDeletion { .. }
        )
    }
}

fn sum(blocks: &BTreeMap<Cidr, i64>) -> i64 {
    blocks.values().fold(0, |sum, &n| sum.saturating_add(n))
}

fn affinity_state(state: Option<&str>) -> String {
    state.map_or_else(String::new, |state| {
        format!(", whose affinity is only {state}")
    })
}

fn block_owner(owner: Option<&str>) -> String {
    owner.map_or(", which is missing or has no owner".into(), |owner| {
        format!(" of {owner}")
    })
}
