//! DEL: removes the interface, the endpoint and the addresses of a container, as far as they still
//! exist.
//!
//! A DEL cuts the traffic, then removes the addresses from the endpoint, then releases them. The
//! reason for this order: another container must not get an address that this container still uses
//! or its endpoint lists.
//!
//! A deferred DEL with another IPAM plugin is an exception: that plugin's DEL runs although the
//! endpoint may still list the addresses, because the journal does not record them.
//!
//! A DEL that cannot finish its work in the datastore usually succeeds, and records the remaining
//! work in the journal.

mod found_endpoints;

use std::time::Duration;

use allocation::journal::JournalError;
use allocation::vmi::DetectedVmi;
use ipam_plugin::busy_server;
use ipam_plugin::cni::IpamRequest;
use libcalico::kubernetes::{Pod, VmiPod};
use libcalico::workload::Orchestrator;
use netconf::{CniError, Code, Command};
use node_process::stage;
use os::clock::{Clock as _, run_until};
use tracing::Instrument as _;

use self::found_endpoints::FoundEndpoints;
use crate::cni_error::time_limit_error;
use crate::context::Context;
use crate::endpoint::ContainerEndpoints;
use crate::interface::RecordedEndpoint;
use crate::ipam::release::ReleaseError;
use crate::pod_lookup::PodLookupError;
use crate::reads::{self, DelReadError, DelReads, RecordedIdentity, UnreadDel};
use crate::world::World;
use crate::{deferred_del, interface_names, ipam};

/// The time limit of the first pass of a DEL. A runtime may kill a DEL after a minute.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Removes the interface, the endpoint and the addresses of a container. Missing objects are no
/// failure.
///
/// Changes nothing if the ADD of this name created no interface (CNI-90), and does not call another
/// IPAM plugin, which that ADD did not call either.
///
/// The runtime may kill a DEL at any time, so the first pass records the remaining work without
/// waiting for a busy API server. If a server was busy and work remains, a second pass waits for
/// the server.
pub async fn del(cx: &Context<impl World>) -> Result<(), CniError> {
    if interface_names::is_further(cx)? {
        tracing::warn!(
            ifname = cx.call.ifname,
            reason = "the ADD of this name returned the result of another name",
            "keeping the pod's interface, endpoint and addresses"
        );
        return Ok(());
    }
    let begun = cx.clock.elapsed();
    let first = remove(cx, begun + TIME_LIMIT, cx.busy_until).await;
    if !busy_server::server_was_busy(&cx.store, &cx.api)
        || (first.is_ok() && !deferred_del::is_pending(cx).unwrap_or(true))
    {
        return first;
    }
    let deadline = begun + busy_server::longest_wait(Command::Del);
    cx.wait_for_busy_server_until(deadline);
    let second = remove(cx, deadline, deadline);
    match run_until(&cx.clock, deadline, second).await {
        // The first pass succeeded or recorded the remaining work, so the runtime does not have to
        // repeat the DEL.
        Some(Err(error)) if first.is_ok() => {
            tracing::warn!(
                %error,
                "the second pass of this DEL failed"
            );
            first
        }
        second => second.unwrap_or(first),
    }
}

/// Removes the objects until `deadline`. Records the remaining work, or fails so that the runtime
/// repeats the DEL.
async fn remove(
    cx: &Context<impl World>,
    deadline: Duration,
    busy_until: Duration,
) -> Result<(), CniError> {
    let request = cx.ipam_request();
    let handles = request
        .as_ref()
        .map(|request| request.handles_to_read(&cx.store))
        .unwrap_or_default();
    let DelReads {
        endpoints,
        listings,
        release: release_inputs,
        vmi_pod,
    } = match reads::for_del(cx, &handles, deadline)
        .instrument(stage!("read"))
        .await
    {
        Ok(reads) => reads,
        Err(DelReadError::Unread(unread)) => return remove_interface_and_defer(cx, &unread).await,
        Err(DelReadError::Permanent(error)) => return Err(error),
    };
    let found = FoundEndpoints::new(cx, endpoints, listings)?;
    let removal = cx
        .interface()
        .remove(&cx.network, &cx.store, found.recorded())
        .instrument(stage!("cut"))
        .await?;

    // A newer sandbox of the same pod owns the addresses of its VMI.
    let vmi = if found.is_superseded {
        Ok(None)
    } else {
        in_time(cx, deadline, vmi_of(cx, vmi_pod)).await
    };
    let (vmi, vmi_error) = vmi.map_or_else(|error| (None, Some(error)), |vmi| (vmi, None));
    // The other attachment has the addresses.
    let request = request.filter(|_| !found.is_shared);
    let calico = request.map(|request| (IpamRequest { vmi, ..request }, release_inputs));
    let endpoints = ContainerEndpoints::new(&cx.store, cx.workload.clone())
        .including_unnamed(cx.pod_uid())
        .with_listings(found.listings);
    let released = ipam::release::release(cx.ipam_call(), calico, endpoints);
    let released = in_time(cx, deadline, released)
        .instrument(stage!("release"))
        .await;
    let released = released.and(vmi_error.map_or(Ok(()), Err));
    stage!("dataplane").in_scope(|| removal.finish())?;
    match released {
        Ok(()) => {
            if !found.is_shared {
                interface_names::remove_all(cx);
            }
            // Deferred DELs that are not replayed in time are left to a later call or the agent.
            let replay = deferred_del::replay_after_del(cx, busy_until);
            _ = run_until(&cx.clock, deadline, replay).await;
            Ok(())
        }
        Err(ReleaseError::Deferrable(error)) => {
            // The journal does not record addresses of another plugin, whose DEL may not have run
            // yet.
            ipam::release_by_plugin(&cx.call)?;
            defer(cx, &error, RecordedIdentity::Known)?;
            if !found.is_shared {
                interface_names::remove_all(cx);
            }
            Ok(())
        }
        Err(ReleaseError::Permanent(error)) => Err(error),
    }
}

