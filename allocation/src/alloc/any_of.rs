//! [`assign_listed`]: assigns the first free address of each family of a fixed list.

mod search;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use libcalico::ipam::{AnyOf, Candidate, Candidates, list_for_log};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::Store;

use self::search::{ListSearch, SearchStep};
use crate::alloc::assign;
use crate::alloc::assignment::{Assigned, Assignment, BlockSource, is_from_request};
use crate::alloc::commit::undo;
use crate::alloc::inputs::{AllocationInputs, LONGEST_VALIDITY};
use crate::alloc::one_address::assign_in;
use crate::alloc::request::AssignRequest;
use crate::alloc::snapshot::{MissingReads, Snapshot};
use crate::error::{IpamError, Result};
use crate::retry::{OPERATION_TIME, Retry};
use os::clock::Clock;

/// An address of a list that the request got.
struct ListedAddress {
    ip: IpAddr,
    block: Cidr,
    source: BlockSource,
    /// True if the address passed from the predecessor.
    is_handed_over: bool,
}

/// The datastore, and the objects of it that all families of a list use.
struct ListRun<'a, S, C> {
    store: &'a S,
    clock: &'a C,
    request: &'a AssignRequest,
    snapshot: Snapshot,
    retry: Retry<'a, C>,
}

/// Assigns an address of the list for each requested family in it, and the other requested families
/// as without a list. After an error or a shortfall, the addresses that this call assigned are
/// released again, as far as possible. An address of the predecessor stays allocated until the DEL,
/// because the pod's endpoint may list it.
pub async fn assign_listed<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    request: &AssignRequest,
    list: &AnyOf,
    inputs: AllocationInputs,
) -> Result<Assigned> {
    let mut written = Vec::new();
    let outcome = assign_families(store, clock, request, list, inputs, &mut written).await;
    let is_complete = outcome
        .as_ref()
        .is_ok_and(|assigned| assigned.shortfalls.is_empty());
    if !is_complete && !written.is_empty() {
        let _releasing = request.notes.begin_release();
        undo(store, clock, request, &written).await;
    }
    outcome
}

/// Finds a free address for each family in the list, assigns the other families, and then takes the
/// addresses of the list. The release of an address may start its cooldown, so a request that
/// cannot be served takes none from the list, except after a lost race. Adds the addresses to
/// release after a failure to `written`.
async fn assign_families<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    request: &AssignRequest,
    list: &AnyOf,
    inputs: AllocationInputs,
    written: &mut Vec<(Cidr, IpAddr)>,
) -> Result<Assigned> {
    let listed = AssignRequest {
        by_list: true,
        ..request.clone()
    };
    let mut others = request.clone();
    let mut searches = Vec::new();
    for version in list
        .families()
        .filter(|version| request.wanted(*version) > 0)
    {
        searches.push(ListSearch::new(&listed, list.of(version)));
        match version {
            IpVersion::V4 => others.num4 = 0,
            IpVersion::V6 => others.num6 = 0,
        }
    }
    if searches.is_empty() {
        return assign(store, clock, request, inputs).await;
    }
    let began = clock.elapsed();
    let snapshot = Snapshot::new(inputs, request.inputs_query(), clock.now())?;
    let mut run = ListRun {
        store,
        clock,
        request: &listed,
        snapshot,
        retry: Retry::new(clock, OPERATION_TIME),
    };
    for search in &searches {
        run.find(search).await?;
    }
    // A list may need many reads of blocks, one after the other.
    if clock.elapsed().saturating_sub(began) > LONGEST_VALIDITY {
        run.snapshot.inputs = AllocationInputs::read(store, &request.inputs_query()).await?;
    }
    let mut assigned = Assigned::default();
    if others.num4 + others.num6 > 0 {
        assigned = assign(store, clock, &others, run.snapshot.inputs.clone()).await?;
        let of_block = |one: &Assignment| Some((Cidr::new(one.ip, one.prefix)?, one.ip));
        written.extend(assigned.addresses.iter().filter_map(of_block));
        if !assigned.shortfalls.is_empty() {
            return Ok(assigned);
        }
        // The handle now counts the other families.
        run.snapshot.read(store, &MissingReads::handle()).await?;
    }
    for search in &mut searches {
        let ListedAddress {
            ip,
            block,
            source,
            is_handed_over,
        } = run.take(search).await?;
        if !is_handed_over {
            written.push((block, ip));
        }
        assigned.addresses.push(Assignment {
            ip,
            prefix: block.prefix(),
        });
        assigned.has_claimed |= source == BlockSource::Claimed;
    }
    assigned
        .addresses
        .sort_by_key(|assignment| IpVersion::of(assignment.ip));
    Ok(assigned)
}

