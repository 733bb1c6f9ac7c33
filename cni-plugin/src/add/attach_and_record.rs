//! Creates the interface and writes the endpoint, one after the other or concurrently.

use datastore::Datastore;
use futures::future::join;
use libcalico::api::{Profile, WorkloadEndpoint};
use netconf::CniError;
use tokio::task::yield_now;

use super::rollback::{after_failed_write, give_back, keep_for_del};
use super::{Place, interface_of};
use crate::context::Context;
use crate::dataplane::BusyRoute;
use crate::endpoint::{EndpointWrite, Existing, WriteFailure};
use crate::interface::{self, CreateError, CreatedInterface, NewInterface};
use crate::ipam::AssignedAddresses;
use crate::reads::WorkloadRequest;
use crate::timings::Timings;

/// The number of times that other tasks run before the creation of the interface blocks this thread, so that the
/// request of the write is sent first.
const TURNS_TO_SEND: usize = 8;

pub(super) const ATTACHING: &str = "setting up the interface";

/// The objects to write for the interface.
pub(super) struct Record {
    /// The endpoint without the properties of the interface that does not exist yet.
    pub(super) endpoint: WorkloadEndpoint,
    /// The endpoint that existed before.
    pub(super) existing: Option<Existing>,
    /// The profile to create with the endpoint.
    pub(super) profile: Option<Profile>,
}

/// A failure to create the interface or to write the endpoint.
pub(super) enum Failure {
    /// The host has a route to an address that IPAM chose. The addresses are still allocated to the container.
    Busy {
        /// The route.
        route: BusyRoute,
        /// The endpoint that was written, which lists the address; `None` if none was written.
        written: Option<Box<WorkloadEndpoint>>,
    },
    /// Any other failure. The endpoint was not written, and the addresses are released.
    Other(CniError),
}

/// Creates the interface and writes the endpoint.
pub(super) async fn attach_and_record(
    cx: &Context,
    timings: &mut Timings,
    place: &Place,
    request: &WorkloadRequest,
    assigned: &AssignedAddresses,
    record: Record,
) -> Result<(CreatedInterface, WorkloadEndpoint), Failure> {
    // On an API server the endpoint contains no property of the interface, so both steps run concurrently, and the
    // round trip of the write costs no extra time. Without a namespace the interface cannot be created, so the endpoint
    // must not be written either.
    if matches!(cx.store, Datastore::Kubernetes(_)) && place.netns.is_some() {
        let outcome = Box::pin(concurrently(cx, place, request, assigned, record)).await;
        timings.stage("dataplane");
        return outcome;
    }
    let Record { endpoint, existing, profile } = record;
    let config = interface_of(cx, request);
    let new = new_interface(request, assigned, &endpoint, place);
    let created = match interface::create(config, place.netns.as_ref(), new).await {
        Ok(created) => created,
        Err(CreateError::BusyRoute(route)) if assigned.is_replaceable => {
            return Err(Failure::Busy { route, written: None });
        }
        Err(CreateError::Unknown(error)) => return Err(keep_for_del(ATTACHING, "interface", error).into()),
        Err(error) => return Err(Box::pin(give_back(cx, request, assigned, ATTACHING, error.into())).await.into()),
    };
    timings.stage("dataplane");
    let write = EndpointWrite::of(existing, with_interface(endpoint, &created)).with_profile(profile);
    match write.apply(&cx.store).await {
        Ok(endpoint) => {
            timings.stage("write");
            Ok((created, endpoint))
        }
        Err(failure) => Err(Box::pin(after_failed_write(cx, request, assigned, &created, failure)).await.into()),
    }
}

async fn concurrently(
    cx: &Context,
    place: &Place,
    request: &WorkloadRequest,
    assigned: &AssignedAddresses,
    record: Record,
) -> Result<(CreatedInterface, WorkloadEndpoint), Failure> {
    let Record { endpoint, existing, profile } = record;
    let write = EndpointWrite::of(existing, endpoint.clone()).with_profile(profile);
    let create = async {
        for _ in 0..TURNS_TO_SEND {
            yield_now().await;
        }
        let new = new_interface(request, assigned, &endpoint, place);
        interface::create(interface_of(cx, request), place.netns.as_ref(), new).await
    };
    match join(write.apply(&cx.store), create).await {
        (Ok(endpoint), Ok(created)) => Ok((created, endpoint)),
        (Ok(endpoint), Err(CreateError::BusyRoute(route))) if assigned.is_replaceable => {
            Err(Failure::Busy { route, written: Some(Box::new(endpoint)) })
        }
        (Err(failure), Ok(created)) => Err(after_failed_write(cx, request, assigned, &created, failure).await.into()),
        (_, Err(CreateError::Unknown(error))) => Err(keep_for_del(ATTACHING, "interface", error).into()),
        (Err(WriteFailure { perhaps_written: true, .. }), Err(error)) => {
            Err(keep_for_del(ATTACHING, "WorkloadEndpoint", error.into()).into())
        }
        (_, Err(error)) => Err(give_back(cx, request, assigned, ATTACHING, error.into()).await.into()),
    }
}

fn new_interface<'a>(
    request: &'a WorkloadRequest,
    assigned: &'a AssignedAddresses,
    endpoint: &'a WorkloadEndpoint,
    place: &Place,
) -> NewInterface<'a> {
    let WorkloadRequest { pod_annotations, annotations, vmi, .. } = request;
    let (mac, before) = (annotations.mac, place.before);
    NewInterface { assigned, endpoint, pod_annotations, mac, before, has_vmi: vmi.is_some() }
}

impl From<CniError> for Failure {
    fn from(error: CniError) -> Self {
        Failure::Other(error)
    }
}

/// Returns the endpoint with the name and the MAC address of its interface.
pub(super) fn with_interface(endpoint: WorkloadEndpoint, created: &CreatedInterface) -> WorkloadEndpoint {
    let mut endpoint = endpoint;
    endpoint.spec.interface_name = created.host_ifname.clone();
    endpoint.spec.mac = created.mac.clone();
    endpoint
}
