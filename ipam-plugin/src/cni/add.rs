//! ADD: assigns addresses to a container and builds the CNI result.

use std::collections::BTreeMap;
use std::net::IpAddr;

use libcalico::kubernetes::VmiPod;
use libcalico::net::IpVersion;
use libcalico::store::Store;
use netconf::result::{IpConfig, IpNet, Route};
use netconf::{CniError, CniResult};

use super::call::IpamRequest;
use allocation::affinity::ensure_labels;
use allocation::alloc::inputs::{AllocationInputs, LONGEST_VALIDITY};
use allocation::alloc::one_address::assign_address;
use allocation::alloc::prefetch;
use allocation::alloc::{Assignment, assign, assign_listed};
use allocation::error::{Result, VmiError, cni_error};
use allocation::vmi::{self, AdoptedAddresses};
use os::clock::Clock;
use os::lock::HostLock;

/// Result of an ADD.
#[derive(Debug)]
pub struct AddResult {
    /// The addresses and routes.
    pub result: CniResult,
    /// The attributes of the owner of the VMI's addresses that this pod replaced; empty if none was
    /// replaced.
    pub replaced: BTreeMap<String, String>,
}

/// Assigns the addresses that the call requests. On error, the addresses that it assigned are
/// released again, as far as possible. `lock` is the node's lock if the caller already has it.
pub async fn add<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    call: &IpamRequest,
    mut inputs: AllocationInputs,
    lock: Option<HostLock>,
) -> Result<AddResult, CniError> {
    if call.vmi.is_some() || call.ip.is_some() || call.any_of.is_some() {
        Box::pin(prefetch::discard(
            store,
            clock,
            &call.container_handle(),
            &mut inputs,
        ))
        .await;
    }
    let (kept, replaced) = Box::pin(adopt_vmi_addresses(store, clock, call, &mut inputs))
        .await
        .map_err(|error| cni_error(&error))?;
    if !kept.is_empty() {
        let mut result = cni_result(&kept);
        if call.vmi.as_ref().is_some_and(VmiPod::is_migration_target) {
            // Until the migration ends, the addresses route to the VMI's source pod. Felix moves
            // the routes.
            result.routes.clear();
        }
        return Ok(AddResult { result, replaced });
    }
    let assigned = assign_addresses(store, clock, call, inputs, lock)
        .await
        .map_err(|error| cni_error(&error))?;
    Ok(AddResult {
        result: cni_result(&assigned),
        replaced,
    })
}

/// Returns the addresses that the pod's VMI already has, which become this pod's whatever the pod
/// requests (IPAM-53). Returns also the attributes of the owner that the pod replaces.
async fn adopt_vmi_addresses<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    call: &IpamRequest,
    inputs: &mut AllocationInputs,
) -> Result<(Vec<Assignment>, BTreeMap<String, String>)> {
    let Some(vmi) = &call.vmi else {
        return Ok(Default::default());
    };
    let (handle, attributes) = (call.handle(), call.attributes(clock.now()));
    let AdoptedAddresses {
        addresses: held,
        handle: read,
        replaced,
    } = vmi::adopt_addresses(store, clock, &handle, vmi, &attributes).await?;
    // A handle read before this point may be the container's instead of the VMI's.
    inputs.handle = read;
    if held.is_empty() && vmi.is_migration_target() {
        return Err(VmiError::NothingHeld(handle).into());
    }
    // `calico` requests specific addresses one at a time, and the VMI keeps one address of each
    // family.
    let is_wanted = |ip: &IpAddr| {
        call.ip
            .is_none_or(|requested| IpVersion::of(requested) == IpVersion::of(*ip))
    };
    let kept = held.into_iter().filter(is_wanted);
    Ok((
        kept.map(|ip| Assignment {
            ip,
            prefix: IpVersion::of(ip).bits(),
        })
        .collect(),
        replaced,
    ))
}

async fn assign_addresses<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    call: &IpamRequest,
    inputs: AllocationInputs,
    lock: Option<HostLock>,
) -> Result<Vec<Assignment>> {
    // Changes that another process made to blocks meanwhile show when the blocks are read.
    let started = clock.elapsed();
    let lock = match lock.filter(HostLock::is_held) {
        Some(lock) => Some(lock),
        None => call.lock().await,
    };
    let has_waited = clock.elapsed().saturating_sub(started) > LONGEST_VALIDITY;
    let inputs = if has_waited || inputs.is_old {
        Box::pin(prefetch::read_again(
            store,
            clock,
            &call.inputs_query(),
            &call.container_handle(),
            inputs,
        ))
        .await?
    } else {
        inputs
    };
    let mut request = call.assign_request(clock.now());
    if let Some(ip) = call.ip {
        Box::pin(ensure_labels(
            store,
            &request.owner(),
            call.labels_marker.as_deref(),
        ))
        .await?;
        return Ok(vec![
            Box::pin(assign_address(store, clock, &request, ip, inputs)).await?,
        ]);
    }
    request.skipped = call.busy_addresses(clock.now());
    request.notes = call.notes(clock.now());
    let mut assigned = match &call.any_of {
        Some(list) => {
            Box::pin(ensure_labels(
                store,
                &request.owner(),
                call.labels_marker.as_deref(),
            ))
            .await?;
            Box::pin(assign_listed(store, clock, &request, list, inputs)).await?
        }
        None => assign(store, clock, &request, inputs).await?,
    };
    assigned.store_searches(&request.notes, clock.now());
    if assigned.has_claimed {
        // Searches on record may cover the pools of the claimed block.
        drop(call.begin_release());
    }
    // The hints are for pods whose addresses are chosen automatically.
    if let Some(mut hints) = call
        .recent_blocks(lock.as_ref(), store)
        .filter(|_| call.any_of.is_none())
    {
        hints.store(
            &call.network,
            call.namespace(),
            assigned.next_hints,
            assigned.last_write.as_ref(),
        );
    }
    match assigned.shortfalls.into_iter().next() {
        Some(shortfall) => Err(shortfall.into()),
        None => Ok(assigned.addresses),
    }
}

/// Address and route have the prefix length of the assignment and keep the host bits (IPAM-40).
fn cni_result(assignments: &[Assignment]) -> CniResult {
    let nets = assignments
        .iter()
        .filter_map(|assignment| IpNet::new(assignment.ip, assignment.prefix));
    let ips = nets.clone().map(|address| IpConfig {
        interface: None,
        address,
        gateway: None,
    });
    CniResult {
        ips: ips.collect(),
        routes: nets.map(Route::to).collect(),
        ..CniResult::default()
    }
}
