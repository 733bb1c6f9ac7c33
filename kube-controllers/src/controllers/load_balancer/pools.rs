use std::net::IpAddr;

use datastore::Datastore;
use libcalico::api::{AllowedUse, IpPool, ObjectSelect};
use libcalico::net::Cidr;
use libcalico::store::{ReadBatch, Store};

use crate::runtime::ReconcileError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LoadBalancerPool {
    pub(super) name: String,
    pub(super) cidr: Cidr,
    /// Whether to assign addresses of the pool to Services that do not name it.
    pub(super) automatic: bool,
}

impl LoadBalancerPool {
    /// Returns the pool, or `None` if it is not for Services, is being deleted, or has an invalid
    /// range.
    pub(super) fn from_pool(pool: &IpPool) -> Option<Self> {
        if !pool.spec.allows(AllowedUse::LoadBalancer) || pool.metadata.deletion_timestamp.is_some()
        {
            return None;
        }
        let cidr = pool.spec.range().ok()?;
        Some(LoadBalancerPool {
            name: pool.metadata.name.clone(),
            cidr,
            automatic: pool.spec.is_automatic(),
        })
    }
}

/// Returns true if a Service that names the pools with the ranges in `named` may have the address.
/// If the Service names no pool, the address must be in an automatic pool, or in none of `pools`.
pub(super) fn may_serve(pools: &[LoadBalancerPool], named: &[Cidr], ip: IpAddr) -> bool {
    if !named.is_empty() {
        return named.iter().any(|range| range.contains(ip));
    }
    let mut with_address = pools
        .iter()
        .filter(|pool| pool.cidr.contains(ip))
        .peekable();
    with_address.peek().is_none() || with_address.any(|pool| pool.automatic)
}

/// Returns the stored pools for Services. Fails if any pool is unreadable or has an invalid range:
/// that pool may be for Services, and they could lose their addresses as if the pool were deleted.
pub(super) async fn stored_pools(
    calico: &Datastore,
) -> Result<Vec<LoadBalancerPool>, ReconcileError> {
    let mut batch = ReadBatch::new();
    let ticket = batch.list::<IpPool>(&ObjectSelect::default());
    let mut pools = Vec::new();
    for (key, stored) in calico.read(&batch).await?.each(&ticket) {
        let unreadable = |reason: &dyn std::fmt::Display| {
            ReconcileError::Retry(format!(
                "cannot read IPPool {key}, and no Service loses an address; correct or delete the \
                 pool: {reason}"
            ))
        };
        let pool = stored.map_err(|error| unreadable(&error))?.value;
        if let Err(error) = pool.spec.range() {
            return Err(unreadable(&error));
        }
        pools.extend(LoadBalancerPool::from_pool(&pool));
    }
    Ok(pools)
}
