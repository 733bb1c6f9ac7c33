//! Prefetch for an ADD, where each request is a separate round trip. The block from which a pod's address will probably
//! come and the node's other blocks are read together with the prelude, and the handle is created at the same time.
//!
//! The last ADD on this node stored the names of these blocks in a file (`recent.rs`). The file is only a hint: the
//! reads show if it is wrong, and the allocation then takes its usual course. The process takes the node's lock before
//! it reads the block and keeps it until the block is written. If another process on the node has the lock, nothing is
//! prefetched, because the block is about to change.
//!
//! The API server's cache may answer for the blocks, at a third of the cost, if it contains the last write of this
//! node.

use std::fs;
use std::path::Path;
use std::time::Duration;

use futures::future::join;
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Answers, ReadBatch, Revision, Store, StoreError};

use crate::clock::Clock;
use crate::cni::IpamCall;
use crate::early_handle::{self, Created};
use crate::lock::HostLock;
use crate::prelude::{Counts, HandleState, Prelude, PreludeQuery};

/// Kubernetes name prefix of the pods in which VMIs run. The handle of their addresses is known only after the pod was
/// read.
const MACHINE_POD: &str = "virt-launcher-";

/// Longest read after which the pools are still current, although a cache may have delayed other answers. A pool is
/// disabled 500 ms before it is deleted (IPAM-100).
const LONGEST_READ: Duration = Duration::from_millis(400);

/// Longest time for which a call that finds the datastore not ready waits for the lock of an ADD that may be
/// prefetching.
const LONGEST_STOP: Duration = Duration::from_secs(1);

/// The prefetch of one ADD: the blocks that it expects to use, before any read.
#[derive(Debug)]
pub struct Ahead {
    lock: HostLock,
    expected: Counts,
    others: Vec<Cidr>,
    since: Option<Revision>,
}

impl Ahead {
    /// Returns the prefetch for `call`, or `None` if there is no hint or a prefetch saves nothing.
    pub fn of<S: Store>(call: &IpamCall, store: &S) -> Option<Self> {
        let is_machine = call.pod.as_ref().is_some_and(|pod| pod.name.starts_with(MACHINE_POD));
        if store.has_transactions() || call.ip.is_some() || is_machine {
            return None;
        }
        let lock = HostLock::try_acquire(call.lock_file.as_deref()?)?;
        let recent = call.recent_blocks(Some(&lock), store)?;
        let last = recent.of(&call.network, call.namespace());
        let wanted = [(IpVersion::V4, call.assign_ipv4), (IpVersion::V6, call.assign_ipv6)];
        let blocks = wanted.into_iter().filter(|(_, wanted)| *wanted).map(|(version, _)| {
            let block = last.with_room.iter().find(|block| block.version() == version)?;
            Some((*block, 1))
        });
        let expected: Counts = blocks.collect::<Option<_>>()?;
        let others = last.others.into_iter().filter(|block| !expected.contains_key(block)).collect();
        let since = recent.since(&call.network);
        (!expected.is_empty()).then_some(Ahead { lock, expected, others, since })
    }

    /// Returns `query` with the blocks to read.
    pub fn extend(&self, query: PreludeQuery) -> PreludeQuery {
        let blocks = self.expected.keys().chain(&self.others).copied().collect();
        PreludeQuery { blocks, blocks_since: self.since.clone(), ..query }
    }

    /// Reads `batch` and creates the handle of `call` concurrently.
    pub async fn read<S: Store, C: Clock>(
        &self,
        store: &S,
        clock: &C,
        call: &IpamCall,
        batch: &ReadBatch,
    ) -> (Result<Answers, StoreError>, EarlyHandle) {
        let (handle, asked) = (call.handle(), clock.elapsed());
        // The write comes first: the server answers the reads while the write waits for its disk.
        let (created, answers) = join(early_handle::create(store, &handle, &self.expected), store.read(batch)).await;
        let took_long = clock.elapsed().saturating_sub(asked) > LONGEST_READ;
        let unknown = EarlyHandle { created: Created::Unknown, expected: Counts::new(), took_long };
        match created {
            Ok(created) => (answers, EarlyHandle { created, expected: self.expected.clone(), took_long }),
            // The handle may exist without counting for this operation, so continuing could count twice. The DEL that
            // follows finds it.
            Err(error @ StoreError::Unavailable { outcome_unknown: true, .. }) => (answers.and(Err(error)), unknown),
            // Any permanent error occurs again when the allocation creates the handle.
            Err(error) => {
                tracing::debug!(%handle, %error, "the handle is not created yet");
                (answers, unknown)
            }
        }
    }

    /// Returns the lock, which the caller keeps until the block is written.
    pub fn into_lock(self) -> HostLock {
        self.lock
    }
}

/// A handle that was created before any object was read.
#[derive(Debug)]
pub struct EarlyHandle {
    created: Created,
    expected: Counts,
    took_long: bool,
}

impl EarlyHandle {
    /// Merges the handle into the prelude.
    pub fn join(self, prelude: &mut Prelude) {
        prelude.is_old = self.took_long;
        if self.created.is_ours() {
            prelude.expected = self.expected;
        }
        prelude.handle = self.created.into();
    }

    /// Decrements the handle again, unless it may be another operation's.
    pub async fn forget<S: Store, C: Clock>(self, store: &S, clock: &C, call: &IpamCall) {
        if let Created::New(_) = self.created {
            early_handle::forget(store, clock, &call.container_handle(), self.expected).await;
        }
    }
}

/// Disables the prefetch on this node until another ADD has succeeded. The datastore is not ready, so every prefetched
/// write would have to be undone. `ahead` is the call's own prefetch, which has the node's lock.
pub fn stop(call: &IpamCall, ahead: Option<&Ahead>) {
    let Some(file) = call.recent_file.as_deref().filter(|file| file.exists()) else { return };
    // The process that has the lock may be about to write the file.
    let wait = |lock_file: &Path| HostLock::acquire_within(lock_file, LONGEST_STOP).ok();
    let _lock = ahead.is_none().then(|| call.lock_file.as_deref().and_then(wait));
    if let Err(error) = fs::remove_file(file) {
        tracing::debug!(file = %file.display(), %error, "the next ADD may write a handle ahead");
    }
}

/// Undoes the prefetch in `prelude`, because the addresses come from elsewhere or are not assigned at all.
pub async fn forget<S: Store, C: Clock>(store: &S, clock: &C, call: &IpamCall, prelude: &mut Prelude) {
    let expected = std::mem::take(&mut prelude.expected);
    prelude.blocks.clear();
    if !expected.is_empty() {
        prelude.handle = HandleState::Unread;
        early_handle::forget(store, clock, &call.container_handle(), expected).await;
    }
}

/// Reads the prelude again and keeps the handle that the prefetch created.
pub async fn read_again<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    call: &IpamCall,
    mut prelude: Prelude,
) -> Result<Prelude, StoreError> {
    match Prelude::read(store, &call.prelude_query()).await {
        Ok(fresh) => Ok(Prelude { handle: prelude.handle, expected: prelude.expected, ..fresh }),
        Err(error) => {
            forget(store, clock, call, &mut prelude).await;
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests;
