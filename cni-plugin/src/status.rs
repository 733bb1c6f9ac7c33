//! STATUS: checks if an ADD could be served now. containerd calls STATUS every few seconds, so a STATUS sends few
//! requests.

use std::time::Duration;

use ipam_plugin::{busy_server, cni};
use netconf::{CniError, Code};
use tokio::time::{Instant, timeout_at};

use crate::context::Context;
use crate::{deferred_del, ipam, mtu, reads};

/// The time limit of the requests to the datastore, and of STATUS of another IPAM plugin.
pub const DEADLINE: Duration = Duration::from_secs(2);
/// Time after [`DEADLINE`] in which a request reports its own timeout, because its error names the cause.
const REPORTING: Duration = Duration::from_millis(500);

/// Fails if the MTU, the datastore or the IPAM plugin is not ready for an ADD. A busy API server is no failure, because
/// an ADD waits for it. Every failure has code 50.
pub async fn status(cx: &Context) -> Result<(), CniError> {
    let deadline = Instant::now() + DEADLINE;
    mtu::of_interface(&cx.call.conf.interface)
        .map_err(|error| not_available(&CniError::internal(error.to_string())))?;
    let request = ipam::request(&cx.call, &cx.workload.node, None);
    let reads = timeout_at(deadline + REPORTING, reads::for_status(cx, request.as_ref())).await;
    let inputs = reads.unwrap_or_else(|_| Err(timeout_error(cx)));
    let ready = inputs.and_then(|inputs| match request.as_ref().zip(inputs.as_ref()) {
        Some((request, inputs)) => cni::status_of(request, inputs),
        None => ipam::status_of_plugin(&cx.call, DEADLINE),
    });
    busy_server::status(ready, &cx.store, &cx.api).map_err(|error| not_available(&error))?;
    // Deferred DELs that are not replayed in the remaining time are left to a later call or the agent.
    let _ = timeout_at(deadline, deferred_del::replay_some(cx)).await;
    Ok(())
}

fn timeout_error(cx: &Context) -> CniError {
    CniError::internal(format!("datastore {} took more than {} s", cx.datastore_name(), DEADLINE.as_secs()))
}

/// Converts any error of STATUS, with the code for "no ADD can be served now".
pub fn not_available(error: &CniError) -> CniError {
    CniError::new(Code::NOT_AVAILABLE, error.msg.clone()).with_details(error.details.clone())
}
