//! [`LoadBalancerPool`]: a pool for Services.

use std::net::IpAddr;

use libcalico::api::{AllowedUse, IpPool};
use libcalico::net::Cidr;

/// A pool for Services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LoadBalancerPool {
    /// Its name.
    pub(super) name: String,
    /// Its range.
    pub(super) cidr: Cidr,
    /// Whether who does not name it gets addresses of it.
    pub(super) automatic: bool,
}

impl LoadBalancerPool {
    /// `None` for a pool for something else, one that is being deleted, or one without a valid range.
    pub(super) fn of(pool: &IpPool) -> Option<Self> {
        if !pool.spec.allows(AllowedUse::LoadBalancer) || pool.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let cidr = pool.spec.range().ok()?;
        Some(LoadBalancerPool { name: pool.metadata.name.clone(), cidr, automatic: pool.spec.is_automatic() })
    }
}

/// The pool of an address.
pub(super) fn pool_of(pools: &[LoadBalancerPool], ip: IpAddr) -> Option<&LoadBalancerPool> {
    pools.iter().find(|pool| pool.cidr.contains(ip))
}
