//! [`WriteList`]: the writes of an allocation, in their order: the handle, then each block after its affinity.

use libcalico::ipam::{Block, Handle, Owner};
use libcalico::store::{StoreError, Write};

use super::assignment::BlockAssignment;
use super::request::AssignRequest;
use super::snapshot::Snapshot;

/// A list of writes, with the positions of its parts.
pub(crate) struct WriteList {
    pub(crate) writes: Vec<Write>,
    /// The handle, which is written first; `None` if its stored counts are already right.
    pub(crate) handle: Option<Handle>,
    /// For each assignment, the index of its affinity's write and of its block's write.
    pub(crate) assignments: Vec<(Option<usize>, usize)>,
}

/// Returns the writes of `assignments`.
pub(crate) fn write_list(
    snapshot: &Snapshot,
    request: &AssignRequest,
    owner: &Owner,
    assignments: &[BlockAssignment],
) -> Result<WriteList, StoreError> {
    let handle = handle_with(snapshot, request, assignments);
    let mut writes = Vec::with_capacity(1 + 2 * assignments.len());
    match (snapshot.handle(), &handle) {
        (_, None) => {}
        (Some(read), Some(handle)) => writes.push(Write::update::<Handle>(&request.handle, handle, &read.revision)?),
        (None, Some(handle)) => writes.push(Write::create::<Handle>(&request.handle, handle)?),
    }
    let mut places = Vec::with_capacity(assignments.len());
    for assignment in assignments {
        let affinity = match &assignment.prior_affinity {
            None => None,
            Some(prior) => {
                writes.push(prior.pending(owner, assignment.cidr())?);
                Some(writes.len() - 1)
            }
        };
        writes.push(match &assignment.revision {
            Some(revision) => Write::update::<Block>(&assignment.cidr(), &assignment.block, revision)?,
            None => Write::create::<Block>(&assignment.cidr(), &assignment.block)?,
        });
        places.push((affinity, writes.len() - 1));
    }
    Ok(WriteList { writes, handle, assignments: places })
}

/// Returns the handle with the counts of `assignments` in place of the expected ones, or `None` if the handle does not
/// change.
fn handle_with(snapshot: &Snapshot, request: &AssignRequest, assignments: &[BlockAssignment]) -> Option<Handle> {
    let before = snapshot.handle().map(|entry| &entry.value);
    let mut handle = before.cloned().unwrap_or_default();
    for (block, n) in snapshot.reserved() {
        if let Err(error) = handle.decrement(&request.handle, *block, *n) {
            tracing::warn!(%error, "handle");
        }
    }
    for assignment in assignments {
        handle.increment(assignment.cidr(), assignment.addresses.len());
    }
    (before != Some(&handle)).then_some(handle)
}

/// Records that `committed` took addresses that the handle counted beforehand.
pub(crate) fn consume_reserved(snapshot: &mut Snapshot, committed: &[BlockAssignment]) {
    committed.iter().for_each(|assignment| snapshot.consume_reserved(&assignment.cidr(), assignment.addresses.len()));
}
