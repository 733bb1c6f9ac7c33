//! [`Commit`]: writes assigned addresses as one list of writes, the handle first (IPAM-128).
//! [`undo`]: releases the addresses of a failed allocation. Upstream leaves them allocated until
//! the DEL.

use std::collections::BTreeSet;
use std::net::IpAddr;

use libcalico::ipam::{AffinityKey, AffinityState, Block, BlockAffinity, ReleaseRequest};
use libcalico::net::Cidr;
use libcalico::store::{Revision, Store, StoreError, WriteError, WriteModel};

use crate::affinity::repair::{confirm, no_revision};
use crate::alloc::assignment::{
    BlockAssignment, WriteList, comma_separated, consume_reserved, is_from_request, write_list,
};
use crate::alloc::request::AssignRequest;
use crate::alloc::snapshot::Snapshot;
use crate::handle_refs::decrement;
use crate::release::{ReleasedBatch, release_from_blocks};
use os::clock::Clock;

#[derive(Debug)]
pub(crate) struct CommitError {
    /// The assignments that are known to have taken effect nevertheless.
    pub(crate) committed: Vec<BlockAssignment>,
    pub(crate) cause: StoreError,
}

pub(crate) struct UnknownWrite<'a> {
    pub(crate) list: &'a WriteList,
    pub(crate) assignments: &'a [BlockAssignment],
    /// The index of the write whose response was lost; the later writes were never sent. `None` if
    /// the list is one transaction.
    pub(crate) lost_write: Option<usize>,
}

pub(crate) struct Commit<'a, S, C> {
    pub(crate) store: &'a S,
    pub(crate) clock: &'a C,
    pub(crate) request: &'a AssignRequest,
    pub(crate) snapshot: &'a mut Snapshot,
}

impl<S: Store, C: Clock> Commit<'_, S, C> {
    /// Writes the assignments. An affinity may stay unconfirmed. After an error the snapshot is out
    /// of date. Assignments that are not in `committed` are undone as far as possible; a pending
    /// affinity may stay.
    pub(crate) async fn write(
        &mut self,
        assignments: Vec<BlockAssignment>,
    ) -> Result<Vec<BlockAssignment>, CommitError> {
        let list = write_list(
            self.snapshot,
            self.request,
            &self.request.owner(),
            &assignments,
        );
        let list = list.map_err(|cause| CommitError {
            committed: Vec::new(),
            cause,
        })?;
        for BlockAssignment {
            addresses,
            block,
            prior_affinity,
            ..
        } in &assignments
        {
            let (addresses, block, claims) = (
                comma_separated(addresses),
                block.cidr,
                prior_affinity.is_some(),
            );
            tracing::debug!(
                addresses, %block, claims, "writing the block, and the handle if its counts change",
            );
        }
        match self.store.write(&list.writes).await {
            Ok(revisions) => self.finish(list, assignments, revisions).await,
            Err(WriteError {
                index,
                applied,
                cause,
            }) => {
                let committed = if cause.has_unknown_outcome() {
                    let lost_write = match self.store.write_model() {
                        WriteModel::Transactional => None,
                        WriteModel::PerObject => Some(index),
                    };
                    let unknown = UnknownWrite {
                        list: &list,
                        assignments: &assignments,
                        lost_write,
                    };
                    self.resolve_unknown_outcome(&unknown).await
                } else {
                    self.split_applied(&list, &assignments, applied).await
                };
                let verified = Box::pin(self.verify_created(committed)).await;
                let committed = verified.unwrap_or_else(|error| error.committed);
                self.confirm_again(&committed).await;
                Err(CommitError { committed, cause })
            }
        }
    }

    async fn finish(
        &mut self,
        list: WriteList,
        assignments: Vec<BlockAssignment>,
        revisions: Vec<Revision>,
    ) -> Result<Vec<BlockAssignment>, CommitError> {
        if revisions.len() != list.writes.len() {
            return Err(CommitError {
                committed: assignments,
                cause: no_revision(),
            });
        }
        match list.handle {
            Some(handle) => self.snapshot.record_handle(handle, revisions[0].clone()),
            None => consume_reserved(self.snapshot, &assignments),
        }
        let assignments = match Box::pin(self.verify_created(assignments)).await {
            Ok(assignments) => assignments,
            Err(error) => {
                self.confirm_again(&error.committed).await;
                return Err(error);
            }
        };
        let owner = self.request.owner();
        for (assignment, (affinity, block)) in assignments.iter().zip(&list.assignments) {
            self.snapshot
                .record_block(assignment.block.clone(), revisions[*block].clone());
            if let (Some(index), Some(prior)) = (affinity, &assignment.prior_affinity) {
                let written =
                    prior.pending_entry(&owner, assignment.cidr(), revisions[*index].clone());
                match confirm(self.store, written).await {
                    Ok(confirmed) => self.snapshot.record_affinity(confirmed),
                    Err(error) => warn_unconfirmed(assignment.cidr(), &error),
                }
            }
        }
        Ok(assignments)
    }

    /// Returns the assignments whose blocks are among the first `applied` writes, and decrements
    /// the handle for the others. Counts that were stored before this write stay, because the next
    /// attempt uses them.
    async fn split_applied(
        &mut self,
        list: &WriteList,
        assignments: &[BlockAssignment],
        applied: usize,
    ) -> Vec<BlockAssignment> {
        let (committed, undone): (Vec<_>, Vec<_>) = assignments
            .iter()
            .zip(&list.assignments)
            .partition(|(_, (_, block))| *block < applied);
        let committed: Vec<BlockAssignment> = committed
            .into_iter()
            .map(|(assignment, _)| assignment.clone())
            .collect();
        if list.handle.is_none() {
            consume_reserved(self.snapshot, &committed);
        } else if applied > 0 {
            self.snapshot.take_reserved();
            let surplus = undone
                .iter()
                .map(|(assignment, _)| (assignment.cidr(), assignment.addresses.len()));
            decrement(
                self.store,
                self.clock,
                &self.request.handle,
                &surplus.collect::<Vec<_>>(),
            )
            .await;
        }
        committed
    }

    /// Confirms the affinities of assignments that took effect although the list of writes failed.
    async fn confirm_again(&self, committed: &[BlockAssignment]) {
        for assignment in committed
            .iter()
            .filter(|assignment| assignment.prior_affinity.is_some())
        {
            let key = AffinityKey {
                owner: self.request.owner(),
                cidr: assignment.cidr(),
            };
            let outcome = match self.store.get::<BlockAffinity>(&key).await {
                Ok(stored) if stored.value.state == AffinityState::Confirmed => Ok(stored),
                Ok(stored) => confirm(self.store, stored).await,
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                warn_unconfirmed(assignment.cidr(), &error);
            }
        }
    }
}

