//! DEL: gives back what a container holds (IPAM-48).

use libcalico::ipam::OldHandle;
use libcalico::store::Store;
use netconf::CniError;

use super::call::IpamCall;
use super::error::cni_error;
use crate::clock::Clock;
use crate::error::IpamError;
use crate::kubevirt;
use crate::release::{ReleasePrelude, ReleasedHandles, release};
use crate::release_addresses::release_chosen;

/// Releases the handles in `prelude`, which are those of [`IpamCall::handles_to_read`] that exist. Nothing held is success.
/// A virtual machine that keeps its addresses loses this pod as their owner.
pub async fn del<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    call: &IpamCall,
    prelude: ReleasePrelude,
) -> Result<(), CniError> {
    release_call(store, clock, call, prelude).await.map_err(|error| cni_error(&error))
}

/// [`del`] with an error that tells a datastore out of reach from one that says no.
pub async fn release_call<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    call: &IpamCall,
    prelude: ReleasePrelude,
) -> Result<(), IpamError> {
    let old = call.old_handle();
    // Releases before v3 knew no machines that keep addresses.
    let prelude = match &old {
        Some(old) if prelude.is_empty() && call.machine.is_none() && !store.has_transactions() => {
            prelude.with_handles(store, std::slice::from_ref(old.id())).await?
        }
        _ => prelude,
    };
    if prelude.is_empty() && call.machine.is_none() {
        return Ok(());
    }
    let lock = call.lock();
    if let Some(machine) = &call.machine {
        Box::pin(kubevirt::leave(store, clock, &call.handle(), machine, &call.node)).await?;
    }
    let released = Box::pin(release_handles(store, clock, prelude, old.as_ref(), &call.node)).await?;
    if let Some(mut recent) = call.recent_blocks(lock.as_ref(), store) {
        recent.note_write(&call.network, released.last_write.as_ref());
    }
    tracing::info!(handle = %call.container_handle(), addresses = released.addresses, "released");
    Ok(())
}

/// Releases handles of a container that ran on `node`: the one of before v3 as far as it is the container's, any other
/// whole. A block that cannot be read still holds what it held: an error.
pub async fn release_handles<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    mut prelude: ReleasePrelude,
    old: Option<&OldHandle>,
    node: &str,
) -> Result<ReleasedHandles, IpamError> {
    let found = old.and_then(|old| Some((old, prelude.take(old.id())?)));
    let mut released = release(store, clock, prelude.on_node(node)).await?;
    if let Some((old, handle)) = found {
        released.addresses += release_chosen(store, clock, &handle.value, |block| old.requests(block)).await?.len();
    }
    match released.unreadable.first() {
        Some(block) => Err(IpamError::UnreadableBlock(*block)),
        None => Ok(released),
    }
}

#[cfg(test)]
mod tests;
