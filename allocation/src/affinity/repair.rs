//! Repairs or releases the affinity of a node to a block, by the steps of upstream's state machine
//! (IPAM-121).

use libcalico::ipam::{AffinityOwner, AffinityState, Block, BlockAffinity};
use libcalico::store::{Entry, Revision, Store, StoreError, Write, ignore_missing};

use crate::block_writes::PriorAffinity;

/// Makes the owner's affinity to its block pending again, or for the first time, and confirms it.
/// The block is rewritten, so that a concurrent release of the block fails.
pub(crate) async fn reconfirm<S: Store>(
    store: &S,
    owner: &AffinityOwner,
    prior: &PriorAffinity,
    block: Entry<Block>,
) -> Result<(Entry<BlockAffinity>, Entry<Block>), StoreError> {
    let mut rewritten = block.value;
    rewritten.count_write();
    let update = Write::update::<Block>(&block.key, &rewritten, &block.revision)?;
    let written = store
        .write(&[prior.pending_write(owner, block.key)?, update])
        .await
        .map_err(|error| error.cause)?;
    let [pending, revision]: [Revision; 2] = written.try_into().map_err(|_| no_revision())?;
    let affinity = confirm(store, prior.pending_entry(owner, block.key, pending)).await?;
    Ok((
        affinity,
        Entry {
            key: block.key,
            value: rewritten,
            revision,
        },
    ))
}

/// Deletes an empty block, or removes the owner of a block with addresses (IPAM-126), and deletes
/// the affinity.
///
/// The affinity is deleted only at the revision at which it was marked, because another process of
/// the owner may have made it pending again.
pub(crate) async fn release_affinity<S: Store>(
    store: &S,
    affinity: &Entry<BlockAffinity>,
    block: &Entry<Block>,
) -> Result<(), StoreError> {
    let marked = BlockAffinity {
        state: AffinityState::PendingDeletion,
        ..affinity.value.clone()
    };
    let mark = Write::update::<BlockAffinity>(&affinity.key, &marked, &affinity.revision)?;
    let release = if block.value.is_empty() {
        Write::delete::<Block>(&block.key, Some(&block.revision))
    } else {
        let mut without_owner = block.value.clone();
        without_owner.clear_affinity();
        without_owner.count_write();
        Write::update::<Block>(&block.key, &without_owner, &block.revision)?
    };
    let revisions = store
        .write(&[mark, release])
        .await
        .map_err(|error| error.cause)?;
    let marked = revisions.into_iter().next().ok_or_else(no_revision)?;
    ignore_missing(
        store
            .delete::<BlockAffinity>(&affinity.key, Some(&marked))
            .await,
    )
}

/// Confirms an affinity that is pending at its revision. Makes at most three attempts while the
/// stored affinity is pending, and succeeds if it is confirmed.
pub(crate) async fn confirm<S: Store>(
    store: &S,
    mut entry: Entry<BlockAffinity>,
) -> Result<Entry<BlockAffinity>, StoreError> {
    const ATTEMPTS: usize = 3;
    let mut attempt = 1;
    loop {
        entry.value.state = AffinityState::Confirmed;
        let error = match store
            .update::<BlockAffinity>(&entry.key, &entry.value, &entry.revision)
            .await
        {
            Ok(revision) => return Ok(Entry { revision, ..entry }),
            Err(error) => error,
        };
        let Ok(stored) = store.get::<BlockAffinity>(&entry.key).await else {
            return Err(error);
        };
        match stored.value.state {
            AffinityState::Confirmed => return Ok(stored),
            AffinityState::Pending if attempt < ATTEMPTS => entry = stored,
            _ => return Err(error),
        }
        attempt += 1;
    }
}

pub(crate) fn no_revision() -> StoreError {
    StoreError::Other("the datastore did not return a revision for each write".into())
}
