//! GC: gives back what containers of this network hold on this node that the runtime no longer knows (CNI-216).

use std::collections::{BTreeMap, BTreeSet};

use libcalico::ipam::{Block, HandleId, ReleaseRequest};
use libcalico::store::Store;

use crate::clock::Clock;
use crate::error::IpamError;
use crate::release::{ReleasePrelude, release};
use crate::release_addresses::release_addresses;

/// What was collected.
#[derive(Debug, Default)]
pub struct Collected {
    /// Handles released.
    pub released: Vec<HandleId>,
    /// Handles that could not be, and why.
    pub failed: Vec<(HandleId, IpamError)>,
}

/// Releases the handles of `network` on `node` whose container is not in `valid`.
///
/// A container id with a dot in it is left alone: such a handle may as well be of a network whose name begins like this
/// one, or be a virtual machine's, which outlives its container.
pub async fn gc<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    network: &str,
    node: &str,
    valid: &BTreeSet<String>,
) -> Result<Collected, IpamError> {
    let blocks = store.list::<Block>(&None).await?;
    let mut stale = BTreeMap::<HandleId, Vec<ReleaseRequest>>::new();
    for held in blocks.iter().flat_map(|block| block.value.allocated()) {
        let on_node = held.attributes().and_then(|attributes| attributes.get("node")).is_some_and(|on| on == node);
        let Some(handle) = held.handle().filter(|_| on_node) else { continue };
        let container = handle.as_str().strip_prefix(network).and_then(|rest| rest.strip_prefix('.'));
        if container.is_some_and(|container| !container.contains('.') && !valid.contains(container)) {
            let leaked = ReleaseRequest { ip: held.ip, handle: Some(handle.clone()), sequence: held.sequence };
            stale.entry(handle).or_default().push(leaked);
        }
    }
    let mut outcome = Collected::default();
    for (handle, leaked) in stale {
        match collect(store, clock, &handle, &leaked).await {
            Ok(()) => outcome.released.push(handle),
            Err(error) => outcome.failed.push((handle, error)),
        }
    }
    Ok(outcome)
}

/// Releases by the handle, which is exact; addresses whose handle is lost one by one, unless they changed hands since
/// they were seen (IPAM-184, W2).
async fn collect<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    handle: &HandleId,
    leaked: &[ReleaseRequest],
) -> Result<(), IpamError> {
    let prelude = ReleasePrelude::read(store, std::slice::from_ref(handle)).await?;
    if prelude.is_empty() {
        return release_addresses(store, clock, leaked).await.map(|_| ());
    }
    release(store, clock, prelude).await.map(|_| ())
}
