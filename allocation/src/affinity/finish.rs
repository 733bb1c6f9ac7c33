//! [`finish_affinity`]: completes or deletes an unfinished affinity (IPAM-121).

use libcalico::ipam::{AffinityKey, AffinityState, Block, BlockAffinity};
use libcalico::net::Cidr;
use libcalico::store::{Entry, ReadBatch, Revision, Store, StoreError};

use crate::affinity::repair::{no_revision, reconfirm, release_affinity};
use crate::block_writes::PriorAffinity;
use crate::error::{IpamError, Result};
use crate::reads::find;
use crate::write_gate::{GatedStore, WriteGate};

/// The result of [`finish_affinity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishedAffinity {
    /// The block is the owner's, and the affinity is confirmed now.
    Confirmed,
    /// The affinity was pending deletion, or the block overlapped with another block, and the block
    /// was empty; both are deleted.
    Released,
    /// The owner had no such block, and the affinity is deleted.
    Deleted,
    /// No change was necessary or possible, or a concurrent write interrupted the change.
    Unchanged,
}

/// Completes or deletes an affinity that is still at `revision`, in upstream's order, or creates a
/// missing one for the owner's block. To claim: affinity pending, block, affinity confirmed. To
/// release: affinity pendingDeletion, block deleted, affinity deleted. If `gate` refuses a write,
/// the result is [`IpamError::Stopped`], and any process may continue from that state.
///
/// A process that claims the block may be between its writes of the affinity and of the block.
/// After the affinity is deleted, the block is therefore read again. If it is the owner's, its
/// affinity is restored.
pub async fn finish_affinity<S: Store, G: WriteGate>(
    store: &S,
    gate: &G,
    key: &AffinityKey,
    revision: &Revision,
) -> Result<FinishedAffinity> {
    let gated = GatedStore::new(store, gate);
    match finish(&gated, key, revision).await {
        _ if gated.has_refused() => Err(IpamError::Stopped),
        Err(error) if error.is_race() => Ok(FinishedAffinity::Unchanged),
        outcome => Ok(outcome?),
    }
}

async fn finish<S: Store>(
    store: &S,
    key: &AffinityKey,
    revision: &Revision,
) -> Result<FinishedAffinity, StoreError> {
    let mut batch = ReadBatch::new();
    let (affinity, block) = (
        batch.get::<BlockAffinity>(key),
        batch.get::<Block>(&key.cidr),
    );
    let answers = store.read(&batch).await?;
    let affinity = answers.get(&affinity)?;
    let block = answers
        .get(&block)?
        .filter(|block| block.value.owner().as_ref() == Some(&key.owner));
    let finished = match (affinity, block) {
        // An interrupted call may have deleted the affinity before it read the block again.
        (None, Some(block)) => {
            return confirm_or_release(store, key, PriorAffinity::Absent, block).await;
        }
        (None, None) => FinishedAffinity::Unchanged,
        (Some(affinity), _) if affinity.revision != *revision => FinishedAffinity::Unchanged,
        // An inconsistent block needs an operator's decision.
        (Some(_), Some(block)) if block.value.verify().is_err() => FinishedAffinity::Unchanged,
        (Some(affinity), Some(block)) => match affinity.value.state {
            AffinityState::Confirmed | AffinityState::Unset => FinishedAffinity::Unchanged,
            AffinityState::PendingDeletion if block.value.is_empty() => {
                release_affinity(store, &affinity, &block).await?;
                FinishedAffinity::Released
            }
            AffinityState::Pending | AffinityState::PendingDeletion => {
                confirm_or_release(store, key, PriorAffinity::Existing(affinity), block).await?
            }
        },
        (Some(affinity), None) => {
            store
                .delete::<BlockAffinity>(key, Some(&affinity.revision))
                .await?;
            FinishedAffinity::Deleted
        }
    };
    if !matches!(
        finished,
        FinishedAffinity::Deleted | FinishedAffinity::Released
    ) {
        return Ok(finished);
    }
    let block = find::<Block>(store, &key.cidr).await?;
    match block.filter(|block| block.value.owner().as_ref() == Some(&key.owner)) {
        Some(block) => confirm_or_release(store, key, PriorAffinity::Absent, block).await,
        None => Ok(finished),
    }
}

/// Returns true if another block overlaps with the block `cidr`. A process that was killed after it
/// created the block may not have read the ranges (IPAM-106).
async fn has_overlap<S: Store>(store: &S, cidr: &Cidr) -> Result<bool, StoreError> {
    let mut batch = ReadBatch::new();
    let ranges = batch.list_keys::<Block>(&Some(cidr.version()));
    let answers = store.read(&batch).await?;
    Ok(answers
        .listed_keys(&ranges)
        .any(|range| range.conflicts_with(cidr)))
}

/// Confirms the affinity of the owner's block. If another block overlaps with the block, deletes
/// both instead, or leaves the affinity unconfirmed if the block has addresses.
async fn confirm_or_release<S: Store>(
    store: &S,
    key: &AffinityKey,
    prior: PriorAffinity,
    block: Entry<Block>,
) -> Result<FinishedAffinity, StoreError> {
    if !has_overlap(store, &key.cidr).await? {
        reconfirm(store, &key.owner, &prior, block).await?;
        return Ok(FinishedAffinity::Confirmed);
    }
    let affinity = match prior {
        PriorAffinity::Existing(affinity) => affinity,
        PriorAffinity::Absent => {
            let revisions = store
                .write(&[prior.pending_write(&key.owner, key.cidr)?])
                .await;
            let revision = revisions
                .map_err(|error| error.cause)?
                .pop()
                .ok_or_else(no_revision)?;
            prior.pending_entry(&key.owner, key.cidr, revision)
        }
    };
    if !block.value.is_empty() {
        return Ok(FinishedAffinity::Unchanged);
    }
    release_affinity(store, &affinity, &block).await?;
    Ok(FinishedAffinity::Released)
}

#[cfg(test)]
mod tests;
