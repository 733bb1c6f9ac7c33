//! Prefetch for an ADD on an API server, where each request is a separate round trip. The node's
//! blocks are read together with the inputs, and the handle is created at the same time.
//!
//! Earlier ADDs on this node stored the names of these blocks in a file (`block_hints.rs`), which
//! is only a hint. The process takes the node's lock before it reads the block and keeps it until
//! the block is written, unless it waits for a busy API server. If another process on the node has
//! the lock, nothing is prefetched, because the block is about to change.

use std::fs;
use std::path::Path;
use std::time::Duration;

use futures::future::join;
use libcalico::ipam::HandleId;
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Answers, ReadBatch, Revision, Store, StoreError, WriteModel};

use crate::alloc::block_hints::BlockHints;
use crate::alloc::inputs::{AllocationInputs, BlockCounts, InputsQuery, StoredHandle};
use crate::alloc::reserved_handle;
use os::clock::Clock;
use os::lock::HostLock;
use os::node_files::NodeFiles;

/// Name prefix of the pods in which VMIs run. The handle of their addresses is not known before the
/// pod was read.
const VIRT_LAUNCHER: &str = "virt-launcher-";

/// Longest read after which the pools are still current. A pool is disabled 500 ms before it is
/// deleted (IPAM-100).
const LONGEST_READ: Duration = Duration::from_millis(400);

/// Longest time for which a call waits for the lock of an ADD that may be prefetching.
const LONGEST_LOCK_WAIT: Duration = Duration::from_secs(1);

/// The prefetch of one ADD: the blocks that it expects to use, before any read.
#[derive(Debug)]
pub struct Prefetch {
    lock: HostLock,
    reserved: BlockCounts,
    others: Vec<Cidr>,
    since: Option<Revision>,
}

impl Prefetch {
    /// Returns the prefetch for a request that wants one address each of `families` for the pod
    /// `pod` of `namespace`; `pod` and `namespace` are empty outside Kubernetes. Returns `None` if
    /// a prefetch is impossible or saves nothing. `lock_file` is the node's lock, and `hints` the
    /// file with the block hints.
    pub fn new<S: Store>(
        store: &S,
        files: &NodeFiles,
        (lock_file, hints): (&Path, &Path),
        network: &str,
        (namespace, pod): (&str, &str),
        families: &[IpVersion],
    ) -> Option<Self> {
        match store.write_model() {
            WriteModel::Transactional => return None,
            WriteModel::PerObject if pod.starts_with(VIRT_LAUNCHER) => return None,
            WriteModel::PerObject => {}
        }
        let lock = files.free_ipam_lock(lock_file)?;
        let hints = BlockHints::read_locked(&lock, Some(hints))?;
        let last = hints.blocks_of(network, namespace);
        let blocks = families.iter().map(|version| {
            let block = last
                .with_room
                .iter()
                .find(|block| block.version() == *version)?;
            Some((*block, 1))
        });
        let reserved: BlockCounts = blocks.collect::<Option<_>>()?;
        let others = last
            .others
            .into_iter()
            .filter(|block| !reserved.contains_key(block))
            .collect();
        let since = hints.last_write(network);
        (!reserved.is_empty()).then_some(Prefetch {
            lock,
            reserved,
            others,
            since,
        })
    }

    /// Returns `query` with the blocks to read.
    pub fn extend(&self, query: InputsQuery) -> InputsQuery {
        let blocks = self.reserved.keys().chain(&self.others).copied().collect();
        InputsQuery {
            blocks,
            blocks_since: self.since.clone(),
            ..query
        }
    }

