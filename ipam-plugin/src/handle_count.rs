//! Taking off a handle what it counts too much (IPAM-131).

use libcalico::ipam::{Handle, HandleId};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Store, StoreError, Write};

use crate::budget::{Budget, UNDO};
use crate::clock::Clock;

/// Takes `counts` off the handle, which goes with its last block. A handle that counts too much loses nobody an
/// address, so failure is only logged (IPAM-75).
pub(crate) async fn decrement<S: Store, C: Clock>(store: &S, clock: &C, id: &HandleId, counts: &[(Cidr, usize)]) {
    let mut budget = Budget::new(clock, UNDO);
    loop {
        let error = match try_decrement(store, id, counts).await {
            Ok(()) => return,
            Err(error) => error,
        };
        let again = error.is_race() || error.is_unavailable();
        if !again || !budget.pause().await {
            tracing::warn!(handle = %id, %error, "handle counts too many addresses; releasing it will mend that");
            return;
        }
    }
}

async fn try_decrement<S: Store>(store: &S, id: &HandleId, counts: &[(Cidr, usize)]) -> Result<(), StoreError> {
    let mut entry = match store.get::<Handle>(id).await {
        Err(StoreError::NotFound { .. }) => return Ok(()),
        found => found?,
    };
    let before = entry.value.clone();
    for (cidr, n) in counts {
        if let Err(error) = entry.value.decrement(id, *cidr, *n) {
            tracing::warn!(%error, "handle");
        }
    }
    if entry.value == before {
        return Ok(());
    }
    store.write_one(write(&entry)?).await.map(|_| ())
}

/// The write that stores a handle after something was taken off it: an update, or with its last block its deletion.
pub(crate) fn write(entry: &Entry<Handle>) -> Result<Write, StoreError> {
    if entry.value.is_empty() {
        Ok(Write::delete::<Handle>(&entry.key, Some(&entry.revision)))
    } else {
        Write::update::<Handle>(&entry.key, &entry.value, &entry.revision)
    }
}
