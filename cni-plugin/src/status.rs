//! STATUS: checks if an ADD could be served now. containerd calls STATUS every few seconds, so a
//! STATUS sends few requests.

use std::time::Duration;

use datastore::ClusterStore as _;
use ipam_plugin::{busy_server, cni};
use netconf::{CniError, Code};
use os::clock::{Clock as _, run_until};

use crate::context::Context;
use crate::world::World;
use crate::{deferred_del, ipam, mtu, reads};
use dataplane::PodNetwork as _;

/// The time limit of the requests to the datastore, and of STATUS of another IPAM plugin.
pub const DEADLINE: Duration = Duration::from_secs(2);
/// Time after [`DEADLINE`] in which a request reports its own timeout, because its error names the
/// cause.
const REPORTING: Duration = Duration::from_millis(500);

/// Fails if the MTU, the datastore or the IPAM plugin is not ready for an ADD, for example because
/// of an alarm of etcd. A busy API server is no failure, because an ADD waits for it. Every failure
/// has code 50.
pub async fn status(cx: &Context<impl World>) -> Result<(), CniError> {
    let deadline = cx.clock.elapsed() + DEADLINE;
    mtu::of_interface(&cx.call.conf.interface, &cx.files, &cx.clock)
        .await
        .map_err(|error| not_available(&CniError::internal(error.to_string())))?;
    let request = cx.ipam_request();
    let reads = async {
        Ok(match &request {
            Some(request) => Some(reads::for_status(cx, request).await?),
            None => {
                reads::ensure_cluster_is_ready(cx).await?;
                None
            }
        })
    };
    let reads = run_until(&cx.clock, deadline + REPORTING, reads).await;
    let mut inputs = reads.unwrap_or_else(|| Err(timeout_error(cx)));
    // Reads succeed during an alarm, and each ADD fails.
    if inputs.is_ok()
        && let Some(Some(alarm)) = run_until(&cx.clock, deadline, cx.store.find_alarm()).await
    {
        inputs = Err(CniError::internal(alarm.to_string()));
    }
    let ready = inputs.and_then(|inputs| match request.as_ref().zip(inputs.as_ref()) {
        Some((request, inputs)) => cni::status_of(request, inputs),
        None => ipam::status_of_plugin(&cx.call, DEADLINE),
    });
    let ready = ready.and_then(|()| {
        ensure_kernel_has(
            request.as_ref().is_some_and(|it| it.assign_ipv6),
            cx.network.has_ipv6(),
        )
    });
    busy_server::status(ready, &cx.store, &cx.api).map_err(|error| not_available(&error))?;
    // Deferred DELs that are not replayed in the remaining time are left to a later call or the
    // agent.
    let _ = run_until(&cx.clock, deadline, deferred_del::replay_some(cx)).await;
    Ok(())
}

/// Fails if the configuration requests IPv6 addresses, which the kernel does not support.
fn ensure_kernel_has(wants_ipv6: bool, has_ipv6: bool) -> Result<(), CniError> {
    if !wants_ipv6 || has_ipv6 {
        return Ok(());
    }
    Err(
        CniError::internal("the kernel has no IPv6, and assign_ipv6 is true").with_details(
            "start the kernel without ipv6.disable=1, or set $.ipam.assign_ipv6 to \"false\"",
        ),
    )
}

fn timeout_error(cx: &Context<impl World>) -> CniError {
    CniError::internal(format!(
        "datastore {} took more than {} s",
        cx.datastore_name(),
        DEADLINE.as_secs()
    ))
}

/// Converts any error of STATUS, with the code for "no ADD can be served now".
pub fn not_available(error: &CniError) -> CniError {
    CniError::new(Code::NOT_AVAILABLE, error.msg.clone()).with_details(error.details.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_fails_if_ipv6_is_assigned_and_the_kernel_has_none() {
        let error = ensure_kernel_has(true, false).unwrap_err();
        assert!(
            error.msg.contains("the kernel has no IPv6") && error.details.contains("assign_ipv6"),
            "{error}"
        );
        assert_eq!(
            [(true, true), (false, false)].map(|(wants, has)| ensure_kernel_has(wants, has)),
            [Ok(()), Ok(())]
        );
    }
}
