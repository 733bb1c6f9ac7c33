//! [`settle`]: what became of a list of writes when its answer got lost (IPAM-184).
//!
//! A block that does not show the addresses yet may still get them: the server may be at work on a write that nobody waits for
//! any more. So the block is written again as it is, at the revision the lost write was for. From then on that one cannot take
//! effect, and what it would have held is nobody's.

use libcalico::ipam::{AffinityKey, Block, BlockAffinity, Handle, Owner};
use libcalico::net::Cidr;
use libcalico::store::{Entry, ReadBatch, Revision, Store, StoreError, Write};

use crate::budget::{Budget, UNDO};
use crate::clock::Clock;
use crate::commit::{WriteList, took_expected};
use crate::handle_count::decrement;
use crate::knowledge::Knowledge;
use crate::request::AssignRequest;
use crate::take::{ClaimFrom, Take};

/// Writes whose outcome nobody knows.
pub(crate) struct Doubt<'a> {
    pub(crate) list: &'a WriteList,
    pub(crate) takes: &'a [Take],
    /// The write whose answer got lost, where lists are sent one by one: those behind it never were.
    pub(crate) sent: Option<usize>,
}

/// The takes that took effect. Each other one never will, and the handle does not count it; unless its own write is still under way,
/// or the datastore stayed away for too long: then it counts what the blocks do not hold, or may come to hold, for DEL to find.
pub(crate) async fn settle<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    known: &mut Knowledge,
    request: &AssignRequest,
    doubt: &Doubt<'_>,
) -> Vec<Take> {
    let mut budget = Budget::new(clock, UNDO);
    loop {
        let error = match look(store, request, doubt).await {
            Ok(seen) => match fence(store, known, request, &seen).await {
                Ok(()) => {
                    count(store, clock, known, request, doubt, &seen).await;
                    return seen.done;
                }
                Err(error) => error,
            },
            Err(error) => error,
        };
        if !store.has_given_up() && budget.pause().await {
            tracing::debug!(%error, "cannot yet tell what became of a write");
        } else {
            tracing::error!(handle = %request.handle, %error, "cannot tell what became of a write; DEL will");
            known.take_expected();
            return Vec::new();
        }
    }
}

/// What a look at handle and blocks found.
struct Seen {
    handle: Option<Entry<Handle>>,
    done: Vec<Take>,
    /// Of each other take its block, how many addresses it is of, and how many the handle holds there.
    undone: Vec<(Cidr, usize, usize)>,
    /// Takes whose write may still take effect, and their blocks.
    open: Vec<(Take, Option<Entry<Block>>)>,
}

async fn look<S: Store>(store: &S, request: &AssignRequest, doubt: &Doubt<'_>) -> Result<Seen, StoreError> {
    let mut batch = ReadBatch::new();
    let handle = batch.get::<Handle>(&request.handle);
    let blocks: Vec<_> = doubt.takes.iter().map(|take| batch.get::<Block>(&take.cidr())).collect();
    let of_list = doubt.takes.iter().filter(|_| doubt.sent.is_none());
    let claims: Vec<_> = of_list.map(|take| batch.get::<BlockAffinity>(&claim_key(request, take))).collect();
    let answers = store.read(&batch).await?;
    let handle = answers.get(&handle)?;
    let mut seen = Seen { handle, done: Vec::new(), undone: Vec::new(), open: Vec::new() };
    for (n, take) in doubt.takes.iter().enumerate() {
        let found = answers.get(&blocks[n])?;
        let may_be_under_way = match (doubt.sent, &take.claim) {
            (Some(sent), _) => sent == doubt.list.takes[n].1,
            (None, None) => true,
            // A list goes by its claim as well. One that cannot be read is not what the list was for.
            (None, Some(from)) => answers.get(&claims[n]).is_ok_and(|claim| from.is_still(claim.as_ref())),
        };
        if found.as_ref().is_some_and(|found| take.is_in(request, &found.value)) {
            seen.done.push(take.clone());
            continue;
        }
        let held = found.as_ref().map_or(0, |found| found.value.addresses_of(&request.handle).len());
        seen.undone.push((take.cidr(), take.addresses.len(), held));
        let is_as_read = version_of(found.as_ref().map(|found| &found.revision)) == version_of(take.revision.as_ref());
        if may_be_under_way && is_as_read {
            seen.open.push((take.clone(), found));
        }
    }
    Ok(seen)
}

