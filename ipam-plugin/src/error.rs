//! [`IpamError`]: why an operation on addresses failed. The texts are upstream's where it has one (ipam.md, appendix
//! B): people search for them, and recordings compare them.

use std::fmt;
use std::net::IpAddr;

use libcalico::api::AllowedUse;
use libcalico::ipam::{
    AssignError, BlockTooLarge, CorruptBlock, HandleError, PoolChoiceError, RefusedPool, ReleaseError,
};
use libcalico::net::{Cidr, CidrParseError, IpVersion};
use libcalico::store::StoreError;

use crate::kubevirt::MachineError;

/// Why an operation failed. Nothing that it began is left behind, as far as the datastore could be reached.
#[derive(Debug, Clone, thiserror::Error)]
pub enum IpamError {
    /// The datastore.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No pool serves the request.
    #[error(transparent)]
    Pools(#[from] PoolChoiceError),
    /// A pool asked for by something that is neither a CIDR nor a pool's name.
    #[error("error parsing pool \"{pool}\": {cause}")]
    PoolName {
        /// What was asked for.
        pool: String,
        /// What is wrong with it as a CIDR.
        cause: CidrParseError,
    },
    /// A pool asked for in the list of the other family.
    #[error("\"{pool}\" isn't a IPv{version} address")]
    PoolFamily {
        /// What was asked for: the pool's network address.
        pool: IpAddr,
        /// The list it stood in.
        version: IpVersion,
    },
    /// Fewer addresses than asked for could be had.
    #[error(transparent)]
    Shortfall(#[from] Shortfall),
    /// The address asked for is held by another, or resting. The text is upstream's.
    #[error("resource already exists: {ip} with error: Address already assigned in block")]
    AlreadyAssigned {
        /// The address.
        ip: IpAddr,
        /// Who holds it, in words.
        holder: String,
    },
    /// The address asked for lies in no pool in service. Upstream's text ends with a newline.
    #[error("The provided IP address is not in a configured pool\n")]
    NotInPool {
        /// The address.
        ip: IpAddr,
        /// The pools of its family that are not in service, and why.
        refused: Vec<RefusedPool>,
    },
    /// The address asked for lies in a pool for something else.
    #[error(
        "IP address {ip} is in IP pool \"{pool}\", which is not allowed for use \"{wanted:?}\" (allowedUses: [{}])",
        Spaced(allowed)
    )]
    UseNotAllowed {
        /// The address.
        ip: IpAddr,
        /// The pool's name.
        pool: String,
        /// What the address is wanted for.
        wanted: AllowedUse,
        /// What the pool serves.
        allowed: Vec<AllowedUse>,
    },
    /// The address asked for is not for the pod's namespace, and annotations are restricted.
    #[error("IP address {ip} is not for this pod: {reason}")]
    Withheld {
        /// The address.
        ip: IpAddr,
        /// The pool that does not select the namespace, or the reservation, in words.
        reason: String,
    },
    /// The handle may hold no other address.
    #[error(
        "handle {handle} already has IP(s) allocated, cannot assign additional IP {ip} (maxAllocPerIPVersion={limit})"
    )]
    HandleFull {
        /// The handle.
        handle: String,
        /// The address asked for.
        ip: IpAddr,
        /// The most it may hold.
        limit: usize,
    },
    /// A block refused.
    #[error(transparent)]
    Block(#[from] AssignError),
    /// A block cannot be trusted.
    #[error(transparent)]
    Corrupt(#[from] CorruptBlock),
    /// A block cannot be read, or contradicts itself; the log says how.
    #[error("block {0} cannot be read; `calico-ipam check` says what is wrong with it")]
    UnreadableBlock(Cidr),
    /// The block of an address that was asked for would share addresses with one of another size.
    #[error(
        "block {cidr} cannot be claimed: block {other} of another size has addresses of it; release those and delete the \
         block, or ask for an address elsewhere"
    )]
    OverlappingBlock {
        /// The block of the address.
        cidr: Cidr,
        /// The one in the way.
        other: Cidr,
    },
    /// A pool's block size is out of bounds.
    #[error(transparent)]
    BlockSize(#[from] BlockTooLarge),
    /// A release was refused.
    #[error("update conflict: {0}")]
    Release(#[from] ReleaseError),
    /// An endpoint did not give up the addresses that were to be released, so they are held still.
    #[error("{endpoint} may still list the addresses: {cause}")]
    StillListed {
        /// The endpoint, as error messages name objects.
        endpoint: String,
        /// Why it could not be read or written.
        cause: StoreError,
    },
    /// A handle refused.
    #[error(transparent)]
    Handle(#[from] HandleError),
    /// The block was to be released only if empty.
    #[error("block '{0}' is not empty")]
    BlockNotEmpty(Cidr),
    /// The pod has a virtual machine.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// Races were lost for as long as the operation may take.
    #[error("Max retries hit - excessive concurrent IPAM requests")]
    Contention,
    /// Whoever is asked before each write allowed no more ([`crate::release_addresses::WriteGate`]).
    #[error("stopped: writes are no longer allowed")]
    Stopped,
}

/// Fewer addresses of one family than asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// The family.
    pub version: IpVersion,
    /// How many were asked for.
    pub wanted: usize,
    /// How many were had.
    pub assigned: usize,
    /// Why no more.
    pub cause: Exhaustion,
    /// Every pool of the family, and why it gave no (more) addresses.
    pub refused: Vec<RefusedPool>,
}

/// Why no more addresses could be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exhaustion {
    /// The node's blocks are full and it may own no more. No borrowing then, even if affinity is not strict (D8).
    BlockLimit {
        /// How many it may own.
        limit: usize,
    },
    /// The node's blocks are full and it may not claim any (IPAM-105).
    AutoAllocateOff,
    /// The node's blocks are full, none is to be claimed, and those of others may not be used.
    StrictAffinity,
    /// No block of the pools has a free address.
    PoolsFull {
        /// The pools.
        pools: Vec<Cidr>,
    },
}

