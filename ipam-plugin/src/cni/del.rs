//! DEL: gives back what a container holds (IPAM-48).

use libcalico::store::Store;
use netconf::CniError;

use super::call::IpamCall;
use super::error::cni_error;
use crate::clock::Clock;
use crate::error::IpamError;
use crate::release::{ReleasePrelude, release};

/// Releases the handles in `prelude`, which are those of [`IpamCall::handles`] that exist. Nothing held is success.
pub async fn del<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    call: &IpamCall,
    prelude: ReleasePrelude,
) -> Result<(), CniError> {
    let released = release(store, clock, &call.node, prelude).await.map_err(|error| cni_error(&error))?;
    tracing::info!(handle = %call.handle(), addresses = released.addresses, "released");
    match released.unreadable.first() {
        Some(block) => Err(cni_error(&IpamError::UnreadableBlock(*block))),
        None => Ok(()),
    }
}
