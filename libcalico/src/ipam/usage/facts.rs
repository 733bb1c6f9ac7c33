//! The facts about each block and pool that all counts use.

use serde::Serialize;

use crate::api::{AllowedUse, IpPool, Node};
use crate::ipam::{
    AffinityOwner, Block, BlockRoom, IpamConfig, Pool, Reservations, any_pool_of, enabled_pool,
};
use crate::net::IpVersion;

/// The objects that are counted.
#[derive(Debug, Clone, Copy)]
pub struct UsageInput<'a> {
    /// All pools.
    pub pools: &'a [IpPool],
    /// All blocks. Addresses whose cooldown is over must already be in the free lists.
    pub blocks: &'a [Block],
    /// The reserved ranges.
    pub reservations: &'a Reservations,
    /// The cluster-wide settings.
    pub config: &'a IpamConfig,
    /// All nodes; `None` if they are unknown. Node selectors are then not considered.
    pub nodes: Option<&'a [Node]>,
}

/// The requests that a pool serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum PoolService {
    /// Pods of the nodes and namespaces that the pool selects.
    Pods,
    /// Pods that name the pool, because its `assignmentMode` is not automatic.
    OnRequest,
    /// No pods, but tunnels or Services.
    OtherUses,
    /// No requests: the pool is disabled, being deleted or not allocatable, or its block size is
    /// invalid.
    OutOfService,
}

/// A pool with a valid range.
pub(super) struct PoolFacts<'a> {
    pub(super) object: &'a IpPool,
    pub(super) pool: Pool,
    pub(super) serves: PoolService,
}

/// A block, with numbers of addresses.
pub(super) struct BlockFacts<'a> {
    pub(super) block: &'a Block,
    pub(super) owner: Option<AffinityOwner>,
    /// The index of the first pool that contains the block.
    pub(super) pool: Option<usize>,
    pub(super) used: u64,
    pub(super) cooling: u64,
    /// Addresses that can be assigned; 0 in an unusable block.
    pub(super) free: u64,
    pub(super) is_corrupt: bool,
    /// Whether to assign addresses from the block: it is neither corrupt nor marked for deletion.
    pub(super) is_usable: bool,
    pub(super) is_empty: bool,
}

impl<'a> PoolFacts<'a> {
    /// Returns `None` if the pool's range is invalid.
    pub(super) fn of(object: &'a IpPool) -> Option<Self> {
        let network = object.spec.range().ok()?.network();
        let pool = any_pool_of(std::slice::from_ref(object), network)?;
        let is_in_service =
            enabled_pool(object, pool.cidr.version()).is_ok() && pool.check_block_size().is_ok();
        let serves = if !is_in_service {
            PoolService::OutOfService
        } else if !pool.allows(AllowedUse::Workload) {
            PoolService::OtherUses
        } else if !object.spec.is_automatic() {
            PoolService::OnRequest
        } else {
            PoolService::Pods
        };
        Some(PoolFacts {
            object,
            pool,
            serves,
        })
    }
}

impl<'a> BlockFacts<'a> {
    pub(super) fn of(
        block: &'a Block,
        pools: &[PoolFacts<'_>],
        reservations: &Reservations,
    ) -> Self {
        let cooling = block
            .allocated()
            .filter(|allocation| allocation.is_cooling())
            .count() as u64;
        let is_corrupt = block.verify().is_err();
        let is_usable = !is_corrupt && !block.deleted;
        BlockFacts {
            block,
            owner: block.owner(),
            pool: pools
                .iter()
                .position(|facts| facts.pool.cidr.covers(&block.cidr)),
            used: block.allocated().count() as u64 - cooling,
            cooling,
            free: if is_usable {
                block.free(reservations) as u64
            } else {
                0
            },
            is_corrupt,
            is_usable,
            is_empty: block.is_empty(),
        }
    }

    pub(super) fn version(&self) -> IpVersion {
        self.block.cidr.version()
    }

    /// Returns the node that owns the block.
    pub(super) fn owning_node(&self) -> Option<&str> {
        match &self.owner {
            Some(AffinityOwner::Host(node)) => Some(node),
            Some(AffinityOwner::Virtual(_)) | None => None,
        }
    }

    /// Returns the block as the room of the pool with this index considers it.
    pub(super) fn room_in(&self, pool: usize) -> BlockRoom<'_> {
        BlockRoom {
            cidr: self.block.cidr,
            node: self.owning_node(),
            allocated: self.used + self.cooling,
            free: self.free,
            is_empty: self.is_empty,
            counts: self.is_usable && self.pool == Some(pool),
        }
    }
}
