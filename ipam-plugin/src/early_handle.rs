//! The handle, created beside the read of the blocks that it will count (IPAM-211).
//!
//! Where each request is a round trip of its own, reading the block and creating the handle need not wait for each other:
//! the block that addresses will come from is nearly always the one that was looked at first. The order that matters
//! stays: the handle counts an address before the block gives it away (IPAM-128). One thing is given up: a DEL of the same
//! container that runs meanwhile, which no runtime sends, may read the handle before the block is read here, and then
//! only the node's lock keeps it from deleting the handle of an address that is about to be taken.

use futures::future::join;
use libcalico::ipam::{Block, Handle, HandleId};
use libcalico::net::Cidr;
use libcalico::store::{Entry, GetTicket, ReadBatch, Store, StoreError};

use crate::clock::Clock;
use crate::handle_count::decrement;
use crate::knowledge::{Knowledge, Wants};
use crate::prelude::{Counts, HandleState};
use crate::request::AssignRequest;

/// What became of a handle that was created blindly: it is hardly ever there (IPAM-211).
#[derive(Debug)]
pub(crate) enum Created {
    /// It is there as it was sent, and has no address yet.
    New(Entry<Handle>),
    /// One was there before.
    Found(Entry<Handle>),
    /// It was there, and is gone by now.
    Absent,
    /// It was not asked for, or the datastore did not say.
    Unknown,
}

impl Created {
    /// Whether what it counts is this operation's.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self, Created::New(_))
    }
}

impl From<Created> for HandleState {
    fn from(created: Created) -> Self {
        match created {
            Created::New(entry) | Created::Found(entry) => HandleState::There(entry),
            Created::Absent => HandleState::Absent,
            Created::Unknown => HandleState::Unread,
        }
    }
}

/// Creates the handle with `expected`, and reads one that turns out to be there. Whose that is, when the answer got lost, its
/// blocks tell: one without an address was created just now, or by someone who came no further.
pub(crate) async fn create<S: Store>(store: &S, id: &HandleId, expected: &Counts) -> Result<Created, StoreError> {
    let mut value = Handle::default();
    expected.iter().for_each(|(block, n)| value.increment(*block, *n));
    let error = match store.create::<Handle>(id, &value).await {
        Ok(revision) => return Ok(Created::New(Entry { key: id.clone(), value, revision })),
        Err(error) => error,
    };
    let is_doubtful = error.has_unknown_outcome();
    if !is_doubtful && !matches!(error, StoreError::AlreadyExists { .. }) {
        return Err(error);
    }
    let blocks = expected.keys().filter(|_| is_doubtful);
    match find(store, id, blocks).await {
        Ok((Some(found), false)) if is_doubtful && found.value == value => Ok(Created::New(found)),
        Ok((Some(found), _)) => Ok(Created::Found(found)),
        Ok((None, _)) => Ok(Created::Absent),
        // Whether it was created is what matters to the caller.
        Err(_) if is_doubtful => Err(error),
        Err(error) => Err(error),
    }
}

/// The handle, and whether one of the blocks has an address of it: of blocks as they are now, whatever was read before.
async fn find<S: Store>(
    store: &S,
    id: &HandleId,
    blocks: impl Iterator<Item = &Cidr>,
) -> Result<(Option<Entry<Handle>>, bool), StoreError> {
    let mut batch = ReadBatch::new();
    let handle = batch.get::<Handle>(id);
    let blocks: Vec<_> = blocks.map(|cidr| batch.get::<Block>(cidr)).collect();
    let answers = store.read(&batch).await?;
    let holds = |ticket: &GetTicket<Block>| matches!(answers.get(ticket), Ok(Some(block)) if !block.value.addresses_of(id).is_empty());
    Ok((answers.get(&handle)?, blocks.iter().any(holds)))
}

/// Reads `wants`, and creates the handle, which was not read, with `expected`. One that turns out to be there does not
/// count for this operation.
pub(crate) async fn read_beside_handle<S: Store>(
    store: &S,
    request: &AssignRequest,
    known: &mut Knowledge,
    wants: &Wants,
    expected: Counts,
) -> Result<(), StoreError> {
    let (read, created) = join(known.read(store, wants), create(store, &request.handle, &expected)).await;
    let created = created?;
    let is_ours = created.is_ours();
    known.learn_handle(created.into(), if is_ours { expected } else { Counts::new() });
    read
}

/// Takes off the handle what it counts for an operation that is over and did not take it.
pub(crate) async fn forget_expected<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    request: &AssignRequest,
    known: &mut Knowledge,
) {
    forget(store, clock, &request.handle, known.take_expected()).await;
}

/// Takes off the handle what it counts of addresses that nobody will take.
pub(crate) async fn forget<S: Store, C: Clock>(store: &S, clock: &C, id: &HandleId, expected: Counts) {
    if !expected.is_empty() {
        decrement(store, clock, id, &expected.into_iter().collect::<Vec<_>>()).await;
    }
}

#[cfg(test)]
mod tests;
