//! [`set_up()`]: an ADD whose address the kernel has in use goes on with another one.

use std::fmt::Write as _;

use libcalico::api::{Profile, WorkloadEndpoint};
use libcalico::net::IpVersion;
use netconf::{CniError, CniResult};

use super::described;
use super::set_up::{self, ATTACHING, Failure, Wanted};
use super::undo::give_back;
use crate::annotations::Annotations;
use crate::attach::Attachment;
use crate::dataplane::{BusyRoute, NetnsFd};
use crate::endpoint::Existing;
use crate::host_interface;
use crate::ipam::{self, Lease};
use crate::session::Session;

/// Most addresses of one family that an ADD tries.
const TRIES: usize = 3;

const WAY_OUT: &str =
    "`calico doctor` names the routes; remove those that nobody uses, or reserve the addresses with an IPReservation";

/// Makes the interface and writes the endpoint with the addresses of `lease`. Where the kernel has a route to one that
/// `calico-ipam` chose, another takes its place; the endpoint lists the final addresses before the busy ones are released. After a
/// failure nothing is there, and all addresses are given back.
pub(super) async fn set_up(
    session: &mut Session,
    netns: Option<NetnsFd>,
    mut lease: Lease,
    mut existing: Option<Existing>,
    profile: Option<Profile>,
    annotations: &Annotations,
) -> Result<(Attachment, WorkloadEndpoint, CniResult), CniError> {
    loop {
        if let Err(error) = host_interface::ensure_not_overtaken(session, netns.as_ref()) {
            return Err(Box::pin(give_back(session, &lease, ATTACHING, error)).await);
        }
        let endpoint = match described(session, existing.as_ref(), &lease.addresses, annotations) {
            Ok(endpoint) => endpoint,
            Err(error) => return Err(Box::pin(give_back(session, &lease, "describing the endpoint", error)).await),
        };
        let wanted = Wanted { endpoint, existing: existing.clone(), profile: profile.clone(), mac: annotations.mac };
        match set_up::set_up(session, netns.as_ref(), &lease, wanted).await {
            Ok((attachment, endpoint)) => {
                Box::pin(ipam::release_others(session, &lease)).await;
                return Ok((attachment, endpoint, lease.result));
            }
            Err(Failure::Busy { route, written }) => {
                // The next write replaces this one, whatever it was before.
                if let (Some(existing), Some(written)) = (&mut existing, written) {
                    existing.value = *written;
                }
                Box::pin(replace(session, &mut lease, route)).await?;
            }
            Err(Failure::Other(error)) => return Err(error),
        }
    }
}

/// Gets another address in the place of a busy one. Without another all are given back, and the error names those that were tried.
async fn replace(session: &Session, lease: &mut Lease, route: BusyRoute) -> Result<(), CniError> {
    let family = |busy: &&BusyRoute| IpVersion::of(busy.address) == IpVersion::of(route.address);
    let tried = 1 + lease.busy.iter().filter(family).count();
    let error = if tried < TRIES {
        tracing::warn!(address = %route.address, route = route.route, "the host has a route to the address that IPAM chose; asking for another");
        match ipam::choose_another(session, lease, route).await {
            Ok(()) => return Ok(()),
            Err(error) => none_left(&lease.busy, Some(error)),
        }
    } else {
        ipam::pass_over(lease, route);
        none_left(&lease.busy, None)
    };
    Err(give_back(session, lease, ATTACHING, error).await)
}

/// The error that names all routes. `cause` is the answer of IPAM when another address was asked for.
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
