//! ADD: connects a container to the network.
//!
//! An ADD reads the objects that it needs, assigns addresses, creates the interface and writes the
//! endpoint. After a failure the completed steps are undone in the reverse order, where that is
//! safe.

mod attach_and_record;
mod attachment;
mod busy_address;
mod readiness;
mod rejoin;
mod result;
mod second_interface;
mod validate;

use std::time::Duration;

use allocation::cluster_state;
use libcalico::api::Profile;
use libcalico::conversion::{ProfileReach, default_profile};
use libcalico::store::{ProfileOrigin, Store as _};
use libcalico::workload::Orchestrator;
use netconf::{CniError, CniResult};
use node_process::stage;
use os::clock::Clock as _;
use tracing::Instrument as _;

use self::attachment::Attachment;
use crate::context::Context;
use crate::interface::{self, InterfaceConfig};
use crate::ipam::AssignedAddresses;
use crate::reads::{self, AddReads};
use crate::world::World;
use crate::{deferred_del, interface_names, ipam};
use dataplane::{ExistingInterface, PriorInterface};

/// Connects the container to the network, and returns the result to print.
pub async fn add<W: World>(cx: &Context<W>) -> Result<CniResult, CniError> {
    validate::request(&cx.call, &cx.workload)?;
    let mtu = cx.interface().mtu(&cx.files, &cx.clock).await?;
    let netns = interface::open_netns(&cx.network, &cx.call)?;
    Box::pin(deferred_del::replay_before_add(cx)).await?;
    Box::pin(readiness::wait_for_gates(cx)).await?;

    let request = cx.ipam_request();
    let existing_interface =
        cx.interface()
            .find_existing(&cx.network, PriorInterface::Unknown, netns.as_ref())?;
    // The prefetch creates the handle, so an ADD that may still be refused must not prefetch.
    let may_be_refused = matches!(existing_interface, ExistingInterface::Conflicting(_));
    let prefetch = request
        .as_ref()
        .filter(|_| !may_be_refused)
        .and_then(|request| request.prefetch(&cx.store));
    let begun = cx.clock.elapsed();
    let AddReads {
        existing,
        has_profile,
        request,
        addresses,
    } = reads::for_add(cx, request, prefetch)
        .instrument(stage!("read"))
        .await?;

    let first_endpoint = existing.as_ref().map(|entry| &entry.value);
    let first = Box::pin(second_interface::first_result(
        cx,
        &existing_interface,
        first_endpoint,
        &addresses,
        mtu,
    ))
    .await?;
    if let Some(first) = first {
        return Ok(result::merge(cx.call.prev_result.clone(), first));
    }
    let profile = if has_profile {
        None
    } else {
        profile_to_create(cx)
    };
    let is_rejoining =
        existing.is_some() && matches!(request.workload.orchestrator, Orchestrator::Cni(_));
    // The conflicting interface may be the rejoining container's own, which stays, so the conflict
    // is no error here.
    let prior = if is_rejoining && may_be_refused {
        PriorInterface::Unknown
    } else {
        let config = InterfaceConfig {
            call: &cx.call,
            workload: &request.workload,
        };
        Box::pin(config.replaceable(&cx.store, existing_interface)).await?
    };
    interface_names::record_first(cx)?;
    let attachment = Attachment {
        cx,
        request: &request,
        mtu,
        netns,
        prior,
    };
    let result = match existing {
        Some(existing) if is_rejoining => {
            // Releases the node's lock before the interface is created.
            drop(addresses);
            Box::pin(rejoin::rejoin(&attachment, existing, profile)).await?
        }
        existing => {
            let replaced = existing.as_ref().map(|entry| &entry.value);
            let assigned = ipam::assign(cx.ipam_call(), &request.workload, addresses, replaced)
                .instrument(stage!("ipam"))
                .await?;
            Box::pin(ensure_still_unlocked(&attachment, &assigned, begun)).await?;
            let (created, endpoint, ipam) =
                busy_address::attach(&attachment, assigned, existing, profile).await?;
            Box::pin(readiness::wait_for_policy(cx, &request.workload, &endpoint)).await;
            result::from_created(&created, ipam, &cx.call)
        }
    };
    Ok(result::merge(cx.call.prev_result.clone(), result))
}

/// Releases the addresses of `calico-ipam` and fails if the datastore was locked since `begun`.
async fn ensure_still_unlocked(
    attachment: &Attachment<'_, impl World>,
    assigned: &AssignedAddresses,
    begun: Duration,
) -> Result<(), CniError> {
    if assigned.request.is_none() {
        return Ok(());
    }
    let cx = attachment.cx;
    match cluster_state::ensure_still_unlocked(&cx.store, &cx.clock, begun).await {
        Ok(()) => Ok(()),
        Err(error) => Err(attachment
            .roll_back(assigned, "assigning the addresses", error.into())
            .await),
    }
}

/// Returns the profile to create, named after the network; `None` if `policy.type` is set, or if
/// the datastore derives profiles (CNI-140).
fn profile_to_create(cx: &Context<impl World>) -> Option<Profile> {
    let conf = &cx.call.conf;
    if !conf.policy.policy_type.is_empty() {
        return None;
    }
    match cx.store.profile_origin() {
        ProfileOrigin::Derived => return None,
        ProfileOrigin::Stored => {}
    }
    let reach = match cx.workload.orchestrator {
        Orchestrator::Cni(_) => ProfileReach::SameNetwork,
        Orchestrator::Kubernetes(_) => ProfileReach::Anyone,
    };
    Some(default_profile(&conf.name, reach))
}