impl std::error::Error for Shortfall {}

impl fmt::Display for Shortfall {
    /// Upstream returns the first two bare and wraps the others (IPAM-37, IPAM-39).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Exhaustion::BlockLimit { .. } => f.write_str("cannot allocate new block due to per host block limit"),
            Exhaustion::AutoAllocateOff => f.write_str("failed to find or claim a block"),
            Exhaustion::StrictAffinity | Exhaustion::PoolsFull { .. } => {
                let Shortfall { version, wanted, assigned, cause, .. } = self;
                write!(
                    f,
                    "failed to request IPv{version} addresses: Assigned {assigned} out of {wanted} requested \
                     IPv{version} addresses; {cause}"
                )
            }
        }
    }
}

impl fmt::Display for Exhaustion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exhaustion::BlockLimit { limit } => write!(
                f,
                "Need to allocate an IPAM block but could not - limit of {limit} blocks reached for this node"
            ),
            Exhaustion::AutoAllocateOff => f.write_str("failed to find or claim a block"),
            Exhaustion::StrictAffinity => f.write_str("No more free affine blocks and strict affinity enabled"),
            Exhaustion::PoolsFull { pools } => write!(f, "No IPs available in pools: [{}]", Spaced(pools)),
        }
    }
}

impl IpamError {
    /// The pools that were looked at and why each gave nothing.
    pub fn refused_pools(&self) -> &[RefusedPool] {
        match self {
            IpamError::Pools(error) => &error.refused,
            IpamError::Shortfall(shortfall) => &shortfall.refused,
            IpamError::NotInPool { refused, .. } => refused,
            _ => &[],
        }
    }
}

/// A list as Go prints it between brackets.
struct Spaced<'a, T>(&'a [T]);

impl<T: fmt::Debug> fmt::Display for Spaced<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, item) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(" ")?;
            }
            write!(f, "{item:?}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortfall(assigned: usize, wanted: usize, cause: Exhaustion) -> String {
        Shortfall { version: IpVersion::V4, wanted, assigned, cause, refused: Vec::new() }.to_string()
    }

    #[test]
    fn shortfalls_read_as_upstream_words_them() {
        let pools = vec!["10.66.0.0/30".parse().unwrap(), "10.67.0.0/24".parse().unwrap()];
        assert_eq!(
            shortfall(0, 1, Exhaustion::PoolsFull { pools }),
            "failed to request IPv4 addresses: Assigned 0 out of 1 requested IPv4 addresses; No IPs available in \
             pools: [10.66.0.0/30 10.67.0.0/24]"
        );
        assert_eq!(
            shortfall(64, 65, Exhaustion::StrictAffinity),
            "failed to request IPv4 addresses: Assigned 64 out of 65 requested IPv4 addresses; No more free affine \
             blocks and strict affinity enabled"
        );
        assert_eq!(
            shortfall(0, 1, Exhaustion::BlockLimit { limit: 20 }),
            "cannot allocate new block due to per host block limit"
        );
        assert_eq!(shortfall(0, 1, Exhaustion::AutoAllocateOff), "failed to find or claim a block");
    }

    #[test]
    fn a_pool_for_another_use_is_named() {
        let error = IpamError::UseNotAllowed {
            ip: "10.0.0.1".parse().unwrap(),
            pool: "tunnels".into(),
            wanted: AllowedUse::Workload,
            allowed: vec![AllowedUse::Tunnel, AllowedUse::LoadBalancer],
        };
        assert_eq!(
            error.to_string(),
            "IP address 10.0.0.1 is in IP pool \"tunnels\", which is not allowed for use \"Workload\" (allowedUses: \
             [Tunnel LoadBalancer])"
        );
    }
}
