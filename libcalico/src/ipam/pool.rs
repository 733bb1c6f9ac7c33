//! [`Pool`]: the allocator's view of a pool. [`PoolRejection`]: the reason why a pool gave no
//! address.

use std::fmt;
use std::net::IpAddr;

use serde::Serialize;

use crate::api::{AllowedUse, IpPool};
use crate::net::{Cidr, IpVersion};

/// A pool with the fields that the allocator needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The pool's name.
    pub name: String,
    /// The pool's range.
    pub cidr: Cidr,
    /// The prefix length of the pool's blocks.
    pub block_prefix: u8,
    /// The selector for the nodes that the pool serves; an empty one selects all.
    pub node_selector: String,
    /// The uses for which the pool's addresses are allowed.
    pub allowed_uses: Vec<AllowedUse>,
}

impl Pool {
    /// Returns the range of the block for `ip`; `None` if the address is outside the pool or the
    /// block size is invalid.
    pub fn block_of(&self, ip: IpAddr) -> Option<Cidr> {
        self.cidr
            .contains(ip)
            .then(|| Cidr::new(ip, self.block_prefix))
            .flatten()
    }

    /// Returns true if the pool's addresses may be used for `purpose`.
    pub fn allows(&self, purpose: AllowedUse) -> bool {
        self.allowed_uses.contains(&purpose)
    }

    /// Checks that a block fits into the pool and is not too large (IPAM-107).
    pub fn check_block_size(&self) -> Result<(), PoolRejection> {
        let (shortest, longest) = if self.cidr.version() == IpVersion::V4 {
            (20, 32)
        } else {
            (116, 128)
        };
        let (min, max) = (self.cidr.prefix().max(shortest), longest);
        let block_size = self.block_prefix;
        if (min..=max).contains(&block_size) {
            Ok(())
        } else {
            Err(PoolRejection::BlockSize {
                block_size,
                min,
                max,
            })
        }
    }
}

/// Returns the pool of an object if it is of the family and in service: neither disabled nor being
/// deleted nor marked as not allocatable (IPAM-93). That also applies to requests for a particular
/// address (IPAM-132).
pub fn enabled_pool(object: &IpPool, version: IpVersion) -> Result<Pool, PoolRejection> {
    let spec = &object.spec;
    let cidr = spec.range().map_err(|_| PoolRejection::InvalidCidr {
        cidr: spec.cidr.clone(),
    })?;
    if cidr.version() != version {
        return Err(PoolRejection::OtherFamily {
            version: cidr.version(),
        });
    }
    if let Some(range) = cidr.unassignable() {
        return Err(PoolRejection::Unassignable { range });
    }
    if object.metadata.deletion_timestamp.is_some() {
        return Err(PoolRejection::Deleting);
    }
    if spec.disabled {
        return Err(PoolRejection::Disabled);
    }
    if let Some(message) = not_allocatable(object) {
        return Err(PoolRejection::NotAllocatable { message });
    }
    Ok(pool_of(object, cidr))
}

/// Returns the pool that contains `ip`. A release also needs the pools that are not in service
/// (IPAM-141).
pub fn any_pool_of(pools: &[IpPool], ip: IpAddr) -> Option<Pool> {
    let mut ranges = pools
        .iter()
        .filter_map(|object| Some((object, object.spec.range().ok()?)));
    ranges
        .find(|(_, cidr)| cidr.contains(ip))
        .map(|(object, cidr)| pool_of(object, cidr))
}

fn pool_of(object: &IpPool, cidr: Cidr) -> Pool {
    let spec = &object.spec;
    let uses = [
        AllowedUse::Workload,
        AllowedUse::Tunnel,
        AllowedUse::LoadBalancer,
    ];
    Pool {
        name: object.metadata.name.clone(),
        cidr,
        block_prefix: spec.block_prefix(cidr.version()),
        node_selector: spec.node_selector.clone(),
        allowed_uses: uses
            .into_iter()
            .filter(|purpose| spec.allows(*purpose))
            .collect(),
    }
}

fn not_allocatable(object: &IpPool) -> Option<String> {
    let conditions = object.status.as_ref()?.get("conditions")?.as_array()?;
    let condition = conditions
        .iter()
        .find(|c| c["type"] == "Allocatable" && c["status"] == "False")?;
    let texts = ["message", "reason"]
        .iter()
        .filter_map(|key| condition.get(key)?.as_str());
    Some(
        texts
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
            .next()
            .unwrap_or_default(),
    )
}

