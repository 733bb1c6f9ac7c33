//! Creates the interface and writes the endpoint. After a failure, undoes the completed steps where
//! that is safe.

use futures::future::join;
use libcalico::api::WorkloadEndpoint;
use libcalico::store::{EndpointForm, Store as _};
use netconf::CniError;
use node_process::stage;
use tokio::task::yield_now;
use tracing::Instrument as _;

use super::attachment::Attachment;
use crate::endpoint::{EndpointWrite, WriteFailure};
use crate::interface::{CreateError, CreatedInterface, LinkSettings, NewInterface};
use crate::ipam::AssignedAddresses;
use crate::world::World;
use dataplane::BusyRoute;

/// The number of times that other tasks run before the creation of the interface blocks this
/// thread, so that the request of the write is sent first.
const YIELDS_BEFORE_CREATE: usize = 8;

pub(super) const ATTACH_STEP: &str = "setting up the interface";

pub(super) enum AttachFailure {
    /// The host has a route to an address that IPAM chose. The addresses are still allocated to the
    /// container.
    Busy {
        route: BusyRoute,
        /// The endpoint that was written; `None` if none was written.
        written: Option<Box<WorkloadEndpoint>>,
    },
    Other(CniError),
}

/// Creates the interface and writes the endpoint with the name and the MAC address of the
/// interface, which an API server does not store.
pub(super) async fn attach_and_record(
    attachment: &Attachment<'_, impl World>,
    assigned: &AssignedAddresses,
    write: EndpointWrite,
) -> Result<(CreatedInterface, WorkloadEndpoint), AttachFailure> {
    let Attachment {
        cx,
        request,
        mtu,
        netns,
        prior,
    } = attachment;
    let endpoint = write.endpoint.clone();
    let new = NewInterface {
        assigned,
        endpoint: &endpoint,
        pod_annotations: &request.pod_annotations,
        link: LinkSettings {
            mtu: *mtu,
            mac: request.annotations.mac,
        },
        prior: *prior,
        has_vmi: request.vmi.is_some(),
    };
    let config = attachment.interface();
    let create = || {
        config
            .create(&cx.network, netns.as_ref(), new)
            .instrument(stage!("dataplane"))
    };
    let is_independent = match cx.store.endpoint_form() {
        // The annotations contain no property of the interface.
        EndpointForm::PodAnnotations => true,
        EndpointForm::Object => false,
    };
    // Independent steps run concurrently. If the namespace could not be opened, the creation may
    // fail, and the endpoint must then not be written.
    let (created, written) = if is_independent && netns.is_some() {
        let create_meanwhile = async {
            for _ in 0..YIELDS_BEFORE_CREATE {
                yield_now().await;
            }
            create().await
        };
        let (written, created) = join(
            write
                .apply(&cx.store, &cx.clock)
                .instrument(stage!("write")),
            create_meanwhile,
        )
        .await;
        match created {
            Ok(created) => (created, written),
            Err(error) => {
                let failure = Box::pin(after_failed_create(
                    attachment,
                    assigned,
                    error,
                    written.map(Some),
                ))
                .await;
                return Err(failure);
            }
        }
    } else {
        let created = match create().await {
            Ok(created) => created,
            Err(error) => {
                return Err(
                    Box::pin(after_failed_create(attachment, assigned, error, Ok(None))).await,
                );
            }
        };
        let endpoint = with_interface(write.endpoint, &created);
        let written = EndpointWrite { endpoint, ..write }
            .apply(&cx.store, &cx.clock)
            .instrument(stage!("write"))
            .await;
        (created, written)
    };
    let failure = match written {
        Ok(endpoint) => return Ok((created, endpoint)),
        Err(failure) => failure,
    };
    Err(AttachFailure::Other(
        Box::pin(after_failed_write(attachment, assigned, &created, failure)).await,
    ))
}

/// Returns the failure of an ADD that could not create its interface. Undoes the ADD unless the
/// result is `Busy` or an outcome is unknown. `written` is the outcome of the write of the
/// endpoint; `Ok(None)` if it was not started.
async fn after_failed_create(
    attachment: &Attachment<'_, impl World>,
    assigned: &AssignedAddresses,
    error: CreateError,
    written: Result<Option<WorkloadEndpoint>, WriteFailure>,
) -> AttachFailure {
    AttachFailure::Other(match (error, written) {
        (CreateError::BusyRoute(route), Ok(written)) if assigned.is_replaceable => {
            return AttachFailure::Busy {
                route,
                written: written.map(Box::new),
            };
        }
        (CreateError::Unknown(error), _) => keep_for_del(assigned, ATTACH_STEP, "interface", error),
        (
            error,
            Err(WriteFailure {
                may_be_written: true,
                ..
            }),
        ) => keep_for_del(assigned, ATTACH_STEP, "WorkloadEndpoint", error.into()),
        (error, _) => {
            attachment
                .roll_back(assigned, ATTACH_STEP, error.into())
                .await
        }
    })
}

pub(super) fn with_interface(
    mut endpoint: WorkloadEndpoint,
    created: &CreatedInterface,
) -> WorkloadEndpoint {
    endpoint.spec.interface_name = created.host_ifname.clone();
    endpoint.spec.mac = created.mac.clone();
    endpoint
}

/// Undoes an ADD that could not write its endpoint, and returns the error of the ADD. The addresses
/// stay allocated if the endpoint may be written or the interface could not be removed.
async fn after_failed_write(
    attachment: &Attachment<'_, impl World>,
    assigned: &AssignedAddresses,
    created: &CreatedInterface,
    failure: WriteFailure,
) -> CniError {
    const STEP: &str = "writing the WorkloadEndpoint";
    let network = &attachment.cx.network;
    let removed = created.remove(network, attachment.interface()).await;
    let error = with_removal_outcome(failure.error, &removed);
    if failure.may_be_written {
        return keep_for_del(assigned, STEP, "WorkloadEndpoint", error);
    }
    if removed.is_err() {
        return keep_for_del(assigned, STEP, "interface", error);
    }
    attachment.roll_back(assigned, STEP, error).await
}

/// Returns the error of an ADD whose interface or endpoint (`object`) may still exist. The
/// addresses stay allocated, because another pod must not get them while the endpoint lists them or
/// the interface uses them.
fn keep_for_del(
    assigned: &AssignedAddresses,
    step: &str,
    object: &str,
    error: CniError,
) -> CniError {
    with_detail(error, &assigned.describe_possible_rest(step, object))
}

/// Returns the error of an ADD, extended by the error of the removal of its interface if the
/// removal failed.
pub(super) fn with_removal_outcome(error: CniError, removed: &Result<(), CniError>) -> CniError {
    match removed {
        Ok(()) => error,
        Err(removal) => with_detail(
            error,
            &format!("the interface could not be removed: {removal}"),
        ),
    }
}

impl<W: World> Attachment<'_, W> {
    /// Undoes the assignment of the addresses. Returns `error`, extended by the outcome.
    pub(super) async fn roll_back(
        &self,
        assigned: &AssignedAddresses,
        step: &str,
        error: CniError,
    ) -> CniError {
        let outcome = assigned
            .unassign(self.cx.ipam_call(), &self.request.workload)
            .await;
        with_detail(error, &assigned.describe_failure(step, &outcome))
    }
}

fn with_detail(error: CniError, more: &str) -> CniError {
    let details = if error.details.is_empty() {
        more.to_owned()
    } else {
        format!("{}; {more}", error.details)
    };
    error.with_details(details)
}
