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

use std::time::Duration;

use futures::future::join;
use ipam_plugin::busy_server;
use allocation::cluster_state::first_read_error;
use ipam_plugin::cni::IpamRequest;
use allocation::journal::{Journal, JournalError, PendingDel};
use allocation::release::ReleaseInputs;
use allocation::vmi::DetectedVmi;
use libcalico::kubernetes::{Pod, VmiPod};
use libcalico::workload::Orchestrator;
use netconf::{CniError, Code, Command};
use tokio::time::{Instant, timeout_at};

use crate::cni_error::naming_error;
use crate::context::Context;
use crate::endpoint::{ContainerEndpoints, ExistingEndpoint, Listing};
use crate::interface::RecordedEndpoint;
use crate::ipam::release::ReleaseError;
use crate::pod_lookup::PodLookupError;
use crate::reads::{self, NotReady, ReadObjects};
use crate::timings::Timings;
use crate::{deferred_del, endpoint, interface_names, ipam};

/// The time limit of the first pass of a DEL. A runtime may kill a DEL after a minute.
const TIME_LIMIT: Duration = Duration::from_secs(30);

type RecordFn = fn(&Journal, &PendingDel) -> Result<(), JournalError>;

/// Removes the interface, the endpoint and the addresses of a container. Missing objects are no
/// failure.
///
/// Changes nothing if the ADD of this name created no interface (CNI-90), and does not call another
/// IPAM plugin, which that ADD did not call either.
///
/// The runtime may kill a DEL at any time, so the first pass records the remaining work without
/// waiting for a busy API server. If a server was busy and work remains, a second pass waits for
/// the server.
pub async fn del(cx: &Context, timings: &mut Timings) -> Result<(), CniError> {
    if interface_names::is_further(cx)? {
        tracing::warn!(
            ifname = cx.call.ifname,
            reason = "the ADD of this name returned the result of another name",
            "keeping the pod's interface, endpoint and addresses"
        );
        return Ok(());
    }
    let begun = Instant::now();
    let first = remove(cx, timings, begun + TIME_LIMIT, cx.busy_until).await;
    if !busy_server::server_was_busy(&cx.store, &cx.api)
        || (first.is_ok() && !deferred_del::is_pending(cx).unwrap_or(true))
    {
        return first;
    }
    let deadline = begun + busy_server::longest_wait(Command::Del);
    busy_server::wait_until(deadline, &cx.store, &cx.api);
    match timeout_at(deadline, remove(cx, timings, deadline, deadline)).await {
        // The first pass succeeded or recorded the remaining work, so the runtime does not have to
        // repeat the DEL.
        Ok(Err(error)) if first.is_ok() => {
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
    cx: &Context,
    timings: &mut Timings,
    deadline: Instant,
    busy_until: Instant,
) -> Result<(), CniError> {
    if cx.workload.node.is_empty() {
        let file = &cx.call.conf.node.nodename_file;
        let cause = format!(
            "the name of this node is unknown: neither nodename in the configuration nor {file} \
             contains a name"
        );
        return remove_interface_and_defer(
            cx,
            &CniError::new(Code::TRY_AGAIN, cause),
            Journal::record,
        )
        .await;
    }
    let request = ipam::request(&cx.call, &cx.workload.node, None);
    let handles = request
        .as_ref()
        .map(|request| request.handles_to_read(&cx.store))
        .unwrap_or_default();
    let objects = match timeout_at(deadline, reads::for_del(cx, &handles)).await {
        Err(_) => return remove_interface_and_defer(cx, &timeout_error(), Journal::record).await,
        Ok(Ok(objects)) => objects,
        Ok(Err(error)) if error.is_postponable() => {
            return remove_interface_and_defer(cx, &first_read_error(&error), Journal::record)
                .await;
        }
        Ok(Err(error)) => return Err(first_read_error(&error)),
    };
    timings.stage("read");
    match objects.readiness() {
        Ok(()) => {}
        // A datastore that is set up again gets a new identity, so the entry must not contain the
        // old one.
        Err(NotReady {
            error,
            has_cluster_information: false,
        }) => {
            return remove_interface_and_defer(cx, &error, Journal::record_without_identity).await;
        }
        Err(NotReady { error, .. }) => return Err(error),
    }

    let ReadObjects {
        endpoints,
        mut listings,
        release: release_inputs,
        pod_lookup,
        ..
    } = *objects;
    let pod = pod_lookup.map(|lookup| lookup.vmi_pod);
    let name = cx
        .workload
        .key()
        .map_err(|error| naming_error(&error))?
        .name;
    let (named, others): (Vec<_>, Vec<_>) = endpoints
        .into_iter()
        .partition(|entry| entry.key.name == name);
    let is_named = !named.is_empty();
    let is_shared = has_other_interface(cx, is_named, &others, listings.is_none())?;
    if is_shared {
        // The endpoint that cannot be read counts as that of the other interface.
        listings.get_or_insert_default();
    }
    let endpoint = named
        .into_iter()
        .find(|entry| belongs_to_container(cx, entry));
    let recorded = match &endpoint {
        Some(entry) => RecordedEndpoint::Found(&entry.value),
        None if is_shared => RecordedEndpoint::OtherInterface,
        None if listings.is_none() => RecordedEndpoint::Unknown,
        None => RecordedEndpoint::Missing,
    };
    let removal = cx.interface().remove(&cx.store, recorded).await?;
    timings.stage("cut");

    // A newer sandbox of the same pod owns the addresses of its VMI.
    let is_superseded = is_named && endpoint.is_none();
    let vmi = if is_superseded {
        Ok(None)
    } else {
        in_time(deadline, vmi_of(cx, pod)).await
    };
    let (vmi, vmi_error) = vmi.map_or_else(|error| (None, Some(error)), |vmi| (vmi, None));
    let request = request.map(|request| IpamRequest { vmi, ..request });
    let release_inputs = request.zip(release_inputs.filter(|_| !is_shared));
    let released = in_time(deadline, release(cx, release_inputs, listings)).await;
    let released = released.and(vmi_error.map_or(Ok(()), Err));
    timings.stage("release");
    removal.finish()?;
    timings.stage("dataplane");
    match released {
        Ok(()) => {
            if !is_shared {
                interface_names::remove_all(cx);
            }
            // Deferred DELs that are not replayed in time are left to a later call or the agent.
            _ = timeout_at(
                deadline,
                deferred_del::remove_own_and_replay(cx, busy_until),
            )
            .await;
            Ok(())
        }
        Err(ReleaseError::Deferrable(error)) => {
            // The journal does not record addresses of another plugin, whose DEL may not have run
            // yet.
            ipam::release_by_plugin(&cx.call)?;
            defer(cx, &error, Journal::record)?;
            if !is_shared {
                interface_names::remove_all(cx);
            }
            Ok(())
        }
        Err(ReleaseError::Permanent(error)) => Err(error),
    }
}

/// Returns true if the endpoint is this container's. The endpoint of another container of the same
/// pod stays, because this is then a late DEL of an earlier sandbox (CNI-200). The endpoint of a
/// later pod of the same name whose ADD has not finished stays as well (CNI-262).
fn belongs_to_container(cx: &Context, entry: &ExistingEndpoint) -> bool {
    let is_own = endpoint::is_of_container(&entry.value, &cx.call.container_id, Some(cx.pod_uid()));
    if !is_own {
        let holder = &entry.value.spec.container_id;
        tracing::warn!(
            endpoint = %entry.key, %holder,
            "keeping the endpoint, which belongs to another container or a later pod"
        );
    }
    is_own
}

/// Returns true if the container has an endpoint with another interface name, or, where the
/// endpoints do not show this, an interface with another name. The other interface uses the same
/// handle, so its addresses must stay; upstream releases them.
///
/// `is_named`: the interface to delete has an endpoint. `others`: the endpoints with other
/// interface names. `is_unread`: an endpoint of the container cannot be read.
fn has_other_interface(
    cx: &Context,
    is_named: bool,
    others: &[ExistingEndpoint],
    is_unread: bool,
) -> Result<bool, CniError> {
    let is_own = |entry: &ExistingEndpoint| {
        endpoint::is_of_container(&entry.value, &cx.call.container_id, None)
    };
    let is_shared = match cx.workload.orchestrator {
        Orchestrator::Cni(_) if !others.is_empty() => true,
        Orchestrator::Cni(_) => is_unread && cx.interface().is_of_another_interface()?,
        Orchestrator::Kubernetes(_) if !cx.is_on_kubernetes() && others.iter().any(is_own) => true,
        Orchestrator::Kubernetes(_)
            if others.is_empty() && (is_named || was_created_by_add(cx) == Some(true)) =>
        {
            false
        }
        // On Kubernetes the name of every endpoint contains eth0, for any interface, and a deleted
        // pod has no endpoint.
        Orchestrator::Kubernetes(_) => cx.interface().is_of_another_interface()?,
    };
    if is_shared {
        let other_endpoint = others.first().map(|entry| entry.key.to_string());
        tracing::warn!(
            other_endpoint,
            "the container has another attachment; keeping the addresses of calico-ipam"
        );
    }
    Ok(is_shared)
}

/// Returns the outcome of `work`, or at `deadline` an error for which the DEL is deferred.
async fn in_time<T>(
    deadline: Instant,
    work: impl Future<Output = Result<T, ReleaseError>>,
) -> Result<T, ReleaseError> {
    timeout_at(deadline, work)
        .await
        .unwrap_or_else(|_| Err(ReleaseError::Deferrable(timeout_error())))
}

fn timeout_error() -> CniError {
    CniError::new(
        Code::TRY_AGAIN,
        "the requests to the datastore did not finish within the time limit of this call",
    )
}

/// Returns the pod's VMI; `None` if there is none or the VMI does not keep its addresses.
async fn vmi_of(
    cx: &Context,
    pod: Result<Option<Pod>, PodLookupError>,
) -> Result<Option<VmiPod>, ReleaseError> {
    let pod = pod.map_err(|error| ReleaseError::new(error.is_postponable(), error))?;
    let detected = reads::detect_vmi(cx, pod.as_ref()).await;
    let detected = detected.map_err(|error| ReleaseError::new(error.is_postponable(), error))?;
    Ok(detected.and_then(DetectedVmi::for_del))
}

/// Removes the addresses from the endpoint and then releases them.
async fn release(
    cx: &Context,
    release_inputs: Option<(IpamRequest, ReleaseInputs)>,
    listings: Option<Vec<Listing>>,
) -> Result<(), ReleaseError> {
    let endpoints = ContainerEndpoints::new(&cx.store, cx.workload.clone())
        .including_unnamed(cx.pod_uid())
        .with_listings(listings);
    let released = ipam::release::release(&cx.store, &cx.call, release_inputs, &endpoints);
    let (deleted, released) = Box::pin(join(endpoints.delete_own(), released)).await;
    released?;
    match deleted {
        // The container has no address any more, and the endpoint is deleted with its pod. A tenant
        // can cause this failure for any number of containers of a pod, whose deferred DELs would
        // fill the journal.
        Err(error) if cx.is_on_kubernetes() && error.is_of_one_object() => {
            tracing::warn!(
                %error, "cannot remove the endpoint; without addresses, the DEL is complete",
            );
            Ok(())
        }
        deleted => Ok(deleted?),
    }
}

/// Removes the interface, and records the remaining work with `record`. Does neither for a pod's
/// interface that has another name than CNI_IFNAME, unless prevResult shows that the ADD created
/// it.
async fn remove_interface_and_defer(
    cx: &Context,
    cause: &CniError,
    record: RecordFn,
) -> Result<(), CniError> {
    tracing::warn!(
        error = %cause, "cannot release the endpoint and the addresses in the datastore",
    );
    let is_pod = matches!(cx.workload.orchestrator, Orchestrator::Kubernetes(_));
    let was_created = was_created_by_add(cx);
    if is_pod && was_created != Some(true) && cx.interface().is_of_another_interface()? {
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
        .remove(&cx.store, RecordedEndpoint::Unknown)
        .await?;
    let by_plugin = ipam::release_by_plugin(&cx.call);
    removal.finish()?;
    by_plugin?;
    defer(cx, cause, record)?;
    interface_names::remove_all(cx);
    Ok(())
}

/// Returns true if `prevResult` contains this interface as the ADD created it; `None` without a
/// valid `prevResult`. KubeVirt renames the pod's end of the interface, so the name in the pod
/// proves nothing.
fn was_created_by_add(cx: &Context) -> Option<bool> {
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
fn ambiguous_interface_error(cx: &Context, cause: &CniError) -> CniError {
    let (ifname, host) = (&cx.call.ifname, cx.interface().host_ifname());
    let details = format!(
        "the pod's end of {host} is not named {ifname}, and without prevResult only the datastore \
         shows whether an ADD created {ifname}; repeat the DEL when the datastore is reachable"
    );
    CniError::new(Code::TRY_AGAIN, cause.msg.clone()).with_details(details)
}

/// Records the remaining work of the DEL in the journal. If this fails as well, the runtime has to
/// repeat the DEL.
fn defer(cx: &Context, cause: &CniError, record: RecordFn) -> Result<(), CniError> {
    let failed = |error: JournalError| {
        let details = format!(
            "the interface is removed, but the journal cannot record the remaining cleanup: {error}"
        );
        CniError::new(Code::TRY_AGAIN, cause.msg.clone()).with_details(details)
    };
    record(&cx.journal, &deferred_del::pending_del(cx, cause)).map_err(failed)?;
    tracing::warn!(
        error = %cause,
        hint = "a later call or the agent completes it",
        "deferred the DEL"
    );
    Ok(())
}

#[cfg(test)]
mod tests;