impl<S: Store, C: Clock> ListRun<'_, S, C> {
    /// Returns the address to take next, and the addresses that the pools permit. Reads blocks
    /// until an address is found.
    async fn find(&mut self, search: &ListSearch<'_>) -> Result<(Candidate, Candidates)> {
        loop {
            // A race makes the snapshot read the pools again.
            let candidates = search.candidates(&self.snapshot)?;
            match search.step(&candidates, &self.snapshot) {
                SearchStep::Read(missing) => self.snapshot.read(self.store, &missing).await?,
                SearchStep::Take(candidate) => {
                    tracing::debug!(
                        address = %candidate.ip, block = %candidate.block,
                        is_handed_over = search.is_predecessors(&candidate, &self.snapshot),
                        reason = "first free", "chose a listed address"
                    );
                    return Ok((candidate, candidates));
                }
                SearchStep::Exhausted => {
                    let unavailable = search.unavailable(&candidates, &self.snapshot);
                    tracing::warn!(
                        handle = %self.request.handle, addresses = list_for_log(&unavailable),
                        "no listed address is free"
                    );
                    return Err(IpamError::NoneFree { unavailable });
                }
            }
        }
    }

    /// Assigns the first free address of a family, in the order of the list. The address of the
    /// request's predecessor comes before the others, and addresses that the request passes over
    /// come last.
    async fn take(&mut self, search: &mut ListSearch<'_>) -> Result<ListedAddress> {
        loop {
            let (candidate, candidates) = self.find(search).await?;
            let is_handed_over = search.is_predecessors(&candidate, &self.snapshot);
            let (snapshot, retry) = (&mut self.snapshot, &mut self.retry);
            let attempt = assign_in(
                self.store,
                self.clock,
                self.request,
                candidate.ip,
                snapshot,
                retry,
            );
            let taken = match Box::pin(attempt).await {
                Err(error) if is_obstacle(&error) => {
                    taken_by_lost_write(self.request, &self.snapshot, candidate)
                }
                outcome => Some(outcome?),
            };
            let Some((block, source)) = taken else {
                search.give_up(candidate, &self.snapshot);
                continue;
            };
            let passed = search.passed_over(&candidates, &self.snapshot, candidate.ip);
            tracing::info!(
                address = %candidate.ip, handle = %self.request.handle, skipped = passed.len(),
                passed_over = list_for_log(&passed), "took a listed address"
            );
            return Ok(ListedAddress {
                ip: candidate.ip,
                block,
                source,
                is_handed_over,
            });
        }
    }
}

/// Returns true if the request may get another address of the list after this error.
fn is_obstacle(error: &IpamError) -> bool {
    matches!(
        error,
        IpamError::AlreadyAssigned { .. }
            | IpamError::NotInPool { .. }
            | IpamError::UseNotAllowed { .. }
            | IpamError::Withheld { .. }
            | IpamError::OverlappingBlock { .. }
            | IpamError::UnreadableBlock(_)
            | IpamError::Block(_)
            | IpamError::Corrupt(_)
    )
}

/// Returns the block of an address that this request has, because a write with an unknown outcome
/// took effect. The address was free before that write.
fn taken_by_lost_write(
    request: &AssignRequest,
    snapshot: &Snapshot,
    candidate: Candidate,
) -> Option<(Cidr, BlockSource)> {
    let block = &snapshot.readable_block(&candidate.block)?.value;
    let is_own = block
        .allocation(candidate.ip)
        .is_some_and(|held| is_from_request(request, &held));
    is_own.then(|| {
        (
            candidate.block,
            BlockSource::of_existing(block, &request.owner()),
        )
    })
}