/// Returns the outcome of `work`, or at `deadline` an error for which the DEL is deferred.
async fn in_time<T>(
    cx: &Context<impl World>,
    deadline: Duration,
    work: impl Future<Output = Result<T, ReleaseError>>,
) -> Result<T, ReleaseError> {
    run_until(&cx.clock, deadline, work)
        .await
        .unwrap_or_else(|| Err(ReleaseError::Deferrable(time_limit_error())))
}

/// Returns the pod's VMI; `None` if there is none or the VMI does not keep its addresses.
async fn vmi_of(
    cx: &Context<impl World>,
    pod: Result<Option<Pod>, PodLookupError>,
) -> Result<Option<VmiPod>, ReleaseError> {
    let pod = pod.map_err(|error| ReleaseError::new(error.is_postponable(), error))?;
    let detected = reads::detect_vmi(cx, pod.as_ref()).await;
    let detected = detected.map_err(|error| ReleaseError::new(error.is_postponable(), error))?;
    Ok(detected.and_then(DetectedVmi::for_del))
}

/// Removes the interface, and records the remaining work. Does neither for a pod's interface that
/// has another name than CNI_IFNAME, unless prevResult shows that the ADD created it.
async fn remove_interface_and_defer(
    cx: &Context<impl World>,
    unread: &UnreadDel,
) -> Result<(), CniError> {
    let UnreadDel { cause, identity } = unread;
    tracing::warn!(
        error = %cause, "cannot release the endpoint and the addresses in the datastore",
    );
    let is_pod = matches!(cx.workload.orchestrator, Orchestrator::Kubernetes(_));
    let was_created = was_created_by_add(cx);
    if is_pod && was_created != Some(true) && cx.interface().is_of_another_interface(&cx.network)? {
        if was_created.is_none() {
            return Err(ambiguous_interface_error(cx, cause));
        }
        tracing::warn!(
            ifname = cx.call.ifname,
            reason = "the interface has another name than CNI_IFNAME",
            "keeping the pod's interface, endpoint and addresses of calico-ipam"
        );
        return ipam::release_by_plugin(&cx.call);
    }
    let removal = cx
        .interface()
        .remove(&cx.network, &cx.store, RecordedEndpoint::Unknown)
        .await?;
    let by_plugin = ipam::release_by_plugin(&cx.call);
    removal.finish()?;
    by_plugin?;
    defer(cx, cause, *identity)?;
    interface_names::remove_all(cx);
    Ok(())
}

/// Returns true if `prevResult` contains this interface as the ADD created it; `None` without a
/// valid `prevResult`. KubeVirt renames the pod's end of the interface, so the name in the pod
/// proves nothing.
fn was_created_by_add(cx: &Context<impl World>) -> Option<bool> {
    let call = &cx.call;
    let result = call.conf.read_prev_result(call.version).ok()??;
    let names = |name: &str| {
        result
            .interfaces
            .iter()
            .any(|interface| interface.name == name)
    };
    Some(names(&call.ifname) && names(&cx.interface().host_ifname()))
}

/// Returns the error for a pod's end of the interface that has another name: it was renamed since
/// the ADD, or no ADD created it.
fn ambiguous_interface_error(cx: &Context<impl World>, cause: &CniError) -> CniError {
    let (ifname, host) = (&cx.call.ifname, cx.interface().host_ifname());
    let details = format!(
        "the pod's end of {host} is not named {ifname}, and without prevResult only the datastore \
         shows whether an ADD created {ifname}; repeat the DEL when the datastore is reachable"
    );
    CniError::new(Code::TRY_AGAIN, cause.msg.clone()).with_details(details)
}

/// Records the remaining work of the DEL in the journal. If this fails as well, the runtime has to
/// repeat the DEL.
fn defer(
    cx: &Context<impl World>,
    cause: &CniError,
    identity: RecordedIdentity,
) -> Result<(), CniError> {
    let failed = |error: JournalError| {
        let details = format!(
            "the interface is removed, but the journal cannot record the remaining cleanup: {error}"
        );
        CniError::new(Code::TRY_AGAIN, cause.msg.clone()).with_details(details)
    };
    let pending_del = deferred_del::pending_del(cx, cause);
    let recorded = match identity {
        RecordedIdentity::Known => cx.journal.record(&pending_del),
        RecordedIdentity::Omitted => cx.journal.record_without_identity(&pending_del),
    };
    recorded.map_err(failed)?;
    tracing::warn!(
        error = %cause,
        hint = "a later call or the agent completes it",
        "deferred the DEL"
    );
    Ok(())
}

#[cfg(test)]
mod tests;
