//! [`Pool`]: a pool as the allocator sees it, and which pools are in service (IPAM-93).

use std::net::IpAddr;

use super::refusal::Refusal;
use crate::api::{AllowedUse, IpPool};
use crate::net::{Cidr, IpVersion};

/// A pool that addresses may come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its range.
    pub cidr: Cidr,
    /// Prefix length of its blocks.
    pub block_prefix: u8,
    /// Which nodes it serves; empty is all.
    pub node_selector: String,
    /// What its addresses are for.
    pub allowed_uses: Vec<AllowedUse>,
}

impl Pool {
    /// The block that `ip` belongs to; `None` outside the pool.
    pub fn block_of(&self, ip: IpAddr) -> Option<Cidr> {
        self.cidr.contains(ip).then(|| Cidr::new(ip, self.block_prefix)).flatten()
    }

    /// Whether addresses may be used for `purpose`.
    pub fn allows(&self, purpose: AllowedUse) -> bool {
        self.allowed_uses.contains(&purpose)
    }

    /// Whether blocks have a size that IPAM handles: at least one fits the pool, and none has more than 4096 addresses
    /// (IPAM-107) or too few for what the host reserves (IPAM-108).
    pub fn check_block_size(&self, max_block_prefix: Option<u8>) -> Result<(), Refusal> {
        let (shortest, longest) = match self.cidr.version() {
            IpVersion::V4 => (20, 32),
            IpVersion::V6 => (116, 128),
        };
        let (min, max) = (self.cidr.prefix().max(shortest), max_block_prefix.unwrap_or(longest).min(longest));
        if (min..=max).contains(&self.block_prefix) {
            Ok(())
        } else {
            Err(Refusal::BlockSize { block_size: self.block_prefix, min, max })
        }
    }
}

/// The pool of an object, if it is in service for a family (IPAM-93). What asking for one address needs to find the
/// pool it lies in, too (IPAM-132).
pub fn enabled_pool(object: &IpPool, version: IpVersion) -> Result<Pool, Refusal> {
    let spec = &object.spec;
    let cidr = spec.range().map_err(|_| Refusal::InvalidCidr { cidr: spec.cidr.clone() })?;
    if cidr.version() != version {
        return Err(Refusal::OtherFamily { version: cidr.version() });
    }
    if object.metadata.deletion_timestamp.is_some() {
        return Err(Refusal::Deleting);
    }
    if spec.disabled {
        return Err(Refusal::Disabled);
    }
    if let Some(message) = not_allocatable(object) {
        return Err(Refusal::NotAllocatable { message });
    }
    Ok(pool_of(object, cidr))
}

/// The pool that holds `ip`, in service or not: what a release needs (IPAM-141).
pub fn any_pool_of(pools: &[IpPool], ip: IpAddr) -> Option<Pool> {
    pools.iter().find_map(|object| {
        let cidr = object.spec.range().ok().filter(|cidr| cidr.contains(ip))?;
        Some(pool_of(object, cidr))
    })
}

fn pool_of(object: &IpPool, cidr: Cidr) -> Pool {
    let spec = &object.spec;
    let uses = [AllowedUse::Workload, AllowedUse::Tunnel, AllowedUse::LoadBalancer];
    Pool {
        name: object.metadata.name.clone(),
        cidr,
        block_prefix: spec.block_prefix(cidr.version()),
        node_selector: spec.node_selector.clone(),
        allowed_uses: uses.into_iter().filter(|purpose| spec.allows(*purpose)).collect(),
    }
}

fn not_allocatable(object: &IpPool) -> Option<String> {
    let conditions = object.status.as_ref()?.get("conditions")?.as_array()?;
    let says = |condition: &serde_json::Value, key: &str, value: &str| {
        condition.get(key).and_then(|found| found.as_str()) == Some(value)
    };
    let condition = conditions.iter().find(|c| says(c, "type", "Allocatable") && says(c, "status", "False"))?;
    let words = ["message", "reason"].iter().filter_map(|key| condition.get(key)?.as_str());
    Some(words.filter(|text| !text.is_empty()).map(str::to_owned).next().unwrap_or_default())
}
