//! The blocks of a batch.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use libcalico::ipam::{Block, ReleaseError, Released};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Revision, Store, StoreError};

use super::{ReleasedBatch, Requests};
use crate::block_writes::{is_deleted_by_release, write_released};
use crate::error::{IpamError, Result};
use crate::reads::find_each;
use crate::retry::{OPERATION_TIME, Retry};
use crate::write_gate::{WriteGate, write_admitted};
use os::clock::Clock;

struct BlockUpdate {
    block: Entry<Block>,
    updated: Block,
    released: Released,
    refused: Vec<ReleaseError>,
    is_needed: bool,
}

pub(super) async fn release_from<S: Store, C: Clock, G: WriteGate>(
    store: &S,
    clock: &C,
    gate: &G,
    requests: &impl Requests,
    chunk: &[Cidr],
    cooldown: i64,
    outcome: &mut ReleasedBatch,
) {
    let mut retry = Retry::new(clock, OPERATION_TIME);
    let mut remaining = chunk.to_vec();
    // Changes whose write has an unknown outcome or lost a race.
    let mut unconfirmed: BTreeMap<Cidr, BlockUpdate> = BTreeMap::new();
    // The blocks to whose write another program answered. The next read decides if they need
    // another write.
    let mut answered_by_others = BTreeSet::new();
    while !remaining.is_empty() {
        let blocks = match find_each::<Block>(store, &remaining).await {
            Ok(blocks) => blocks,
            Err(error) => {
                outcome.failed.extend(
                    remaining
                        .into_iter()
                        .map(|cidr| (cidr, error.clone().into())),
                );
                return;
            }
        };
        let mut updates = Vec::new();
        for (cidr, block) in remaining.drain(..).zip(blocks) {
            let sent = unconfirmed.remove(&cidr);
            match block {
                Ok(Some(block)) => match sent.filter(|sent| block.value == sent.updated) {
                    // The write whose response was lost took effect.
                    Some(sent) => record(sent, outcome),
                    None => match plan(block, requests, cooldown, clock) {
                        Ok(update) if !update.is_needed => record_rejected(update, outcome),
                        Ok(update) => updates.push(update),
                        Err(error) => outcome.failed.push((cidr, error)),
                    },
                },
                // If this batch's write deleted the block, the handles still have to be
                // decremented.
                Ok(None) => match sent.filter(|sent| is_deleted_by_release(&sent.updated)) {
                    Some(sent) => record(sent, outcome),
                    None => outcome.missing.push(cidr),
                },
                Err(error) => outcome.failed.push((cidr, error.into())),
            }
        }
        for (update, sent) in
            join_all(updates.into_iter().map(|update| write(store, gate, update))).await
        {
            let cidr = update.block.key;
            match sent {
                None => outcome.stopped = true,
                Some(Ok(_)) => record(update, outcome),
                Some(Err(error))
                    if error.is_foreign_answer() && !answered_by_others.insert(cidr) =>
                {
                    outcome.failed.push((cidr, error.into()));
                }
                Some(Err(error)) if error.is_race() || error.has_unknown_outcome() => {
                    remaining.push(cidr);
                    unconfirmed.insert(cidr, update);
                }
                Some(Err(error)) => outcome.failed.push((cidr, error.into())),
            }
        }
        if !remaining.is_empty() && !retry.pause().await {
            outcome.failed.extend(
                remaining
                    .drain(..)
                    .map(|cidr| (cidr, IpamError::Contention)),
            );
        }
    }
}

fn plan<C: Clock>(
    block: Entry<Block>,
    requests: &impl Requests,
    cooldown: i64,
    clock: &C,
) -> Result<BlockUpdate> {
    let requests = requests(&block.value);
    let mut updated = block.value.clone();
    let collected = updated.collect_garbage(cooldown, clock.now())?;
    let (released, refused) = updated.release_unchanged(&requests, cooldown, clock.now())?;
    let is_needed = !released.released.is_empty() || requests.is_empty() && collected;
    Ok(BlockUpdate {
        block,
        updated,
        released,
        refused,
        is_needed,
    })
}

/// Returns `None` in place of the answer if the gate refuses the write.
async fn write<S: Store, G: WriteGate>(
    store: &S,
    gate: &G,
    mut update: BlockUpdate,
) -> (BlockUpdate, Option<Result<Revision, StoreError>>) {
    let write = write_released(&Entry {
        value: update.updated.clone(),
        ..update.block.clone()
    });
    // The block as this write stores it.
    update.updated.count_write();
    let sent = match write {
        Ok(write) => write_admitted(store, gate, write).await,
        Err(error) => Some(Err(error)),
    };
    (update, sent)
}

fn record(update: BlockUpdate, outcome: &mut ReleasedBatch) {
    let cidr = update.block.key;
    outcome.blocks_written += 1;
    outcome
        .released
        .extend(update.released.released.iter().map(|ip| (cidr, *ip)));
    for (handle, n) in &update.released.per_handle {
        *outcome
            .counts
            .entry(handle.clone())
            .or_default()
            .entry(cidr)
            .or_default() += n;
    }
    if let Some(owner) = update.updated.owner().filter(|_| update.updated.is_empty()) {
        outcome.emptied.push((cidr, owner));
    }
    record_rejected(update, outcome);
}

/// Records the requests that an update does not apply to.
fn record_rejected(update: BlockUpdate, outcome: &mut ReleasedBatch) {
    let cidr = update.block.key;
    outcome
        .unallocated
        .extend(update.released.unallocated.into_iter().map(|ip| (cidr, ip)));
    outcome
        .refused
        .extend(update.refused.into_iter().map(|refusal| (cidr, refusal)));
}