    /// Reads `batch` and creates `handle` concurrently. The answers are an error also if the
    /// creation has an unknown outcome.
    pub async fn read<S: Store, C: Clock>(
        &self,
        store: &S,
        clock: &C,
        handle: &HandleId,
        batch: &ReadBatch,
    ) -> (Result<Answers, StoreError>, ReservedHandle) {
        let started = clock.elapsed();
        // The server answers the reads while the write waits for its disk.
        let creation = reserved_handle::create_reserved(store, handle, self.reserved.clone());
        let (created, answers) = join(creation, store.read(batch)).await;
        let is_slow = clock.elapsed().saturating_sub(started) > LONGEST_READ;
        let unknown = ReservedHandle {
            stored: StoredHandle::Unread,
            reserved: BlockCounts::new(),
            is_slow,
        };
        match created {
            Ok((stored, reserved)) => (
                answers,
                ReservedHandle {
                    stored,
                    reserved,
                    is_slow,
                },
            ),
            // The handle may exist without counting for this operation, so continuing could count
            // twice.
            Err(error) if error.has_unknown_outcome() => (answers.and(Err(error)), unknown),
            // A permanent error occurs again when the allocation creates the handle.
            Err(error) => {
                tracing::debug!(
                    %handle, %error,
                    "cannot create the handle ahead of the allocation"
                );
                (answers, unknown)
            }
        }
    }

    /// Returns the lock, which the caller keeps until the block is written.
    pub fn into_lock(self) -> HostLock {
        self.lock
    }
}

/// The result of the creation of a handle before any object was read.
#[derive(Debug)]
pub struct ReservedHandle {
    stored: StoredHandle,
    /// The counts of the handle that belong to this operation.
    reserved: BlockCounts,
    is_slow: bool,
}

impl ReservedHandle {
    /// Merges the handle into the inputs.
    pub fn merge_into(self, inputs: &mut AllocationInputs) {
        inputs.is_old = self.is_slow;
        inputs.reserved = self.reserved;
        inputs.handle = self.stored;
    }

    /// Decrements the handle by the counts that belong to this operation.
    pub async fn discard<S: Store, C: Clock>(self, store: &S, clock: &C, handle: &HandleId) {
        reserved_handle::release_reserved(store, clock, handle, self.reserved).await;
    }
}

/// Deletes the file with the hints, so that no ADD on this node prefetches until another ADD has
/// succeeded. Call this if the datastore is not ready. `own_prefetch` is the call's own prefetch,
/// which has the node's lock.
pub async fn stop(
    files: &NodeFiles,
    lock_file: Option<&Path>,
    recent_file: Option<&Path>,
    own_prefetch: Option<&Prefetch>,
) {
    let Some(file) = recent_file.filter(|file| file.exists()) else {
        return;
    };
    // The process that has the lock may be about to write the file.
    let _lock = match (own_prefetch, lock_file) {
        (None, Some(lock_file)) => Some(files.lock(lock_file, LONGEST_LOCK_WAIT).await),
        (Some(_), _) | (None, None) => None,
    };
    if let Err(error) = fs::remove_file(file) {
        tracing::debug!(
            file = %file.display(), %error,
            reason = "the datastore is not ready",
            "cannot delete the hints about this node's blocks"
        );
    }
}

/// Undoes the prefetch in `inputs`.
pub async fn discard<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    handle: &HandleId,
    inputs: &mut AllocationInputs,
) {
    let reserved = std::mem::take(&mut inputs.reserved);
    inputs.blocks.clear();
    if !reserved.is_empty() {
        inputs.handle = StoredHandle::Unread;
        reserved_handle::release_reserved(store, clock, handle, reserved).await;
    }
}

/// Reads the inputs by `query` again. Keeps the prefetched `handle` if it counts addresses for this
/// operation. If the read fails, undoes the prefetch.
pub async fn read_again<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    query: &InputsQuery,
    handle: &HandleId,
    mut inputs: AllocationInputs,
) -> Result<AllocationInputs, StoreError> {
    match AllocationInputs::read(store, query).await {
        Ok(fresh) if inputs.reserved.is_empty() => Ok(fresh),
        Ok(fresh) => Ok(AllocationInputs {
            handle: inputs.handle,
            reserved: inputs.reserved,
            ..fresh
        }),
        Err(error) => {
            discard(store, clock, handle, &mut inputs).await;
            Err(error)
        }
    }
}
