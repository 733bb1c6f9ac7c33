//! [`repair`]: corrects the handles of running workloads before their addresses are allocated, and
//! [`repair_allocated`] afterwards.
//!
//! A handle survives the loss of its block, and an interrupted adoption counts an address that no
//! block names. The allocation counts the address again.

use std::collections::{BTreeMap, BTreeSet};

use libcalico::ipam::{Adoption, Handle, HandleId, SuspectHandle};
use libcalico::net::Cidr;
use libcalico::store::{Store, StoreError};

use super::FoundClaim;
use super::read::ReadObjects;
use allocation::reads::find_each;
use allocation::release::handle_repair::repair_unwatched_handles;
use allocation::write_gate::OpenGate;

/// Corrects the handles whose counts differ from the blocks. Returns the problems.
pub(super) async fn repair<S: Store>(
    store: &S,
    objects: &ReadObjects,
    planned: &[(FoundClaim, Adoption)],
) -> Vec<String> {
    let is_wrong = |id: &HandleId, stored: &BTreeMap<Cidr, i64>, block: &Cidr| {
        let named = objects
            .addresses_of(id, block)
            .and_then(|named| i64::try_from(named).ok());
        named.is_some_and(|named| named != stored.get(block).copied().unwrap_or_default())
    };
    problems(try_repair(store, blocks_by_handle(planned), is_wrong).await)
}

/// Corrects the handles of addresses that were allocated since the plan. Without the node's lock, a
/// DEL or [`repair`] of another adoption may have deleted a handle between the writes of the handle
/// and of the block. Returns the problems.
pub(super) async fn repair_allocated<S: Store>(
    store: &S,
    allocated: BTreeMap<HandleId, BTreeSet<Cidr>>,
) -> Vec<String> {
    problems(try_repair(store, allocated, |_, _, _| true).await)
}

fn problems(outcome: Result<Vec<(HandleId, StoreError)>, StoreError>) -> Vec<String> {
    let problem = |of: &str, error: StoreError| {
        format!("cannot correct {of}: {error}; `calico-ipam check` shows it")
    };
    match outcome {
        Ok(failed) => failed
            .into_iter()
            .map(|(handle, error)| problem(&format!("handle {handle}"), error))
            .collect(),
        Err(error) => vec![problem("the handles of the workloads", error)],
    }
}

/// Corrects the handles for which `is_wrong` is true of their stored counts and a block. Returns
/// those that could not be corrected. The handle of a virtual machine may be changing on another
/// node, and garbage collection corrects it.
async fn try_repair<S: Store>(
    store: &S,
    mut blocks: BTreeMap<HandleId, BTreeSet<Cidr>>,
    is_wrong: impl Fn(&HandleId, &BTreeMap<Cidr, i64>, &Cidr) -> bool,
) -> Result<Vec<(HandleId, StoreError)>, StoreError> {
    blocks.retain(|id, _| !id.may_be_of_vmi());
    if blocks.is_empty() {
        return Ok(Vec::new());
    }
    let read = find_each::<Handle>(store, blocks.keys()).await?;
    let mut suspects = Vec::new();
    for ((id, mut blocks), stored) in blocks.into_iter().zip(read) {
        let Ok(stored) = stored else { continue };
        let counts = stored
            .as_ref()
            .map(|stored| stored.value.block.clone())
            .unwrap_or_default();
        if blocks.iter().any(|block| is_wrong(&id, &counts, block)) {
            blocks.extend(counts.into_keys());
            suspects.push(SuspectHandle {
                id,
                revision: stored.map(|stored| stored.revision),
                blocks,
            });
        }
    }
    if suspects.is_empty() {
        return Ok(Vec::new());
    }
    Ok(repair_unwatched_handles(store, &OpenGate, &suspects)
        .await?
        .failed)
}

/// Returns the blocks of the claims that are no conflict, by handle.
fn blocks_by_handle(planned: &[(FoundClaim, Adoption)]) -> BTreeMap<HandleId, BTreeSet<Cidr>> {
    let mut blocks = BTreeMap::<HandleId, BTreeSet<Cidr>>::new();
    for (found, adoption) in planned {
        let (Adoption::Allocate { block, .. } | Adoption::Held { block }) = adoption else {
            continue;
        };
        let Ok(handle) = &found.claim.handle else {
            continue;
        };
        blocks.entry(handle.clone()).or_default().insert(*block);
    }
    blocks
}
