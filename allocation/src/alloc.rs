//! Allocation of addresses: a loop of plan, read and commit.
//!
//! [`inputs`] reads the objects that every allocation needs. `planner` decides the next step from
//! the `snapshot`, and `commit` writes assigned addresses. [`one_address`] assigns a requested
//! address, and `any_of` the first free address of a list.
//!
//! A future contains the futures that it awaits. One that a usual ADD does not run is therefore
//! boxed (`Box::pin`), so that the memory of each ADD does not contain that of each rare case.

mod any_of;
mod assignment;
pub mod block_hints;
mod commit;
pub mod inputs;
pub mod one_address;
mod overlap;
mod planner;
pub mod predecessor;
pub mod prefetch;
mod repair;
pub mod request;
mod reserved_handle;
mod snapshot;
mod unknown_outcome;

use std::collections::BTreeSet;
use std::mem;
use std::net::IpAddr;

use libcalico::ipam::Block;
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Entry, Revision, Store, StoreError, WriteModel};

pub use crate::alloc::any_of::assign_listed;
pub use crate::alloc::assignment::{Assigned, Assignment, comma_separated};
use crate::alloc::assignment::{BlockAssignment, BlockSource, log_assigned};
use crate::alloc::block_hints::HintedBlocks;
use crate::alloc::commit::{Commit, CommitError, undo};
use crate::alloc::inputs::{AllocationInputs, BlockCounts};
use crate::alloc::planner::{FamilyPlanner, PlannerStep};
use crate::alloc::repair::AffinityRepair;
use crate::alloc::request::AssignRequest;
use crate::alloc::reserved_handle::release_reserved;
use crate::alloc::snapshot::{MissingReads, Snapshot};
use crate::error::{Exhaustion, Result};
use crate::retry::{OPERATION_TIME, Retry};
use os::clock::Clock;

struct FamilyProgress<'a> {
    planner: FamilyPlanner<'a>,
    remaining: usize,
    assigned: usize,
    exhausted: Option<Exhaustion>,
}

struct AllocationRun<'a, S, C> {
    store: &'a S,
    clock: &'a C,
    request: &'a AssignRequest,
    snapshot: Snapshot,
    families: Vec<FamilyProgress<'a>>,
    retry: Retry<'a, C>,
    committed_assignments: Vec<BlockAssignment>,
    already_held: Vec<Assignment>,
    last_write: Option<Revision>,
    /// Empty blocks of other owners that this allocation released, to claim them.
    reclaimed: BTreeSet<Cidr>,
    /// The number of this node's last release when the first search of all blocks began; `None`
    /// without such a search, or if it cannot leave a note.
    last_release: Option<u64>,
}

/// Verifies that the node exists and that each requested family has a pool, as an assignment does.
///
/// # Errors
/// Returns the error that the assignment would return.
pub fn verify_pools(request: &AssignRequest, inputs: &AllocationInputs) -> Result<()> {
    [IpVersion::V4, IpVersion::V6]
        .into_iter()
        .filter(|version| request.wanted(*version) > 0)
        .try_for_each(|version| FamilyPlanner::new(request, inputs, version).map(drop))
}

/// Assigns the requested addresses, or as many of them as are available. On error, and if
/// `all_or_nothing` is set and too few are available, the addresses that this call assigned are
/// released again, as far as possible.
pub async fn assign<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    request: &AssignRequest,
    inputs: AllocationInputs,
) -> Result<Assigned> {
    let wanted = [IpVersion::V4, IpVersion::V6]
        .into_iter()
        .filter(|version| request.wanted(*version) > 0);
    let families: Result<Vec<FamilyProgress<'_>>> = wanted
        .map(|version| {
            let planner = FamilyPlanner::new(request, &inputs, version)?;
            Ok(FamilyProgress {
                planner,
                remaining: request.wanted(version),
                assigned: 0,
                exhausted: None,
            })
        })
        .collect();
    let reserved = inputs.reserved.clone();
    let snapshot = Snapshot::new(inputs, request.inputs_query(), clock.now());
    let snapshot = snapshot.map(|snapshot| snapshot.with_skipped(request.skipped.clone()));
    let (families, snapshot) = match families.and_then(|families| Ok((families, snapshot?))) {
        Ok(both) => both,
        Err(error) => {
            Box::pin(release_reserved(store, clock, &request.handle, reserved)).await;
            return Err(error);
        }
    };
    let mut run = AllocationRun {
        store,
        clock,
        request,
        families,
        snapshot,
        retry: Retry::new(clock, OPERATION_TIME),
        committed_assignments: Vec::new(),
        already_held: Vec::new(),
        last_write: None,
        reclaimed: BTreeSet::new(),
        last_release: None,
    };
    run.complete().await
}

