//! Continues an ADD with another address if the host has a route to an assigned address.

use std::fmt::Write as _;

use libcalico::api::Profile;
use libcalico::net::IpVersion;
use netconf::CniError;

use super::attach_and_record::{ATTACHING, Failure, Record, attach_and_record};
use super::rollback::give_back;
use super::{Attached, Place, desired_endpoint, interface_of};
use crate::context::Context;
use crate::dataplane::BusyRoute;
use crate::endpoint::Existing;
use crate::interface::existing::ensure_not_overtaken;
use crate::ipam::{AssignedAddresses, busy};
use crate::reads::WorkloadRequest;
use crate::timings::Timings;

/// The maximum number of addresses of one family that an ADD tries.
const TRIES: usize = 3;

const WAY_OUT: &str =
    "`calico doctor` names the routes; remove those that nobody uses, or reserve the addresses with an IPReservation";

/// Creates the interface and writes the endpoint with the addresses of `assigned`. If the host has a route to an
/// address that `calico-ipam` chose, another address replaces the busy one. Busy addresses are released after the
/// endpoint lists the final addresses. After a failure neither interface nor endpoint exists, and all addresses are
/// released.
pub(super) async fn attach(
    cx: &Context,
    timings: &mut Timings,
    place: &Place,
    request: &WorkloadRequest,
    mut assigned: AssignedAddresses,
    mut existing: Option<Existing>,
    profile: Option<Profile>,
) -> Result<Attached, CniError> {
    loop {
        if let Err(error) = ensure_not_overtaken(interface_of(cx, request), place.before, place.netns.as_ref()) {
            return Err(Box::pin(give_back(cx, request, &assigned, ATTACHING, error)).await);
        }
        let endpoint = match desired_endpoint(cx, request, existing.as_ref(), &assigned.addresses) {
            Ok(endpoint) => endpoint,
            Err(error) => {
                return Err(Box::pin(give_back(cx, request, &assigned, "describing the endpoint", error)).await);
            }
        };
        let record = Record { endpoint, existing: existing.clone(), profile: profile.clone() };
        match attach_and_record(cx, timings, place, request, &assigned, record).await {
            Ok((created, endpoint)) => {
                Box::pin(busy::release_unused(&cx.store, &assigned)).await;
                return Ok(Attached::new(created, endpoint, assigned));
            }
            Err(Failure::Busy { route, written }) => {
                // The next write replaces this endpoint.
                if let (Some(existing), Some(written)) = (&mut existing, written) {
                    existing.value = *written;
                }
                Box::pin(replace(cx, request, &mut assigned, route)).await?;
            }
            Err(Failure::Other(error)) => return Err(error),
        }
    }
}

/// Replaces a busy address. If no other address is available, releases all addresses and returns an error that names
/// the addresses tried.
async fn replace(
    cx: &Context,
    request: &WorkloadRequest,
    assigned: &mut AssignedAddresses,
    route: BusyRoute,
) -> Result<(), CniError> {
    let family = |busy: &&BusyRoute| IpVersion::of(busy.address) == IpVersion::of(route.address);
    let tried = 1 + assigned.busy.iter().filter(family).count();
    let error = if tried < TRIES {
        tracing::warn!(address = %route.address, route = route.route, "the host has a route to the address that IPAM chose; asking for another");
        match busy::choose_another(&cx.store, assigned, route).await {
            Ok(()) => return Ok(()),
            Err(error) => none_left(&assigned.busy, Some(error)),
        }
    } else {
        busy::pass_over(assigned, route);
        none_left(&assigned.busy, None)
    };
    Err(give_back(cx, request, assigned, ATTACHING, error).await)
}

/// Returns the error that names all routes. `cause` is the error of IPAM for the request for another address.
fn none_left(busy: &[BusyRoute], cause: Option<CniError>) -> CniError {
    let msg = busy.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let Some(cause) = cause else {
        let details = format!("{} addresses were tried; {WAY_OUT}", busy.len());
        return CniError::internal(msg).with_details(details);
    };
    let mut details = format!("IPAM gave no other address: {}", cause.msg);
    if !cause.details.is_empty() {
        _ = write!(details, " ({})", cause.details);
    }
    CniError::new(cause.code, msg).with_details(format!("{details}; {WAY_OUT}"))
}
