//! Why each pool gave no more addresses, for the person who has to mend it.

use libcalico::ipam::{Refusal, RefusedPool};
use libcalico::net::Cidr;

use super::FamilyPlan;
use crate::error::Exhaustion;
use crate::knowledge::{Knowledge, Known};

/// The pools that were not chosen, with the reason, and those that were, with what is wrong with them.
pub(super) fn refused_pools(plan: &FamilyPlan<'_>, known: &Knowledge, cause: &Exhaustion) -> Vec<RefusedPool> {
    let chosen = plan.choice.chosen.iter().map(|pool| {
        let refusal = refusal_of(known, &pool.cidr, cause);
        RefusedPool { pool: pool.name.clone(), cidr: Some(pool.cidr), refusal }
    });
    let same_family = |refused: &&RefusedPool| !matches!(refused.refusal, Refusal::OtherFamily { .. });
    chosen.chain(plan.choice.refused.iter().filter(same_family).cloned()).collect()
}

fn refusal_of(known: &Knowledge, pool: &Cidr, cause: &Exhaustion) -> Refusal {
    if known.reservations.covers(pool) {
        return Refusal::Reserved;
    }
    match cause {
        Exhaustion::BlockLimit { limit } => Refusal::BlockLimit { limit: *limit },
        Exhaustion::AutoAllocateOff => Refusal::AutoAllocateOff,
        Exhaustion::PoolsFull { .. } => full(known, pool),
        Exhaustion::StrictAffinity if has_room(known, pool) => Refusal::StrictAffinity,
        Exhaustion::StrictAffinity => full(known, pool),
    }
}

fn full(known: &Knowledge, pool: &Cidr) -> Refusal {
    let in_blocks: u128 = blocks_in(known, pool).map(|block| block.capacity() - block.unallocated.len() as u128).sum();
    let in_use = in_blocks.saturating_add(known.reservations.within(pool)).min(pool.size());
    Refusal::Full { in_use: saturating(in_use), capacity: saturating(pool.size()) }
}

fn has_room(known: &Knowledge, pool: &Cidr) -> bool {
    blocks_in(known, pool).any(|block| block.free(&known.reservations) > 0)
}

fn blocks_in<'k>(known: &'k Knowledge, pool: &'k Cidr) -> impl Iterator<Item = &'k libcalico::ipam::Block> {
    known.blocks().filter(|(cidr, _)| pool.covers(cidr)).filter_map(|(_, block)| match block {
        Known::There(entry) => Some(&entry.value),
        Known::Absent | Known::Corrupt => None,
    })
}

fn saturating(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
