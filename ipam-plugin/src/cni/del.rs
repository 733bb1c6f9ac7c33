//! DEL: gives back what a container holds (IPAM-48).

use libcalico::ipam::{Block, OldHandle};
use libcalico::store::Store;
use netconf::CniError;

use super::call::IpamCall;
use super::error::cni_error;
use crate::assignment_log::joined;
use crate::clock::Clock;
use crate::error::IpamError;
use crate::kubevirt;
use crate::release::{
    Leaving, Listings, NoListings, ReleasePrelude, ReleasedHandles, Turn, leaving_of, release_unlisted,
};
use crate::release_addresses::release_chosen;

/// Releases the handles in `prelude`, which are those of [`IpamCall::handles_to_read`] that exist. Nothing held is
/// success. A virtual machine that keeps its addresses loses this pod as their owner.
pub async fn del<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    call: &IpamCall,
    prelude: ReleasePrelude,
) -> Result<(), CniError> {
    release_call(store, clock, call, prelude, &NoListings).await.map_err(|error| cni_error(&error))
}

/// [`del`] for a caller that keeps endpoints, with an error that tells a datastore out of reach from one that says no.
pub async fn release_call<S: Store, C: Clock, L: Listings>(
    store: &S,
    clock: &C,
    call: &IpamCall,
    prelude: ReleasePrelude,
    listings: &L,
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
        tracing::info!(handle = %call.container_handle(), "no address to release");
        return Ok(());
    }
    let _releasing = call.releasing();
    if let Some(machine) = &call.machine {
        Box::pin(kubevirt::leave(store, clock, &call.handle(), machine, &call.node, listings)).await?;
    }
    let mut turn = Turn::of(call.lock_file.as_deref());
    let released = release_handles(store, clock, prelude, old.as_ref(), &call.node, listings, &mut turn);
    let released = Box::pin(released).await?;
    if let Some(mut recent) = call.recent_blocks(turn.lock(), store) {
        recent.note_write(&call.network, released.last_write.as_ref());
    }
    let addresses = joined(&released.ips);
    tracing::info!(addresses, count = released.addresses, handle = %call.container_handle(), "released addresses");
    Ok(())
}

/// Releases handles of a container that ran on `node`: the one of before v3 as far as it is the container's, any other
/// whole; each once `listings` gave its addresses up. A block that cannot be read still holds what it held: an error.
pub async fn release_handles<S: Store, C: Clock, L: Listings>(
    store: &S,
    clock: &C,
    mut prelude: ReleasePrelude,
    old: Option<&OldHandle>,
    node: &str,
    listings: &L,
    turn: &mut Turn<'_>,
) -> Result<ReleasedHandles, IpamError> {
    let found = old.and_then(|old| Some((old, prelude.take(old.id())?)));
    let mut released = release_unlisted(store, clock, prelude.on_node(node), listings, turn).await?;
    if let Some((old, handle)) = found {
        let leaving = leaving_of(store, &handle.value, |block| old.requests(block)).await?;
        listings.unlist(&leaving).await?;
        let is_unlisted = |ip| leaving.iter().any(|Leaving { ip: unlisted, .. }| *unlisted == ip);
        let requests = |block: &Block| {
            let mut requests = old.requests(block);
            requests.retain(|request| is_unlisted(request.ip));
            requests
        };
        let chosen = release_chosen(store, clock, &handle.value, requests).await?;
        released.addresses += chosen.len();
        released.ips.extend(chosen);
    }
    match released.unreadable.first() {
        Some(block) => Err(IpamError::UnreadableBlock(*block)),
        None => Ok(released),
    }
}

#[cfg(test)]
mod tests;
