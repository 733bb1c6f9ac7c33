//! [`repair_handles`]: repairs handles that count too many or too few addresses (IPAM-75,
//! IPAM-230).

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use libcalico::ipam::{Block, Handle, HandleId, HandleRepair, SuspectHandle, repair};
use libcalico::net::Cidr;
use libcalico::store::{Answers, Entry, ReadBatch, Store, StoreError, Write, WriteOp};

use crate::write_gate::{WriteGate, write_admitted};

/// The result of a repair of handles.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RepairedHandles {
    /// Handles without an address, which were deleted.
    pub deleted: Vec<HandleId>,
    /// Handles whose counts were corrected.
    pub corrected: Vec<HandleId>,
    /// Handles that were not repaired, or whose counts [`repair_unwatched_handles`] lowered and
    /// restored.
    pub unchanged: Vec<HandleId>,
    /// Handles that could not be repaired, with the errors.
    pub failed: Vec<(HandleId, StoreError)>,
}

/// Reads each suspect again, together with its blocks, and corrects its counts.
///
/// An allocation in progress may have written the handle but not yet the block (IPAM-128). Where a
/// handle is to count less, the blocks concerned are therefore rewritten unchanged first. Such an
/// allocation then loses the race for its block, reads again, and finds the corrected handle.
pub async fn repair_handles<S: Store, G: WriteGate>(
    store: &S,
    gate: &G,
    suspects: &[SuspectHandle],
) -> Result<RepairedHandles, StoreError> {
    Ok(repair_and_list_lowered(store, gate, suspects).await?.0)
}

/// Does the same as [`repair_handles`] for suspects that were not watched for the maximum duration
/// of an allocation. An allocation may read handle and block between the two writes of a repair,
/// and assign its address after both. The blocks are therefore rewritten once more after the
/// handles, and their addresses are counted then.
pub async fn repair_unwatched_handles<S: Store, G: WriteGate>(
    store: &S,
    gate: &G,
    suspects: &[SuspectHandle],
) -> Result<RepairedHandles, StoreError> {
    let (mut repaired, lowered) = repair_and_list_lowered(store, gate, suspects).await?;
    for part in lowered.chunks(READ_TOGETHER) {
        let objects = ReadHandles::read(store, part).await?;
        for (cidr, error) in objects
            .rewrite(store, gate, objects.blocks.keys().copied().collect())
            .await
        {
            // Another write of the block has the same effect.
            let Some(error) = error.filter(|error| !error.is_race()) else {
                continue;
            };
            let of_block = part.iter().filter(|handle| handle.blocks.contains(&cidr));
            repaired
                .failed
                .extend(of_block.map(|handle| (handle.id.clone(), error.clone())));
        }
    }
    let again = repair_handles(store, gate, &lowered).await?;
    repaired.failed.extend(again.failed);
    let is_other = |id: &HandleId| {
        again.corrected.contains(id) || repaired.failed.iter().any(|(failed, _)| failed == id)
    };
    repaired.deleted.retain(|id| !is_other(id));
    repaired.corrected.retain(|id| !is_other(id));
    repaired.unchanged.extend(again.corrected);
    Ok(repaired)
}

/// Returns the outcome, and the handles whose counts were lowered, as written.
async fn repair_and_list_lowered<S: Store, G: WriteGate>(
    store: &S,
    gate: &G,
    suspects: &[SuspectHandle],
) -> Result<(RepairedHandles, Vec<SuspectHandle>), StoreError> {
    let (mut repaired, mut lowered) = (RepairedHandles::default(), Vec::new());
    for part in suspects.chunks(READ_TOGETHER) {
        let objects = ReadHandles::read(store, part).await?;
        let mut corrections: Vec<HandleWrite> = Vec::new();
        for suspect in part {
            match objects.correction(suspect) {
                Some(correction) => corrections.push(correction),
                None => repaired.unchanged.push(suspect.id.clone()),
            }
        }
        let to_write = corrections
            .iter()
            .flat_map(|correction| &correction.lowered)
            .copied()
            .collect();
        let not_written: BTreeSet<Cidr> = objects
            .rewrite(store, gate, to_write)
            .await
            .into_keys()
            .collect();
        let (sent, kept): (Vec<_>, Vec<_>) = corrections
            .into_iter()
            .partition(|correction| correction.lowered.is_disjoint(&not_written));
        repaired
            .unchanged
            .extend(kept.into_iter().map(|correction| correction.suspect.id));
        let sent = sent.into_iter().map(|correction| async move {
            let HandleWrite {
                suspect,
                write,
                lowered,
            } = correction;
            let deletes = matches!(write.op, WriteOp::Delete(_));
            (
                suspect,
                deletes,
                !lowered.is_empty(),
                write_admitted(store, gate, write).await,
            )
        });
        for (suspect, deletes, lowers, outcome) in join_all(sent).await {
            let id = suspect.id.clone();
            match outcome {
                Some(Ok(revision)) => {
                    let list = if deletes {
                        &mut repaired.deleted
                    } else {
                        &mut repaired.corrected
                    };
                    list.push(id);
                    let revision = (!deletes).then_some(revision);
                    lowered.extend(lowers.then_some(SuspectHandle {
                        revision,
                        ..suspect
                    }));
                }
                None => repaired.unchanged.push(id),
                Some(Err(error)) if error.is_race() => repaired.unchanged.push(id),
                Some(Err(error)) => repaired.failed.push((id, error)),
            }
        }
    }
    Ok((repaired, lowered))
}

