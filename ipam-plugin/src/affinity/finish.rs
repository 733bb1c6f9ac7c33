//! [`finish_claim`]: a claim that was begun and not ended, or that stands for no block, is finished or dropped (IPAM-121).

use libcalico::ipam::{AffinityKey, AffinityState, Block, BlockAffinity};
use libcalico::store::{Entry, ReadBatch, Revision, Store, StoreError, Write};

use crate::error::IpamError;
use crate::gated::Gated;
use crate::mend::{confirm, exactly, give_up, reconfirm};
use crate::release_addresses::WriteGate;

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishedClaim {
    /// The block is the owner's, and the claim says so now.
    Confirmed,
    /// The block was empty and about to be given up; it is gone with the claim.
    GivenUp,
    /// The claim stood for no block of the owner, and is gone.
    Dropped,
    /// There is nothing to do, or somebody changed claim or block meanwhile.
    Left,
}

/// Finishes or drops a claim that is as it was at `revision`, in upstream's order: a claim that is pending, the block, a claim that
/// is confirmed; to give a block up a claim that is pendingDeletion, the block, no claim. Each write is a compare-and-swap. When
/// `gate` is closed on the way it is [`IpamError::Stopped`], and anybody may go on from there.
///
/// A claimant may be between its two writes all the same, however long ago it began: where a claim was dropped the block is
/// read again, and has its claim back if it is the owner's.
pub async fn finish_claim<S: Store, G: WriteGate>(
    store: &S,
    gate: &G,
    key: &AffinityKey,
    revision: &Revision,
) -> Result<FinishedClaim, IpamError> {
    let gated = Gated::new(store, gate);
    let outcome = finish(&gated, key, revision).await;
    match outcome {
        _ if gated.has_refused() => Err(IpamError::Stopped),
        Err(error) if error.is_race() => Ok(FinishedClaim::Left),
        outcome => Ok(outcome?),
    }
}

async fn finish<S: Store>(store: &S, key: &AffinityKey, revision: &Revision) -> Result<FinishedClaim, StoreError> {
    let mut batch = ReadBatch::new();
    let (affinity, block) = (batch.get::<BlockAffinity>(key), batch.get::<Block>(&key.cidr));
    let answers = store.read(&batch).await?;
    let affinity = answers.get(&affinity)?;
    let block = answers.get(&block)?.filter(|block| block.value.owner().as_ref() == Some(&key.owner));
    let finished = match (affinity, block) {
        // Dropped by a call that was cut off before it read the block again.
        (None, block) => return reclaim(store, key, block).await,
        (Some(affinity), _) if affinity.revision != *revision => FinishedClaim::Left,
        // A block that contradicts itself is for a person to look at.
        (Some(_), Some(block)) if block.value.verify().is_err() => FinishedClaim::Left,
        (Some(affinity), Some(block)) => match affinity.value.state {
            AffinityState::Confirmed | AffinityState::Unset => FinishedClaim::Left,
            AffinityState::PendingDeletion if block.value.is_empty() => {
                give_up(store, &affinity, &block).await?;
                FinishedClaim::GivenUp
            }
            AffinityState::Pending | AffinityState::PendingDeletion => {
                reconfirm(store, affinity, block).await?;
                FinishedClaim::Confirmed
            }
        },
        (Some(affinity), None) => {
            store.delete::<BlockAffinity>(key, Some(&affinity.revision)).await?;
            FinishedClaim::Dropped
        }
    };
    match finished {
        FinishedClaim::Dropped | FinishedClaim::GivenUp => {
            let block = match store.get::<Block>(&key.cidr).await {
                Ok(block) => Some(block).filter(|block| block.value.owner().as_ref() == Some(&key.owner)),
                Err(StoreError::NotFound { .. }) => None,
                Err(error) => return Err(error),
            };
            Ok(match reclaim(store, key, block).await? {
                FinishedClaim::Left => finished,
                reclaimed => reclaimed,
            })
        }
        finished => Ok(finished),
    }
}

/// Gives a block of the owner, which has no claim, its claim back. Whoever makes one meanwhile is the owner.
async fn reclaim<S: Store>(
    store: &S,
    key: &AffinityKey,
    block: Option<Entry<Block>>,
) -> Result<FinishedClaim, StoreError> {
    let Some(block) = block else { return Ok(FinishedClaim::Left) };
    let pending = BlockAffinity { state: AffinityState::Pending, ..BlockAffinity::default() };
    let mut rewritten = block.value;
    rewritten.count_write();
    let writes = [
        Write::create::<BlockAffinity>(key, &pending)?,
        Write::update::<Block>(&block.key, &rewritten, &block.revision)?,
    ];
    let revisions = store.write(&writes).await.map_err(|error| error.cause)?;
    let [revision, _] = exactly(revisions)?;
    confirm(store, Entry { key: key.clone(), value: pending, revision }).await?;
    Ok(FinishedClaim::Confirmed)
}

#[cfg(test)]
mod tests;
