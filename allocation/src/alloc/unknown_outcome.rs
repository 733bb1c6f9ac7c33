//! Determines which writes took effect when the response to them was lost (IPAM-184).
//!
//! A block that lacks the addresses may still get them, because the server may still execute the
//! lost write. The block is therefore rewritten unchanged, or created without addresses, so that
//! the lost write fails its compare-and-swap.

use libcalico::ipam::{AffinityKey, Block, BlockAffinity, Handle};
use libcalico::net::Cidr;
use libcalico::store::{Entry, ReadBatch, Store, StoreError, Write, WriteModel};

use crate::alloc::assignment::{BlockAssignment, consume_reserved};
use crate::alloc::commit::{Commit, UnknownWrite};
use crate::block_writes::{empty_block_writes, has_same_version};
use crate::handle_refs::decrement;
use crate::retry::{Retry, UNDO_TIME};
use os::clock::Clock;

struct ObservedWrite {
    handle: Option<Entry<Handle>>,
    committed: Vec<BlockAssignment>,
    /// For each assignment that did not take effect: the block, the number of its addresses, and
    /// the number of addresses that the handle has in the block.
    undone: Vec<(Cidr, usize, usize)>,
}

impl<S: Store, C: Clock> Commit<'_, S, C> {
    /// Returns the assignments that took effect; the others never will. If the outcome cannot be
    /// determined in time, for example because the datastore is unreachable, returns none, although
    /// writes may have taken effect.
    pub(super) async fn resolve_unknown_outcome(
        &mut self,
        unknown: &UnknownWrite<'_>,
    ) -> Vec<BlockAssignment> {
        let mut retry = Retry::new(self.clock, UNDO_TIME);
        loop {
            let error = match self.observe_and_invalidate(unknown).await {
                Ok(observed) => {
                    self.correct_handle(unknown, &observed).await;
                    return observed.committed;
                }
                Err(error) => error,
            };
            // Further requests would usually get the answer of the other program, too.
            let may_succeed = !self.store.has_given_up() && !error.is_foreign_answer();
            if may_succeed && retry.pause().await {
                tracing::debug!(
                    handle = %self.request.handle, %error,
                    "cannot determine the outcome of a write yet; trying again"
                );
            } else {
                tracing::error!(
                    handle = %self.request.handle, %error,
                    hint = "a DEL or kube-controllers releases any addresses of the write",
                    "cannot determine the outcome of a write"
                );
                self.snapshot.take_reserved();
                return Vec::new();
            }
        }
    }

    /// Reads the outcome, and ensures that no assignment in progress can take effect any more.
    async fn observe_and_invalidate(
        &self,
        unknown: &UnknownWrite<'_>,
    ) -> Result<ObservedWrite, StoreError> {
        let mut batch = ReadBatch::new();
        let handle = batch.get::<Handle>(&self.request.handle);
        let blocks: Vec<_> = unknown
            .assignments
            .iter()
            .map(|assignment| batch.get::<Block>(&assignment.cidr()))
            .collect();
        let of_list = unknown
            .assignments
            .iter()
            .filter(|_| unknown.lost_write.is_none());
        let key = |assignment: &BlockAssignment| AffinityKey {
            owner: self.request.owner(),
            cidr: assignment.cidr(),
        };
        let affinities: Vec<_> = of_list
            .map(|assignment| batch.get::<BlockAffinity>(&key(assignment)))
            .collect();
        let answers = self.store.read(&batch).await?;
        let handle = answers.get(&handle)?;
        let mut observed = ObservedWrite {
            handle,
            committed: Vec::new(),
            undone: Vec::new(),
        };
        let mut pending = Vec::new();
        for (n, assignment) in unknown.assignments.iter().enumerate() {
            let stored = answers.get(&blocks[n])?;
            let may_be_in_progress = match (unknown.lost_write, &assignment.prior_affinity) {
                (Some(lost_write), _) => lost_write == unknown.list.assignments[n].1,
                (None, None) => true,
                // In a transaction, the write also depends on the affinity. An unreadable affinity
                // differs from the one read before.
                (None, Some(prior)) => answers
                    .get(&affinities[n])
                    .is_ok_and(|affinity| prior.is_unchanged(affinity.as_ref())),
            };
            if stored
                .as_ref()
                .is_some_and(|stored| assignment.is_stored_in(self.request, &stored.value))
            {
                observed.committed.push(assignment.clone());
                continue;
            }
            let held = stored.as_ref().map_or(0, |stored| {
                stored.value.addresses_of(&self.request.handle).len()
            });
            observed
                .undone
                .push((assignment.cidr(), assignment.addresses.len(), held));
            let is_unchanged = has_same_version(
                stored.as_ref().map(|stored| &stored.revision),
                assignment.revision.as_ref(),
            );
            if may_be_in_progress && is_unchanged {
                pending.push((assignment, stored));
            }
        }
        for (assignment, stored) in pending {
            let writes = self.overwriting_writes(assignment, stored.as_ref())?;
            self.store
                .write(&writes)
                .await
                .map_err(|error| error.cause)?;
        }
        Ok(observed)
    }

    /// Returns the writes that store the block, which lacks the assignment, unchanged, or create it
    /// without addresses. Either makes the lost write fail.
    fn overwriting_writes(
        &self,
        assignment: &BlockAssignment,
        stored: Option<&Entry<Block>>,
    ) -> Result<Vec<Write>, StoreError> {
        let Some(stored) = stored else {
            let owner = self.request.owner();
            let empty = Block::new(assignment.cidr(), &owner, self.snapshot.now)
                .map_err(|error| StoreError::Other(error.to_string()))?;
            // Without transactions, the affinity's write has completed before the block's write
            // begins.
            let prior = match self.store.write_model() {
                WriteModel::Transactional => assignment.prior_affinity.as_ref(),
                WriteModel::PerObject => None,
            };
            return empty_block_writes(empty, &owner, prior);
        };
        let mut block = stored.value.clone();
        block.count_write();
        Ok(vec![Write::update::<Block>(
            &stored.key,
            &block,
            &stored.revision,
        )?])
    }

    /// Decrements the handle by the counts of assignments that did not take effect. Counts made
    /// beforehand are dropped if the lost write of the handle may still take effect. A later
    /// attempt then writes the handle and invalidates the lost write.
    async fn correct_handle(&mut self, unknown: &UnknownWrite<'_>, observed: &ObservedWrite) {
        let Some(sent) = &unknown.list.handle else {
            return consume_reserved(self.snapshot, &observed.committed);
        };
        let (read, now) = (self.snapshot.handle(), observed.handle.as_ref());
        let is_unchanged = has_same_version(
            now.map(|now| &now.revision),
            read.map(|read| &read.revision),
        );
        let reserved = self.snapshot.take_reserved();
        let surplus: Vec<(Cidr, usize)> = match now {
            // The handle's write is the first of the list.
            _ if unknown.lost_write.is_some_and(|lost| lost > 0) => observed
                .undone
                .iter()
                .map(|(cidr, n, _)| (*cidr, *n))
                .collect(),
            _ if is_unchanged => reserved.into_iter().collect(),
            Some(now) if now.value == *sent => observed
                .undone
                .iter()
                .filter_map(|undone| surplus(&now.value, undone))
                .collect(),
            // Another operation changed the handle. At worst it counts too many addresses, and DEL
            // corrects that.
            _ => Vec::new(),
        };
        if !surplus.is_empty() {
            decrement(self.store, self.clock, &self.request.handle, &surplus).await;
        }
    }
}

/// Returns the surplus count for an undone assignment in a handle that equals the one sent. The
/// addresses that the block contains are not the assignment's, so their counts stay.
fn surplus(handle: &Handle, (cidr, n, held): &(Cidr, usize, usize)) -> Option<(Cidr, usize)> {
    let counted = handle
        .block
        .get(cidr)
        .and_then(|count| usize::try_from(*count).ok())
        .unwrap_or_default();
    let surplus = counted.saturating_sub(*held).min(*n);
    (surplus > 0).then_some((*cidr, surplus))
}
