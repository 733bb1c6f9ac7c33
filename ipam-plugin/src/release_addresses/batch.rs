//! [`release_batch`]: gives back many addresses of known blocks, with one write per block and one per handle.

mod blocks;
mod handles;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;

use libcalico::ipam::{Block, Handle, HandleId, IpamConfig, Owner, ReleaseError, ReleaseRequest, TheConfig};
use libcalico::net::Cidr;
use libcalico::store::{Store, StoreError};

use self::blocks::release_from;
use self::handles::settle;
use crate::affinity::release_if_deselected;
use crate::clock::Clock;
use crate::error::IpamError;
use crate::gated::Gated;

/// Asked before each write: whoever releases many addresses may have to slow down, or to stop on the way.
pub trait WriteGate: Sync {
    /// Waits until so many more writes may be sent; `false` when none may any more.
    fn admit(&self, writes: usize) -> impl Future<Output = bool> + Send;
}

/// Lets every write through.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenGate;

impl WriteGate for OpenGate {
    async fn admit(&self, _writes: usize) -> bool {
        true
    }
}

/// What to give back from a block that was just read. Asked whenever it was read anew. A block from which nothing is to be
/// given back is only looked through for addresses that have rested long enough, and written if there are such (IPAM-161).
pub trait Requests: Fn(&Block) -> Vec<ReleaseRequest> + Sync {}

impl<F: Fn(&Block) -> Vec<ReleaseRequest> + Sync> Requests for F {}

/// What became of what was asked for.
#[derive(Debug, Default)]
pub struct ReleasedBatch {
    /// Given back.
    pub released: Vec<(Cidr, IpAddr)>,
    /// Were free or resting.
    pub unallocated: Vec<(Cidr, IpAddr)>,
    /// Blocks that are not there.
    pub missing: Vec<Cidr>,
    /// Held otherwise than the request says: allocated anew meanwhile.
    pub refused: Vec<(Cidr, ReleaseError)>,
    /// Blocks from which nothing was given back, and why.
    pub failed: Vec<(Cidr, IpamError)>,
    /// How many blocks were written.
    pub blocks_written: usize,
    /// How many handles were written or deleted.
    pub handles_written: usize,
    /// Handles that may count too much now, because they could not be written.
    pub handles_left: Vec<HandleId>,
    /// The gate was closed: what is missing was not tried.
    pub stopped: bool,
    /// Blocks without addresses now, and whose they are.
    emptied: Vec<(Cidr, Owner)>,
    /// What is to be taken off handles.
    counts: Counts,
}

/// Per handle and block, how many addresses were given back.
type Counts = BTreeMap<HandleId, BTreeMap<Cidr, usize>>;

/// Gives addresses of `blocks` back, `parallel` blocks or handles at a time. Each address is compared with what its request says
/// when its block is read, and once more by the revision when the block is written; a mismatch keeps only itself.
///
/// All blocks are written before any handle (IPAM-128): until then a handle counts too much, which is legal, and stays so
/// if the process ends in between. No list of handles is read: only those that held the addresses are.
///
/// # Errors
/// When the allocator's settings cannot be read. Whatever fails later concerns single blocks and handles.
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
    // What blocks no longer hold is taken off the handles even when no further block may be written: if the gate is
    // closed it says so here too.
    settle(store, clock, gate, std::mem::take(&mut outcome.counts), parallel, &mut outcome).await;
    let emptied = std::mem::take(&mut outcome.emptied);
    let gated = Gated::new(store, gate);
    for wave in emptied.chunks(MOST_AT_ONCE) {
        if !gate.admit(0).await {
            break;
        }
        release_if_deselected(&gated, wave).await;
    }
    Ok(outcome)
}

/// Gives back those of a handle's addresses that `requests` names of its blocks, and returns them.
///
/// # Errors
/// When the addresses of a block could not be given back; those of others are.
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

/// As many reads as one transaction of etcd takes.
const MOST_AT_ONCE: usize = 128;

#[cfg(test)]
mod tests;
