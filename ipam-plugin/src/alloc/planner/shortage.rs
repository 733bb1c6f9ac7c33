//! The reason why each pool gave no more addresses, for the error message.

use libcalico::ipam::{Refusal, RefusedPool};

use super::family::FamilyPlanner;
use crate::alloc::snapshot::Snapshot;
use crate::error::{Exhaustion, Shortfall};
use crate::exhausted::SearchedPool;

impl FamilyPlanner<'_> {
    /// Returns the shortfall for a request that got only `assigned` addresses.
    pub(crate) fn shortfall(&self, snapshot: &Snapshot, assigned: usize, cause: Exhaustion) -> Shortfall {
        let refused = refused_pools(self, snapshot, &cause);
        Shortfall { version: self.version, wanted: self.request.wanted(self.version), assigned, cause, refused }
    }
}

/// Returns the pools that were not chosen, with the reason, and the chosen pools with their shortage.
fn refused_pools(plan: &FamilyPlanner<'_>, snapshot: &Snapshot, cause: &Exhaustion) -> Vec<RefusedPool> {
    let note = plan.note(snapshot);
    let chosen = plan.choice.chosen.iter().map(|pool| {
        let noted = note.and_then(|note| note.pools.iter().find(|noted| noted.cidr == pool.cidr)).cloned();
        let refusal = refusal_of(snapshot, &noted.unwrap_or_else(|| snapshot.searched(&pool.cidr)), cause);
        RefusedPool { pool: pool.name.clone(), cidr: Some(pool.cidr), refusal }
    });
    let same_family = |refused: &&RefusedPool| !matches!(refused.refusal, Refusal::OtherFamily { .. });
    chosen.chain(plan.choice.refused.iter().filter(same_family).cloned()).collect()
}

fn refusal_of(snapshot: &Snapshot, searched: &SearchedPool, cause: &Exhaustion) -> Refusal {
    let pool = &searched.cidr;
    if snapshot.reservations.covers(pool) {
        return Refusal::Reserved;
    }
    match cause {
        Exhaustion::BlockLimit { limit } => Refusal::BlockLimit { limit: *limit },
        Exhaustion::AutoAllocateOff => Refusal::AutoAllocateOff,
        Exhaustion::StrictAffinity if searched.has_room => Refusal::StrictAffinity,
        Exhaustion::PoolsFull { .. } | Exhaustion::StrictAffinity => {
            let in_use =
                u128::from(searched.in_use).saturating_add(snapshot.reservations.within(pool)).min(pool.size());
            Refusal::Full { in_use: saturating(in_use), capacity: saturating(pool.size()) }
        }
    }
}

fn saturating(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
