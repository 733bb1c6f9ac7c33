//! [`decide`]: decides about the addresses of a Service (KC-508).

use std::net::IpAddr;

use libcalico::ipam::{Allocation, HandleId, ReleaseRequest};
use libcalico::net::{Cidr, IpVersion};

use super::pools::{LoadBalancerPool, may_serve};
use super::request::{AddressRequest, RequestError};
use super::service::LoadBalancerService;
use crate::settings::AssignIps;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldAddress {
    pub(super) ip: IpAddr,
    pub(super) handle: HandleId,
    /// The block's sequence number at the time of the assignment, if the block records it.
    pub(super) sequence: Option<u64>,
    /// Time of the assignment, as stored in the block: Go's text of a UTC time, which sorts in the
    /// order of time.
    pub(super) since: Option<String>,
}

impl HeldAddress {
    /// Returns the allocation as a held address, or `None` if it is in cooldown or has no handle.
    pub(super) fn from_allocation(allocation: &Allocation<'_>) -> Option<Self> {
        let handle = allocation.handle().filter(|_| !allocation.is_cooling())?;
        let since = allocation
            .attributes()
            .and_then(|attributes| attributes.get("timestamp").cloned());
        Some(HeldAddress {
            ip: allocation.ip,
            handle,
            sequence: allocation.sequence,
            since,
        })
    }

