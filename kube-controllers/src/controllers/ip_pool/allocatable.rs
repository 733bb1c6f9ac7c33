//! [`allocatable`]: decides from which pools addresses may be assigned.

use libcalico::api::{IpPool, ObjectKey};
use libcalico::net::Cidr;

use crate::controllers::custom_resource::{StatusCondition, condition_is_true};

/// Type of the condition that publishes the decision.
pub(super) const ALLOCATABLE: &str = "Allocatable";

/// The decision about a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Addresses may be assigned from the pool.
    Ok,
    /// `spec.disabled` is set.
    Disabled,
    /// The pool is being deleted.
    Terminating,
    /// Another pool contains addresses of this pool.
    Overlap,
}

impl Verdict {
    /// Returns the condition, with upstream's texts (KC-532).
    pub(super) fn condition(self) -> StatusCondition {
        let (reason, message) = match self {
            Verdict::Ok => ("OK", "IPPool is available for IP allocation."),
            Verdict::Disabled => ("PoolDisabled", "IPPool.Spec.Disabled is true"),
            Verdict::Terminating => ("Terminating", "IPPool is being deleted"),
            Verdict::Overlap => {
                ("CIDROverlap", "CIDR overlaps another pool; disabled to prevent IP allocation conflicts.")
            }
        };
        StatusCondition { kind: ALLOCATABLE, is_true: self == Verdict::Ok, reason, message: message.into() }
    }
}

/// Returns the decision for each pool with a valid range. Of overlapping pools, the pool in use stays in use:
/// allocatable pools come first, then pools that are being deleted and still have blocks, then the others, oldest first
/// (KC-531).
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

/// Returns true if the pool is being deleted.
pub(super) fn is_deleting(pool: &IpPool) -> bool {
    pool.metadata.deletion_timestamp.is_some()
}

fn rank(pool: &IpPool) -> u8 {
    match (condition_is_true(pool.status.as_ref(), ALLOCATABLE), is_deleting(pool)) {
        (_, true) => 1,
        (Some(true), false) => 0,
        (Some(false), false) => 2,
        (None, false) => 3,
    }
}