fn warn_unconfirmed(block: Cidr, error: &StoreError) {
    tracing::warn!(
        %block, %error,
        hint = "the node's next allocation or a garbage collection confirms it",
        "cannot confirm the block affinity"
    );
}

/// Returns the release requests for those of `addresses` that are allocated in the block as
/// `request` writes them.
pub(super) fn release_requests(
    request: &AssignRequest,
    block: &Block,
    addresses: impl Iterator<Item = IpAddr>,
) -> Vec<ReleaseRequest> {
    let held = addresses
        .filter_map(|ip| block.allocation(ip))
        .filter(|held| is_from_request(request, held));
    held.map(|held| ReleaseRequest {
        ip: held.ip,
        handle: held.handle(),
        sequence: held.sequence,
    })
    .collect()
}

/// Releases the addresses of `written`, each with its block, if their allocations are unchanged. A
/// VMI's address may have passed to another launcher pod under the same handle. Failure is only
/// logged, because the handle still counts the remaining addresses.
pub(crate) async fn undo(
    store: &impl Store,
    clock: &impl Clock,
    request: &AssignRequest,
    written: &[(Cidr, IpAddr)],
) {
    let blocks: BTreeSet<Cidr> = written.iter().map(|(block, _)| *block).collect();
    let requests = |block: &Block| {
        let here = written.iter().filter(|(cidr, _)| *cidr == block.cidr);
        release_requests(request, block, here.map(|(_, ip)| *ip))
    };
    let handle = &request.handle;
    let released = release_from_blocks(store, clock, blocks, requests).await;
    if let Err(error) = released.and_then(ReleasedBatch::into_addresses) {
        tracing::error!(
            %handle, %error,
            hint = "a DEL or kube-controllers releases the remaining addresses",
            "cannot release all addresses of a failed allocation"
        );
    }
}

#[cfg(test)]
mod tests {
    use libcalico::ipam::OwnerSlot;

    use super::*;
    use crate::alloc::one_address::assign_address;
    use crate::alloc::request::workload_attributes;
    use crate::testing::{Cluster, MemoryStore, held};

    /// The owner of the address is still the launcher of the failed allocation, or another one of
    /// the VMI.
    #[tokio::test]
    async fn undo_leaves_an_address_that_moved_to_another_launcher() {
        let ip: IpAddr = "10.65.0.9".parse().unwrap();
        let free: IpAddr = "10.65.0.10".parse().unwrap();
        for (owner, kept) in [("launcher-1", false), ("launcher-2", true)] {
            let cluster = Cluster::on(MemoryStore::sequential());
            cluster.pool("pool4", "10.65.0.0/16", 26);
            let mut request = cluster.request("node1", "net.vmi.ns.db");
            let pod = Some(("ns", "launcher-1"));
            request.attributes = workload_attributes("node1", pod, cluster.clock.now());
            let inputs = cluster.inputs(&request).await.unwrap();
            assign_address(&cluster.store, &cluster.clock, &request, ip, inputs)
                .await
                .unwrap();
            let mut block = cluster.block("10.65.0.0/26").unwrap();
            let attributes = match owner {
                "launcher-1" => request.attributes.clone(),
                _ => workload_attributes("node2", Some(("ns", owner)), cluster.clock.now()),
            };
            block.set_owner(&request.handle, OwnerSlot::Active, &attributes);
            let stored = cluster.store.get::<Block>(&block.cidr).await.unwrap();
            cluster
                .store
                .update(&block.cidr, &block, &stored.revision)
                .await
                .unwrap();
            let written = [free, ip].map(|ip| (block.cidr, ip));
            undo(&cluster.store, &cluster.clock, &request, &written).await;
            assert_eq!(
                !held(&cluster.store.pairs()).is_empty(),
                kept,
                "owned by {owner}"
            );
        }
    }
}
