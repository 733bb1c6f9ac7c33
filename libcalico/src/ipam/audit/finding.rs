//! [`Finding`]: one thing that is wrong, or worth a note.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::ipam::Allocation;
use crate::net::Cidr;

/// A taken address and what tells it from a later allocation of the same address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldAddress {
    /// The address.
    pub address: IpAddr,
    /// Its block.
    pub block: Cidr,
    /// The handle that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<String>,
    /// Its sequence number: a release must name it, and fails when the address was allocated anew meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence_number: Option<u64>,
    /// What was noted with it: node, pod, namespace, timestamp.
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

/// One thing that is wrong, or worth a note: see [`Finding::is_note`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "finding", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Finding {
    /// Taken, but no endpoint has it.
    AddressWithoutEndpoint(HeldAddress),
    /// Taken by a container that is not the endpoint's.
    AddressOfAnother {
        /// Who took it.
        held: HeldAddress,
        /// The endpoint that has it.
        endpoint: String,
        /// The endpoint's container.
        container_id: String,
    },
    /// An endpoint has it, a pool contains it, but it is free.
    EndpointWithoutAddress {
        /// The address.
        address: IpAddr,
        /// The endpoint.
        endpoint: String,
        /// The endpoint's node.
        node: String,
    },
    /// Two endpoints have it, or two blocks gave it away.
    DoubleAllocation {
        /// The address.
        address: IpAddr,
        /// Who has it.
        holders: Vec<String>,
    },
    /// No block names the handle.
    OrphanHandle {
        /// The handle.
        handle: String,
        /// Its revision when it was read.
        revision: String,
        /// What it claims to hold.
        blocks: BTreeMap<Cidr, i64>,
    },
    /// A block names the handle, but it is not there: nothing finds the address when the container goes.
    MissingHandle(HeldAddress),
    /// The handle's count differs from what the block says. Too high is untidy; too low loses addresses (IPAM-75).
    HandleCount {
        /// The handle.
        handle: String,
        /// Its revision when it was read.
        revision: String,
        /// The block.
        block: Cidr,
        /// What the handle says.
        counted: i64,
        /// What the block says.
        held: usize,
    },
    /// Two blocks share addresses.
    OverlappingBlocks {
        /// The larger, or the first.
        outer: Cidr,
        /// The other.
        inner: Cidr,
    },
    /// No pool contains the block.
    BlockOutsidePools {
        /// The block.
        block: Cidr,
        /// Its owner, `host:<node>`.
        owner: Option<String>,
        /// Taken addresses in it.
        in_use: usize,
    },
    /// The block contradicts itself.
    CorruptBlock {
        /// The block.
        block: Cidr,
        /// How.
        problem: String,
    },
    /// The block's owner has no claim to it, or one that is not confirmed.
    BlockWithoutAffinity {
        /// The block.
        block: Cidr,
        /// Its owner.
        owner: String,
        /// The claim's state, if there is one.
        state: Option<String>,
    },
    /// A claim to a block that is not there or is not the claimant's.
    AffinityWithoutBlock {
        /// The block.
        block: Cidr,
        /// Who claims it.
        claimant: String,
        /// The claim's revision when it was read.
        revision: String,
        /// Whose it is; `None` when it is nobody's or not there.
        owner: Option<String>,
    },
    /// A claim that was begun, to make or to give up, and nothing depends on it: an ADD or DEL was killed. It stands for
    /// nothing, and the claimant's next ADD finishes or drops it (IPAM-121, IPAM-123).
    UnfinishedClaim {
        /// The block.
        block: Cidr,
        /// Who claims it.
        claimant: String,
        /// The claim's revision when it was read.
        revision: String,
        /// The claim's state, `pending` or `pendingDeletion`.
        state: String,
    },
}

impl Finding {
    /// Nothing is wrong, and nothing has to be done.
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
