//! GC: gives back what containers of this network hold on this node that the runtime no longer knows (CNI-216).

use std::collections::BTreeSet;

use libcalico::ipam::{Block, HandleId};
use libcalico::store::Store;

use crate::clock::Clock;
use crate::error::IpamError;
use crate::release::{ReleasePrelude, release};

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
    let mut stale = BTreeSet::new();
    for held in blocks.iter().flat_map(|block| block.value.allocated()) {
        let on_node = held.attributes().and_then(|attributes| attributes.get("node")).is_some_and(|on| on == node);
        let Some(handle) = held.handle().filter(|_| on_node) else { continue };
        let container = handle.as_str().strip_prefix(network).and_then(|rest| rest.strip_prefix('.'));
        if container.is_some_and(|container| !container.contains('.') && !valid.contains(container)) {
            stale.insert(handle);
        }
    }
    let mut outcome = Collected::default();
    for handle in stale {
        let released = match ReleasePrelude::read(store, std::slice::from_ref(&handle)).await {
            Ok(prelude) => release(store, clock, node, prelude).await.map(|_| ()),
            Err(error) => Err(error.into()),
        };
        match released {
            Ok(()) => outcome.released.push(handle),
            Err(error) => outcome.failed.push((handle, error)),
        }
    }
    Ok(outcome)
}
