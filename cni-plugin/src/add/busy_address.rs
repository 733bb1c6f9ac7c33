//! Continues an ADD with another address if the host has a route to an assigned address, called a
//! busy address.

use std::net::IpAddr;

use allocation::alloc::inputs::AllocationInputs;
use allocation::busy;
use allocation::release::release_addresses;
use ipam_plugin::cni::{self, IpamRequest};
use libcalico::api::{Profile, WorkloadEndpoint};
use libcalico::ipam::ReleaseRequest;
use libcalico::net::IpVersion;
use netconf::{CniError, CniResult};
use os::clock::Clock as _;

use super::attach_and_record::{ATTACH_STEP, AttachFailure, attach_and_record};
use super::attachment::Attachment;
use crate::cni_error::store_error;
use crate::context::Context;
use crate::endpoint::{EndpointWrite, ExistingEndpoint};
use crate::interface::CreatedInterface;
use crate::ipam::{AssignedAddresses, ensure_has_addresses};
use crate::world::World;
use dataplane::BusyRoute;

/// The maximum number of addresses of one family that an ADD tries.
const MAX_ADDRESSES: usize = 3;

const ADVICE: &str = "list the routes with `calico doctor`; remove unused routes, or reserve the \
                      addresses with an IPReservation";

/// Creates the interface and writes the endpoint. If the host has a route to an address that
/// `calico-ipam` chose, another address may replace the busy one. Busy addresses are released after
/// the endpoint lists the final addresses.
pub(super) async fn attach(
    attachment: &Attachment<'_, impl World>,
    mut assigned: AssignedAddresses,
    mut existing: Option<ExistingEndpoint>,
    profile: Option<Profile>,
) -> Result<(CreatedInterface, WorkloadEndpoint, CniResult), CniError> {
    loop {
        if let Err(error) = attachment.ensure_not_overtaken() {
            return Err(Box::pin(attachment.roll_back(&assigned, ATTACH_STEP, error)).await);
        }
        let endpoint = match attachment.desired_endpoint(existing.as_ref(), &assigned.addresses) {
            Ok(endpoint) => endpoint,
            Err(error) => {
                return Err(Box::pin(attachment.roll_back(
                    &assigned,
                    "describing the endpoint",
                    error,
                ))
                .await);
            }
        };
        let write = EndpointWrite {
            endpoint,
            existing: existing.clone(),
            profile: profile.clone(),
        };
        match attach_and_record(attachment, &assigned, write).await {
            Ok((created, endpoint)) => {
                Box::pin(release_unused(attachment.cx, &assigned)).await;
                return Ok((created, endpoint, assigned.result));
            }
            Err(AttachFailure::Busy { route, written }) => {
                // The next write replaces this endpoint.
                if let (Some(existing), Some(written)) = (&mut existing, written) {
                    existing.value = *written;
                }
                Box::pin(replace(attachment, &mut assigned, route)).await?;
            }
            Err(AttachFailure::Other(error)) => return Err(error),
        }
    }
}

/// Replaces a busy address. If that fails, undoes the ADD and returns an error.
async fn replace(
    attachment: &Attachment<'_, impl World>,
    assigned: &mut AssignedAddresses,
    route: BusyRoute,
) -> Result<(), CniError> {
    let family = |busy: &&BusyRoute| IpVersion::of(busy.address) == IpVersion::of(route.address);
    let tried = 1 + assigned.busy.iter().filter(family).count();
    // Records the busy address for this ADD and for the next ADDs on the node.
    if let Some(file) = assigned
        .request
        .as_ref()
        .and_then(|request| request.busy_file.as_deref())
    {
        busy::record(file, route.address, &route.route, attachment.cx.clock.now());
    }
    assigned.busy.push(route.clone());
    let cause = if tried < MAX_ADDRESSES {
        tracing::warn!(
            address = %route.address, route = route.route,
            hint = "this ADD requests another address",
            "the host has a route to the address that IPAM chose"
        );
        match assign_replacement(attachment.cx, assigned, route.address).await {
            Ok(()) => return Ok(()),
            Err(error) => Some(error),
        }
    } else {
        None
    };
    let error = no_address_error(&assigned.busy, cause);
    Err(attachment.roll_back(assigned, ATTACH_STEP, error).await)
}