    /// Returns a request to release this allocation, but no later allocation of the same address,
    /// unless the block records no sequence number and the handle is the same.
    pub(super) fn release(&self) -> ReleaseRequest {
        ReleaseRequest {
            ip: self.ip,
            handle: Some(self.handle.clone()),
            sequence: self.sequence,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// The Service is not managed and has no address.
    Nothing,
    /// The Service needs an address, but there is no pool for Services.
    NoPool,
    /// Remove the Service's addresses from the status, and release them.
    Withdraw,
    Serve(Plan),
}

/// Changes to the addresses of a Service, in this order: assign `assign`, publish exactly `keep`,
/// release `release`. After an assignment, the plan is made again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) assign: Vec<MissingAddress>,
    /// Addresses that stay, at most one of each family.
    pub(super) keep: Vec<HeldAddress>,
    pub(super) release: Vec<HeldAddress>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MissingAddress {
    /// This address.
    Address(IpAddr),
    /// Any address of the family `version`, from the pools with these ranges, or from the automatic
    /// pools if there are none.
    Any {
        version: IpVersion,
        pools: Vec<Cidr>,
    },
}

impl MissingAddress {
    /// Returns true if the assignment of `ip` would end the wait.
    pub(super) fn accepts(&self, ip: IpAddr, pools: &[LoadBalancerPool]) -> bool {
        match self {
            MissingAddress::Address(requested) => *requested == ip,
            MissingAddress::Any {
                version,
                pools: named,
            } => IpVersion::of(ip) == *version && may_serve(pools, named, ip),
        }
    }
}

/// Decides about a Service with the addresses `held`. `service` is `None` if the Service is missing
/// or is not of type LoadBalancer.
pub(super) fn decide(
    service: Option<&LoadBalancerService>,
    held: &[HeldAddress],
    pools: &[LoadBalancerPool],
    assign: AssignIps,
) -> Result<Decision, RequestError> {
    let Some(service) = service.filter(|service| service.request.is_managed(assign)) else {
        return Ok(if held.is_empty() {
            Decision::Nothing
        } else {
            Decision::Withdraw
        });
    };
    if pools.is_empty() {
        return Ok(if held.is_empty() {
            Decision::NoPool
        } else {
            Decision::Withdraw
        });
    }
    let request = AddressRequest::parse(service, pools)?;
    let mut plan = Plan::default();
    // Each family is decided separately. Upstream assigns no IPv6 address to a Service that has an
    // IPv4 address (KC-509).
    for version in [IpVersion::V4, IpVersion::V6] {
        let family = Family {
            version,
            service,
            request: &request,
            pools,
        };
        family.plan(
            held.iter().filter(|held| IpVersion::of(held.ip) == version),
            &mut plan,
        );
    }
    Ok(Decision::Serve(plan))
}

/// Returns true if `ip` may be assigned to a Service with the addresses `held`. If one of them is
/// of the family of `ip` and may stay, the Service takes only the address that it requests.
pub(super) fn may_take(
    service: &LoadBalancerService,
    pools: &[LoadBalancerPool],
    ip: IpAddr,
    mut held: impl Iterator<Item = IpAddr>,
) -> bool {
    let Ok(request) = AddressRequest::parse(service, pools) else {
        return false;
    };
    let family = Family {
        version: IpVersion::of(ip),
        service,
        request: &request,
        pools,
    };
    match request.address(family.version) {
        Some(requested) => requested == ip,
        None => {
            let stays =
                held.any(|held| IpVersion::of(held) == family.version && family.may_stay(held));
            !stays && family.names_family() && family.may_stay(ip)
        }
    }
}

struct Family<'a> {
    version: IpVersion,
    service: &'a LoadBalancerService,
    request: &'a AddressRequest,
    pools: &'a [LoadBalancerPool],
}

impl Family<'_> {
    fn plan<'h>(&self, held: impl Iterator<Item = &'h HeldAddress>, plan: &mut Plan) {
        let (mut fitting, mut others): (Vec<_>, Vec<_>) =
            held.cloned().partition(|held| self.may_stay(held.ip));
        let requested = self.request.address(self.version);
        match requested {
            Some(ip) if fitting.iter().all(|held| held.ip != ip) => {
                plan.assign.push(MissingAddress::Address(ip))
            }
            None if fitting.is_empty() && self.names_family() && !self.request.is_mandatory => {
                plan.assign.push(MissingAddress::Any {
                    version: self.version,
                    pools: self.request.pools(self.version).to_vec(),
                })
            }
            _ => {}
        }
        let is_published = |held: &HeldAddress| self.service.published.contains(&held.ip);
        let is_in_pool =
            |held: &HeldAddress| self.pools.iter().any(|pool| pool.cidr.contains(held.ip));
        // A fixed order, so that two replicas with the same addresses keep the same one. After the
        // requested address come the addresses in a pool, because a pool that is being deleted
        // waits for its addresses, and then the published addresses, because they are in use.
        let rank = |held: &HeldAddress| {
            let HeldAddress {
                ip,
                sequence,
                since,
                ..
            } = held;
            (
                Some(*ip) != requested,
                !is_in_pool(held),
                !is_published(held),
                since.clone(),
                *sequence,
                *ip,
            )
        };
        fitting.sort_by_key(rank);
        others.sort_by_key(rank);
        if fitting.is_empty()
            && self.can_use_family()
            && let Some(at) = others.iter().position(is_published)
        {
            fitting.push(others.remove(at));
        }
        plan.keep.extend(fitting.drain(..fitting.len().min(1)));
        plan.release.extend(fitting.into_iter().chain(others));
    }

    /// Returns true if the address may stay. An address in no pool, for example while its pool is
    /// being deleted, may stay if the Service requests neither a pool nor, by its annotation, an
    /// address. An address of a family that the Service no longer names does not stay, unless the
    /// Service requests that address.
    fn may_stay(&self, ip: IpAddr) -> bool {
        if self.request.address(self.version) == Some(ip) {
            return true;
        }
        if self.request.is_mandatory || !self.can_use_family() {
            return false;
        }
        may_serve(self.pools, self.request.pools(self.version), ip)
    }

    fn names_family(&self) -> bool {
        match self.version {
            IpVersion::V4 => self.service.wants_ipv4,
            IpVersion::V6 => self.service.wants_ipv6,
        }
    }

    /// Returns true if the Service can use an address of the family. A Service that names no family
    /// counts as naming both, so that it keeps its addresses.
    fn can_use_family(&self) -> bool {
        let requested = self.request.address(self.version).is_some();
        let named = self.names_family() || !(self.service.wants_ipv4 || self.service.wants_ipv6);
        requested || (named && !self.request.is_mandatory)
    }
}

/// Returns true if `published` differs from the addresses in `held`, regardless of order.
pub(super) fn status_differs(published: &[IpAddr], held: &[HeldAddress]) -> bool {
    let shown = |ip: &IpAddr| published.contains(ip);
    !held.iter().all(|held| shown(&held.ip))
        || published
            .iter()
            .any(|ip| held.iter().all(|held| held.ip != *ip))
}
