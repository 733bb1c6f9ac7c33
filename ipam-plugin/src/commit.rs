//! [`commit`]: writes assigned addresses as one list of writes, the handle first (IPAM-128). If the list fails,
//! [`crate::settle`] determines which of the writes took effect.

use libcalico::ipam::{AffinityKey, AffinityState, Block, BlockAffinity, Handle, Owner};
use libcalico::net::Cidr;
use libcalico::store::{Revision, Store, StoreError, Write, WriteError};

use crate::assignment_log::joined;
use crate::clock::Clock;
use crate::handle_count::decrement;
use crate::knowledge::Knowledge;
use crate::mend::{confirm, no_revision};
use crate::prelude::Counts;
use crate::request::AssignRequest;
use crate::settle::{Doubt, settle};
use crate::take::Take;

/// The error of a list of writes that was not applied in full.
#[derive(Debug)]
pub(crate) struct CommitError {
    /// The takes that took effect nevertheless.
    pub(crate) done: Vec<Take>,
    /// The error that prevented the others.
    pub(crate) cause: StoreError,
}

/// A list of writes, with the positions of its parts.
pub(crate) struct WriteList {
    writes: Vec<Write>,
    /// The handle, which is written first; `None` if its stored counts are already right.
    pub(crate) handle: Option<Handle>,
    /// For each take, the index of its affinity's write and of its block's write.
    pub(crate) takes: Vec<(Option<usize>, usize)>,
}

/// Writes the takes. With `Ok`, the handle counts each address, each block is written, and each new affinity is
/// confirmed, or will be by the node's next allocation from the block. After an error `known` is out of date, and takes
/// that are not in `done` have been undone if the datastore was reachable.
pub(crate) async fn commit<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    known: &mut Knowledge,
    request: &AssignRequest,
    takes: Vec<Take>,
) -> Result<Vec<Take>, CommitError> {
    let owner = request.owner();
    let list = match write_list(known, request, &owner, &takes) {
        Ok(list) => list,
        Err(cause) => return Err(CommitError { done: Vec::new(), cause }),
    };
    for take in &takes {
        let (block, claims, addresses) = (take.cidr(), take.claim.is_some(), joined(&take.addresses));
        tracing::debug!(addresses, %block, claims, "writing handle and block");
    }
    match store.write(&list.writes).await {
        Ok(revisions) => finish(store, known, &owner, list, takes, revisions).await,
        Err(WriteError { index, applied, cause }) => {
            let done = match &cause {
                StoreError::Unavailable { outcome_unknown: true, .. } => {
                    let sent = if store.has_transactions() { None } else { Some(index) };
                    settle(store, clock, known, request, &Doubt { list: &list, takes: &takes, sent }).await
                }
                _ => split(store, clock, known, request, &list, &takes, applied).await,
            };
            confirm_again(store, &owner, &done).await;
            Err(CommitError { done, cause })
        }
    }
}

fn write_list(
    known: &Knowledge,
    request: &AssignRequest,
    owner: &Owner,
    takes: &[Take],
) -> Result<WriteList, StoreError> {
    let handle = handle_with(known, request, takes);
    let mut writes = Vec::with_capacity(1 + 2 * takes.len());
    match (known.handle(), &handle) {
        (_, None) => {}
        (Some(read), Some(handle)) => writes.push(Write::update::<Handle>(&request.handle, handle, &read.revision)?),
        (None, Some(handle)) => writes.push(Write::create::<Handle>(&request.handle, handle)?),
    }
    let mut places = Vec::with_capacity(takes.len());
    for take in takes {
        let claim = match &take.claim {
            None => None,
            Some(claim) => {
                writes.push(claim.pending(owner, take.cidr())?);
                Some(writes.len() - 1)
            }
        };
        writes.push(match &take.revision {
            Some(revision) => Write::update::<Block>(&take.cidr(), &take.block, revision)?,
            None => Write::create::<Block>(&take.cidr(), &take.block)?,
        });
        places.push((claim, writes.len() - 1));
    }
    Ok(WriteList { writes, handle, takes: places })
}

