//! [`Mend`]: putting a claim in order, or undoing one (IPAM-121, IPAM-123, IPAM-126).

use libcalico::ipam::{AffinityState, Block, BlockAffinity};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Revision, Store, StoreError, Write};

use crate::knowledge::Knowledge;

/// What to do about a claim. Each write is a compare-and-swap of what was read, so a change in between makes it fail.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Mend {
    /// The block is another's: delete the claim.
    Drop { affinity: Entry<BlockAffinity> },
    /// The block is the owner's but the claim does not say so: make it pending, rewrite the block so that whoever is
    /// releasing it finds out, confirm the claim.
    Confirm { affinity: Entry<BlockAffinity>, block: Entry<Block> },
    /// The block is empty: mark the claim as being deleted, delete the block, delete the claim.
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

    /// Does it, and notes in `known` what it wrote. After an error `known` is out of date.
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

/// Confirms the claim to a block that is the owner's. The block is rewritten, so that a process that is releasing it finds out.
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

/// Releases a claim to an empty block. Nothing else may be known of the two than what was just read.
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

/// Releases a claim to a block that others still hold addresses in: the block stays, with no owner (IPAM-126).
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

/// The claim is deleted only as it was marked: another process of the owner may have made it pending again (the race
/// of upstream's test at t:rw 539).
async fn release<S: Store>(store: &S, affinity: &Entry<BlockAffinity>, writes: &[Write]) -> Result<(), StoreError> {
    let revisions = store.write(writes).await.map_err(|error| error.cause)?;
    let marked = revisions.into_iter().next().ok_or_else(no_revision)?;
    match store.delete::<BlockAffinity>(&affinity.key, Some(&marked)).await {
        Err(StoreError::NotFound { .. }) => Ok(()),
        outcome => outcome,
    }
}

/// Confirms a claim that is pending at its revision. Whoever confirmed it in the meantime did our work
/// (IPAM-125); whoever made it pending again, or a broken connection, makes us try again; whoever is deleting it wins.
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
