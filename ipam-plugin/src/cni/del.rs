//! DEL: releases the addresses of a container.

use libcalico::ipam::OldHandle;
use libcalico::store::{Store, WriteModel};
use netconf::CniError;

use super::call::IpamRequest;
use super::release::{Part, Release, ReleaseStep, handle_parts};
use allocation::error::{Result, cni_error};
use allocation::release::{ReleaseInputs, ReleasedHandles};
use allocation::vmi::Ownership;
use os::clock::Clock;

/// Releases the handles in `inputs`, those of [`IpamRequest::handles_to_read`]. A DEL without any
/// address succeeds. The pod is removed as an owner of the addresses that its VMI keeps; these are
/// released only if the VMI is being deleted and no owner remains.
pub async fn del<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    call: &IpamRequest,
    inputs: ReleaseInputs,
) -> Result<(), CniError> {
    let released = async {
        let begun = release_call(store, clock, call, inputs).await?;
        begun.complete_without_endpoints().await
    };
    released.await.map(drop).map_err(|error| cni_error(&error))
}

/// Begins the release that [`del`] describes, for a caller that also changes endpoints.
pub async fn release_call<'a, S: Store, C: Clock>(
    store: &'a S,
    clock: &'a C,
    call: &'a IpamRequest,
    inputs: ReleaseInputs,
) -> Result<ReleaseStep<'a, S, C>> {
    let old = call.old_handle();
    let unread = match store.write_model() {
        WriteModel::Transactional => None,
        // Versions before v3 did not support VMIs that keep addresses.
        WriteModel::PerObject if inputs.is_empty() && call.vmi.is_none() => old.as_ref(),
        WriteModel::PerObject => None,
    };
    let inputs = match unread {
        Some(old) => {
            inputs
                .with_handles(store, std::slice::from_ref(old.id()))
                .await?
        }
        None => inputs,
    };
    if inputs.is_empty() && call.vmi.is_none() {
        tracing::info!(
            handle = %call.container_handle(),
            "no address to release: no handle of the container exists",
        );
        return Ok(ReleaseStep::Done(ReleasedHandles::default()));
    }
    let ownership = call.vmi.as_ref().map(|vmi| Ownership {
        handle: call.handle(),
        vmi,
        node: &call.node,
        before: None,
    });
    let mut parts = Vec::from_iter(ownership.map(Part::Ownership));
    parts.extend(handle_parts(clock, inputs, old, &call.node));
    Release::new(store, clock, parts)
        .of_call(call)
        .read_next()
        .await
}

/// Begins the release of the handles of a container that ran on `node`. Under the handle from
/// before v3, `old`, only the container's own addresses are released. A block that cannot be read
/// causes an error.
pub async fn release_handles<'a, S: Store, C: Clock>(
    store: &'a S,
    clock: &'a C,
    inputs: ReleaseInputs,
    old: Option<OldHandle>,
    node: &str,
) -> Result<ReleaseStep<'a, S, C>> {
    let parts = handle_parts(clock, inputs, old, node);
    Release::new(store, clock, parts).read_next().await
}

/// Removes a pod from the owners of its VMI's addresses, and begins the release of the addresses
/// if the VMI is being deleted.
pub async fn release_ownership<'a, S: Store, C: Clock>(
    store: &'a S,
    clock: &'a C,
    ownership: Ownership<'a>,
) -> Result<ReleaseStep<'a, S, C>> {
    let parts = vec![Part::Ownership(ownership)];
    Release::new(store, clock, parts).read_next().await
}

#[cfg(test)]
mod tests;
