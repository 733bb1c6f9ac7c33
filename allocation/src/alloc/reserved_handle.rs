//! Creates the handle concurrently with the read of the blocks that the handle will count.
//!
//! The handle counts an address before the block assigns it (IPAM-128), and the address nearly
//! always comes from the first block. This gives up one guarantee: during a concurrent DEL of the
//! same container, which no known runtime sends, only the node's lock prevents the DEL from
//! deleting the handle of an address that is about to be assigned.

use futures::future::join;
use libcalico::ipam::{Block, Handle, HandleId};
use libcalico::net::Cidr;
use libcalico::store::{Entry, GetTicket, ReadBatch, Store, StoreError};

use crate::alloc::inputs::{BlockCounts, StoredHandle};
use crate::alloc::snapshot::{MissingReads, Snapshot};
use crate::handle_refs::decrement;
use os::clock::Clock;

/// Creates the handle with the counts in `reserved`, without reading it first, since it rarely
/// exists. Returns the handle, and its counts that belong to this operation: all of `reserved` if
/// this operation created the handle, otherwise none.
///
/// If the response was lost, an existing handle with exactly these counts and without addresses in
/// the blocks is treated as created by this operation.
pub(crate) async fn create_reserved<S: Store>(
    store: &S,
    id: &HandleId,
    reserved: BlockCounts,
) -> Result<(StoredHandle, BlockCounts), StoreError> {
    let mut value = Handle::default();
    reserved
        .iter()
        .for_each(|(block, n)| value.increment(*block, *n));
    let error = match store.create::<Handle>(id, &value).await {
        Ok(revision) => {
            return Ok((
                StoredHandle::Existing(Entry {
                    key: id.clone(),
                    value,
                    revision,
                }),
                reserved,
            ));
        }
        Err(error) => error,
    };
    let is_unknown_outcome = error.has_unknown_outcome();
    if !is_unknown_outcome && !matches!(error, StoreError::AlreadyExists { .. }) {
        return Err(error);
    }
    let blocks = reserved.keys().filter(|_| is_unknown_outcome);
    match find_with_addresses(store, id, blocks).await {
        Ok((Some(found), false)) if is_unknown_outcome && found.value == value => {
            Ok((Some(found).into(), reserved))
        }
        Ok((found, _)) => Ok((found.into(), BlockCounts::new())),
        Err(_) if is_unknown_outcome => Err(error),
        Err(error) => Err(error),
    }
}

/// Returns the handle, and true if one of the blocks contains an address of it.
async fn find_with_addresses<S: Store>(
    store: &S,
    id: &HandleId,
    blocks: impl Iterator<Item = &Cidr>,
) -> Result<(Option<Entry<Handle>>, bool), StoreError> {
    let mut batch = ReadBatch::new();
    let handle = batch.get::<Handle>(id);
    let blocks: Vec<_> = blocks.map(|cidr| batch.get::<Block>(cidr)).collect();
    let answers = store.read(&batch).await?;
    let has_address = |ticket: &GetTicket<Block>| {
        answers
            .get(ticket)
            .is_ok_and(|block| block.is_some_and(|block| !block.value.addresses_of(id).is_empty()))
    };
    Ok((answers.get(&handle)?, blocks.iter().any(has_address)))
}

impl Snapshot {
    /// Reads `missing` and concurrently creates the unread handle with `reserved`.
    pub(crate) async fn read_beside_handle<S: Store>(
        &mut self,
        store: &S,
        missing: &MissingReads,
        reserved: BlockCounts,
    ) -> Result<(), StoreError> {
        let handle = self.query.handle.clone();
        let (read, created) = join(
            self.read(store, missing),
            create_reserved(store, &handle, reserved),
        )
        .await;
        (self.inputs.handle, self.reserved) = created?;
        read
    }
}

/// Decrements the handle by the counts of addresses that will not be assigned.
pub(crate) async fn release_reserved<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    id: &HandleId,
    reserved: BlockCounts,
) {
    if !reserved.is_empty() {
        decrement(store, clock, id, &reserved.into_iter().collect::<Vec<_>>()).await;
    }
}

#[cfg(test)]
mod tests;
