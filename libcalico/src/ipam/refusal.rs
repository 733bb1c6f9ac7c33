//! [`Refusal`]: the reason why a pool gave no address, for cluster administrators.

use std::fmt;

use serde::Serialize;

use crate::api::AllowedUse;
use crate::net::{Cidr, IpVersion};

/// The reason why a pool was not used, or gave no address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Refusal {
    /// The pool's CIDR is invalid.
    InvalidCidr {
        /// The stored text.
        cidr: String,
    },
    /// The pool is of the other family.
    OtherFamily {
        /// The pool's family, 4 or 6.
        #[serde(serialize_with = "display")]
        version: IpVersion,
    },
    /// The pool has `disabled: true`.
    Disabled,
    /// The pool is being deleted.
    Deleting,
    /// The pool's status has the condition `Allocatable` with status `False`.
    NotAllocatable {
        /// The condition's message, or its reason.
        message: String,
    },
    /// The pool's block size is outside the supported range (IPAM-107).
    BlockSize {
        /// The pool's block size.
        block_size: u8,
        /// The smallest allowed value.
        min: u8,
        /// The largest allowed value.
        max: u8,
    },
    /// The request names other pools.
    NotRequested,
    /// The pool serves only requests that name it.
    Manual,
    /// The pool's node selector does not select the node.
    NodeSelector {
        /// The selector.
        selector: String,
        /// The node.
        node: String,
    },
    /// The pool's namespace selector does not select the namespace.
    NamespaceSelector {
        /// The selector.
        selector: String,
        /// The namespace; `None` if the request has none.
        namespace: Option<String>,
    },
    /// The pool serves other uses.
    Use {
        /// The uses that the pool allows.
        allowed: Vec<AllowedUse>,
        /// The requested use.
        wanted: AllowedUse,
    },
    /// No address is free in any block that the node may use.
    Full {
        /// The number of addresses that are not free, including those that are cooling down or reserved.
        in_use: u64,
        /// The number of addresses in the pool.
        capacity: u64,
    },
    /// The node must not claim more blocks, and does not borrow addresses instead (IPAM-103).
    BlockLimit {
        /// The limit.
        limit: usize,
    },
    /// The free addresses are in other nodes' blocks, and affinity is strict.
    StrictAffinity,
    /// Nodes do not claim blocks automatically. In this mode a node does not borrow addresses, either (IPAM-105).
    AutoAllocateOff,
    /// IPReservations cover the whole pool.
    Reserved,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::InvalidCidr { cidr } => write!(f, "its cidr `{cidr}` is no CIDR"),
            Refusal::OtherFamily { version } => write!(f, "it is an IPv{version} pool"),
            Refusal::Disabled => f.write_str("it is disabled"),
            Refusal::Deleting => f.write_str("it is being deleted"),
            Refusal::NotAllocatable { message } if message.is_empty() => f.write_str("its status is not Allocatable"),
            Refusal::NotAllocatable { message } => write!(f, "its status is not Allocatable: {message}"),
            Refusal::BlockSize { block_size, min, max } => {
                write!(f, "its blockSize {block_size} is outside {min}..{max}")
            }
            Refusal::NotRequested => f.write_str("the request names other pools"),
            Refusal::Manual => f.write_str("its assignmentMode is Manual and the request does not name it"),
            Refusal::NodeSelector { selector, node } => {
                write!(f, "its nodeSelector `{selector}` does not match node {node}")
            }
            Refusal::NamespaceSelector { selector, namespace: Some(namespace) } => {
                write!(f, "its namespaceSelector `{selector}` does not match namespace {namespace}")
            }
            Refusal::NamespaceSelector { selector, namespace: None } => {
                write!(f, "its namespaceSelector `{selector}` does not match, as the request has no namespace")
            }
            Refusal::Use { allowed, wanted } => write!(f, "its allowedUses {allowed:?} do not include {wanted:?}"),
            Refusal::Full { in_use, capacity } => write!(f, "full: {in_use} of {capacity} in use"),
            Refusal::BlockLimit { limit } => {
                write!(f, "block limit: the node may own {limit} blocks and has no free address in them")
            }
            Refusal::StrictAffinity => {
                f.write_str("strict affinity: the node's blocks are full, and those of other nodes may not be used")
            }
            Refusal::AutoAllocateOff => {
                f.write_str("autoAllocateBlocks is off: the node's blocks are full, and it may not claim more")
            }
            Refusal::Reserved => f.write_str("all of it is reserved by IPReservations"),
        }
    }
}

/// A pool with the reason why it was not used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedPool {
    /// The pool's name.
    pub pool: String,
    /// The pool's range; `None` if it is invalid.
    pub cidr: Option<Cidr>,
    /// The reason.
    #[serde(flatten)]
    pub refusal: Refusal,
}

impl fmt::Display for RefusedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cidr {
            Some(cidr) => write!(f, "pool {} ({cidr}): {}", self.pool, self.refusal),
            None => write!(f, "pool {}: {}", self.pool, self.refusal),
        }
    }
}

fn display<T: fmt::Display, S: serde::Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