/// The reason why a pool was not used, or gave no address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(
    tag = "reason",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum PoolRejection {
    /// The pool's CIDR is invalid.
    #[error("its cidr `{cidr}` is invalid")]
    InvalidCidr {
        /// The stored text.
        cidr: String,
    },
    /// A pod with an address of the pool cannot communicate.
    #[error("its cidr overlaps with {range}; a pod with such an address cannot communicate")]
    Unassignable {
        /// The range of multicast or loopback.
        range: Cidr,
    },
    /// The pool is of the other family.
    #[error("it is an IPv{version} pool")]
    OtherFamily {
        /// The pool's family, 4 or 6.
        #[serde(serialize_with = "display")]
        version: IpVersion,
    },
    /// The pool has `disabled: true`.
    #[error("it is disabled")]
    Disabled,
    /// The pool is being deleted.
    #[error("it is being deleted")]
    Deleting,
    /// The pool's status has the condition `Allocatable` with status `False`.
    #[error("its status is not Allocatable{}", after_colon(message))]
    NotAllocatable {
        /// The condition's message or reason, if any.
        message: String,
    },
    /// The pool's block size is outside the supported range (IPAM-107).
    #[error("its blockSize {block_size} is outside {min}..{max}")]
    BlockSize {
        /// The pool's block size, as a prefix length.
        block_size: u8,
        /// The smallest allowed value.
        min: u8,
        /// The largest allowed value.
        max: u8,
    },
    /// The request names other pools.
    #[error("the request names other pools")]
    NotRequested,
    /// The pool serves only requests that name it.
    #[error("its assignmentMode is Manual and the request does not name it")]
    Manual,
    /// The pool's node selector does not select the node.
    #[error("its nodeSelector `{selector}` does not match node {node}")]
    NodeSelector {
        /// The selector.
        selector: String,
        /// The node.
        node: String,
    },
    /// The pool's namespace selector does not select the namespace.
    #[error(
        "its namespaceSelector `{selector}` does not match{}", of_namespace(namespace.as_deref())
    )]
    NamespaceSelector {
        /// The selector.
        selector: String,
        /// The namespace; `None` if the request has none.
        namespace: Option<String>,
    },
    /// The pool serves other uses.
    #[error("its allowedUses {allowed:?} do not include {wanted:?}")]
    Use {
        /// The uses that the pool allows.
        allowed: Vec<AllowedUse>,
        /// The requested use.
        wanted: AllowedUse,
    },
    /// No address is free in any block that the node may use.
    #[error("full: {in_use} of {capacity} in use")]
    Full {
        /// An upper bound of the number of addresses that are not free, or are reserved; `capacity`
        /// at most.
        in_use: u64,
        /// The number of addresses in the pool.
        capacity: u64,
    },
    /// The node must not claim more blocks (IPAM-103).
    #[error("block limit: the node may own {limit} blocks and has no free address in them")]
    BlockLimit {
        /// The limit.
        limit: usize,
    },
    /// The free addresses are in blocks that the node does not own, and affinity is strict.
    #[error(
        "strict affinity: the node's blocks are full, and those of other nodes may not be used"
    )]
    StrictAffinity,
    /// Nodes do not claim blocks automatically, and do not borrow addresses either (IPAM-105).
    #[error(
        "autoAllocateBlocks is false: the node's blocks are full, and the node may not claim more"
    )]
    AutoAllocateOff,
    /// IPReservations cover the whole pool.
    #[error("IPReservations cover the whole pool")]
    Reserved,
}

/// A pool with the reason why it was not used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RejectedPool {
    /// The pool's name.
    pub pool: String,
    /// The pool's range; `None` if it is invalid.
    pub cidr: Option<Cidr>,
    /// The reason.
    #[serde(flatten)]
    pub refusal: PoolRejection,
}

impl fmt::Display for RejectedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cidr {
            Some(cidr) => write!(f, "pool {} ({cidr}): {}", self.pool, self.refusal),
            None => write!(f, "pool {}: {}", self.pool, self.refusal),
        }
    }
}

fn after_colon(message: &str) -> String {
    if message.is_empty() {
        String::new()
    } else {
        format!(": {message}")
    }
}

fn of_namespace(namespace: Option<&str>) -> String {
    namespace.map_or(", as the request has no namespace".into(), |namespace| {
        format!(" namespace {namespace}")
    })
}

fn display<T: fmt::Display, S: serde::Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
