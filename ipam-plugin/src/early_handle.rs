//! The handle, created beside the read of the blocks that it will count (IPAM-211).
//!
//! Where each request is a round trip of its own, reading the block and creating the handle need not wait for each other:
//! the block that addresses will come from is nearly always the one that was looked at first. The order that matters
//! stays: the handle counts an address before the block gives it away (IPAM-128). One thing is given up: a DEL of the same
//! container that runs meanwhile, which no runtime sends, may read the handle before the block is read here, and then
//! only the node's lock keeps it from deleting the handle of an address that is about to be taken.

use futures::future::join;
use libcalico::ipam::{Handle, HandleId};
use libcalico::store::{Entry, Store, StoreError};

use crate::clock::Clock;
use crate::handle_count::decrement;
use crate::knowledge::{Knowledge, Wants};
use crate::prelude::{Counts, HandleState};
use crate::request::AssignRequest;

/// What became of a handle that was created blindly: it is hardly ever there (IPAM-211).
#[derive(Debug)]
pub(crate) enum Created {
    /// It is there now, as it was sent.
    New(Entry<Handle>),
    /// One was there before.
    Found(Entry<Handle>),
    /// Nobody can tell which of the two.
    Doubtful(Entry<Handle>),
    /// It was there, and is gone by now.
    Absent,
    /// It was not asked for, or the datastore did not say.
    Unknown,
}

impl Created {
    /// Whether what it counts is this operation's. `holds` says whether the handle has an address already: if not, one that
    /// is doubtful was created just now and the answer got lost, or by someone who came no further.
    pub(crate) fn is_ours(&self, holds: impl FnOnce(&HandleId) -> bool) -> bool {
        match self {
            Created::New(_) => true,
            Created::Doubtful(entry) => !holds(&entry.key),
            Created::Found(_) | Created::Absent | Created::Unknown => false,
        }
    }
}

impl From<Created> for HandleState {
    fn from(created: Created) -> Self {
        match created {
            Created::New(entry) | Created::Found(entry) | Created::Doubtful(entry) => HandleState::There(entry),
            Created::Absent => HandleState::Absent,
            Created::Unknown => HandleState::Unread,
        }
    }
}

/// Creates the handle with `expected`, and reads one that turns out to be there.
pub(crate) async fn create<S: Store>(store: &S, id: &HandleId, expected: &Counts) -> Result<Created, StoreError> {
    let mut value = Handle::default();
    expected.iter().for_each(|(block, n)| value.increment(*block, *n));
    let error = match store.create::<Handle>(id, &value).await {
        Ok(revision) => return Ok(Created::New(Entry { key: id.clone(), value, revision })),
        Err(error) => error,
    };
    let is_doubtful = matches!(error, StoreError::Unavailable { outcome_unknown: true, .. });
    if !is_doubtful && !matches!(error, StoreError::AlreadyExists { .. }) {
        return Err(error);
    }
    match store.get::<Handle>(id).await {
        Ok(found) if is_doubtful && found.value == value => Ok(Created::Doubtful(found)),
        Ok(found) => Ok(Created::Found(found)),
        Err(StoreError::NotFound { .. }) => Ok(Created::Absent),
        // Whether it was created is what matters to the caller.
        Err(_) if is_doubtful => Err(error),
        Err(error) => Err(error),
    }
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
    let is_ours = created.is_ours(|handle| holds_addresses(known, &expected, handle));
    known.learn_handle(created.into(), if is_ours { expected } else { Counts::new() });
    read
}

/// Whether one of the blocks has an address of the handle.
fn holds_addresses(known: &Knowledge, expected: &Counts, handle: &HandleId) -> bool {
    let holds = |block| {
        let block = known.readable_block(block);
        block.is_some_and(|block| !block.value.addresses_of(handle).is_empty())
    };
    expected.keys().any(holds)
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
