//! Replaces an assigned address to which the host has a route already, called a busy address.

use std::net::IpAddr;

use datastore::Datastore;
use ipam_plugin::alloc::inputs::AllocationInputs;
use ipam_plugin::busy;
use ipam_plugin::clock::{Clock, SystemClock};
use ipam_plugin::cni::{self, IpamRequest};
use ipam_plugin::release::release_addresses;
use libcalico::ipam::ReleaseRequest;
use libcalico::net::IpVersion;
use netconf::{CniError, CniResult};

use super::{AssignedAddresses, with_addresses};
use crate::cni_error::store_error;
use crate::dataplane::BusyRoute;

/// Replaces the busy address by another address of the same family. The busy address stays allocated to the container
/// until [`release_unused`], and the next ADDs on the node skip it. After an error `assigned` still contains it.
pub async fn choose_another(
    store: &Datastore,
    assigned: &mut AssignedAddresses,
    route: BusyRoute,
) -> Result<(), CniError> {
    let (ip, clock) = (route.address, SystemClock::start());
    pass_over(assigned, route);
    let Some(request) = &assigned.request else { return Err(CniError::internal("the address was not chosen by IPAM")) };
    let version = IpVersion::of(ip);
    let request = IpamRequest {
        assign_ipv4: version == IpVersion::V4,
        assign_ipv6: version == IpVersion::V6,
        // The hints in the file are for all families of the pod.
        recent_file: None,
        ..(**request).clone()
    };
    let inputs = AllocationInputs::read(store, &request.inputs_query()).await;
    let inputs = inputs.map_err(|error| store_error("read what is needed to assign an address", &error))?;
    let other = with_addresses(cni::add(store, &clock, &request, inputs, None).await?.result)?;
    assigned.replace(ip, &other);
    Ok(())
}

/// Records a busy address for this ADD and for the next ADDs on the node.
pub fn pass_over(assigned: &mut AssignedAddresses, route: BusyRoute) {
    if let Some(file) = assigned.request.as_ref().and_then(|request| request.busy_file.as_deref()) {
        busy::note(file, route.address, &route.route, SystemClock::start().now());
    }
    assigned.busy.push(route);
}

/// Releases the addresses that a successful ADD does not use: busy addresses, and addresses of the pod's earlier
/// sandbox. The endpoint must list none of them. After a failure they stay allocated until a DEL releases them.
pub async fn release_unused(store: &Datastore, assigned: &AssignedAddresses) {
    if let Some(earlier) = &assigned.earlier {
        earlier.release(store).await;
    }
    let Some(request) = assigned.request.as_ref().filter(|_| !assigned.busy.is_empty()) else { return };
    let handle = request.handle();
    let requests: Vec<_> = assigned
        .busy
        .iter()
        .map(|busy| ReleaseRequest { ip: busy.address, handle: Some(handle.clone()), sequence: None })
        .collect();
    let _releasing = request.releasing();
    if let Err(error) = release_addresses(store, &SystemClock::start(), &requests).await {
        tracing::warn!(%handle, %error, "busy addresses stay allocated to the container; its DEL releases them");
    }
}

impl AssignedAddresses {
    /// Replaces `busy` by the address of `other`, and the route to `busy` by the route of `other`.
    fn replace(&mut self, busy: IpAddr, other: &CniResult) {
        let place = self.result.ips.iter().position(|ip| ip.address.addr() == busy);
        if let (Some(place), Some(ip)) = (place, other.ips.first()) {
            self.result.ips[place] = ip.clone();
        }
        let place = self.result.routes.iter().position(|route| route.dst.addr() == busy);
        if let (Some(place), Some(route)) = (place, other.routes.first()) {
            self.result.routes[place] = route.clone();
        }
        self.addresses = self.result.ips.iter().map(|ip| ip.address.addr()).collect();
    }
}
