//! Verification of created blocks (IPAM-106). No write of a datastore fails because of a block
//! under another name. The ranges of all blocks are therefore read after the creation: of two
//! processes that create overlapping blocks, at least one finds the block of the other.

use std::collections::BTreeSet;
use std::net::IpAddr;

use libcalico::ipam::{AffinityKey, AffinityState, Block, BlockAffinity};
use libcalico::net::Cidr;
use libcalico::store::{ReadBatch, Store, StoreError, identifier, ignore_missing};

use crate::affinity::repair::release_affinity;
use crate::alloc::assignment::BlockAssignment;
use crate::alloc::commit::{Commit, CommitError, release_requests, undo};
use crate::alloc::snapshot::MissingReads;
use crate::handle_refs::decrement;
use crate::retry::{Retry, UNDO_TIME};
use os::clock::Clock;

impl<S: Store, C: Clock> Commit<'_, S, C> {
    /// Takes back the created blocks among `written` that overlap with another block, and fails as
    /// after a lost race. If the ranges cannot be read, releases the addresses of all created
    /// blocks. Their affinities stay pending, so the next allocation reads the ranges before it
    /// uses the blocks.
    pub(super) async fn verify_created(
        &mut self,
        written: Vec<BlockAssignment>,
    ) -> Result<Vec<BlockAssignment>, CommitError> {
        let created = written
            .iter()
            .filter(|assignment| assignment.revision.is_none());
        let ranges: BTreeSet<_> = created
            .map(|assignment| assignment.cidr().version())
            .collect();
        if ranges.is_empty() {
            return Ok(written);
        }
        let missing = MissingReads {
            ranges,
            ..MissingReads::default()
        };
        if let Err(cause) = self.snapshot.read(self.store, &missing).await {
            let (committed, unverified): (Vec<_>, Vec<_>) = written
                .into_iter()
                .partition(|assignment| assignment.revision.is_some());
            for assignment in unverified {
                let block = assignment.cidr();
                tracing::warn!(
                    %block, error = %cause,
                    "cannot read whether the new block overlaps; releasing its addresses"
                );
                self.undo_assignment(&assignment).await;
            }
            return Err(CommitError { committed, cause });
        }
        let (mut committed, mut cause) = (Vec::new(), None);
        for assignment in written {
            match self
                .snapshot
                .overlapping(&assignment.cidr())
                .filter(|_| assignment.revision.is_none())
            {
                None => committed.push(assignment),
                Some(other) => {
                    self.take_back(&assignment, other).await;
                    cause = Some(StoreError::AlreadyExists {
                        key: identifier::<Block>(&other),
                    });
                }
            }
        }
        match cause {
            None => Ok(committed),
            Some(cause) => Err(CommitError { committed, cause }),
        }
    }

    /// Deletes the created block with its affinity, and decrements the handle. If another request
    /// has an address in the block, releases only the addresses of `assignment`.
    async fn take_back(&self, assignment: &BlockAssignment, other: Cidr) {
        let _releasing = self.request.notes.begin_release();
        let block = assignment.cidr();
        let (mut retry, mut released) = (Retry::new(self.clock, UNDO_TIME), 0);
        let outcome = loop {
            let outcome = self.release_and_delete(assignment, &mut released).await;
            let may_succeed = outcome
                .as_ref()
                .is_err_and(|error| retry.may_succeed_after(error));
            let again = may_succeed && !self.store.has_given_up();
            if !again || !retry.pause().await {
                break outcome;
            }
        };
        match outcome {
            Ok(true) => tracing::info!(
                %block, %other,
                "deleted the new block, which overlaps; choosing another range"
            ),
            Ok(false) => tracing::warn!(
                %block, %other,
                reason = "another request has an address in it",
                hint = "`calico-ipam check` names such blocks",
                "the new block overlaps with another, and stays"
            ),
            Err(error) => tracing::warn!(
                %block, %other, %error,
                hint = "the garbage collection deletes the block",
                "cannot delete the new block, which overlaps; releasing its addresses"
            ),
        }
        match released {
            0 => self.undo_assignment(assignment).await,
            n => decrement(self.store, self.clock, &self.request.handle, &[(block, n)]).await,
        }
    }

    /// Releases the addresses of `assignment` without a cooldown, because no pod got them, and
    /// deletes the block and its affinity if the block is empty then. A node may not delete a block
    /// with addresses (`components/node-restriction`). Returns false if the block has an address of
    /// another request.
    ///
    /// Sets `released` to the number of addresses that the block no longer has for the handle, also
    /// if the deletion fails. An address may have passed to another launcher pod under the same
    /// handle, which then still counts it.
    async fn release_and_delete(
        &self,
        assignment: &BlockAssignment,
        released: &mut usize,
    ) -> Result<bool, StoreError> {
        let (cidr, owner) = (assignment.cidr(), self.request.owner());
        let mut batch = ReadBatch::new();
        let block = batch.get::<Block>(&cidr);
        let affinity = batch.get::<BlockAffinity>(&AffinityKey {
            owner: owner.clone(),
            cidr,
        });
        let answers = self.store.read(&batch).await?;
        let block = answers
            .get(&block)?
            .filter(|block| block.value.owner().is_none_or(|now| now == owner));
        let Some(mut block) = block else {
            // A deletion whose response was lost took effect. Another node may have created the
            // block since.
            *released = assignment.addresses.len();
            let marked = answers
                .get(&affinity)?
                .filter(|entry| entry.value.state == AffinityState::PendingDeletion);
            if let Some(marked) = marked {
                ignore_missing(
                    self.store
                        .delete::<BlockAffinity>(&marked.key, Some(&marked.revision))
                        .await,
                )?;
            }
            return Ok(true);
        };
        let requests = release_requests(
            self.request,
            &block.value,
            assignment.addresses.iter().copied(),
        );
        if !requests.is_empty() {
            let outcome = block
                .value
                .release_unchanged(&requests, 0, self.snapshot.now);
            outcome.map_err(|problem| StoreError::Other(problem.to_string()))?;
            block.value.count_write();
            block.revision = self
                .store
                .update::<Block>(&cidr, &block.value, &block.revision)
                .await?;
        }
        let held = block.value.addresses_of(&self.request.handle);
        *released = assignment
            .addresses
            .iter()
            .filter(|ip| !held.contains(ip))
            .count();
        if !block.value.is_empty() {
            return Ok(false);
        }
        match answers.get(&affinity)? {
            Some(affinity) => release_affinity(self.store, &affinity, &block).await?,
            None => {
                self.store
                    .delete::<Block>(&cidr, Some(&block.revision))
                    .await?
            }
        }
        Ok(true)
    }

    async fn undo_assignment(&self, assignment: &BlockAssignment) {
        let _releasing = self.request.notes.begin_release();
        let written: Vec<(Cidr, IpAddr)> = assignment
            .addresses
            .iter()
            .map(|ip| (assignment.cidr(), *ip))
            .collect();
        undo(self.store, self.clock, self.request, &written).await;
    }
}
