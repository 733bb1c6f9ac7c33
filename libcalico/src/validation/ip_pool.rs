//! Rules for IPPools: defaults, forbidden content, and forbidden changes.

mod change;
mod content;
#[cfg(test)]
mod tests;

use super::metadata::check_metadata;
use crate::api::{AllowedUse, AssignmentMode, IpPool, IpPoolSpec};
use crate::net::Cidr;
use crate::validation_error::{FieldError, ValidationError};

const NEVER: &str = "Never";
const ALL: &str = "all()";

/// The stored objects that a pool is checked against.
#[derive(Debug, Clone, Copy, Default)]
pub struct PoolSurroundings<'a> {
    /// The pool as stored; `None` if it is new.
    pub previous: Option<&'a IpPool>,
    /// All stored pools. The pool of the same name is skipped.
    pub pools: &'a [IpPool],
    /// All existing blocks. Used for a new pool only.
    pub blocks: &'a [Cidr],
}

/// Completes a pool, checks it, and returns the pool to store.
pub fn admit_ip_pool(pool: IpPool, surroundings: &PoolSurroundings<'_>) -> Result<IpPool, ValidationError> {
    let mut pool = pool;
    let (range, address) = parse_cidr(&pool.spec)?;
    complete_ip_pool(&mut pool.spec);
    let mut findings = Vec::new();
    if range.network() != address {
        findings.push(FieldError::new("IPPool.Spec.CIDR", &pool.spec.cidr, "IPPool CIDR is not strictly masked"));
    }
    pool.spec.cidr = range.to_string();
    change::check(&pool, &range, surroundings, &mut findings);
    content::check(&pool.spec, &range, &mut findings);
    findings.extend(check_metadata(&pool));
    ValidationError::from_findings(findings).map(|()| pool)
}

/// Replaces missing values by their defaults (DS-47). Readers of older data do the same.
pub fn complete_ip_pool(spec: &mut IpPoolSpec) {
    if spec.block_size.unwrap_or_default() == 0 {
        spec.block_size = spec.range().ok().map(|range| spec.block_prefix(range.version()));
    }
    if spec.allowed_uses.is_empty() {
        spec.allowed_uses = vec![AllowedUse::Workload.into(), AllowedUse::Tunnel.into()];
    }
    spec.assignment_mode.get_or_insert(AssignmentMode::Automatic.into());
    for (field, default) in
        [(&mut spec.node_selector, ALL), (&mut spec.ipip_mode, NEVER), (&mut spec.vxlan_mode, NEVER)]
    {
        if field.is_empty() {
            *field = default.into();
        }
    }
}

fn parse_cidr(spec: &IpPoolSpec) -> Result<(Cidr, std::net::IpAddr), FieldError> {
    if spec.cidr.is_empty() {
        return Err(FieldError::missing("IPPool.Spec.CIDR", "IPPool CIDR must be specified"));
    }
    Cidr::parse_with_address(&spec.cidr)
        .map_err(|_| FieldError::new("IPPool.Spec.CIDR", &spec.cidr, "IPPool CIDR must be a valid subnet"))
}
