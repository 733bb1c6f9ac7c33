//! [`Fragmentation`]: the blocks whose free addresses are hard to use.

use serde::Serialize;

use super::facts::{BlockFacts, PoolFacts};
use crate::ipam::pool_room::is_sparse;
use crate::net::Cidr;

/// The reason why free addresses of a block are hard to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FragmentedBy {
    /// Not more than a quarter of the block is allocated, so that the owner keeps many addresses
    /// for few pods.
    FewAddresses,
    /// The block has no owner: its addresses are only borrowed.
    NoOwner,
    /// The block has another size than the blocks of its pool: only its owner takes addresses from
    /// it.
    FormerSize,
}

/// A block whose free addresses are hard to use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FragmentedBlock {
    /// The block.
    pub cidr: Cidr,
    /// The name of its pool; `None` for a block in no pool.
    pub pool: Option<String>,
    /// The block's owner, `host:<node>` or `virtual:<name>`, if it has one.
    pub owner: Option<String>,
    /// The number of allocated addresses, including those that are cooling down.
    pub used: u64,
    /// The number of addresses that can still be assigned.
    pub free: u64,
    /// The reasons.
    pub reasons: Vec<FragmentedBy>,
}

/// The blocks whose free addresses are hard to use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fragmentation {
    /// The number of free addresses in these blocks.
    pub free: u64,
    /// The blocks, sorted by range.
    pub blocks: Vec<FragmentedBlock>,
}

/// Returns the fragmented blocks. An empty block of an owner is not fragmented if it has its pool's
/// size, because another owner can reclaim it.
pub(super) fn fragmented(blocks: &[BlockFacts<'_>], pools: &[PoolFacts<'_>]) -> Fragmentation {
    let mut fragmented: Vec<FragmentedBlock> = blocks
        .iter()
        .filter_map(|block| fragmented_block(block, pools))
        .collect();
    fragmented.sort_by_key(|block| block.cidr);
    Fragmentation {
        free: fragmented.iter().map(|block| block.free).sum(),
        blocks: fragmented,
    }
}

fn fragmented_block(facts: &BlockFacts<'_>, pools: &[PoolFacts<'_>]) -> Option<FragmentedBlock> {
    let cidr = facts.block.cidr;
    let pool = facts
        .pool
        .and_then(|index| pools.get(index))
        .map(|facts| &facts.pool);
    let used = facts.used + facts.cooling;
    let has_few_addresses = !facts.is_empty && is_sparse(used, &cidr);
    let has_former_size = pool.is_some_and(|pool| pool.block_prefix != cidr.prefix());
    let reasons = [
        (has_few_addresses, FragmentedBy::FewAddresses),
        (facts.owner.is_none(), FragmentedBy::NoOwner),
        (has_former_size, FragmentedBy::FormerSize),
    ];
    let reasons: Vec<FragmentedBy> = reasons
        .into_iter()
        .filter(|(applies, _)| *applies)
        .map(|(_, by)| by)
        .collect();
    (!reasons.is_empty() && facts.is_usable).then(|| FragmentedBlock {
        cidr,
        pool: pool.map(|pool| pool.name.clone()),
        owner: facts.block.affinity.clone(),
        used,
        free: facts.free,
        reasons,
    })
}