/// What a write compares. Revisions have more to them on Kubernetes, which may depend on how an object was read.
fn version_of(revision: Option<&Revision>) -> Option<&str> {
    revision.map(Revision::resource_version)
}

fn claim_key(request: &AssignRequest, take: &Take) -> AffinityKey {
    AffinityKey { owner: request.owner(), cidr: take.cidr() }
}

/// Makes sure that no open take takes effect any more. An error means to look again.
async fn fence<S: Store>(store: &S, known: &Knowledge, request: &AssignRequest, seen: &Seen) -> Result<(), StoreError> {
    for (take, found) in &seen.open {
        store.write(&without(store, known, request, take, found.as_ref())?).await.map_err(|error| error.cause)?;
    }
    Ok(())
}

/// The block as it would be without the take.
fn without<S: Store>(
    store: &S,
    known: &Knowledge,
    request: &AssignRequest,
    take: &Take,
    found: Option<&Entry<Block>>,
) -> Result<Vec<Write>, StoreError> {
    let owner = request.owner();
    let Some(found) = found else {
        let empty = Block::new(take.cidr(), &owner, known.now).map_err(|error| StoreError::Other(error.to_string()))?;
        // One by one, the claim is written before the block is tried.
        return create_first(empty, &owner, take.claim.as_ref().filter(|_| store.has_transactions()));
    };
    let mut block = found.value.clone();
    block.count_write();
    Ok(vec![Write::update::<Block>(&found.key, &block, &found.revision)?])
}

/// Creates a block without addresses, behind the claim where that is to be written too: of two creations of it the later one loses.
pub(crate) fn create_first(
    mut empty: Block,
    owner: &Owner,
    claim: Option<&ClaimFrom>,
) -> Result<Vec<Write>, StoreError> {
    empty.count_write();
    let pending = claim.map(|claim| claim.pending(owner, empty.cidr)).transpose()?;
    Ok(pending.into_iter().chain([Write::create::<Block>(&empty.cidr, &empty)?]).collect())
}

/// Takes off the handle what was counted for nothing. What it counted beforehand stays, as the next attempt will want it; unless
/// the lost write was to change that and may do so yet: who goes by it has to write the handle, which that one cannot outlive.
async fn count<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    known: &mut Knowledge,
    request: &AssignRequest,
    doubt: &Doubt<'_>,
    seen: &Seen,
) {
    let Some(sent) = &doubt.list.handle else { return took_expected(known, &seen.done) };
    let (read, now) = (known.handle(), seen.handle.as_ref());
    let is_unchanged = version_of(now.map(|now| &now.revision)) == version_of(read.map(|read| &read.revision));
    let expected = known.take_expected();
    let surplus: Vec<(Cidr, usize)> = match now {
        // The handle is the first write of the list: it was written where a later write is the lost one.
        _ if doubt.sent.is_some_and(|lost| lost > 0) => seen.undone.iter().map(|(cidr, n, _)| (*cidr, *n)).collect(),
        _ if is_unchanged => expected.into_iter().collect(),
        Some(now) if now.value == *sent => {
            seen.undone.iter().filter_map(|undone| surplus(&now.value, undone)).collect()
        }
        // Another operation's, or also another's: it counts too much at worst, which DEL mends.
        _ => Vec::new(),
    };
    if !surplus.is_empty() {
        decrement(store, clock, &request.handle, &surplus).await;
    }
}

/// Returns what a handle that is as it was sent counts of an undone take. It may have been so before, unread: what the block holds
/// is not of the take.
fn surplus(handle: &Handle, (cidr, n, held): &(Cidr, usize, usize)) -> Option<(Cidr, usize)> {
    let counted = handle.block.get(cidr).and_then(|count| usize::try_from(*count).ok()).unwrap_or_default();
    let surplus = counted.saturating_sub(*held).min(*n);
    (surplus > 0).then_some((*cidr, surplus))
}
