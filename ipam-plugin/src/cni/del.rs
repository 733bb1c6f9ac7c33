//! DEL: gives back what a container holds (IPAM-48).

use libcalico::store::Store;
use netconf::CniError;

use super::call::IpamCall;
use super::error::cni_error;
use crate::clock::Clock;
use crate::error::IpamError;
use crate::kubevirt;
use crate::release::{ReleasePrelude, release};

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
    // Releases before v3 knew no machines that keep addresses.
    let prelude = if prelude.is_empty() && call.machine.is_none() && !store.has_transactions() {
        prelude.with_handles(store, &[call.legacy_handle()]).await?
    } else {
        prelude
    };
    if prelude.is_empty() && call.machine.is_none() {
        return Ok(());
    }
    let lock = call.lock();
    if let Some(machine) = &call.machine {
        Box::pin(kubevirt::leave(store, clock, &call.handle(), machine, &call.node)).await?;
    }
    if prelude.is_empty() {
        return Ok(());
    }
    let released = release(store, clock, prelude.on_node(&call.node)).await?;
    if let Some(mut recent) = call.recent_blocks(lock.as_ref(), store) {
        recent.note_write(&call.network, released.last_write.as_ref());
    }
    tracing::info!(handle = %call.handle(), addresses = released.addresses, "released");
    released.unreadable.first().map_or(Ok(()), |block| Err(IpamError::UnreadableBlock(*block)))
}