enum Planned {
    Round(AllocationRound),
    /// A family has no address left but those that the request skips.
    OnlySkippedLeft,
}

#[derive(Default)]
struct AllocationRound {
    missing: MissingReads,
    repairs: Vec<(IpVersion, AffinityRepair)>,
    assignments: Vec<BlockAssignment>,
}

impl<S: Store, C: Clock> AllocationRun<'_, S, C> {
    async fn complete(&mut self) -> Result<Assigned> {
        let outcome = self.run_rounds().await;
        if outcome.is_err() || self.request.all_or_nothing && self.is_short() {
            let _releasing = (!self.committed_assignments.is_empty())
                .then(|| self.request.notes.begin_release());
            let committed = self.committed_assignments.iter();
            let written: Vec<(Cidr, IpAddr)> = committed
                .flat_map(|one| one.addresses.iter().map(move |ip| (one.cidr(), *ip)))
                .collect();
            Box::pin(undo(self.store, self.clock, self.request, &written)).await;
            self.committed_assignments.clear();
        }
        let unused = self.snapshot.take_reserved();
        Box::pin(release_reserved(
            self.store,
            self.clock,
            &self.request.handle,
            unused,
        ))
        .await;
        outcome.map(|()| self.outcome())
    }

    async fn run_rounds(&mut self) -> Result<()> {
        loop {
            let AllocationRound {
                missing,
                repairs,
                assignments,
            } = match self.plan()? {
                Planned::Round(round) => round,
                // A possibly busy address is better than none.
                Planned::OnlySkippedLeft => {
                    self.snapshot.stop_skipping();
                    continue;
                }
            };
            if self.request.all_or_nothing && self.is_short() {
                return Ok(());
            }
            if !missing.lists.is_empty() && self.last_release.is_none() {
                self.last_release = self.request.notes.begin_search();
            }
            if missing != MissingReads::default() {
                match self.counts_to_reserve(&missing) {
                    Some(reserved) => {
                        Box::pin(
                            self.snapshot
                                .read_beside_handle(self.store, &missing, reserved),
                        )
                        .await?
                    }
                    None => self.snapshot.read(self.store, &missing).await?,
                }
            } else if let Some((version, repair)) = repairs.into_iter().next() {
                Box::pin(self.repair(version, repair)).await?;
            } else if !assignments.is_empty() {
                self.commit(assignments).await?;
            } else {
                return Ok(());
            }
        }
    }

    fn plan(&mut self) -> Result<Planned> {
        let mut round = AllocationRound::default();
        for family in self
            .families
            .iter_mut()
            .filter(|f| f.remaining > 0 && f.exhausted.is_none())
        {
            let step = family.planner.next(&self.snapshot, family.remaining)?;
            family.planner.log_decision(&self.snapshot, &step);
            match step {
                PlannerStep::Read(missing) => round.missing.merge(missing),
                PlannerStep::Repair(repair) => round.repairs.push((family.planner.version, repair)),
                PlannerStep::Assign(assignment) => round.assignments.push(assignment),
                PlannerStep::AlreadyHeld(addresses) => {
                    let prefix = family.planner.version.bits();
                    self.already_held
                        .extend(addresses.into_iter().map(|ip| Assignment { ip, prefix }));
                    family.remaining = 0;
                }
                PlannerStep::Exhausted(_) if self.snapshot.is_skipping() => {
                    return Ok(Planned::OnlySkippedLeft);
                }
                PlannerStep::Exhausted(cause) => family.exhausted = Some(cause),
            }
        }
        Ok(Planned::Round(round))
    }

    /// Returns the counts that the handle may get before blocks are read. Returns `None` if a
    /// family has no block that probably has its addresses, or if this saves no request.
    fn counts_to_reserve(&self, missing: &MissingReads) -> Option<BlockCounts> {
        match self.store.write_model() {
            WriteModel::Transactional => return None,
            WriteModel::PerObject => {}
        }
        if missing.handle || !self.snapshot.is_handle_unread() {
            return None;
        }
        let unserved = self
            .families
            .iter()
            .filter(|family| family.remaining > 0 && family.exhausted.is_none());
        unserved
            .map(|family| {
                Some((
                    family.planner.likely_block(&self.snapshot)?,
                    family.remaining,
                ))
            })
            .collect()
    }

    async fn repair(&mut self, version: IpVersion, repair: AffinityRepair) -> Result<()> {
        let cidr = repair.cidr();
        let is_reclaim = repair.is_reclaim(&self.request.owner());
        let Err(error) = repair.apply(self.store, &mut self.snapshot).await else {
            self.reclaimed.extend(is_reclaim.then_some(cidr));
            return Ok(());
        };
        if !error.is_of_one_object() {
            return Err(error.into());
        }
        if !error.is_race() {
            // The request does not depend on this block.
            tracing::warn!(
                block = %cidr, %error,
                "cannot repair the block affinity; continuing without the repair",
            );
            if let Some(family) = self
                .families
                .iter_mut()
                .find(|family| family.planner.version == version)
            {
                family.planner.excluded.insert(cidr);
                family.planner.may_reclaim &=
                    !(is_reclaim && matches!(error, StoreError::Forbidden { .. }));
            }
        }
        self.read_again(vec![cidr], &error).await
    }

    async fn commit(&mut self, assignments: Vec<BlockAssignment>) -> Result<()> {
        self.log_unused_own_blocks(&assignments);
        let blocks_to_read: Vec<Cidr> = assignments.iter().map(BlockAssignment::cidr).collect();
        let (store, clock, request, snapshot) =
            (self.store, self.clock, self.request, &mut self.snapshot);
        match (Commit {
            store,
            clock,
            request,
            snapshot,
        })
        .write(assignments)
        .await
        {
            Ok(committed) => {
                let last = committed
                    .last()
                    .and_then(|assignment| self.snapshot.readable_block(&assignment.cidr()));
                self.last_write = last.map(|block| block.revision.clone());
                self.record_committed(committed);
                Ok(())
            }
            Err(CommitError { committed, cause }) => {
                let is_unknown = cause.has_unknown_outcome();
                let has_progress = !committed.is_empty();
                self.record_committed(committed);
                if is_unknown
                    && has_progress
                    && self.families.iter().all(|family| family.remaining == 0)
                {
                    return Ok(());
                }
                if !cause.is_race() && !is_unknown {
                    return Err(cause.into());
                }
                self.read_again(blocks_to_read, &cause).await
            }
        }
    }

    /// If an address comes from a block that was not the node's, logs the reasons for which the
    /// node's other blocks give none.
    fn log_unused_own_blocks(&self, assignments: &[BlockAssignment]) {
        let owner = self.request.owner();
        for assignment in assignments
            .iter()
            .filter(|assignment| assignment.source(&owner, false) != BlockSource::Own)
        {
            let cidr = assignment.cidr();
            let families = self
                .families
                .iter()
                .filter(|family| family.planner.version == cidr.version());
            let unused =
                families.flat_map(|family| family.planner.unused_own_blocks(&self.snapshot));
            for (block, reason) in unused.filter(|(block, _)| *block != cidr) {
                tracing::debug!(%block, reason, "taking no address from a block of the node");
            }
        }
    }

    fn record_committed(&mut self, committed: Vec<BlockAssignment>) {
        for assignment in committed {
            let version = assignment.cidr().version();
            if let Some(family) = self
                .families
                .iter_mut()
                .find(|family| family.planner.version == version)
            {
                family.remaining = family.remaining.saturating_sub(assignment.addresses.len());
                family.assigned += assignment.addresses.len();
            }
            self.committed_assignments.push(assignment);
        }
    }

    async fn read_again(&mut self, blocks_to_read: Vec<Cidr>, error: &StoreError) -> Result<()> {
        self.retry.pause_after_write(error).await?;
        let own = self
            .families
            .iter()
            .flat_map(|family| self.snapshot.own_affinities(family.planner.version));
        let own = own
            .map(|entry| entry.key.cidr)
            .filter(|cidr| self.snapshot.block(cidr).is_some());
        let blocks: BTreeSet<Cidr> = own.chain(blocks_to_read).collect();
        self.snapshot
            .refresh(self.store, self.clock.now(), blocks)
            .await?;
        self.families
            .iter_mut()
            .try_for_each(|family| family.planner.choose_again(&self.snapshot.inputs))
    }

    fn is_short(&self) -> bool {
        self.families
            .iter()
            .any(|family| family.exhausted.is_some())
    }

    fn outcome(&mut self) -> Assigned {
        let mut addresses = mem::take(&mut self.already_held);
        for assignment in &self.committed_assignments {
            let prefix = assignment.cidr().prefix();
            addresses.extend(
                assignment
                    .addresses
                    .iter()
                    .map(|ip| Assignment { ip: *ip, prefix }),
            );
        }
        addresses.sort_by_key(|assignment| IpVersion::of(assignment.ip));
        let owner = self.request.owner();
        let blocks = self.committed_assignments.iter().flat_map(|assignment| {
            let cidr = assignment.cidr();
            let source = assignment.source(&owner, self.reclaimed.contains(&cidr));
            assignment
                .addresses
                .iter()
                .map(move |ip| (*ip, cidr, source))
        });
        log_assigned(&self.request.handle, &self.snapshot.inputs.pools, blocks);
        let (snapshot, release) = (&self.snapshot, self.last_release);
        let is_complete =
            |family: &&FamilyProgress<'_>| family.remaining == 0 || family.exhausted.is_some();
        let completed = self.families.iter().filter(is_complete);
        let searches = completed
            .filter_map(|f| f.planner.outcome(snapshot, f.exhausted.as_ref(), release))
            .collect();
        let has_claimed = self
            .committed_assignments
            .iter()
            .any(|assignment| assignment.prior_affinity.is_some());
        let short_families = self.families.iter_mut().filter_map(|family| {
            let cause = family.exhausted.take()?;
            Some(family.planner.shortfall(snapshot, family.assigned, cause))
        });
        let shortfalls = short_families.collect();
        let (next_hints, last_write) = (self.next_hints(), self.last_write.take());
        Assigned {
            addresses,
            shortfalls,
            next_hints,
            last_write,
            searches,
            has_claimed,
        }
    }

    fn next_hints(&self) -> HintedBlocks {
        let first_with_room = |family: &FamilyProgress<'_>| {
            let mut own = family
                .planner
                .own_blocks(&self.snapshot)
                .map(|entry| entry.key.cidr);
            let free = |block: &Entry<Block>| block.value.free(&self.snapshot.reservations);
            own.find(|cidr| {
                self.snapshot
                    .readable_block(cidr)
                    .is_some_and(|block| free(block) > 0)
            })
        };
        let with_room: Vec<Cidr> = self.families.iter().filter_map(first_with_room).collect();
        let read_first = self
            .families
            .iter()
            .flat_map(|family| family.planner.blocks_to_read_first(&self.snapshot));
        let others = read_first
            .filter(|cidr| !with_room.contains(cidr))
            .collect();
        HintedBlocks { with_room, others }
    }
}

#[cfg(test)]
mod tests;
