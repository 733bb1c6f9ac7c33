//! [`usage()`]: the use of addresses by pool, node and namespace, fragmented blocks, and the room
//! for more pods.
//!
//! Each address counts once: for the first pool that contains its block, for one node and for one
//! namespace.

mod facts;
mod family_count;
mod fragmentation;
mod owners;
mod pods_fit;
mod pools;
mod room;
#[cfg(test)]
mod tests;

pub use self::facts::{PoolService, UsageInput};
pub use self::family_count::{FamilyCount, exact_number};
pub use self::fragmentation::{Fragmentation, FragmentedBlock, FragmentedBy};
pub use self::owners::{NamespaceUsage, NodeUsage};
pub use self::pods_fit::PodsFit;
pub use self::pools::{FullestNode, PoolUsage};

use self::facts::{BlockFacts, PoolFacts};
use self::room::PodRoom;
use super::pool_choice::malformed_selector;
use super::{Borrowings, NoPool, borrowed};

/// The use of all addresses of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// The pools with a valid range, in the given order.
    pub pools: Vec<PoolUsage>,
    /// The number of addresses in use in blocks of no pool.
    pub outside_pools: FamilyCount,
    /// The nodes by name, each with a row for every family that the cluster has, or for IPv4 if it
    /// has none.
    pub nodes: Vec<NodeUsage>,
    /// The number of addresses in use that belong to no node: those of Services and of unknown
    /// owners.
    pub without_node: FamilyCount,
    /// The namespaces by name, with rows for the addresses without a namespace.
    pub namespaces: Vec<NamespaceUsage>,
    /// The borrowed addresses.
    pub borrowed: Borrowings,
    /// The blocks whose free addresses are hard to use.
    pub fragmented: Fragmentation,
    /// The room for further pods, with a row for every family that has a pool.
    pub fits: Vec<PodsFit>,
    /// The number of blocks that contradict themselves, from which no address is assigned.
    pub corrupt_blocks: u64,
    /// The malformed selectors of pools in service, with which an ADD fails that evaluates them.
    pub malformed_selectors: Vec<NoPool>,
}

/// Counts the addresses of a cluster.
pub fn usage(input: &UsageInput<'_>) -> Usage {
    let pools: Vec<PoolFacts<'_>> = input.pools.iter().filter_map(PoolFacts::of).collect();
    let blocks: Vec<BlockFacts<'_>> = input
        .blocks
        .iter()
        .map(|block| BlockFacts::of(block, &pools, input.reservations))
        .collect();
    let borrowed = borrowed(input.blocks);
    let room = PodRoom::of(&pools, &blocks, input);
    let pool_usages = pools::count(&pools, &blocks, &room, input);
    let owners = owners::count(&blocks);
    let nodes = owners::node_usages(&owners, &blocks, &borrowed, &room, input);
    let mut outside_pools = FamilyCount::default();
    for block in blocks.iter().filter(|block| block.pool.is_none()) {
        outside_pools.add(block.version(), block.used);
    }
    let by_selectors = pools.iter().filter(|facts| {
        facts.serves != PoolService::OutOfService && facts.object.spec.is_automatic()
    });
    Usage {
        malformed_selectors: by_selectors
            .filter_map(|facts| malformed_selector(facts.object))
            .collect(),
        fits: pods_fit::totals(&pool_usages, &nodes, input.nodes.is_some()),
        fragmented: fragmentation::fragmented(&blocks, &pools),
        corrupt_blocks: blocks.iter().filter(|block| block.is_corrupt).count() as u64,
        pools: pool_usages,
        outside_pools,
        nodes,
        without_node: owners.without_node,
        namespaces: owners.namespaces,
        borrowed,
    }
}
