//! The blocks of a batch: read together, each written once.

use std::collections::BTreeMap;

use futures::future::join_all;
use libcalico::ipam::{Block, ReleaseError, Released};
use libcalico::net::Cidr;
use libcalico::store::{Entry, ReadBatch, Store, StoreError};

use super::{ReleasedBatch, Requests, WriteGate};
use crate::block_writes::write_released;
use crate::clock::Clock;
use crate::error::IpamError;
use crate::retry::{OPERATION, Retry};

/// The planned write of a block.
struct Change {
    block: Entry<Block>,
    after: Block,
    released: Released,
    refused: Vec<ReleaseError>,
    /// True if the block needs a write.
    wanted: bool,
}

/// The outcome of a write.
enum Written {
    Yes(Change),
    /// The write lost a race or has an unknown outcome. The block is read again.
    Again(Change),
    No(Cidr, IpamError),
    Stopped,
}

/// Releases addresses from the blocks of `wave`, until each block is written, needs no write, or cannot be written.
pub(super) async fn release_from<S: Store, C: Clock, G: WriteGate>(
    store: &S,
    clock: &C,
    gate: &G,
    requests: &impl Requests,
    wave: &[Cidr],
    cooldown: i64,
    outcome: &mut ReleasedBatch,
) {
    let mut retry = Retry::new(clock, OPERATION);
    let mut left = wave.to_vec();
    // Changes whose write has an unknown outcome or lost a race.
    let mut doubtful: BTreeMap<Cidr, Change> = BTreeMap::new();
    while !left.is_empty() {
        let blocks = match read(store, &left).await {
            Ok(blocks) => blocks,
            Err(error) => {
                outcome.failed.extend(left.into_iter().map(|cidr| (cidr, error.clone().into())));
                return;
            }
        };
        let mut changes = Vec::new();
        for (cidr, block) in blocks {
            let sent = doubtful.remove(&cidr);
            match block {
                Ok(Some(block)) => match sent.filter(|sent| block.value == sent.after) {
                    // The write whose response was lost took effect.
                    Some(sent) => note(sent, outcome),
                    None => match plan(block, requests, cooldown, clock) {
                        Ok(change) if !change.wanted => note_others(change, outcome),
                        Ok(change) => changes.push(change),
                        Err(error) => outcome.failed.push((cidr, error)),
                    },
                },
                // A missing block has no addresses. If this batch's write deleted it, the handles still have to be
                // decremented.
                Ok(None) => match sent.filter(Change::deletes) {
                    Some(sent) => note(sent, outcome),
                    None => outcome.missing.push(cidr),
                },
                Err(error) => outcome.failed.push((cidr, error.into())),
            }
        }
        left.clear();
        for written in join_all(changes.into_iter().map(|change| write(store, gate, change))).await {
            match written {
                Written::Yes(change) => note(change, outcome),
                Written::Again(change) => {
                    left.push(change.block.key);
                    doubtful.insert(change.block.key, change);
                }
                Written::No(cidr, error) => outcome.failed.push((cidr, error)),
                Written::Stopped => outcome.stopped = true,
            }
        }
        if !left.is_empty() && !retry.pause().await {
            outcome.failed.extend(left.drain(..).map(|cidr| (cidr, IpamError::Contention)));
        }
    }
}

impl Change {
    fn deletes(&self) -> bool {
        self.after.is_empty() && self.after.owner().is_none()
    }
}

type Found = Result<Option<Entry<Block>>, StoreError>;

async fn read<S: Store>(store: &S, blocks: &[Cidr]) -> Result<Vec<(Cidr, Found)>, StoreError> {
    let mut batch = ReadBatch::new();
    let tickets: Vec<_> = blocks.iter().map(|cidr| (*cidr, batch.get::<Block>(cidr))).collect();
    let answers = store.read(&batch).await?;
    Ok(tickets.into_iter().map(|(cidr, ticket)| (cidr, answers.get(&ticket))).collect())
}

fn plan<C: Clock>(
    block: Entry<Block>,
    requests: &impl Requests,
    cooldown: i64,
    clock: &C,
) -> Result<Change, IpamError> {
    let requests = requests(&block.value);
    let mut after = block.value.clone();
    let collected = after.collect_garbage(cooldown, clock.now())?;
    let (released, refused) = after.release_unchanged(&requests, cooldown, clock.now())?;
    let wanted = !released.released.is_empty() || requests.is_empty() && collected;
    Ok(Change { block, after, released, refused, wanted })
}

async fn write<S: Store, G: WriteGate>(store: &S, gate: &G, mut change: Change) -> Written {
    let entry = Entry { value: change.after.clone(), ..change.block.clone() };
    let write = match write_released(&entry) {
        Ok(write) => write,
        Err(error) => return Written::No(entry.key, error.into()),
    };
    if !gate.admit(1).await {
        return Written::Stopped;
    }
    // The block as stored.
    change.after.count_write();
    match store.write_one(write).await {
        Ok(_) => Written::Yes(change),
        Err(error) if error.is_race() || error.has_unknown_outcome() => Written::Again(change),
        Err(error) => Written::No(entry.key, error.into()),
    }
}

/// Records a change that was written.
fn note(change: Change, outcome: &mut ReleasedBatch) {
    let cidr = change.block.key;
    outcome.blocks_written += 1;
    outcome.released.extend(change.released.released.iter().map(|ip| (cidr, *ip)));
    for (handle, n) in &change.released.per_handle {
        *outcome.counts.entry(handle.clone()).or_default().entry(cidr).or_default() += n;
    }
    if let Some(owner) = change.after.owner().filter(|_| change.after.is_empty()) {
        outcome.emptied.push((cidr, owner));
    }
    note_others(change, outcome);
}

/// Records the requests that a change does not apply to.
fn note_others(change: Change, outcome: &mut ReleasedBatch) {
    let cidr = change.block.key;
    outcome.unallocated.extend(change.released.unallocated.into_iter().map(|ip| (cidr, ip)));
    outcome.refused.extend(change.refused.into_iter().map(|refusal| (cidr, refusal)));
}
