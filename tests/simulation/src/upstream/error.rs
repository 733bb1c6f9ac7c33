//! [`UpstreamError`]: the reason why an operation of upstream's programs failed.

use libcalico::ipam::{AssignError, CorruptBlock, NoPool, ReleaseError};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::StoreError;

/// The reason why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// The datastore did not serve a request.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No pool serves the request.
    #[error(transparent)]
    Pools(#[from] NoPool),
    /// The requested address is in no pool in service.
    #[error("The provided IP address is not in a configured pool")]
    NotInPool,
    /// A pool contains the requested address, but does not allow the use for workloads.
    #[error("the pool {0} does not allow workloads")]
    NotForWorkloads(String),
    /// The node must not claim another block.
    #[error("cannot allocate new block due to per host block limit")]
    BlockLimit,
    /// Nodes do not claim blocks automatically.
    #[error("failed to find or claim a block")]
    AutoAllocateOff,
    /// No range is left to claim, and no block can be reclaimed.
    #[error("No Free Blocks")]
    NoFreeBlocks,
    /// The block that was claimed has no free address.
    #[error("Block '{0}' has 0 free ips which is less than 1 ips required.")]
    Full(Cidr),
    /// All attempts lost a race.
    #[error("Max retries hit - excessive concurrent IPAM requests")]
    TooManyAttempts,
    /// The block belongs to another owner.
    #[error("{0} already claimed")]
    ClaimConflict(Cidr),
    /// The affinity is for a block of another owner.
    #[error("the affinity for {0} is stale")]
    StaleAffinity(Cidr),
    /// The block is in use.
    #[error("block '{0}' is not empty")]
    NotEmpty(Cidr),
    /// The block has no owner that could release it.
    #[error("Hostname must be specified to release block affinity")]
    NoOwner,
    /// The block was written since it was listed.
    #[error("IPAM block updated since we last read it")]
    BlockChanged,
    /// The block cannot assign the address.
    #[error(transparent)]
    Assign(#[from] AssignError),
    /// The allocation differs from the expected one.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// The block is corrupt.
    #[error(transparent)]
    Corrupt(#[from] CorruptBlock),
    /// No address of the family is free.
    #[error("Assigned 0 out of 1 requested IPv{0} addresses")]
    NoAddress(IpVersion),
    /// Garbage collection could not release everything that is leaked.
    #[error("{leaks} leaks and {nodes} nodes are not released")]
    Unreleased {
        /// The number of confirmed leaks.
        leaks: usize,
        /// The number of nodes whose blocks were not released.
        nodes: usize,
    },
}

impl UpstreamError {
    /// Returns true if the object changed since it was read. Upstream does not count a missing
    /// object (IPAM-181).
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, UpstreamError::Store(StoreError::Conflict { .. }))
    }

    pub(super) fn is_missing(&self) -> bool {
        matches!(self, UpstreamError::Store(StoreError::NotFound { .. }))
    }
}
