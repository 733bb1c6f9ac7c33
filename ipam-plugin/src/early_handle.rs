//! The handle, created beside the read of the blocks that it will count (IPAM-211).
//!
//! Where each request is a round trip of its own, reading the block and creating the handle need not wait for each other:
//! the block that addresses will come from is nearly always the one that was looked at first. The order that matters
//! stays: the handle counts an address before the block gives it away (IPAM-128). One thing is given up: a DEL of the same
//! container that runs meanwhile, which no runtime sends, may read the handle before the block is read here, and then
//! only the node's lock keeps it from deleting the handle of an address that is about to be taken.

use futures::future::join;
use libcalico::ipam::Handle;
use libcalico::store::{Store, StoreError};

use crate::clock::Clock;
use crate::handle_count::decrement;
use crate::knowledge::{Counts, Knowledge, Wants};
use crate::prelude::HandleState;
use crate::request::AssignRequest;

/// Reads `wants`, and creates the handle, which was not read, with `expected`. One that turns out to be there is read;
/// it does not count for this operation then.
pub(crate) async fn read_beside_handle<S: Store>(
    store: &S,
    request: &AssignRequest,
    known: &mut Knowledge,
    wants: &Wants,
    expected: Counts,
) -> Result<(), StoreError> {
    let mut handle = Handle::default();
    expected.iter().for_each(|(block, n)| handle.increment(*block, *n));
    let (read, created) = join(known.read(store, wants), store.create::<Handle>(&request.handle, &handle)).await;
    match created {
        Ok(revision) => known.wrote_handle(handle, revision, expected),
        Err(error @ (StoreError::AlreadyExists { .. } | StoreError::Unavailable { outcome_unknown: true, .. })) => {
            match store.get::<Handle>(&request.handle).await {
                Ok(found)
                    if error.is_unavailable() && found.value == handle && holds_nothing(known, &expected, request) =>
                {
                    known.wrote_handle(handle, found.revision, expected);
                }
                Ok(found) => known.learn_handle(HandleState::There(found)),
                Err(StoreError::NotFound { .. }) => known.learn_handle(HandleState::Absent),
                Err(error) => return Err(error),
            }
        }
        Err(error) => return Err(error),
    }
    read
}

/// Whether no address stands behind what the stored handle counts: it was created just now and the answer got lost, or
/// by someone who came no further.
fn holds_nothing(known: &Knowledge, expected: &Counts, request: &AssignRequest) -> bool {
    let holds = |block| {
        let block = known.readable_block(block);
        block.is_some_and(|block| !block.value.addresses_of(&request.handle).is_empty())
    };
    !expected.keys().any(holds)
}

/// Takes off the handle what it counts for an operation that is over and did not take it.
pub(crate) async fn forget_expected<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    request: &AssignRequest,
    known: &mut Knowledge,
) {
    let surplus: Vec<_> = known.take_expected().into_iter().collect();
    if !surplus.is_empty() {
        decrement(store, clock, &request.handle, &surplus).await;
    }
}

#[cfg(test)]
mod tests;
