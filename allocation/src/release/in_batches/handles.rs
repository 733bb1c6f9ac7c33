//! The handles of a batch.

use futures::future::join_all;
use futures::{StreamExt, stream};
use libcalico::ipam::{Handle, HandleId};
use libcalico::store::{Entry, Store, StoreError, Write, WriteModel};

use super::{HandleCounts, ReleasedBatch};
use crate::handle_refs;
use crate::reads::find_each;
use crate::retry::{Retry, UNDO_TIME};
use crate::write_gate::{WriteGate, write_admitted};
use os::clock::Clock;

/// Maximum number of handles in a transaction, within etcd's limit.
const MAX_IN_TRANSACTION: usize = 64;
/// Number of concurrent transactions: one reads while the other writes.
const TRANSACTIONS: usize = 2;

/// Decrements the handles by `outcome.counts`, and deletes handles without a remaining address.
pub(super) async fn decrement_handles<S: Store, C: Clock, G: WriteGate>(
    store: &S,
    clock: &C,
    gate: &G,
    parallel: usize,
    outcome: &mut ReleasedBatch,
) {
    let counts = std::mem::take(&mut outcome.counts);
    let ids: Vec<&HandleId> = counts.keys().collect();
    let (part, at_once) = match store.write_model() {
        WriteModel::Transactional => (MAX_IN_TRANSACTION, TRANSACTIONS),
        WriteModel::PerObject => (1, parallel),
    };
    let parts = ids.chunks(part).map(|ids| {
        let updates = HandleUpdates {
            store,
            gate,
            counts: &counts,
            written: 0,
            remaining: Vec::new(),
            stopped: false,
        };
        updates.decrement(clock, ids.iter().copied().cloned().collect())
    });
    let parts: Vec<_> = parts.collect();
    let mut updates = stream::iter(parts).buffer_unordered(at_once);
    while let Some(part) = updates.next().await {
        outcome.handles_written += part.written;
        outcome.handles_not_written.extend(part.remaining);
        outcome.stopped |= part.stopped;
    }
}

struct HandleUpdates<'a, S, G> {
    store: &'a S,
    gate: &'a G,
    counts: &'a HandleCounts,
    written: usize,
    remaining: Vec<HandleId>,
    stopped: bool,
}

impl<S: Store, G: WriteGate> HandleUpdates<'_, S, G> {
    async fn decrement<C: Clock>(mut self, clock: &C, mut ids: Vec<HandleId>) -> Self {
        let mut retry = Retry::new(clock, UNDO_TIME);
        loop {
            if !self.gate.admit(0).await {
                self.stopped = true;
                break;
            }
            let writes = match self.plan(&ids).await {
                Ok(writes) => writes,
                Err(error) => {
                    tracing::warn!(
                        handles = ids.len(), %error,
                        "cannot read handles; they may count too many addresses"
                    );
                    break;
                }
            };
            ids = match self.store.write_model() {
                WriteModel::Transactional => self.send_together(writes).await,
                WriteModel::PerObject => self.send_separately(writes).await,
            };
            if ids.is_empty() || self.stopped || !retry.pause().await {
                break;
            }
        }
        self.remaining.append(&mut ids);
        self
    }

    /// Returns the writes that correct the handles' counts. A handle that cannot be read is added
    /// to `remaining`.
    async fn plan(&mut self, ids: &[HandleId]) -> Result<Vec<(HandleId, Write)>, StoreError> {
        let mut writes = Vec::new();
        for (id, handle) in ids.iter().zip(find_each::<Handle>(self.store, ids).await?) {
            match handle.and_then(|entry| entry.map_or(Ok(None), |entry| self.decremented(entry))) {
                Ok(write) => writes.extend(write.map(|write| (id.clone(), write))),
                Err(error) => {
                    tracing::warn!(
                        handle = %id, %error,
                        "cannot decrement the handle; it may count too many addresses"
                    );
                    self.remaining.push(id.clone());
                }
            }
        }
        Ok(writes)
    }

    fn decremented(&self, mut entry: Entry<Handle>) -> Result<Option<Write>, StoreError> {
        let counts = self
            .counts
            .get(&entry.key)
            .into_iter()
            .flatten()
            .map(|(cidr, n)| (*cidr, *n));
        let has_changed = handle_refs::subtract(&mut entry.value, &entry.key, counts);
        has_changed.then(|| handle_refs::write(&entry)).transpose()
    }

    /// Writes the handles in one transaction. If any of them changed meanwhile, returns all to be
    /// read again.
    async fn send_together(&mut self, writes: Vec<(HandleId, Write)>) -> Vec<HandleId> {
        if writes.is_empty() {
            return Vec::new();
        }
        let (ids, writes): (Vec<HandleId>, Vec<Write>) = writes.into_iter().unzip();
        if !self.gate.admit(writes.len()).await {
            self.stopped = true;
            self.remaining.extend(ids);
            return Vec::new();
        }
        match self.store.write(&writes).await {
            Ok(_) => self.written += ids.len(),
            Err(error) if error.cause.is_race() => return ids,
            Err(error) => {
                tracing::warn!(
                    handles = ids.len(), error = %error.cause,
                    "cannot write handles; they may count too many addresses"
                );
                self.remaining.extend(ids);
            }
        }
        Vec::new()
    }

    /// Writes the handles concurrently, and returns those that changed meanwhile. A write whose
    /// response was lost is not repeated, because a second decrement would lose another address.
    async fn send_separately(&mut self, writes: Vec<(HandleId, Write)>) -> Vec<HandleId> {
        let (store, gate) = (self.store, self.gate);
        let sent = writes
            .into_iter()
            .map(async |(id, write)| (id, write_admitted(store, gate, write).await));
        let mut again = Vec::new();
        for (id, result) in join_all(sent).await {
            match result {
                None => {
                    self.stopped = true;
                    self.remaining.push(id);
                }
                Some(Ok(_)) => self.written += 1,
                Some(Err(error)) if error.is_race() => again.push(id),
                Some(Err(error)) => {
                    tracing::warn!(
                        handle = %id, %error,
                        "cannot write the handle; the handle may count too many addresses"
                    );
                    self.remaining.push(id);
                }
            }
        }
        again
    }
}
