//! Giving back what a failed allocation had taken already (D10).

use libcalico::ipam::{HandleId, ReleaseRequest};
use libcalico::store::Store;

use crate::clock::Clock;
use crate::release_addresses::release_addresses;
use crate::take::Take;

/// Releases the addresses of `takes`. Failure is only logged: the handle still holds them, so DEL will find them.
pub(crate) async fn undo<S: Store, C: Clock>(store: &S, clock: &C, handle: &HandleId, takes: &[Take]) {
    if takes.is_empty() {
        return;
    }
    let held = takes.iter().flat_map(|take| &take.addresses);
    let requests: Vec<ReleaseRequest> =
        held.map(|ip| ReleaseRequest { ip: *ip, handle: Some(handle.clone()), sequence: None }).collect();
    if let Err(error) = release_addresses(store, clock, &requests).await {
        tracing::error!(%handle, %error, "cannot release what a failed allocation took; DEL will");
    }
}
