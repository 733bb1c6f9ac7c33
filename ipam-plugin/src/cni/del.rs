//! DEL: releases the addresses of a container.

use libcalico::ipam::{Block, OldHandle};
use libcalico::store::{Store, WriteModel};
use netconf::CniError;

use super::call::IpamRequest;
use allocation::alloc::comma_separated;
use allocation::error::{IpamError, Result, cni_error};
use allocation::release::{
    AddressToRelease, Listings, NoListings, ReleaseInputs, ReleasedHandles, addresses_to_release,
    release_from_blocks, release_unlisted,
};
use allocation::vmi;
use os::clock::Clock;
use os::lock::ReleaseLock;

/// Releases the handles in `inputs`, those of [`IpamRequest::handles_to_read`]. A DEL without any
/// address succeeds. The pod is removed as an owner of the addresses that its VMI keeps; these are
/// released only if the VMI is being deleted and no owner remains.
pub async fn del<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    call: &IpamRequest,
    inputs: ReleaseInputs,
) -> Result<(), CniError> {
    release_call(store, clock, call, inputs, &NoListings)
        .await
        .map_err(|error| cni_error(&error))
}

/// Does the same as [`del`] for a caller that also deletes endpoints.
pub async fn release_call<S: Store, C: Clock, L: Listings>(
    store: &S,
    clock: &C,
    call: &IpamRequest,
    inputs: ReleaseInputs,
    listings: &L,
) -> Result<()> {
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
        return Ok(());
    }
    let _releasing = call.begin_release();
    if let Some(vmi) = &call.vmi {
        Box::pin(vmi::release_ownership(
            store,
            clock,
            &call.handle(),
            vmi,
            &call.node,
            None,
            listings,
        ))
        .await?;
    }
    let mut lock = ReleaseLock::new(call.lock_file.as_deref());
    let released = release_handles(
        store,
        clock,
        inputs,
        old.as_ref(),
        &call.node,
        listings,
        &mut lock,
    );
    let released = Box::pin(released).await?;
    if let Some(mut hints) = call.recent_blocks(lock.lock(), store) {
        hints.store_write(&call.network, released.last_write.as_ref());
    }
    let addresses = comma_separated(&released.ips);
    tracing::info!(
        addresses, count = released.addresses, handle = %call.container_handle(),
        "ended the release of the container's addresses"
    );
    Ok(())
}

/// Releases the handles of a container that ran on `node`, each once `listings` no longer list its
/// addresses. Under the handle from before v3, only the container's own addresses are released. A
/// block that cannot be read causes an error.
pub async fn release_handles<S: Store, C: Clock, L: Listings>(
    store: &S,
    clock: &C,
    mut inputs: ReleaseInputs,
    old: Option<&OldHandle>,
    node: &str,
    listings: &L,
    lock: &mut ReleaseLock<'_>,
) -> Result<ReleasedHandles> {
    let old_handle = old.and_then(|old| Some((old, inputs.remove_handle(old.id())?)));
    let mut released = release_unlisted(store, clock, inputs.on_node(node), listings, lock).await?;
    if let Some((old, handle)) = old_handle {
        let leaving =
            addresses_to_release(store, &handle.value, |block| old.requests(block)).await?;
        listings.unlist(&leaving).await?;
        let is_unlisted = |ip| {
            leaving
                .iter()
                .any(|AddressToRelease { ip: unlisted, .. }| *unlisted == ip)
        };
        let requests = |block: &Block| {
            let mut requests = old.requests(block);
            requests.retain(|request| is_unlisted(request.ip));
            requests
        };
        let blocks = handle.value.block.keys().copied();
        let released_ips = release_from_blocks(store, clock, blocks, requests)
            .await?
            .into_addresses()?;
        released.addresses += released_ips.len();
        released.ips.extend(released_ips);
    }
    match released.unreadable.first() {
        Some(block) => Err(IpamError::UnreadableBlock(*block)),
        None => Ok(released),
    }
}

#[cfg(test)]
mod tests;
