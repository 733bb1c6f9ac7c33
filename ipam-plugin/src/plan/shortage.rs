//! Why each pool gave no more addresses, for the person who has to mend it.

use libcalico::ipam::{Refusal, RefusedPool};
use libcalico::net::Cidr;

use super::FamilyPlan;
use crate::error::Exhaustion;
use crate::exhausted::SearchedPool;
use crate::knowledge::Knowledge;

/// The pools that were not chosen, with the reason, and those that were, with what is wrong with them.
pub(super) fn refused_pools(plan: &FamilyPlan<'_>, known: &Knowledge, cause: &Exhaustion) -> Vec<RefusedPool> {
    let note = plan.note(known);
    let chosen = plan.choice.chosen.iter().map(|pool| {
        let noted = note.and_then(|note| note.pools.iter().find(|noted| noted.cidr == pool.cidr)).cloned();
        let refusal = refusal_of(known, &noted.unwrap_or_else(|| searched(known, &pool.cidr)), cause);
        RefusedPool { pool: pool.name.clone(), cidr: Some(pool.cidr), refusal }
    });
    let same_family = |refused: &&RefusedPool| !matches!(refused.refusal, Refusal::OtherFamily { .. });
    chosen.chain(plan.choice.refused.iter().filter(same_family).cloned()).collect()
}

fn refusal_of(known: &Knowledge, searched: &SearchedPool, cause: &Exhaustion) -> Refusal {
    let pool = &searched.cidr;
    if known.reservations.covers(pool) {
        return Refusal::Reserved;
    }
    match cause {
        Exhaustion::BlockLimit { limit } => Refusal::BlockLimit { limit: *limit },
        Exhaustion::AutoAllocateOff => Refusal::AutoAllocateOff,
        Exhaustion::StrictAffinity if searched.has_room => Refusal::StrictAffinity,
        Exhaustion::PoolsFull { .. } | Exhaustion::StrictAffinity => {
            let in_use = u128::from(searched.in_use).saturating_add(known.reservations.within(pool)).min(pool.size());
            Refusal::Full { in_use: saturating(in_use), capacity: saturating(pool.size()) }
        }
    }
}

/// Returns the use of a pool, as far as its blocks are known.
pub(super) fn searched(known: &Knowledge, pool: &Cidr) -> SearchedPool {
    let rooms = known.blocks().filter(|(cidr, _)| pool.covers(cidr)).filter_map(|(_, block)| known.room(block));
    let found = SearchedPool { cidr: *pool, in_use: 0, has_room: false };
    rooms.fold(found, |found, room| SearchedPool {
        in_use: found.in_use.saturating_add(room.in_use.into()),
        has_room: found.has_room || room.has_free,
        ..found
    })
}

fn saturating(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
