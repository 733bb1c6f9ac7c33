//! Decrements handles after addresses were released, or were counted and not assigned.

use libcalico::ipam::{Handle, HandleId};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Store, StoreError, Write};

use crate::block_writes::has_same_version;
use crate::reads::find;
use crate::retry::{Retry, UNDO_TIME};
use os::clock::Clock;

/// Decrements the handle by `counts`, and deletes it if it then counts no address. Failure is only
/// logged, because a handle may count too many addresses (IPAM-75). A handle that counts too few
/// would lose addresses, so each count is subtracted at most once.
pub(crate) async fn decrement<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    id: &HandleId,
    counts: &[(Cidr, usize)],
) {
    decrement_unless_applied(store, clock, id, counts, None).await;
}

/// Does the same as [`decrement`] after a write whose response was lost. `lost_write` is the handle
/// as that write sent it, with the revision before the write.
pub(crate) async fn decrement_unless_applied<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    id: &HandleId,
    counts: &[(Cidr, usize)],
    mut lost_write: Option<Entry<Handle>>,
) {
    let mut retry = Retry::new(clock, UNDO_TIME);
    loop {
        let Err(error) = try_decrement(store, id, counts, &mut lost_write).await else {
            return;
        };
        let again = retry.may_succeed_after(&error) && !store.has_given_up();
        if !again || !retry.pause().await {
            tracing::warn!(
                handle = %id, %error,
                "cannot decrement the handle; it may count too many addresses"
            );
            return;
        }
    }
}

async fn try_decrement<S: Store>(
    store: &S,
    id: &HandleId,
    counts: &[(Cidr, usize)],
    lost_write: &mut Option<Entry<Handle>>,
) -> Result<(), StoreError> {
    let Some(mut entry) = find::<Handle>(store, id).await? else {
        return Ok(());
    };
    // At another revision, the attempt may have taken effect, so no other may follow.
    let is_same =
        |sent: &&Entry<Handle>| has_same_version(Some(&sent.revision), Some(&entry.revision));
    if let Some(lost_write) = lost_write.as_ref().filter(|sent| !is_same(sent)) {
        if entry.value != lost_write.value {
            tracing::warn!(
                handle = %id,
                reason = "a response was lost, and another process changed the handle",
                "not decrementing the handle again; it may count too many addresses"
            );
        }
        return Ok(());
    }
    if !subtract(&mut entry.value, id, counts.iter().copied()) {
        return Ok(());
    }
    let outcome = store.write_one(write(&entry)?).await;
    if outcome.as_ref().is_err_and(StoreError::has_unknown_outcome) {
        *lost_write = Some(entry);
    }
    outcome.map(|_| ())
}

/// Subtracts each of `counts` from the handle in memory, except a count that is larger than the
/// handle's count for the block, or whose block the handle does not have. Returns false if nothing
/// was subtracted.
pub(crate) fn subtract(
    handle: &mut Handle,
    id: &HandleId,
    counts: impl IntoIterator<Item = (Cidr, usize)>,
) -> bool {
    let mut has_changed = false;
    for (cidr, n) in counts {
        match handle.decrement(id, cidr, n) {
            Ok(()) => has_changed = true,
            Err(error) => tracing::warn!(
                handle = %id, %error,
                "cannot decrement the handle's count of addresses in a block"
            ),
        }
    }
    has_changed
}

/// Returns the write that stores a decremented handle: an update, or a deletion if no block is
/// left.
pub(crate) fn write(entry: &Entry<Handle>) -> Result<Write, StoreError> {
    if entry.value.is_empty() {
        Ok(Write::delete::<Handle>(&entry.key, Some(&entry.revision)))
    } else {
        Write::update::<Handle>(&entry.key, &entry.value, &entry.revision)
    }
}

#[cfg(test)]
mod tests;