/// Returns the handle with the counts of `takes` in place of the expected ones, or `None` if the handle does not
/// change.
fn handle_with(known: &Knowledge, request: &AssignRequest, takes: &[Take]) -> Option<Handle> {
    let before = known.handle().map(|entry| &entry.value);
    let mut handle = before.cloned().unwrap_or_default();
    for (block, n) in known.expected() {
        if let Err(error) = handle.decrement(&request.handle, *block, *n) {
            tracing::warn!(%error, "handle");
        }
    }
    for take in takes {
        handle.increment(take.cidr(), take.addresses.len());
    }
    (before != Some(&handle)).then_some(handle)
}

/// Records the successful writes in `known` and confirms the affinities.
async fn finish<S: Store>(
    store: &S,
    known: &mut Knowledge,
    owner: &Owner,
    list: WriteList,
    takes: Vec<Take>,
    revisions: Vec<Revision>,
) -> Result<Vec<Take>, CommitError> {
    if revisions.len() != list.writes.len() {
        return Err(CommitError { done: takes, cause: no_revision() });
    }
    match list.handle {
        Some(handle) => known.wrote_handle(handle, revisions[0].clone(), Counts::new()),
        None => took_expected(known, &takes),
    }
    for (take, (claim, block)) in takes.iter().zip(&list.takes) {
        known.wrote_block(take.block.clone(), revisions[*block].clone());
        if let (Some(index), Some(from)) = (claim, &take.claim) {
            match confirm(store, from.written(owner, take.cidr(), revisions[*index].clone())).await {
                Ok(confirmed) => known.wrote_affinity(confirmed),
                Err(error) => warn_unconfirmed(take.cidr(), &error),
            }
        }
    }
    Ok(takes)
}

pub(crate) fn took_expected(known: &mut Knowledge, done: &[Take]) {
    done.iter().for_each(|take| known.took_expected(&take.cidr(), take.addresses.len()));
}

/// Returns the takes whose blocks are among the first `applied` writes, and decrements the handle for the others.
/// Counts that were stored before this write stay, because the next attempt uses them.
async fn split<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    known: &mut Knowledge,
    request: &AssignRequest,
    list: &WriteList,
    takes: &[Take],
    applied: usize,
) -> Vec<Take> {
    let (done, undone): (Vec<_>, Vec<_>) = takes.iter().zip(&list.takes).partition(|(_, (_, block))| *block < applied);
    let done: Vec<Take> = done.into_iter().map(|(take, _)| take.clone()).collect();
    if list.handle.is_none() {
        took_expected(known, &done);
    } else if applied > 0 {
        known.take_expected();
        let surplus: Vec<(Cidr, usize)> = undone.iter().map(|(take, _)| (take.cidr(), take.addresses.len())).collect();
        decrement(store, clock, &request.handle, &surplus).await;
    }
    done
}

/// Confirms the affinities of takes whose revisions were lost with the response.
async fn confirm_again<S: Store>(store: &S, owner: &Owner, done: &[Take]) {
    for take in done.iter().filter(|take| take.claim.is_some()) {
        let key = AffinityKey { owner: owner.clone(), cidr: take.cidr() };
        let outcome = match store.get::<BlockAffinity>(&key).await {
            Ok(found) if found.value.state == AffinityState::Confirmed => Ok(found),
            Ok(found) => confirm(store, found).await,
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            warn_unconfirmed(take.cidr(), &error);
        }
    }
}

/// Logs an unconfirmed affinity. The addresses are assigned nevertheless.
fn warn_unconfirmed(block: Cidr, error: &StoreError) {
    tracing::warn!(%block, %error, "claim not confirmed; until a later allocation does, the block is not advertised");
}
