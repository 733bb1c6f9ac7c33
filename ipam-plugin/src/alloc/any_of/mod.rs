//! [`assign_listed`]: assigns the first free address of each family of a fixed list.

mod search;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use libcalico::ipam::{AnyOf, Candidate, list_whole};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Store, StoreError};

use self::search::{ListSearch, SearchStep};
use crate::alloc::assign;
use crate::alloc::assignment::{Assigned, Assignment, BlockSource, is_from_request};
use crate::alloc::commit::undo;
use crate::alloc::inputs::AllocationInputs;
use crate::alloc::one_address::assign_in;
use crate::alloc::request::AssignRequest;
use crate::alloc::snapshot::Snapshot;
use crate::error::{IpamError, Result};
use crate::retry::{OPERATION_TIME, Retry};
use os::clock::Clock;

/// An address of a list that the request got.
struct ListedAddress {
    ip: IpAddr,
    block: Cidr,
    source: BlockSource,
}

/// Assigns an address of the list for each requested family in it, and the other requested families as without a list.
/// After an error or a shortfall, the addresses that this call assigned are released again, as far as possible.
pub(crate) async fn assign_listed<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    request: &AssignRequest,
    list: &AnyOf,
    inputs: AllocationInputs,
) -> Result<Assigned> {
    let mut written = Vec::new();
    let outcome = assign_families(store, clock, request, list, inputs, &mut written).await;
    let is_complete = outcome.as_ref().is_ok_and(|assigned| assigned.shortfalls.is_empty());
    if !is_complete && !written.is_empty() {
        let _releasing = request.notes.begin_release();
        undo(store, clock, request, &written).await;
    }
    outcome
}

/// Assigns the families one after the other. Adds the addresses of the list to `written`.
async fn assign_families<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    request: &AssignRequest,
    list: &AnyOf,
    inputs: AllocationInputs,
    written: &mut Vec<(Cidr, IpAddr)>,
) -> Result<Assigned> {
    let listed = AssignRequest { by_list: true, ..request.clone() };
    let mut others = request.clone();
    let (mut inputs, mut assigned) = (Some(inputs), Assigned::default());
    for version in list.families().filter(|version| request.wanted(*version) > 0) {
        let inputs = next_inputs(store, request, &mut inputs).await?;
        let ListedAddress { ip, block, source } =
            assign_any_of(store, clock, &listed, list.of(version), inputs).await?;
        written.push((block, ip));
        assigned.addresses.push(Assignment { ip, prefix: block.prefix() });
        assigned.has_claimed |= source == BlockSource::Claimed;
        match version {
            IpVersion::V4 => others.num4 = 0,
            IpVersion::V6 => others.num6 = 0,
        }
    }
    if others.num4 + others.num6 > 0 {
        let inputs = next_inputs(store, request, &mut inputs).await?;
        let Assigned { addresses, shortfalls, searches, has_claimed, .. } =
            assign(store, clock, &others, inputs).await?;
        assigned.addresses.extend(addresses);
        assigned.addresses.sort_by_key(|assignment| IpVersion::of(assignment.ip));
        assigned.has_claimed |= has_claimed;
        assigned = Assigned { shortfalls, searches, ..assigned };
    }
    Ok(assigned)
}

/// Returns the inputs that were read first. They lack the writes of the first family, so they are read again for the
/// second.
async fn next_inputs<S: Store>(
    store: &S,
    request: &AssignRequest,
    first: &mut Option<AllocationInputs>,
) -> Result<AllocationInputs, StoreError> {
    match first.take() {
        Some(inputs) => Ok(inputs),
        None => AllocationInputs::read(store, &request.inputs_query()).await,
    }
}

/// Assigns the first free address of `wanted`, the addresses of one family in the order of the list. The address of the
/// request's predecessor comes before the others, and addresses that the request passes over come last.
async fn assign_any_of<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    request: &AssignRequest,
    wanted: &[IpAddr],
    inputs: AllocationInputs,
) -> Result<ListedAddress> {
    let mut snapshot = Snapshot::new(inputs, request.inputs_query(), clock.now())?;
    let mut search = ListSearch::new(request, wanted);
    let mut retry = Retry::new(clock, OPERATION_TIME);
    loop {
        // A race makes the snapshot read the pools again.
        let candidates = search.candidates(&snapshot)?;
        match search.step(&candidates, &snapshot) {
            SearchStep::Read(missing) => snapshot.read(store, &missing).await?,
            SearchStep::Take(candidate) => {
                let attempt = assign_in(store, clock, request, candidate.ip, &mut snapshot, &mut retry);
                let taken = match Box::pin(attempt).await {
                    Err(error) if is_obstacle(&error) => taken_by_lost_write(request, &snapshot, candidate),
                    outcome => Some(outcome?),
                };
                if let Some((block, source)) = taken {
                    let passed = search.passed_over(&candidates, &snapshot, candidate.ip);
                    tracing::info!(
                        address = %candidate.ip, handle = %request.handle, skipped = passed.len(),
                        passed_over = list_whole(&passed), "took a listed address"
                    );
                    return Ok(ListedAddress { ip: candidate.ip, block, source });
                }
                search.give_up(candidate, &snapshot);
            }
            SearchStep::Exhausted => {
                let unavailable = search.unavailable(&candidates, &snapshot);
                tracing::warn!(
                    handle = %request.handle, addresses = list_whole(&unavailable), "no listed address is free"
                );
                return Err(IpamError::NoneFree { unavailable });
            }
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

/// Returns the block of an address that this request has, because a write with an unknown outcome took effect. The
/// address was free before that write.
fn taken_by_lost_write(
    request: &AssignRequest,
    snapshot: &Snapshot,
    candidate: Candidate,
) -> Option<(Cidr, BlockSource)> {
    let block = &snapshot.readable_block(&candidate.block)?.value;
    let is_own = block.allocation(candidate.ip).is_some_and(|held| is_from_request(request, &held));
    is_own.then(|| (candidate.block, BlockSource::of_existing(block, &request.owner())))
}
