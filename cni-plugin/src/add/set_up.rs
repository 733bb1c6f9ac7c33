//! The interface and the endpoint, one after the other or side by side.

use datastore::Datastore;
use futures::future::join;
use libcalico::api::{Profile, WorkloadEndpoint};
use netconf::CniError;
use tokio::task::yield_now;

use super::undo::{detach, give_back, leave};
use crate::attach::{self, AttachError, Attachment};
use crate::dataplane::{BusyRoute, MacAddr, NetnsFd};
use crate::endpoint::{EndpointWrite, Existing, WriteFailure};
use crate::ipam::Lease;
use crate::session::Session;

/// How often the tasks between us and the connection get to run before the kernel keeps this thread busy.
const TURNS_TO_SEND: usize = 8;

/// What is to be there in the end.
pub(super) struct Wanted {
    /// The endpoint, as far as it is known before the interface is made.
    pub(super) endpoint: WorkloadEndpoint,
    /// The endpoint that was there before.
    pub(super) existing: Option<Existing>,
    /// The profile to be created with it.
    pub(super) profile: Option<Profile>,
    /// The address that the container's end must have.
    pub(super) mac: Option<MacAddr>,
}

/// Why there is no interface.
pub(super) enum Failure {
    /// The host has a route to an address that IPAM chose. The addresses are still held.
    Busy {
        /// The route.
        route: BusyRoute,
        /// The endpoint as it was written, if it was: it lists the address.
        written: Option<Box<WorkloadEndpoint>>,
    },
    /// Any other reason. The endpoint is not there either, and the addresses are given back.
    Other(CniError),
}

/// Makes the interface and writes the endpoint.
pub(super) async fn set_up(
    session: &mut Session,
    netns: Option<&NetnsFd>,
    lease: &Lease,
    wanted: Wanted,
) -> Result<(Attachment, WorkloadEndpoint), Failure> {
    // In Kubernetes an endpoint has nothing of what the kernel says, and its write is a round trip to wait for. Without
    // a namespace the interface will fail: then nothing should have been written.
    if matches!(session.store, Datastore::Kubernetes(_)) && netns.is_some() {
        return Box::pin(side_by_side(session, netns, lease, wanted)).await;
    }
    let Wanted { endpoint, existing, profile, mac } = wanted;
    let attachment = match attach::attach(session, netns, lease, &endpoint, mac).await {
        Ok(attachment) => attachment,
        Err(AttachError::BusyRoute(route)) if lease.chooser.is_some() => {
            return Err(Failure::Busy { route, written: None });
        }
        Err(AttachError::Unknown(error)) => return Err(leave(ATTACHING, "interface", error).into()),
        Err(error) => return Err(Box::pin(give_back(session, lease, ATTACHING, error.into())).await.into()),
    };
    session.timings.stage("dataplane");
    let write = EndpointWrite::of(existing, attached(endpoint, &attachment)).with_profile(profile);
    match write.apply(&session.store).await {
        Ok(endpoint) => {
            session.timings.stage("write");
            Ok((attachment, endpoint))
        }
        Err(failure) => Err(Box::pin(detach(session, lease, &attachment, failure)).await.into()),
    }
}

pub(super) const ATTACHING: &str = "setting up the interface";

async fn side_by_side(
    session: &mut Session,
    netns: Option<&NetnsFd>,
    lease: &Lease,
    wanted: Wanted,
) -> Result<(Attachment, WorkloadEndpoint), Failure> {
    let Wanted { endpoint, existing, profile, mac } = wanted;
    let write = EndpointWrite::of(existing, endpoint.clone()).with_profile(profile);
    let attach = async {
        for _ in 0..TURNS_TO_SEND {
            yield_now().await;
        }
        attach::attach(session, netns, lease, &endpoint, mac).await
    };
    let outcome = match join(write.apply(&session.store), attach).await {
        (Ok(endpoint), Ok(attachment)) => Ok((attachment, endpoint)),
        (Ok(endpoint), Err(AttachError::BusyRoute(route))) if lease.chooser.is_some() => {
            Err(Failure::Busy { route, written: Some(Box::new(endpoint)) })
        }
        (Err(failure), Ok(attachment)) => Err(detach(session, lease, &attachment, failure).await.into()),
        (_, Err(AttachError::Unknown(error))) => Err(leave(ATTACHING, "interface", error).into()),
        (Err(WriteFailure { perhaps_written: true, .. }), Err(error)) => {
            Err(leave(ATTACHING, "WorkloadEndpoint", error.into()).into())
        }
        (_, Err(error)) => Err(give_back(session, lease, ATTACHING, error.into()).await.into()),
    };
    session.timings.stage("dataplane");
    outcome
}

impl From<CniError> for Failure {
    fn from(error: CniError) -> Self {
        Failure::Other(error)
    }
}

/// The endpoint with what is known once its interface is there.
pub(super) fn attached(endpoint: WorkloadEndpoint, attachment: &Attachment) -> WorkloadEndpoint {
    let mut endpoint = endpoint;
    endpoint.spec.interface_name = attachment.host_ifname.clone();
    endpoint.spec.mac = attachment.mac.clone();
    endpoint
}