/// Returns the error of the ADD. `cause` is the error of IPAM; `None` if the maximum number of
/// addresses was tried.
fn no_address_error(busy: &[BusyRoute], cause: Option<CniError>) -> CniError {
    let msg = busy
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ");
    let Some(cause) = cause else {
        let details = format!("{} addresses were tried; {ADVICE}", busy.len());
        return CniError::internal(msg).with_details(details);
    };
    let more = if cause.details.is_empty() {
        String::new()
    } else {
        format!(" ({})", cause.details)
    };
    let details = format!(
        "IPAM assigned no other address: {}{more}; {ADVICE}",
        cause.msg
    );
    CniError::new(cause.code, msg).with_details(details)
}

/// Replaces the busy address `ip` by another address of the same family. The busy address stays
/// allocated.
async fn assign_replacement(
    cx: &Context<impl World>,
    assigned: &mut AssignedAddresses,
    ip: IpAddr,
) -> Result<(), CniError> {
    let (store, clock) = (&cx.store, cx.clock.restarted());
    let Some(request) = &assigned.request else {
        return Err(CniError::internal("the address was not chosen by IPAM"));
    };
    let version = IpVersion::of(ip);
    let request = IpamRequest {
        assign_ipv4: version == IpVersion::V4,
        assign_ipv6: version == IpVersion::V6,
        // The hints in this file are for all families of a pod, and this request is for one family.
        recent_file: None,
        ..(**request).clone()
    };
    let inputs = AllocationInputs::read(store, &request.inputs_query()).await;
    let inputs = inputs
        .map_err(|error| store_error("read the objects needed to assign an address", &error))?;
    let other = ensure_has_addresses(
        cni::add(store, &clock, &request, inputs, None)
            .await?
            .result,
    )?;
    assigned.replace(ip, &other);
    Ok(())
}

/// Releases the addresses that a successful ADD does not use. The endpoint must list none of them.
async fn release_unused(cx: &Context<impl World>, assigned: &AssignedAddresses) {
    if let Some(earlier) = &assigned.earlier {
        earlier.release(cx.ipam_call()).await;
    }
    let Some(request) = assigned
        .request
        .as_ref()
        .filter(|_| !assigned.busy.is_empty())
    else {
        return;
    };
    let handle = request.handle();
    let release = |busy: &BusyRoute| ReleaseRequest {
        ip: busy.address,
        handle: Some(handle.clone()),
        sequence: None,
    };
    let requests: Vec<_> = assigned.busy.iter().map(release).collect();
    let _releasing = request.begin_release();
    if let Err(error) = release_addresses(&cx.store, &cx.clock.restarted(), &requests).await {
        tracing::warn!(
            %handle, %error,
            hint = "the DEL of the container tries again",
            "cannot release all busy addresses of this ADD"
        );
    }
}

impl AssignedAddresses {
    fn replace(&mut self, busy: IpAddr, other: &CniResult) {
        let place = self
            .result
            .ips
            .iter()
            .position(|ip| ip.address.addr() == busy);
        if let (Some(place), Some(ip)) = (place, other.ips.first()) {
            self.result.ips[place] = ip.clone();
        }
        let place = self
            .result
            .routes
            .iter()
            .position(|route| route.dst.addr() == busy);
        if let (Some(place), Some(route)) = (place, other.routes.first()) {
            self.result.routes[place] = route.clone();
        }
        self.addresses = self.result.ips.iter().map(|ip| ip.address.addr()).collect();
    }
}
