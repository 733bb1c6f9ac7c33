//! [`decide`]: what is to become of a Service's addresses (KC-508).

use std::net::IpAddr;

use libcalico::ipam::{HandleId, ReleaseRequest};
use libcalico::net::IpVersion;

use super::pools::{LoadBalancerPool, pool_of};
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
}

impl Held {
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
    /// Some are given back, some assigned; all that it holds then are shown.
    Serve {
        /// Do not fit what it asks for.
        release: Vec<Held>,
        /// Are missing.
        assign: Assign,
    },
}

/// Addresses that a Service lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Assign {
    /// None.
    Nothing,
    /// Just these.
    Addresses(Vec<IpAddr>),
    /// One of these families each, out of the pools asked for.
    Families {
        /// IPv4.
        v4: bool,
        /// IPv6.
        v6: bool,
        /// From where.
        request: Request,
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
    let (kept, release): (Vec<_>, Vec<_>) =
        held.iter().cloned().partition(|held| fits(held.ip, service, &request, pools));
    let assign = missing(service, &kept, request);
    Ok(Decision::Serve { release, assign })
}

/// Whether an address is one of those asked for. Without a request it may come from any pool that need not be named, and
/// one of no pool stays: also while its pool is being deleted, for a Service that is in use does not move by itself (KC-505,
/// KC-508). One of a family that the Service had once goes: nothing else would ever take it back.
fn fits(ip: IpAddr, service: &Balanced, request: &Request, pools: &[LoadBalancerPool]) -> bool {
    if request.insists {
        return request.addresses.contains(&ip);
    }
    if request.addresses.contains(&ip) {
        return true;
    }
    let wanted = if IpVersion::of(ip) == IpVersion::V4 { service.wants4 } else { service.wants6 };
    if !wanted && (service.wants4 || service.wants6) {
        return false;
    }
    if request.pools4.is_empty() && request.pools6.is_empty() {
        return pool_of(pools, ip).is_none_or(|pool| pool.automatic);
    }
    request.pools4.iter().chain(&request.pools6).any(|range| range.contains(ip))
}

fn missing(service: &Balanced, kept: &[Held], request: Request) -> Assign {
    if !request.addresses.is_empty() {
        let mut missing = request.addresses;
        missing.retain(|ip| kept.iter().all(|held| held.ip != *ip));
        return if missing.is_empty() { Assign::Nothing } else { Assign::Addresses(missing) };
    }
    // Each family by itself: having the one says nothing of the other (B-33).
    let lacks = |version| kept.iter().all(|held| IpVersion::of(held.ip) != version);
    let (v4, v6) = (service.wants4 && lacks(IpVersion::V4), service.wants6 && lacks(IpVersion::V6));
    if v4 || v6 { Assign::Families { v4, v6, request } } else { Assign::Nothing }
}

/// Whether `published` are not just `held`. Their order does not matter.
pub(super) fn is_misstated(published: &[IpAddr], held: &[Held]) -> bool {
    let shown = |ip: &IpAddr| published.contains(ip);
    !held.iter().all(|held| shown(&held.ip)) || published.iter().any(|ip| held.iter().all(|held| held.ip != *ip))
}