/// Number of suspects that are read together: with a block or two each, they fit into a transaction
/// of etcd.
const READ_TOGETHER: usize = 32;

struct ReadHandles {
    handles: BTreeMap<HandleId, Result<Option<Entry<Handle>>, StoreError>>,
    blocks: BTreeMap<Cidr, Result<Option<Entry<Block>>, StoreError>>,
}

struct HandleWrite {
    suspect: SuspectHandle,
    write: Write,
    /// Blocks in which the handle will count fewer addresses.
    lowered: BTreeSet<Cidr>,
}

impl ReadHandles {
    async fn read<S: Store>(
        store: &S,
        suspects: &[SuspectHandle],
    ) -> Result<ReadHandles, StoreError> {
        let named: BTreeSet<Cidr> = suspects
            .iter()
            .flat_map(|suspect| &suspect.blocks)
            .copied()
            .collect();
        let mut batch = ReadBatch::new();
        // Handles come first: where a batch is not a snapshot, the blocks are the more recent.
        let handles: Vec<_> = suspects
            .iter()
            .map(|suspect| (suspect.id.clone(), batch.get::<Handle>(&suspect.id)))
            .collect();
        let blocks: Vec<_> = named
            .into_iter()
            .map(|cidr| (cidr, batch.get::<Block>(&cidr)))
            .collect();
        let answers: Answers = store.read(&batch).await?;
        Ok(ReadHandles {
            handles: handles
                .into_iter()
                .map(|(id, ticket)| (id, answers.get(&ticket)))
                .collect(),
            blocks: blocks
                .into_iter()
                .map(|(cidr, ticket)| (cidr, answers.get(&ticket)))
                .collect(),
        })
    }

    /// Returns the write that corrects a suspect, or `None` if none is necessary or possible.
    fn correction(&self, suspect: &SuspectHandle) -> Option<HandleWrite> {
        let found = self.handles.get(&suspect.id)?.as_ref().ok()?.as_ref();
        let block = |cidr: &Cidr| {
            self.blocks
                .get(cidr)?
                .as_ref()
                .ok()
                .map(|found| Some(&found.as_ref()?.value))
        };
        let correct = match repair(suspect, found, block) {
            HandleRepair::Keep => return None,
            HandleRepair::Delete => Handle::default(),
            HandleRepair::Write(correct) => correct,
        };
        let counted = found.into_iter().flat_map(|entry| &entry.value.block);
        let lowered =
            counted.filter(|(cidr, n)| correct.block.get(cidr).is_none_or(|correct| correct < n));
        let lowered = lowered.map(|(cidr, _)| *cidr).collect();
        let write = match found {
            Some(entry) if correct.block.is_empty() => {
                Ok(Write::delete::<Handle>(&entry.key, Some(&entry.revision)))
            }
            Some(entry) => Write::update::<Handle>(&entry.key, &correct, &entry.revision),
            None => Write::create::<Handle>(&suspect.id, &correct),
        };
        Some(HandleWrite {
            suspect: suspect.clone(),
            write: write.ok()?,
            lowered,
        })
    }

    /// Rewrites blocks unchanged. Returns the blocks that were not written, with the error, or
    /// `None` if the gate refused the write.
    async fn rewrite<S: Store, G: WriteGate>(
        &self,
        store: &S,
        gate: &G,
        wanted: BTreeSet<Cidr>,
    ) -> BTreeMap<Cidr, Option<StoreError>> {
        let entries = wanted
            .into_iter()
            .filter_map(|cidr| Some((cidr, self.blocks.get(&cidr)?.as_ref().ok()?.as_ref()?)));
        let written = entries.map(|(cidr, entry)| async move {
            let mut block = entry.value.clone();
            block.count_write();
            if !gate.admit(1).await {
                return Some((cidr, None));
            }
            let error = store
                .update::<Block>(&cidr, &block, &entry.revision)
                .await
                .err()?;
            Some((cidr, Some(error)))
        });
        join_all(written).await.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests;
