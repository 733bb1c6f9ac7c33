//! Repairs or releases the affinity of a node to a block, by the steps of upstream's state machine
//! (IPAM-121).

use libcalico::ipam::{AffinityState, Block, BlockAffinity};
use libcalico::store::{Entry, Revision, Store, StoreError, Write};

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
pub(crate) async fn release_affinity<S: Store>(
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
pub(crate) async fn clear_affinity_of_block<S: Store>(
    store: &S,
    affinity: &Entry<BlockAffinity>,
    block: &Entry<Block>,
) -> Result<(), StoreError> {
    let mut without_owner = block.value.clone();
    without_owner.clear_affinity();
    without_owner.count_write();
    let writes = [
        set_state(affinity, AffinityState::PendingDeletion)?,
        Write::update::<Block>(&block.key, &without_owner, &block.revision)?,
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
