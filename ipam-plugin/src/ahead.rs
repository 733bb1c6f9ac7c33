//! Working ahead: where each request is a round trip of its own, the block that a pod's address will most likely come
//! from and the node's others are read together with everything else, and its handle created at the same time.
//!
//! Which blocks these are, the last ADD on this node left in a file (`recent.rs`). It is a hint (IPAM-216): what is not
//! so shows when all is read, and then things go their usual way. The node's lock is taken before the block is read and
//! not given back until it is written. Where another process of the node has it there is no use in reading a block that
//! is about to change.
//!
//! The blocks may come out of the API server's cache, which is a third of the work, if that has seen what the last ADD
//! or DEL of this node wrote.

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

/// How Kubernetes names the pods that virtual machines run in: what holds their addresses shows only when the pod was
/// read.
const MACHINE_POD: &str = "virt-launcher-";

/// A cache may be waited for, while pools were read at once. Whoever deletes one disables it 500 ms before (IPAM-100).
const LONGEST_READ: Duration = Duration::from_millis(400);

/// The longest time that a call which finds the datastore not ready waits for an ADD that may be working ahead.
const LONGEST_STOP: Duration = Duration::from_secs(1);

/// What an ADD expects before it has read anything.
#[derive(Debug)]
pub struct Ahead {
    lock: HostLock,
    expected: Counts,
    others: Vec<Cidr>,
    since: Option<Revision>,
}

impl Ahead {
    /// What `call` may expect; `None` where nothing is known, or nothing would be gained.
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

    /// `query`, with the blocks to read.
    pub fn extend(&self, query: PreludeQuery) -> PreludeQuery {
        let blocks = self.expected.keys().chain(&self.others).copied().collect();
        PreludeQuery { blocks, blocks_since: self.since.clone(), ..query }
    }

    /// Answers `batch`, and creates the handle of `call` meanwhile.
    pub async fn read<S: Store, C: Clock>(
        &self,
        store: &S,
        clock: &C,
        call: &IpamCall,
        batch: &ReadBatch,
    ) -> (Result<Answers, StoreError>, EarlyHandle) {
        let (handle, asked) = (call.handle(), clock.elapsed());
        // The write first: while it waits for the server's disk the reads are answered.
        let (created, answers) = join(early_handle::create(store, &handle, &self.expected), store.read(batch)).await;
        let took_long = clock.elapsed().saturating_sub(asked) > LONGEST_READ;
        let unknown = EarlyHandle { created: Created::Unknown, expected: Counts::new(), took_long };
        match created {
            Ok(created) => (answers, EarlyHandle { created, expected: self.expected.clone(), took_long }),
            // It may be there and count for nobody: whoever went on would count twice. The DEL that follows finds it.
            Err(error @ StoreError::Unavailable { outcome_unknown: true, .. }) => (answers.and(Err(error)), unknown),
            // Whatever is wrong shows again when it is created in its turn.
            Err(error) => {
                tracing::debug!(%handle, %error, "the handle is not created yet");
                (answers, unknown)
            }
        }
    }

    /// The lock, to be held until the block is written.
    pub fn into_lock(self) -> HostLock {
        self.lock
    }
}

/// A handle that was created before anything was known.
#[derive(Debug)]
pub struct EarlyHandle {
    created: Created,
    expected: Counts,
    took_long: bool,
}

impl EarlyHandle {
    /// Makes it part of what was read.
    pub fn join(self, prelude: &mut Prelude) {
        prelude.is_old = self.took_long;
        if self.created.is_ours() {
            prelude.expected = self.expected;
        }
        prelude.handle = self.created.into();
    }

    /// Takes it back, unless somebody else's may be in its place.
    pub async fn forget<S: Store, C: Clock>(self, store: &S, clock: &C, call: &IpamCall) {
        if let Created::New(_) = self.created {
            early_handle::forget(store, clock, &call.container_handle(), self.expected).await;
        }
    }
}

/// Has no ADD of this node work ahead until another one has succeeded: the datastore is not ready, and whatever is
/// written ahead has to be taken back. `ahead`: what the call itself did, which has the node's lock.
pub fn stop(call: &IpamCall, ahead: Option<&Ahead>) {
    let Some(file) = call.recent_file.as_deref().filter(|file| file.exists()) else { return };
    // The process that has the lock may be about to write the file.
    let wait = |lock_file: &Path| HostLock::acquire_within(lock_file, LONGEST_STOP).ok();
    let _lock = ahead.is_none().then(|| call.lock_file.as_deref().and_then(wait));
    if let Err(error) = fs::remove_file(file) {
        tracing::debug!(file = %file.display(), %error, "the next ADD may write a handle ahead");
    }
}

/// Takes back what `prelude` holds of work that was done ahead: the addresses come from elsewhere, or not at all.
pub async fn forget<S: Store, C: Clock>(store: &S, clock: &C, call: &IpamCall, prelude: &mut Prelude) {
    let expected = std::mem::take(&mut prelude.expected);
    prelude.blocks.clear();
    if !expected.is_empty() {
        prelude.handle = HandleState::Unread;
        early_handle::forget(store, clock, &call.container_handle(), expected).await;
    }
}

/// What was read, read again; what was done stays done.
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
