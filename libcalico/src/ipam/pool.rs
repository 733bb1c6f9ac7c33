//! [`Pool`]: the allocator's view of a pool, and the conditions for using a pool.

use std::net::IpAddr;

use super::refusal::Refusal;
use crate::api::{AllowedUse, IpPool};
use crate::net::{Cidr, IpVersion};

/// A pool with the fields that the allocator needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The pool's name.
    pub name: String,
    /// The pool's range.
    pub cidr: Cidr,
    /// The prefix length of the pool's blocks.
    pub block_prefix: u8,
    /// The selector for the nodes that the pool serves; an empty one selects all.
    pub node_selector: String,
    /// The uses for which the pool's addresses are allowed.
    pub allowed_uses: Vec<AllowedUse>,
}

impl Pool {
    /// Returns the range of the block for `ip`; `None` if the address is outside the pool.
    pub fn block_of(&self, ip: IpAddr) -> Option<Cidr> {
        self.cidr.contains(ip).then(|| Cidr::new(ip, self.block_prefix)).flatten()
    }

    /// Returns true if the pool's addresses may be used for `purpose`.
    pub fn allows(&self, purpose: AllowedUse) -> bool {
        self.allowed_uses.contains(&purpose)
    }

    /// Checks the block size: at least one block fits into the pool, and a block has at most 4096 addresses (IPAM-107).
    pub fn check_block_size(&self) -> Result<(), Refusal> {
        let (shortest, longest) = match self.cidr.version() {
            IpVersion::V4 => (20, 32),
            IpVersion::V6 => (116, 128),
        };
        let (min, max) = (self.cidr.prefix().max(shortest), longest);
        if (min..=max).contains(&self.block_prefix) {
            Ok(())
        } else {
            Err(Refusal::BlockSize { block_size: self.block_prefix, min, max })
        }
    }
}

/// Returns the pool of an object, if the pool is in service for the family (IPAM-93). A request for a particular
/// address uses the pool of that address only under the same conditions (IPAM-132).
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

/// Returns the pool that contains `ip`, even if the pool is not in service. A release also needs the pools that are
/// disabled or being deleted (IPAM-141).
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
