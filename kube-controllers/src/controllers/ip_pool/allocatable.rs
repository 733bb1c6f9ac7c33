//! [`allocatable`]: which pools addresses may be taken from (KC-531).

use libcalico::api::{IpPool, ObjectKey};
use libcalico::net::Cidr;

use crate::controllers::condition::{self, Condition};

/// The condition that says so.
pub(super) const ALLOCATABLE: &str = "Allocatable";

/// Whether addresses may be taken from a pool, or why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// They may.
    Ok,
    /// `spec.disabled`.
    Disabled,
    /// The pool is being deleted.
    Terminating,
    /// Another pool has addresses of it.
    Overlap,
}

impl Verdict {
    /// As it is stored; upstream's words (KC-532).
    pub(super) fn condition(self) -> Condition {
        let (reason, message) = match self {
            Verdict::Ok => ("OK", "IPPool is available for IP allocation."),
            Verdict::Disabled => ("PoolDisabled", "IPPool.Spec.Disabled is true"),
            Verdict::Terminating => ("Terminating", "IPPool is being deleted"),
            Verdict::Overlap => {
                ("CIDROverlap", "CIDR overlaps another pool; disabled to prevent IP allocation conflicts.")
            }
        };
        Condition { kind: ALLOCATABLE, is_true: self == Verdict::Ok, reason, message: message.into() }
    }
}

/// The verdict on each pool with a valid range. Of two that overlap the one in use stays in use: those that are allocatable
/// come first, then those on their way out, whose blocks are still there, then the rest, oldest first.
pub(super) fn allocatable<'p>(pools: impl IntoIterator<Item = &'p IpPool>) -> Vec<(ObjectKey, Verdict)> {
    let mut pools: Vec<&IpPool> = pools.into_iter().collect();
    pools.sort_by_key(|pool| (rank(pool), pool.metadata.creation_timestamp.clone(), pool.metadata.name.clone()));
    let mut taken: Vec<Cidr> = Vec::new();
    let mut verdicts = Vec::new();
    for pool in pools {
        let Ok(range) = pool.spec.range() else { continue };
        let verdict = if pool.spec.disabled {
            Verdict::Disabled
        } else if is_deleting(pool) {
            taken.push(range);
            Verdict::Terminating
        } else if taken.iter().any(|other| other.overlaps(&range)) {
            Verdict::Overlap
        } else {
            taken.push(range);
            Verdict::Ok
        };
        verdicts.push((pool.key(), verdict));
    }
    verdicts
}

/// Whether someone asked for its deletion.
pub(super) fn is_deleting(pool: &IpPool) -> bool {
    pool.metadata.deletion_timestamp.is_some()
}

fn rank(pool: &IpPool) -> u8 {
    match (condition::is_true(pool.status.as_ref(), ALLOCATABLE), is_deleting(pool)) {
        (_, true) => 1,
        (Some(true), false) => 0,
        (Some(false), false) => 2,
        (None, false) => 3,
    }
}
