//! Which block to claim, or to borrow from (IPAM-116, IPAM-117, IPAM-120). Pure: the answers are only good until the
//! next write of another node, which the compare-and-swap of each write finds out.

use std::collections::BTreeMap;

use time::{Duration, OffsetDateTime};

use super::blockwalk::BlockWalk;
use super::pool::Pool;
use super::reservation::Reservations;
use super::stored_time::parse_stored;
use super::{Block, Owner};
use crate::net::Cidr;

/// How long a claim protects an empty block (IPAM-116).
pub const RECLAIM_AFTER: Duration = Duration::seconds(60);

/// What to do for another block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UsableBlock {
    /// Nobody has it: claim it.
    Claim(Cidr),
    /// It is ours already and has room, but no affinity said so.
    Use(Cidr),
    /// All blocks exist: take one of these from its owner, trying in this order. Empty means no free block.
    Reclaim(Vec<ReclaimCandidate>),
}

/// An empty block that another owner may lose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReclaimCandidate {
    /// The block.
    pub cidr: Cidr,
    /// Its owner.
    pub owner: Owner,
    /// Its sequence number: release it only while it still has this one.
    pub sequence_number: u64,
}

/// All blocks, by range.
pub type Blocks<'a> = BTreeMap<Cidr, &'a Block>;

/// The next block for `owner`, in the order of the pools and of the walk over each.
pub fn usable_block(
    pools: &[Pool],
    blocks: &Blocks<'_>,
    reservations: &Reservations,
    owner: &Owner,
    now: OffsetDateTime,
) -> UsableBlock {
    let mut reclaimable = Vec::new();
    for pool in pools {
        let mut walk = BlockWalk::new(pool.cidr, pool.block_prefix, owner.name(), now);
        while let Some(cidr) = walk.next() {
            if let Some(range) = reservations.covering(&cidr) {
                walk.skip_past(&range);
                continue;
            }
            if reservations.covers(&cidr) {
                continue;
            }
            let Some(block) = blocks.get(&cidr) else { return UsableBlock::Claim(cidr) };
            if block.free(reservations) == 0 {
                continue;
            }
            match block.owner() {
                Some(found) if found == *owner => return UsableBlock::Use(cidr),
                Some(found) if block.is_empty() && may_be_reclaimed(block, now) => {
                    let sequence_number = block.sequence_number;
                    reclaimable.push(ReclaimCandidate { cidr, owner: found, sequence_number });
                }
                _ => {}
            }
        }
    }
    UsableBlock::Reclaim(reclaimable)
}

/// The existing blocks with room that `owner` may borrow from, in the order of the pools and of the walk over each. A
/// block that does not exist has nothing to borrow, so the walk need not visit it.
pub fn borrow_order(
    pools: &[Pool],
    blocks: &Blocks<'_>,
    reservations: &Reservations,
    owner: &Owner,
    now: OffsetDateTime,
) -> Vec<Cidr> {
    let mut order = Vec::new();
    for pool in pools {
        let walk = BlockWalk::new(pool.cidr, pool.block_prefix, owner.name(), now);
        let mut in_pool: Vec<(u128, Cidr)> = blocks
            .values()
            .filter_map(|block| Some((walk.position(&block.cidr)?, block)))
            .filter(|(_, block)| block.free(reservations) > 0)
            .map(|(position, block)| (position, block.cidr))
            .collect();
        in_pool.sort_unstable();
        order.extend(in_pool.into_iter().map(|(_, cidr)| cidr));
    }
    order
}

/// A claim protects for 60 s, reckoned both ways: a claim time far in the future is a wrong clock, which must not
/// protect a block for as long as it is wrong (D32). No claim time is a very old one; one that cannot be read protects.
fn may_be_reclaimed(block: &Block, now: OffsetDateTime) -> bool {
    let Some(claimed) = &block.affinity_claim_time else { return true };
    parse_stored(claimed).is_some_and(|claimed| (now - claimed).abs() >= RECLAIM_AFTER)
}
