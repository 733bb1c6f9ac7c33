//! [`decide`]: what is to become of a Service's addresses (KC-508).

use std::net::IpAddr;

use libcalico::ipam::{Allocation, HandleId, ReleaseRequest};
use libcalico::net::{Cidr, IpVersion};

use super::pools::{LoadBalancerPool, may_serve_unnamed};
use super::request::{Request, RequestError};
use super::service::Balanced;
use crate::settings::AssignIps;

/// An address that a Service holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    /// The address.
    pub(super) ip: IpAddr,
    /// What holds it.
    pub(super) handle: HandleId,
    /// The block's sequence number when it was assigned.
    pub(super) sequence: Option<u64>,
    /// When the address was assigned, as the block stores it: Go's text of a UTC time, which sorts as the times do.
    pub(super) since: Option<String>,
}

impl Held {
    /// Returns the address with its holder; `None` for an address that rests (B-31) or that no handle holds.
    pub(super) fn of(allocation: &Allocation<'_>) -> Option<Self> {
        let handle = allocation.handle().filter(|_| !allocation.is_cooling())?;
        let since = allocation.attributes().and_then(|attributes| attributes.get("timestamp").cloned());
        Some(Held { ip: allocation.ip, handle, sequence: allocation.sequence, since })
    }

    /// Gives back this assignment and no later one (B-34).
    pub(super) fn release(&self) -> ReleaseRequest {
        ReleaseRequest { ip: self.ip, handle: Some(self.handle.clone()), sequence: self.sequence }
    }
}

/// What is to become of a Service's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// None of our business.
    Leave,
    /// It is to have an address and there is no pool to take it from.
    NoPool,
    /// What it holds is no longer shown, and then given back.
    Withdraw,
    /// Its addresses are brought in order.
    Serve(Plan),
}

/// The changes to the addresses of a Service. They are made in this order: `assign`, then the status shows just `keep`, then
/// `release`. A plan that assigns is made again after the assignment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Addresses that are missing.
    pub(super) assign: Vec<Missing>,
    /// Addresses that stay, at most one of each family.
    pub(super) keep: Vec<Held>,
    /// Addresses that go.
    pub(super) release: Vec<Held>,
}

/// An address that a Service lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Missing {
    /// This address.
    Address(IpAddr),
    /// Any address of a family.
    Any {
        /// The family.
        version: IpVersion,
        /// Ranges of the pools to take it from; empty: any pool.
        pools: Vec<Cidr>,
    },
}

/// Decides about one Service that holds `held`; `None` for one that is gone or of another type.
pub(super) fn decide(
    service: Option<&Balanced>,
    held: &[Held],
    pools: &[LoadBalancerPool],
    assign: AssignIps,
) -> Result<Decision, RequestError> {
    let Some(service) = service.filter(|service| service.is_managed(assign)) else {
        return Ok(if held.is_empty() { Decision::Leave } else { Decision::Withdraw });
    };
    if pools.is_empty() {
        return Ok(if held.is_empty() { Decision::NoPool } else { Decision::Withdraw });
    }
    let request = Request::of(service, pools)?;
    let mut plan = Plan::default();
    // Each family by itself: having the one says nothing of the other (B-33).
    for version in [IpVersion::V4, IpVersion::V6] {
        let family = Family { version, service, request: &request, pools };
        family.plan(held.iter().filter(|held| IpVersion::of(held.ip) == version), &mut plan);
    }
    Ok(Decision::Serve(plan))
}

/// One family of a Service's addresses.
struct Family<'a> {
    version: IpVersion,
    service: &'a Balanced,
    request: &'a Request,
    pools: &'a [LoadBalancerPool],
}

impl Family<'_> {
    /// Plans what becomes of `held`, the addresses of this family.
    fn plan<'h>(&self, held: impl Iterator<Item = &'h Held>, plan: &mut Plan) {
        let (mut fitting, mut others): (Vec<_>, Vec<_>) = held.cloned().partition(|held| self.fits(held.ip));
        let asked = self.request.address(self.version);
        match asked {
            Some(ip) if fitting.iter().all(|held| held.ip != ip) => plan.assign.push(Missing::Address(ip)),
            None if fitting.is_empty() && self.is_wanted() && !self.request.insists => plan
                .assign
                .push(Missing::Any { version: self.version, pools: self.request.pools(self.version).to_vec() }),
            _ => {}
        }
        let is_published = |held: &Held| self.service.published.contains(&held.ip);
        // Two replicas that see the same addresses choose the same one. A published address is in use: it stays until there is
        // another one to publish.
        let rank =
            |held: &Held| (Some(held.ip) != asked, !is_published(held), held.since.clone(), held.sequence, held.ip);
        fitting.sort_by_key(rank);
        others.sort_by_key(rank);
        let substitute = others.first().filter(|held| fitting.is_empty() && self.has_use() && is_published(held));
        if substitute.is_some() {
            fitting.push(others.remove(0));
        }
        plan.keep.extend(fitting.drain(..fitting.len().min(1)));
        plan.release.extend(fitting);
        plan.release.extend(others);
    }

    /// Returns true if the address is one of those asked for. Without a request it may come from any pool that need not be
    /// named, and an address of no pool stays: also while its pool is being deleted, for a Service that is in use does not move
    /// by itself (KC-505, KC-508). An address of a family that the Service had once goes: nothing else would ever take it back.
    fn fits(&self, ip: IpAddr) -> bool {
        if self.request.address(self.version) == Some(ip) {
            return true;
        }
        if self.request.insists || !self.has_use() {
            return false;
        }
        match self.request.pools(self.version) {
            [] => may_serve_unnamed(self.pools, ip),
            ranges => ranges.iter().any(|range| range.contains(ip)),
        }
    }

    /// Returns true if the Service names the family.
    fn is_wanted(&self) -> bool {
        match self.version {
            IpVersion::V4 => self.service.wants4,
            IpVersion::V6 => self.service.wants6,
        }
    }

    /// Returns true if an address of the family serves the Service. A Service that names no family at all keeps what it has.
    fn has_use(&self) -> bool {
        let asked = self.request.address(self.version).is_some();
        let named = self.is_wanted() || !(self.service.wants4 || self.service.wants6);
        asked || (named && !self.request.insists)
    }
}

/// Whether `published` are not just `held`. Their order does not matter.
pub(super) fn is_misstated(published: &[IpAddr], held: &[Held]) -> bool {
    let shown = |ip: &IpAddr| published.contains(ip);
    !held.iter().all(|held| shown(&held.ip)) || published.iter().any(|ip| held.iter().all(|held| held.ip != *ip))
}
