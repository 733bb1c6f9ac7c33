//! Checks a pool against stored pools and blocks: overlaps, and changes that existing allocations do not allow.

use super::{PoolSurroundings, complete_ip_pool};
use crate::api::{AllowedUse, IpPool};
use crate::net::Cidr;
use crate::validation::FieldError;

pub(super) fn check(pool: &IpPool, range: &Cidr, surroundings: &PoolSurroundings<'_>, findings: &mut Vec<FieldError>) {
    match surroundings.previous {
        Some(previous) => check_update(pool, range, previous, findings),
        None => {
            check_overlaps(pool, range, surroundings.pools, findings);
            check_blocks(pool, range, surroundings.blocks, findings);
        }
    }
}

fn check_update(pool: &IpPool, range: &Cidr, previous: &IpPool, findings: &mut Vec<FieldError>) {
    let mut old = previous.spec.clone();
    complete_ip_pool(&mut old);
    let new = &pool.spec;
    if old.range().as_ref() != Ok(range) {
        findings.push(FieldError::new("IPPool.Spec.CIDR", &new.cidr, "IPPool CIDR cannot be modified"));
    }
    if old.block_size != new.block_size {
        let size = new.block_size.unwrap_or_default();
        findings.push(FieldError::new("IPPool.Spec.BlockSize", size, "IPPool BlockSize cannot be modified"));
    }
    let served_only_load_balancers = old.allows(AllowedUse::LoadBalancer);
    if served_only_load_balancers && new.allowed_uses.iter().any(|u| !u.is(&AllowedUse::LoadBalancer)) {
        let reason = "IPPool allowed use cannot be changed from LoadBalancer to Workload or Tunnel";
        findings.push(FieldError::new("IPPool.Spec.AllowedUses", format!("{:?}", new.allowed_uses), reason));
    }
}

fn check_overlaps(pool: &IpPool, range: &Cidr, pools: &[IpPool], findings: &mut Vec<FieldError>) {
    let (name, cidr) = (&pool.metadata.name, &pool.spec.cidr);
    for other in pools.iter().filter(|other| other.metadata.name != *name) {
        // A stored pool without a valid range assigns no addresses, so no pool can overlap it.
        if other.spec.range().is_ok_and(|r| r.overlaps(range)) {
            let reason =
                format!("IPPool({name}) CIDR overlaps with IPPool({}) CIDR {}", other.metadata.name, other.spec.cidr);
            findings.push(FieldError::new("IPPool.Spec.CIDR", cidr, reason));
        }
    }
}

fn check_blocks(pool: &IpPool, range: &Cidr, blocks: &[Cidr], findings: &mut Vec<FieldError>) {
    let size = pool.spec.block_prefix(range.version());
    if blocks.iter().any(|block| block.prefix() != size && block.overlaps(range)) {
        let reason = "IPPool blocksSize conflicts with existing allocations that use a different blockSize";
        findings.push(FieldError::new("IPPool.Spec.BlockSize", size, reason));
    }
}
