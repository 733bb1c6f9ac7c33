//! Examines addresses for CHECK and STATUS.

use std::net::IpAddr;
use std::time::Duration;

use datastore::Datastore;
use ipam_plugin::alloc::inputs::AllocationInputs;
use ipam_plugin::cni::{self, IpamRequest};
use libcalico::api::WorkloadEndpoint;
use netconf::{Call, CniError};

use super::exec;
use crate::cni_error::store_error;

const READ_BLOCKS: &str = "read the address blocks";

/// Returns the differences between the addresses in the result of an ADD and the allocations, as one text for each.
/// `request` is the request to `calico-ipam`; `None` for another IPAM plugin.
pub async fn differences(
    store: &Datastore,
    call: &Call,
    request: Option<&IpamRequest>,
    recorded: &[IpAddr],
) -> Result<Vec<String>, CniError> {
    if let Some(request) = request {
        let differences = cni::differences(store, request, recorded).await;
        return differences.map_err(|error| store_error(READ_BLOCKS, &error));
    }
    match exec::call_plugin(call, "CHECK") {
        Ok(_) => Ok(Vec::new()),
        Err(error) => Ok(vec![format!("IPAM plugin {}: {error}", call.conf.ipam.ipam_type)]),
    }
}

/// Returns the addresses of an endpoint that are no longer allocated to the container, as one text for each. Does not
/// run other IPAM plugins, because many of them do not implement CHECK.
pub async fn lost_addresses(
    store: &Datastore,
    request: Option<IpamRequest>,
    endpoint: &WorkloadEndpoint,
) -> Result<Vec<String>, CniError> {
    let Some(mut request) = request else { return Ok(Vec::new()) };
    // The endpoint's first network assigned the addresses, under its handle.
    if let Some(first) = endpoint.spec.profiles.first() {
        request.network.clone_from(first);
    }
    let (_, addresses) = endpoint.spec.host_link();
    let differences = cni::differences(store, &request, &addresses).await;
    differences.map_err(|error| store_error(READ_BLOCKS, &error))
}

/// Fails unless an ADD could get addresses, according to the objects that an ADD reads first, or to the STATUS of
/// another plugin within `limit`.
pub fn status(call: &Call, limit: Duration, calico: Option<(&IpamRequest, &AllocationInputs)>) -> Result<(), CniError> {
    match calico {
        Some((request, inputs)) => cni::status_of(request, inputs),
        None => exec::status(call, limit),
    }
}
