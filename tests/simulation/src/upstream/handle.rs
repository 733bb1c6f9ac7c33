//! Counts the addresses of a handle.

use libcalico::ipam::{Handle, HandleId};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Store, StoreError};

use super::client::Client;
use super::{ATTEMPTS, UpstreamError};

impl<S: Store> Client<'_, S> {
    /// Adds an address of `block` to a handle. Every failed write is repeated at once, whatever the
    /// reason.
    pub(super) async fn increment(&self, id: &HandleId, block: Cidr) -> Result<(), UpstreamError> {
        for _ in 0..ATTEMPTS {
            let written = match self.get::<Handle>(id).await {
                Ok(read) => {
                    let mut handle = read.value.clone();
                    handle.increment(block, 1);
                    self.update(&read, handle).await.map(|_| ())
                }
                Err(StoreError::NotFound { .. }) => {
                    let mut handle = Handle::default();
                    handle.increment(block, 1);
                    self.store.create::<Handle>(id, &handle).await.map(|_| ())
                }
                Err(error) => return Err(error.into()),
            };
            if written.is_ok() {
                return Ok(());
            }
        }
        Err(UpstreamError::TooManyAttempts)
    }

    /// Subtracts `n` addresses of `block` from a handle. The first attempt uses `known` if the
    /// handle has been read. All callers of upstream only log a failure, so this returns none.
    pub(super) async fn decrement(
        &self,
        id: &HandleId,
        block: Cidr,
        n: usize,
        mut known: Option<Entry<Handle>>,
    ) {
        for _ in 0..ATTEMPTS {
            let read = match known.take() {
                Some(read) => read,
                None => match self.get::<Handle>(id).await {
                    Ok(read) => read,
                    Err(_) => return,
                },
            };
            let mut handle = read.value.clone();
            if handle.decrement(id, block, n).is_err() {
                return;
            }
            let written = if handle.is_empty() {
                self.delete(Entry {
                    value: handle,
                    ..read
                })
                .await
            } else {
                self.update(&read, handle).await.map(|_| ())
            };
            if !matches!(written, Err(StoreError::Conflict { .. })) {
                return;
            }
        }
    }
}
