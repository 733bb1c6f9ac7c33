//! The handles of a batch: read together, each written once.

use futures::StreamExt;
use futures::future::join_all;
use futures::stream;
use libcalico::ipam::{Handle, HandleId};
use libcalico::store::{Entry, ReadBatch, Store, StoreError, Write};

use super::{HandleCounts, ReleasedBatch};
use crate::clock::Clock;
use crate::handle_refs;
use crate::retry::{Retry, UNDO};
use crate::write_gate::WriteGate;

/// Maximum number of handles in a transaction, within etcd's limit.
const MOST_IN_TRANSACTION: usize = 64;
/// Number of concurrent transactions: one reads while the other writes.
const TRANSACTIONS: usize = 2;

/// The outcome for some handles.
#[derive(Default)]
struct HandleUpdates {
    written: usize,
    left: Vec<HandleId>,
    stopped: bool,
}

/// Decrements the handles by `counts`, and deletes handles without a remaining address.
pub(super) async fn decrement_handles<S: Store, C: Clock, G: WriteGate>(
    store: &S,
    clock: &C,
    gate: &G,
    counts: HandleCounts,
    parallel: usize,
    outcome: &mut ReleasedBatch,
) {
    let ids: Vec<HandleId> = counts.keys().cloned().collect();
    // Without transactions, each handle is a separate request, and no request waits for others.
    let (part, at_once) = if store.has_transactions() { (MOST_IN_TRANSACTION, TRANSACTIONS) } else { (1, parallel) };
    let parts: Vec<Vec<HandleId>> = ids.chunks(part).map(<[HandleId]>::to_vec).collect();
    let parts = parts.into_iter().map(|ids| decrement_some(store, clock, gate, &counts, ids));
    let mut updates = stream::iter(parts).buffer_unordered(at_once);
    while let Some(part) = updates.next().await {
        outcome.handles_written += part.written;
        outcome.handles_left.extend(part.left);
        outcome.stopped |= part.stopped;
    }
}

async fn decrement_some<S: Store, C: Clock, G: WriteGate>(
    store: &S,
    clock: &C,
    gate: &G,
    counts: &HandleCounts,
    mut ids: Vec<HandleId>,
) -> HandleUpdates {
    let mut retry = Retry::new(clock, UNDO);
    let mut updates = HandleUpdates::default();
    loop {
        if !gate.admit(0).await {
            updates.stopped = true;
            break;
        }
        let writes = match plan(store, counts, &ids).await {
            Ok(writes) => writes,
            Err(error) => {
                tracing::warn!(handles = ids.len(), %error, "handles that may count too much cannot be read");
                break;
            }
        };
        ids.clear();
        if store.has_transactions() {
            send_together(store, gate, writes, &mut ids, &mut updates).await;
        } else {
            send_apart(store, gate, writes, &mut ids, &mut updates).await;
        }
        if ids.is_empty() || updates.stopped || !retry.pause().await {
            break;
        }
    }
    updates.left.append(&mut ids);
    updates
}

/// Returns the writes that correct the handles' counts. A missing handle needs no write. A handle that cannot be read,
/// or that counts fewer addresses than were released, gets none; `calico-ipam check` reports it.
async fn plan<S: Store>(
    store: &S,
    counts: &HandleCounts,
    ids: &[HandleId],
) -> Result<Vec<(HandleId, Write)>, StoreError> {
    let mut batch = ReadBatch::new();
    let tickets: Vec<_> = ids.iter().map(|id| batch.get::<Handle>(id)).collect();
    let answers = store.read(&batch).await?;
    let mut writes = Vec::new();
    for (id, ticket) in ids.iter().zip(&tickets) {
        let write = match answers.get(ticket) {
            Ok(None) => continue,
            Ok(Some(entry)) => decremented(entry, counts),
            Err(error) => Err(error),
        };
        match write {
            Ok(write) => writes.extend(write.map(|write| (id.clone(), write))),
            Err(error) => tracing::warn!(handle = %id, %error, "cannot take released addresses off a handle"),
        }
    }
    Ok(writes)
}

fn decremented(mut entry: Entry<Handle>, counts: &HandleCounts) -> Result<Option<Write>, StoreError> {
    let (id, mut changed) = (entry.key.clone(), false);
    for (cidr, n) in counts.get(&id).into_iter().flatten() {
        match entry.value.decrement(&id, *cidr, *n) {
            Ok(()) => changed = true,
            Err(error) => tracing::warn!(%error, "handle"),
        }
    }
    changed.then(|| handle_refs::write(&entry)).transpose()
}

/// Writes the handles in one transaction. If any of them changed meanwhile, none is written, and all are read again.
async fn send_together<S: Store, G: WriteGate>(
    store: &S,
    gate: &G,
    writes: Vec<(HandleId, Write)>,
    again: &mut Vec<HandleId>,
    updates: &mut HandleUpdates,
) {
    if writes.is_empty() {
        return;
    }
    let (ids, writes): (Vec<HandleId>, Vec<Write>) = writes.into_iter().unzip();
    if !gate.admit(writes.len()).await {
        updates.stopped = true;
        updates.left.extend(ids);
        return;
    }
    match store.write(&writes).await {
        Ok(_) => updates.written += ids.len(),
        Err(error) if error.cause.is_race() => again.extend(ids),
        Err(error) => {
            tracing::warn!(handles = ids.len(), error = %error.cause, "handles may count too many addresses");
            updates.left.extend(ids);
        }
    }
}

/// Writes the handles concurrently. A write whose response was lost is not repeated, because a second decrement would
/// lose another address.
async fn send_apart<S: Store, G: WriteGate>(
    store: &S,
    gate: &G,
    writes: Vec<(HandleId, Write)>,
    again: &mut Vec<HandleId>,
    updates: &mut HandleUpdates,
) {
    let sent = writes.into_iter().map(|(id, write)| async move {
        let is_admitted = gate.admit(1).await;
        (id, if is_admitted { Some(store.write_one(write).await) } else { None })
    });
    for (id, result) in join_all(sent).await {
        match result {
            None => {
                updates.stopped = true;
                updates.left.push(id);
            }
            Some(Ok(_)) => updates.written += 1,
            Some(Err(error)) if error.is_race() => again.push(id),
            Some(Err(error)) => {
                tracing::warn!(handle = %id, %error, "handle may count too many addresses");
                updates.left.push(id);
            }
        }
    }
}
