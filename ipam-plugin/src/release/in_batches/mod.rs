//! [`release_batch`]: releases many addresses of known blocks, with one write per block and one per handle.

mod blocks;
mod handles;
mod outcome;

use std::net::IpAddr;

use libcalico::ipam::{Handle, IpamConfig, TheConfig};
use libcalico::net::Cidr;
use libcalico::store::{Store, StoreError};

use self::blocks::release_from;
use self::handles::decrement_handles;
pub use self::outcome::{ReleasedBatch, Requests};
use crate::affinity::release_if_deselected;
use crate::clock::Clock;
use crate::error::IpamError;
use crate::write_gate::{GatedStore, OpenGate, WriteGate};

/// Releases addresses of `blocks`, `parallel` blocks or handles at a time. Each address is compared with its request
/// when its block is read, and again by the revision when the block is written. A mismatch rejects only its own
/// request.
///
/// All blocks are written before any handle (IPAM-128). Until then a handle counts too many addresses, which is legal,
/// and which is the state that an interrupted process leaves. Only the handles of released addresses are read, not all
/// handles.
///
/// # Errors
/// Returns an error if the allocator's settings cannot be read. Later errors concern single blocks and handles.
pub async fn release_batch<S: Store, C: Clock, G: WriteGate>(
    store: &S,
    clock: &C,
    gate: &G,
    blocks: &[Cidr],
    requests: impl Requests,
    parallel: usize,
) -> Result<ReleasedBatch, IpamError> {
    let mut outcome = ReleasedBatch::default();
    if blocks.is_empty() {
        return Ok(outcome);
    }
    let cooldown = match store.get::<IpamConfig>(&TheConfig).await {
        Ok(entry) => entry.value.ip_cooldown_seconds,
        Err(StoreError::NotFound { .. }) => 0,
        Err(error) => return Err(error.into()),
    };
    let parallel = parallel.clamp(1, MOST_AT_ONCE);
    for wave in blocks.chunks(parallel) {
        release_from(store, clock, gate, &requests, wave, cooldown, &mut outcome).await;
        if outcome.stopped {
            break;
        }
    }
    // Handles of released addresses are decremented even if no further block may be written. The gate is asked here
    // again.
    decrement_handles(store, clock, gate, std::mem::take(&mut outcome.counts), parallel, &mut outcome).await;
    let emptied = std::mem::take(&mut outcome.emptied);
    let gated = GatedStore::new(store, gate);
    for wave in emptied.chunks(MOST_AT_ONCE) {
        if !gate.admit(0).await {
            break;
        }
        release_if_deselected(&gated, wave).await;
    }
    Ok(outcome)
}

/// Releases those of a handle's addresses that `requests` selects from its blocks, and returns them.
///
/// # Errors
/// Returns an error if the addresses of a block could not be released; those of other blocks are.
pub async fn release_chosen<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    handle: &Handle,
    requests: impl Requests,
) -> Result<Vec<IpAddr>, IpamError> {
    let blocks: Vec<Cidr> = handle.block.keys().copied().collect();
    let outcome = release_batch(store, clock, &OpenGate, &blocks, requests, blocks.len()).await?;
    match outcome.failed.into_iter().next() {
        Some((_, error)) => Err(error),
        None => Ok(outcome.released.into_iter().map(|(_, ip)| ip).collect()),
    }
}

/// As many reads as fit into a transaction of etcd.
const MOST_AT_ONCE: usize = 128;

#[cfg(test)]
mod tests;
