//! Creates the handle concurrently with the read of the blocks that the handle will count.
//!
//! If each request is a round trip of its own, reading the block and creating the handle need not wait for each
//! other, because the addresses nearly always come from the first block. The order that matters stays: the handle
//! counts an address before the block assigns it (IPAM-128). This gives up one guarantee. A concurrent DEL of the same
//! container, which no runtime sends, may read the handle before this operation reads the block. Only the node's lock
//! then prevents the DEL from deleting the handle of an address that is about to be assigned.

use futures::future::join;
use libcalico::ipam::{Block, Handle, HandleId};
use libcalico::net::Cidr;
use libcalico::store::{Entry, GetTicket, ReadBatch, Store, StoreError};

use crate::alloc::inputs::{BlockCounts, StoredHandle};
use crate::alloc::snapshot::{MissingReads, Snapshot};
use crate::handle_refs::decrement;
use os::clock::Clock;

/// Creates the handle with the counts in `reserved`, without reading it first, since it rarely exists. Reads it if it
/// exists already. Returns the handle, and its counts that belong to this operation: all of `reserved` if this
/// operation created the handle, otherwise none.
///
/// If the response was lost, an existing handle with exactly these counts is treated as created by this operation,
/// provided that the blocks contain no address of it. It was then created just now, or by an operation that got no
/// further.
pub(crate) async fn create_reserved<S: Store>(
    store: &S,
    id: &HandleId,
    reserved: BlockCounts,
) -> Result<(StoredHandle, BlockCounts), StoreError> {
    let mut value = Handle::default();
    reserved.iter().for_each(|(block, n)| value.increment(*block, *n));
    let error = match store.create::<Handle>(id, &value).await {
        Ok(revision) => return Ok((StoredHandle::Existing(Entry { key: id.clone(), value, revision }), reserved)),
        Err(error) => error,
    };
    let is_unknown_outcome = error.has_unknown_outcome();
    if !is_unknown_outcome && !matches!(error, StoreError::AlreadyExists { .. }) {
        return Err(error);
    }
    let blocks = reserved.keys().filter(|_| is_unknown_outcome);
    match find_with_addresses(store, id, blocks).await {
        Ok((Some(found), false)) if is_unknown_outcome && found.value == value => Ok((Some(found).into(), reserved)),
        Ok((found, _)) => Ok((found.into(), BlockCounts::new())),
        // The caller needs to know that the creation has an unknown outcome.
        Err(_) if is_unknown_outcome => Err(error),
        Err(error) => Err(error),
    }
}

/// Returns the handle, and true if one of the blocks contains an address of it. Reads the blocks again, without a
/// cache.
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
        answers.get(ticket).is_ok_and(|block| block.is_some_and(|block| !block.value.addresses_of(id).is_empty()))
    };
    Ok((answers.get(&handle)?, blocks.iter().any(has_address)))
}

impl Snapshot {
    /// Reads `missing` and concurrently creates the unread handle with `reserved`. The counts of a handle that exists
    /// already do not count for this operation.
    pub(crate) async fn read_beside_handle<S: Store>(
        &mut self,
        store: &S,
        missing: &MissingReads,
        reserved: BlockCounts,
    ) -> Result<(), StoreError> {
        let handle = self.query.handle.clone();
        let (read, created) = join(self.read(store, missing), create_reserved(store, &handle, reserved)).await;
        (self.inputs.handle, self.reserved) = created?;
        read
    }
}

/// Decrements the handle by the counts of addresses that will not be assigned.
pub(crate) async fn release_reserved<S: Store, C: Clock>(store: &S, clock: &C, id: &HandleId, reserved: BlockCounts) {
    if !reserved.is_empty() {
        decrement(store, clock, id, &reserved.into_iter().collect::<Vec<_>>()).await;
    }
}

#[cfg(test)]
mod tests;
