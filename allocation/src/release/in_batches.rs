//! [`release_batch`]: releases many addresses of known blocks, usually with one write per block and
//! one per handle.

mod blocks;
mod handles;

use std::collections::BTreeMap;
use std::net::IpAddr;

use libcalico::ipam::{
    AffinityOwner, Block, HandleId, IpamConfig, IpamConfigKey, ReleaseError, ReleaseRequest,
};
use libcalico::net::Cidr;
use libcalico::store::Store;

use self::blocks::release_from;
use self::handles::decrement_handles;
use crate::affinity::release_if_deselected;
use crate::error::{IpamError, Result};
use crate::reads::find;
use crate::write_gate::{GatedStore, OpenGate, WriteGate};
use os::clock::Clock;

/// Releases addresses of `blocks`, `parallel` blocks or handles at a time. A mismatch between an
/// address and its request rejects only this request.
///
/// All blocks are written before any handle (IPAM-128). Until then a handle counts too many
/// addresses, which is legal, and which is the state that an interrupted process leaves.
///
/// # Errors
/// Returns an error if the allocator's settings cannot be read. Later errors concern single blocks
/// and handles.
pub async fn release_batch<S: Store, C: Clock, G: WriteGate>(
    store: &S,
    clock: &C,
    gate: &G,
    blocks: &[Cidr],
    requests: impl Requests,
    parallel: usize,
) -> Result<ReleasedBatch> {
    let mut outcome = ReleasedBatch::default();
    if blocks.is_empty() {
        return Ok(outcome);
    }
    let cooldown = find::<IpamConfig>(store, &IpamConfigKey)
        .await?
        .map_or(0, |entry| entry.value.ip_cooldown_seconds);
    let parallel = parallel.clamp(1, MAX_PARALLEL);
    for chunk in blocks.chunks(parallel) {
        release_from(store, clock, gate, &requests, chunk, cooldown, &mut outcome).await;
        if outcome.stopped {
            break;
        }
    }
    // Handles of released addresses are decremented as far as the gate admits it, also after it
    // refused a block.
    decrement_handles(store, clock, gate, parallel, &mut outcome).await;
    let emptied = std::mem::take(&mut outcome.emptied);
    let gated = GatedStore::new(store, gate);
    for chunk in emptied.chunks(MAX_PARALLEL) {
        if !gate.admit(0).await {
            break;
        }
        release_if_deselected(&gated, chunk).await;
    }
    Ok(outcome)
}

/// Releases the addresses that `requests` selects from `blocks`, without a gate.
pub async fn release_from_blocks<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    blocks: impl IntoIterator<Item = Cidr>,
    requests: impl Requests,
) -> Result<ReleasedBatch> {
    let blocks: Vec<Cidr> = blocks.into_iter().collect();
    release_batch(store, clock, &OpenGate, &blocks, requests, blocks.len()).await
}

impl ReleasedBatch {
    /// Returns the released addresses, or the first error for a block.
    pub fn into_addresses(self) -> Result<Vec<IpAddr>> {
        match self.failed.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(self.released.into_iter().map(|(_, ip)| ip).collect()),
        }
    }
}

/// Maximum number of blocks that are read together: as many reads as fit into a transaction of
/// etcd.
const MAX_PARALLEL: usize = 128;

/// Selects the addresses to release from a block that was just read, again whenever the block was
/// read again.
pub trait Requests: Fn(&Block) -> Vec<ReleaseRequest> + Sync {}

impl<F: Fn(&Block) -> Vec<ReleaseRequest> + Sync> Requests for F {}

/// The outcome of a batch.
#[derive(Debug, Default)]
pub struct ReleasedBatch {
    /// The released addresses.
    pub released: Vec<(Cidr, IpAddr)>,
    /// Addresses that were free or cooling down.
    pub unallocated: Vec<(Cidr, IpAddr)>,
    /// Missing blocks.
    pub missing: Vec<Cidr>,
    /// Allocations that do not match the request.
    pub refused: Vec<(Cidr, ReleaseError)>,
    /// Blocks whose addresses could not be released, with the errors.
    pub failed: Vec<(Cidr, IpamError)>,
    /// Number of blocks written.
    pub blocks_written: usize,
    /// Number of handles written or deleted.
    pub handles_written: usize,
    /// Handles that may count too many addresses, because they could not be read or written.
    pub handles_not_written: Vec<HandleId>,
    /// True if the gate closed. The remaining blocks and handles were not written.
    pub stopped: bool,
    pub(super) emptied: Vec<(Cidr, AffinityOwner)>,
    pub(super) counts: HandleCounts,
}

pub(super) type HandleCounts = BTreeMap<HandleId, BTreeMap<Cidr, usize>>;

#[cfg(test)]
mod tests;
