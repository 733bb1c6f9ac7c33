//! [`Finding`]: a contradiction between stored objects, or a note.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::ipam::Allocation;
use crate::net::Cidr;

/// An allocated address, with the facts that distinguish this allocation from a later one of the same address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldAddress {
    /// The address.
    pub address: IpAddr,
    /// The address's block.
    pub block: Cidr,
    /// The allocation's handle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<String>,
    /// The allocation's sequence number. A release must give it, and fails if the address was reallocated meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence_number: Option<u64>,
    /// The allocation's attributes: node, pod, namespace, timestamp.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

impl HeldAddress {
    pub(super) fn new(block: Cidr, held: &Allocation<'_>) -> Self {
        HeldAddress {
            address: held.ip,
            block,
            handle: held.handle().map(|handle| handle.to_string()),
            sequence_number: held.sequence,
            attributes: held.attributes().cloned().unwrap_or_default(),
        }
    }
}

impl fmt::Display for HeldAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (", self.address)?;
        match &self.handle {
            Some(handle) => write!(f, "handle {handle}")?,
            None => f.write_str("no handle")?,
        }
        for (key, label) in [("node", "node"), ("namespace", "namespace"), ("pod", "pod"), ("timestamp", "since")] {
            if let Some(value) = self.attributes.get(key) {
                write!(f, ", {label} {value}")?;
            }
        }
        f.write_str(")")
    }
}

/// A contradiction between stored objects, or a note; see [`Finding::is_note`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "finding", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Finding {
    /// An allocated address that no endpoint has.
    AddressWithoutEndpoint(HeldAddress),
    /// An address that belongs to another container than the endpoint that has it.
    AddressOfAnother {
        /// The allocation.
        held: HeldAddress,
        /// The endpoint that has the address.
        endpoint: String,
        /// The endpoint's container.
        container_id: String,
    },
    /// An address that an endpoint has and a pool contains, but that is free.
    EndpointWithoutAddress {
        /// The address.
        address: IpAddr,
        /// The endpoint.
        endpoint: String,
        /// The endpoint's node.
        node: String,
    },
    /// An address that two endpoints have, or that two blocks allocated.
    DoubleAllocation {
        /// The address.
        address: IpAddr,
        /// The endpoints, and the blocks with their handles.
        holders: Vec<String>,
    },
    /// A handle that no block names.
    OrphanHandle {
        /// The handle.
        handle: String,
        /// The handle's revision at the time of the read.
        revision: String,
        /// The number of addresses that the handle counts per block.
        blocks: BTreeMap<Cidr, i64>,
    },
    /// An address whose handle is missing. No DEL can find the address, because a DEL reads the handle first.
    MissingHandle(HeldAddress),
    /// A handle whose count differs from the allocations in the block. A count that is too high is harmless. With one
    /// that is too low, a release deletes the handle too early and leaks addresses (IPAM-75).
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
    /// Two blocks that share addresses.
    OverlappingBlocks {
        /// The larger block, or the first of two equal ones.
        outer: Cidr,
        /// The other block.
        inner: Cidr,
    },
    /// A block that no pool contains.
    BlockOutsidePools {
        /// The block.
        block: Cidr,
        /// The block's owner, `host:<node>`.
        owner: Option<String>,
        /// The number of allocated addresses in the block.
        in_use: usize,
    },
    /// A block whose parts contradict each other.
    CorruptBlock {
        /// The block.
        block: Cidr,
        /// The contradiction.
        problem: String,
    },
    /// A block whose owner has no affinity for it, or one that is not confirmed.
    BlockWithoutAffinity {
        /// The block.
        block: Cidr,
        /// The block's owner.
        owner: String,
        /// The state of the affinity, if there is one.
        state: Option<String>,
    },
    /// An affinity for a block that is missing or has another owner.
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
    /// An affinity in an unfinished state that no address depends on, because an ADD or DEL was killed. It gives no
    /// ownership, and its owner's next ADD completes or deletes it.
    UnfinishedClaim {
        /// The block.
        block: Cidr,
        /// The owner of the affinity.
        claimant: String,
        /// The affinity's revision at the time of the read.
        revision: String,
        /// The state of the affinity, `pending` or `pendingDeletion`.
        state: String,
    },
}

impl Finding {
    /// Returns true if nothing is wrong and no action is needed.
    pub fn is_note(&self) -> bool {
        matches!(self, Finding::UnfinishedClaim { .. })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::AddressWithoutEndpoint(held) => write!(f, "address without endpoint: {held}"),
            Finding::AddressOfAnother { held, endpoint, container_id } => {
                write!(f, "address of another: {held} is on endpoint {endpoint} of container {container_id}")
            }
            Finding::EndpointWithoutAddress { address, endpoint, node } => {
                write!(f, "endpoint without address: {endpoint} on node {node} has {address}, which is free")
            }
            Finding::DoubleAllocation { address, holders } => {
                write!(f, "double allocation: {address} is held by {}", holders.join(" and "))
            }
            Finding::OrphanHandle { handle, blocks, .. } => {
                let count: i64 = blocks.values().fold(0, |sum, &n| sum.saturating_add(n));
                write!(f, "orphan handle: {handle} counts {count} addresses, no block names it")
            }
            Finding::MissingHandle(held) => write!(f, "missing handle: {held} is held by a handle that is not there"),
            Finding::HandleCount { handle, block, counted, held, .. } => {
                write!(f, "count mismatch: handle {handle} counts {counted} addresses in {block}, it holds {held}")
            }
            Finding::OverlappingBlocks { outer, inner } => write!(f, "overlapping blocks: {outer} and {inner}"),
            Finding::BlockOutsidePools { block, owner, in_use } => {
                let owner = owner.as_deref().unwrap_or("nobody");
                write!(f, "block outside pools: {block} of {owner}, {in_use} addresses in use")
            }
            Finding::CorruptBlock { problem, .. } => write!(f, "corrupt block: {problem}"),
            Finding::BlockWithoutAffinity { block, owner, state: None } => {
                write!(f, "block without affinity: {block} of {owner}")
            }
            Finding::BlockWithoutAffinity { block, owner, state: Some(state) } => {
                write!(f, "block without affinity: {block} of {owner}, whose claim is only {state}")
            }
            Finding::AffinityWithoutBlock { block, claimant, owner: Some(owner), .. } => {
                write!(f, "affinity without block: {claimant} claims {block} of {owner}")
            }
            Finding::AffinityWithoutBlock { block, claimant, owner: None, .. } => {
                write!(f, "affinity without block: {claimant} claims {block}, which is not there or nobody's")
            }
            Finding::UnfinishedClaim { block, claimant, state, .. } => {
                write!(f, "unfinished claim: {claimant} to {block} is {state}; its next ADD finishes or drops it")
            }
        }
    }
}
