//! Creates the interface and writes the endpoint, one after the other or concurrently.

use datastore::Datastore;
use futures::future::join;
use libcalico::api::WorkloadEndpoint;
use netconf::CniError;
use tokio::task::yield_now;

use super::rollback::{after_failed_write, give_back, keep_for_del};
use super::{Place, interface_of};
use crate::context::Context;
use crate::dataplane::BusyRoute;
use crate::endpoint::{EndpointWrite, WriteFailure};
use crate::interface::{self, CreateError, CreatedInterface, NewInterface};
use crate::ipam::AssignedAddresses;
use crate::reads::WorkloadRequest;
use crate::timings::Timings;

/// The number of times that other tasks run before the creation of the interface blocks this thread, so that the
/// request of the write is sent first.
const TURNS_TO_SEND: usize = 8;

pub(super) const ATTACHING: &str = "setting up the interface";

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

/// Creates the interface and writes the endpoint. `write` contains the endpoint without the properties of the interface
/// that does not exist yet.
pub(super) async fn attach_and_record(
    cx: &Context,
    timings: &mut Timings,
    place: &Place,
    request: &WorkloadRequest,
    assigned: &AssignedAddresses,
    write: EndpointWrite,
) -> Result<(CreatedInterface, WorkloadEndpoint), Failure> {
    let endpoint = write.endpoint.clone();
    let create = async {
        let new = new_interface(request, assigned, &endpoint, place);
        interface::create(interface_of(cx, request), place.netns.as_ref(), new).await
    };
    // On an API server the endpoint contains no property of the interface, so both steps run concurrently, and the
    // round trip of the write costs no extra time. Without a namespace the interface cannot be created, so the endpoint
    // must not be written either.
    let (created, written) = if matches!(cx.store, Datastore::Kubernetes(_)) && place.netns.is_some() {
        let create_meanwhile = async {
            for _ in 0..TURNS_TO_SEND {
                yield_now().await;
            }
            create.await
        };
        let (written, created) = Box::pin(join(write.apply(&cx.store), create_meanwhile)).await;
        timings.stage("dataplane");
        match created {
            Ok(created) => (created, written),
            Err(error) => {
                return Err(Box::pin(after_failed_create(cx, request, assigned, error, written.map(Some))).await);
            }
        }
    } else {
        let created = match create.await {
            Ok(created) => created,
            Err(error) => return Err(Box::pin(after_failed_create(cx, request, assigned, error, Ok(None))).await),
        };
        timings.stage("dataplane");
        let endpoint = with_interface(write.endpoint, &created);
        let written = EndpointWrite { endpoint, ..write }.apply(&cx.store).await;
        if written.is_ok() {
            timings.stage("write");
        }
        (created, written)
    };
    match written {
        Ok(endpoint) => Ok((created, endpoint)),
        Err(failure) => Err(Box::pin(after_failed_write(cx, request, assigned, &created, failure)).await.into()),
    }
}

/// Undoes an ADD that could not create its interface. `written` is the endpoint, if it was written.
async fn after_failed_create(
    cx: &Context,
    request: &WorkloadRequest,
    assigned: &AssignedAddresses,
    error: CreateError,
    written: Result<Option<WorkloadEndpoint>, WriteFailure>,
) -> Failure {
    match (error, written) {
        (CreateError::BusyRoute(route), Ok(written)) if assigned.is_replaceable => {
            return Failure::Busy { route, written: written.map(Box::new) };
        }
        (CreateError::Unknown(error), _) => keep_for_del(ATTACHING, "interface", error),
        (error, Err(WriteFailure { perhaps_written: true, .. })) => {
            keep_for_del(ATTACHING, "WorkloadEndpoint", error.into())
        }
        (error, _) => give_back(cx, request, assigned, ATTACHING, error.into()).await,
    }
    .into()
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
