//! Taking off a handle what it counts too much (IPAM-131).

use libcalico::ipam::{Handle, HandleId};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Revision, Store, StoreError, Write};

use crate::budget::{Budget, UNDO};
use crate::clock::Clock;

/// Takes `counts` off the handle, which goes with its last block. A handle that counts too much loses nobody an
/// address, so failure is only logged (IPAM-75); one that counts too little would, so nothing is taken off twice.
pub(crate) async fn decrement<S: Store, C: Clock>(store: &S, clock: &C, id: &HandleId, counts: &[(Cidr, usize)]) {
    decrement_after(store, clock, id, counts, None).await;
}

/// The same, where an earlier attempt may have done it.
pub(crate) async fn decrement_after<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    id: &HandleId,
    counts: &[(Cidr, usize)],
    mut attempt: Option<Attempt>,
) {
    let mut budget = Budget::new(clock, UNDO);
    loop {
        let error = match try_decrement(store, id, counts, &mut attempt).await {
            Ok(()) => return,
            Err(error) => error,
        };
        let again = (error.is_race() || error.is_unavailable()) && !store.has_given_up();
        if !again || !budget.pause().await {
            tracing::warn!(handle = %id, %error, "handle counts too many addresses; releasing it will mend that");
            return;
        }
    }
}

/// A write of a handle whose answer got lost.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    /// What it was for.
    before: Revision,
    /// The handle as it was to be.
    sent: Handle,
}

impl Attempt {
    /// The write of `entry`, at its revision.
    pub(crate) fn of(entry: &Entry<Handle>) -> Self {
        Attempt { before: entry.revision.clone(), sent: entry.value.clone() }
    }

    /// Whether another one must not follow: it took effect, or somebody else's write is all that can be seen.
    fn may_be_done(&self, now: &Entry<Handle>) -> bool {
        now.revision.resource_version() != self.before.resource_version()
    }
}

async fn try_decrement<S: Store>(
    store: &S,
    id: &HandleId,
    counts: &[(Cidr, usize)],
    attempt: &mut Option<Attempt>,
) -> Result<(), StoreError> {
    let mut entry = match store.get::<Handle>(id).await {
        Err(StoreError::NotFound { .. }) => return Ok(()),
        found => found?,
    };
    if let Some(attempt) = attempt.as_ref().filter(|attempt| attempt.may_be_done(&entry)) {
        if entry.value != attempt.sent {
            tracing::warn!(handle = %id, "somebody changed the handle meanwhile: it may count too many addresses");
        }
        return Ok(());
    }
    let before = entry.value.clone();
    for (cidr, n) in counts {
        if let Err(error) = entry.value.decrement(id, *cidr, *n) {
            tracing::warn!(%error, "handle");
        }
    }
    if entry.value == before {
        return Ok(());
    }
    let outcome = store.write_one(write(&entry)?).await;
    if outcome.as_ref().is_err_and(StoreError::has_unknown_outcome) {
        *attempt = Some(Attempt::of(&entry));
    }
    outcome.map(|_| ())
}

/// The write that stores a handle after something was taken off it: an update, or with its last block its deletion.
pub(crate) fn write(entry: &Entry<Handle>) -> Result<Write, StoreError> {
    if entry.value.is_empty() {
        Ok(Write::delete::<Handle>(&entry.key, Some(&entry.revision)))
    } else {
        Write::update::<Handle>(&entry.key, &entry.value, &entry.revision)
    }
}

#[cfg(test)]
mod tests;
