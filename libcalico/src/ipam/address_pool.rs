//! [`pool_of_address`]: the pool that serves a requested address (IPAM-132), or the reason why none
//! does.

use std::net::IpAddr;

use super::pool::{Pool, PoolRejection, RejectedPool, enabled_pool};
use super::pool_choice::{Labels, NoPool, rejection_by_namespace};
use super::reservation::Reservations;
use crate::api::{AllowedUse, IpPool};
use crate::net::IpVersion;

/// The criteria for the pool of a requested address.
#[derive(Debug, Clone, Copy)]
pub struct AddressRules<'a> {
    /// The purpose of the address.
    pub purpose: AllowedUse,
    /// The namespace's name and labels. Without a namespace, namespace selectors see no labels
    /// (IPAM-96).
    pub namespace: Option<(&'a str, &'a Labels)>,
    /// Whether to require that the pool's namespace selector matches.
    pub by_namespace: bool,
    /// Ranges whose addresses are refused; `None` if reservations do not count.
    pub reserved: Option<&'a Reservations>,
}

/// The reason why a requested address is not assigned to anybody of this purpose and namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressRefusal {
    /// No pool in service contains the address. The list has the other pools that contain it.
    NotInPool(Vec<RejectedPool>),
    /// The pool is for another use or for other namespaces.
    Pool(RejectedPool),
    /// An IPReservation covers the address.
    Reserved,
    /// The namespace selector of the pool is malformed.
    Selector(NoPool),
}

/// Returns the first pool in service that contains `ip`, if its uses, and the rules that apply,
/// permit the address. `pools` are ordered by name (IPAM-94).
pub fn pool_of_address<'a>(
    pools: impl IntoIterator<Item = &'a IpPool>,
    ip: IpAddr,
    rules: &AddressRules<'_>,
) -> Result<Pool, AddressRefusal> {
    let mut refused = Vec::new();
    for object in pools {
        let Some(cidr) = object.spec.range().ok().filter(|cidr| cidr.contains(ip)) else {
            continue;
        };
        let usable = enabled_pool(object, IpVersion::of(ip))
            .and_then(|pool| pool.check_block_size().map(|()| pool));
        match usable {
            Ok(pool) => return ensure_permitted(object, pool, ip, rules),
            Err(refusal) => {
                refused.push(RejectedPool {
                    pool: object.metadata.name.clone(),
                    cidr: Some(cidr),
                    refusal,
                });
            }
        }
    }
    Err(AddressRefusal::NotInPool(refused))
}

fn ensure_permitted(
    object: &IpPool,
    pool: Pool,
    ip: IpAddr,
    rules: &AddressRules<'_>,
) -> Result<Pool, AddressRefusal> {
    let refusal = if !pool.allows(rules.purpose) {
        Some(PoolRejection::Use {
            allowed: pool.allowed_uses.clone(),
            wanted: rules.purpose,
        })
    } else if rules.by_namespace {
        rejection_by_namespace(object, rules.namespace).map_err(AddressRefusal::Selector)?
    } else {
        None
    };
    if let Some(refusal) = refusal {
        return Err(AddressRefusal::Pool(RejectedPool {
            pool: pool.name,
            cidr: Some(pool.cidr),
            refusal,
        }));
    }
    if rules.reserved.is_some_and(|reserved| reserved.contains(ip)) {
        return Err(AddressRefusal::Reserved);
    }
    Ok(pool)
}
