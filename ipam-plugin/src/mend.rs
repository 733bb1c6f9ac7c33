//! [`Mend`]: repairs or releases the affinity of a node to a block, by the steps of upstream's state machine
//! (IPAM-121).

use libcalico::ipam::{AffinityState, Block, BlockAffinity};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Revision, Store, StoreError, Write};

use crate::knowledge::Knowledge;

/// A repair of an affinity. Each write is a compare-and-swap against the objects read, so any change in between makes
/// it fail.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Mend {
    /// Deletes the affinity, because the block is another owner's.
    Drop { affinity: Entry<BlockAffinity> },
    /// Makes the affinity pending, rewrites the block and confirms the affinity, because the block is the owner's. The
    /// rewrite makes a concurrent release of the block fail (IPAM-123).
    Confirm { affinity: Entry<BlockAffinity>, block: Entry<Block> },
    /// Marks the affinity as pending deletion, deletes the empty block and deletes the affinity.
    GiveUp { affinity: Entry<BlockAffinity>, block: Entry<Block> },
}

impl Mend {
    pub(crate) fn cidr(&self) -> Cidr {
        match self {
            Mend::Drop { affinity } | Mend::Confirm { affinity, .. } | Mend::GiveUp { affinity, .. } => {
                affinity.key.cidr
            }
        }
    }

    /// Runs the repair and records the writes in `known`. After an error `known` is out of date.
    pub(crate) async fn apply<S: Store>(self, store: &S, known: &mut Knowledge) -> Result<(), StoreError> {
        match self {
            Mend::Drop { affinity } => {
                store.delete::<BlockAffinity>(&affinity.key, Some(&affinity.revision)).await?;
                known.deleted_affinity(&affinity.key);
            }
            Mend::Confirm { affinity, block } => {
                let (affinity, block) = reconfirm(store, affinity, block).await?;
                known.wrote_block(block.value, block.revision);
                known.wrote_affinity(affinity);
            }
            Mend::GiveUp { affinity, block } => {
                give_up(store, &affinity, &block).await?;
                known.deleted_block(block.key);
                known.deleted_affinity(&affinity.key);
            }
        }
        Ok(())
    }
}

/// Confirms the affinity to a block that is the owner's. The block is rewritten, so that a concurrent release of it
/// fails.
pub(crate) async fn reconfirm<S: Store>(
    store: &S,
    affinity: Entry<BlockAffinity>,
    block: Entry<Block>,
) -> Result<(Entry<BlockAffinity>, Entry<Block>), StoreError> {
    let mut rewritten = block.value;
    rewritten.count_write();
    let writes = [
        set_state(&affinity, AffinityState::Pending)?,
        Write::update::<Block>(&block.key, &rewritten, &block.revision)?,
    ];
    let revisions = store.write(&writes).await.map_err(|error| error.cause)?;
    let [pending, revision] = exactly(revisions)?;
    let affinity = confirm(store, Entry { revision: pending, ..affinity }).await?;
    Ok((affinity, Entry { key: block.key, value: rewritten, revision }))
}

/// Releases the affinity to an empty block. Both arguments must be as just read.
pub(crate) async fn give_up<S: Store>(
    store: &S,
    affinity: &Entry<BlockAffinity>,
    block: &Entry<Block>,
) -> Result<(), StoreError> {
    let writes = [
        set_state(affinity, AffinityState::PendingDeletion)?,
        Write::delete::<Block>(&block.key, Some(&block.revision)),
    ];
    release(store, affinity, &writes).await
}

/// Releases the affinity to a block in which others still have addresses: the block stays without an owner (IPAM-126).
pub(crate) async fn disown<S: Store>(
    store: &S,
    affinity: &Entry<BlockAffinity>,
    block: &Entry<Block>,
) -> Result<(), StoreError> {
    let mut disowned = block.value.clone();
    disowned.clear_affinity();
    disowned.count_write();
    let writes = [
        set_state(affinity, AffinityState::PendingDeletion)?,
        Write::update::<Block>(&block.key, &disowned, &block.revision)?,
    ];
    release(store, affinity, &writes).await
}

/// Writes the release. The affinity is deleted only at the revision at which it was marked, because another process of
/// the owner may have made it pending again.
async fn release<S: Store>(store: &S, affinity: &Entry<BlockAffinity>, writes: &[Write]) -> Result<(), StoreError> {
    let revisions = store.write(writes).await.map_err(|error| error.cause)?;
    let marked = revisions.into_iter().next().ok_or_else(no_revision)?;
    match store.delete::<BlockAffinity>(&affinity.key, Some(&marked)).await {
        Err(StoreError::NotFound { .. }) => Ok(()),
        outcome => outcome,
    }
}

/// Confirms an affinity that is pending at its revision. Succeeds if another process confirmed it meanwhile. Tries
/// again if another process made it pending again or the connection failed. Fails if another process is deleting it.
pub(crate) async fn confirm<S: Store>(
    store: &S,
    pending: Entry<BlockAffinity>,
) -> Result<Entry<BlockAffinity>, StoreError> {
    const ATTEMPTS: usize = 3;
    let mut entry = pending;
    let mut attempt = 1;
    loop {
        entry.value.state = AffinityState::Confirmed;
        let error = match store.update::<BlockAffinity>(&entry.key, &entry.value, &entry.revision).await {
            Ok(revision) => return Ok(Entry { revision, ..entry }),
            Err(error) => error,
        };
        let Ok(found) = store.get::<BlockAffinity>(&entry.key).await else { return Err(error) };
        match found.value.state {
            AffinityState::Confirmed => return Ok(found),
            AffinityState::Pending if attempt < ATTEMPTS => entry = found,
            _ => return Err(error),
        }
        attempt += 1;
    }
}

fn set_state(affinity: &Entry<BlockAffinity>, state: AffinityState) -> Result<Write, StoreError> {
    let value = BlockAffinity { state, ..affinity.value.clone() };
    Write::update::<BlockAffinity>(&affinity.key, &value, &affinity.revision)
}

pub(crate) fn exactly<const N: usize>(revisions: Vec<Revision>) -> Result<[Revision; N], StoreError> {
    revisions.try_into().map_err(|_| no_revision())
}

pub(crate) fn no_revision() -> StoreError {
    StoreError::Other("the datastore did not return a revision for each write".into())
}
