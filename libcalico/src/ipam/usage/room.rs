//! [`PodRoom`]: the addresses that a node can still get, by the rules of an allocation.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{BlockFacts, PoolFacts, UsageInput};
use crate::api::{AllowedUse, IpPool, IpPoolSpec};
use crate::ipam::pool_room::{Claimable, block_size, unclaimed};
use crate::ipam::{IpamConfig, Labels, NamedPools, Pool, PoolRequest, choose_pools};
use crate::net::{Cidr, IpVersion};
use crate::selector::Selector;

/// Blocks, with their free addresses.
#[derive(Debug, Clone, Copy, Default)]
struct FreeBlocks {
    blocks: u64,
    free: u64,
}

/// The blocks of a pool, or of a node in a pool.
#[derive(Debug, Clone, Copy, Default)]
struct BlockTotals {
    all: FreeBlocks,
    /// Blocks of the pool's present size, from which other nodes borrow.
    lendable: FreeBlocks,
    /// The lendable blocks that another node can reclaim.
    reclaimable: FreeBlocks,
}

/// The room of all pools.
pub(super) struct PodRoom<'a> {
    /// Each with the part in which no block exists.
    pools: Vec<(&'a Pool, Claimable, BlockTotals)>,
    /// By node and index of the pool.
    of_nodes: BTreeMap<(&'a str, usize), BlockTotals>,
    /// The pools as a node chooses among them for the pods of any namespace.
    objects: Vec<IpPool>,
    config: &'a IpamConfig,
}

impl<'a> PodRoom<'a> {
    pub(super) fn of(
        pools: &'a [PoolFacts<'_>],
        blocks: &'a [BlockFacts<'_>],
        input: &UsageInput<'a>,
    ) -> Self {
        let ranges: Vec<Cidr> = blocks.iter().map(|block| block.block.cidr).collect();
        let room = |facts: &'a PoolFacts<'_>| {
            (
                &facts.pool,
                unclaimed(&facts.pool, &ranges, input.reservations),
                BlockTotals::default(),
            )
        };
        let mut room = PodRoom {
            pools: pools.iter().map(room).collect(),
            of_nodes: BTreeMap::new(),
            objects: pools
                .iter()
                .map(|facts| any_namespace(facts.object, input.nodes.is_some()))
                .collect(),
            config: input.config,
        };
        for block in blocks {
            let Some((index, (pool, _, totals))) = block
                .pool
                .and_then(|at| Some((at, room.pools.get_mut(at)?)))
            else {
                continue;
            };
            let has_present_size = pool.block_prefix == block.block.cidr.prefix();
            totals.add(block, has_present_size);
            if let Some(node) = block.owning_node() {
                room.of_nodes
                    .entry((node, index))
                    .or_default()
                    .add(block, has_present_size);
            }
        }
        room
    }

    /// Returns the part of the pool with this index in which no block exists.
    pub(super) fn unclaimed(&self, pool: usize) -> Claimable {
        self.pools
            .get(pool)
            .map_or_else(Claimable::default, |(_, unclaimed, _)| *unclaimed)
    }

    /// Returns the families of the pools.
    pub(super) fn versions(&self) -> BTreeSet<IpVersion> {
        self.pools
            .iter()
            .map(|(pool, ..)| pool.cidr.version())
            .collect()
    }

    /// Returns the number of addresses for pods that `node` can get if no other node gets any.
    /// Without labels, node selectors are not considered. As an ADD, the node takes free addresses
    /// of its own blocks, claims blocks, reclaims empty ones, and borrows only if it may own more
    /// blocks than exist (IPAM-103).
    pub(super) fn pods_on(&self, node: &str, labels: Option<&Labels>, version: IpVersion) -> u128 {
        let pools = self.pools_for(node, labels, version);
        let own: Vec<BlockTotals> = pools
            .iter()
            .map(|&pool| {
                self.of_nodes
                    .get(&(node, pool))
                    .copied()
                    .unwrap_or_default()
            })
            .collect();
        let owned: u64 = own.iter().map(|own| own.all.blocks).sum();
        let mut fits: u128 = own.iter().map(|own| u128::from(own.all.free)).sum();
        if !self.config.auto_allocate_blocks {
            return fits;
        }
        let mut budget = u128::from(self.config.block_limit().saturating_sub(owned));
        let others = pools
            .iter()
            .zip(&own)
            .map(|(&pool, own)| (&self.pools[pool], own));
        let unclaimed = others
            .clone()
            .map(|((pool, unclaimed, _), _)| (*pool, *unclaimed));
        let reclaimable = others.clone().map(|((pool, _, all), own)| {
            let blocks = u128::from(all.reclaimable.blocks - own.reclaimable.blocks);
            let addresses = u128::from(all.reclaimable.free - own.reclaimable.free);
            (*pool, Claimable { blocks, addresses })
        });
        for (pool, claimable) in unclaimed.chain(reclaimable) {
            fits = fits.saturating_add(claimable.take(&mut budget, block_size(pool)));
        }
        if budget > 0 && !self.config.strict_affinity {
            let in_used_blocks =
                |totals: &BlockTotals| totals.lendable.free - totals.reclaimable.free;
            let borrowable = others
                .map(|((_, _, all), own)| u128::from(in_used_blocks(all) - in_used_blocks(own)));
            fits = fits.saturating_add(borrowable.sum());
        }
        fits
    }

    /// Returns the indices of the pools that serve pods on the node, in the order in which the node
    /// uses them.
    fn pools_for(&self, node: &str, labels: Option<&Labels>, version: IpVersion) -> Vec<usize> {
        let none = Labels::new();
        let choice = choose_pools(
            &self.objects,
            &PoolRequest {
                version,
                requested: &[],
                purpose: AllowedUse::Workload,
                node,
                node_labels: labels.unwrap_or(&none),
                namespace: None,
                named: NamedPools::default(),
            },
        );
        let chosen = choice.map(|choice| choice.chosen).unwrap_or_default();
        let index = |chosen: &Pool| {
            self.pools
                .iter()
                .position(|(pool, ..)| pool.name == chosen.name)
        };
        chosen.iter().filter_map(index).collect()
    }
}

impl BlockTotals {
    fn add(&mut self, block: &BlockFacts<'_>, has_present_size: bool) {
        self.all.add(block);
        if has_present_size && block.is_usable {
            self.lendable.add(block);
            if block.is_empty && block.owner.is_some() {
                self.reclaimable.add(block);
            }
        }
    }
}

impl FreeBlocks {
    fn add(&mut self, block: &BlockFacts<'_>) {
        self.blocks += 1;
        self.free += block.free;
    }
}

/// Returns the pool without its namespace selector, and without its node selector if labels are
/// unknown. A malformed selector stays, because an ADD fails with it.
fn any_namespace(object: &IpPool, has_labels: bool) -> IpPool {
    let mut object = object.clone();
    let IpPoolSpec {
        node_selector,
        namespace_selector,
        ..
    } = &mut object.spec;
    let unused = [
        Some(namespace_selector),
        (!has_labels).then_some(node_selector),
    ];
    unused
        .into_iter()
        .flatten()
        .filter(|selector| Selector::parse(selector).is_ok())
        .for_each(String::clear);
    object
}
