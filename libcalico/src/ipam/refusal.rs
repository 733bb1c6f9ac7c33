//! [`Refusal`]: why a pool gave no address, in words for the person who runs the cluster.

use std::fmt;

use serde::Serialize;

use crate::api::AllowedUse;
use crate::net::{Cidr, IpVersion};

/// Why a pool was not used, or gave nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Refusal {
    /// Its CIDR cannot be read.
    InvalidCidr {
        /// What it says.
        cidr: String,
    },
    /// It is of the other family.
    OtherFamily {
        /// The pool's family, 4 or 6.
        #[serde(serialize_with = "display")]
        version: IpVersion,
    },
    /// `disabled: true`.
    Disabled,
    /// It is being deleted.
    Deleting,
    /// Its status says that it is not `Allocatable`.
    NotAllocatable {
        /// The condition's message, or its reason.
        message: String,
    },
    /// Its blocks have a size that IPAM does not handle (IPAM-107).
    BlockSize {
        /// The pool's.
        block_size: u8,
        /// Smallest allowed.
        min: u8,
        /// Largest allowed.
        max: u8,
    },
    /// The request names other pools.
    NotRequested,
    /// It serves only requests that name it.
    Manual,
    /// Its node selector does not select the node.
    NodeSelector {
        /// The selector.
        selector: String,
        /// The node.
        node: String,
    },
    /// Its namespace selector does not select the namespace.
    NamespaceSelector {
        /// The selector.
        selector: String,
        /// The namespace; `None` when there is none.
        namespace: Option<String>,
    },
    /// It serves other uses.
    Use {
        /// What it serves.
        allowed: Vec<AllowedUse>,
        /// What is wanted.
        wanted: AllowedUse,
    },
    /// No address is free in any block the node may use.
    Full {
        /// Taken addresses, resting and reserved ones included.
        in_use: u64,
        /// Addresses of the pool.
        capacity: u64,
    },
    /// The node may own no more blocks (IPAM-103).
    BlockLimit {
        /// The limit.
        limit: usize,
    },
    /// What is free lies in other nodes' blocks, and affinity is strict (IPAM-104).
    StrictAffinity,
    /// Blocks are not claimed automatically (IPAM-105).
    AutoAllocateOff,
    /// All of it is reserved by IPReservations.
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

/// A pool and why it was not used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedPool {
    /// The pool's name.
    pub pool: String,
    /// Its range; `None` when it cannot be read.
    pub cidr: Option<Cidr>,
    /// Why.
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
