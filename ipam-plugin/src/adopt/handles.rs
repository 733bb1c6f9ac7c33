//! [`repair`]: corrects the handles of running workloads before their addresses are allocated.
//!
//! A handle survives the loss of its block, and an interrupted adoption counts an address that no block names. The
//! allocation counts the address again.

use std::collections::{BTreeMap, BTreeSet};

use libcalico::ipam::{Adoption, Handle, HandleId, SuspectHandle};
use libcalico::net::Cidr;
use libcalico::store::{Store, StoreError};

use super::FoundClaim;
use super::read::ReadObjects;
use crate::reads::find_each;
use crate::release::handle_repair::repair_unwatched_handles;
use crate::write_gate::OpenGate;

/// Corrects the handles whose counts differ from the blocks. Returns the problems.
pub(super) async fn repair<S: Store>(
    store: &S,
    objects: &ReadObjects,
    planned: &[(FoundClaim, Adoption)],
) -> Vec<String> {
    let problem = |of: &str, error: StoreError| format!("cannot correct {of}: {error}; `calico-ipam check` shows it");
    match try_repair(store, objects, planned).await {
        Ok(failed) => failed.into_iter().map(|(handle, error)| problem(&format!("handle {handle}"), error)).collect(),
        Err(error) => vec![problem("the handles of the workloads", error)],
    }
}

/// Returns the handles that could not be corrected.
async fn try_repair<S: Store>(
    store: &S,
    objects: &ReadObjects,
    planned: &[(FoundClaim, Adoption)],
) -> Result<Vec<(HandleId, StoreError)>, StoreError> {
    let suspects = suspects(store, objects, blocks_by_handle(planned)).await?;
    if suspects.is_empty() {
        return Ok(Vec::new());
    }
    Ok(repair_unwatched_handles(store, &OpenGate, &suspects).await?.failed)
}

/// Returns the blocks of the claims that are no conflict, by handle. The handle of a virtual machine may be changing on
/// another node, and garbage collection corrects it.
fn blocks_by_handle(planned: &[(FoundClaim, Adoption)]) -> BTreeMap<HandleId, BTreeSet<Cidr>> {
    let mut blocks = BTreeMap::<HandleId, BTreeSet<Cidr>>::new();
    for (found, adoption) in planned {
        let (Adoption::Allocate { block, .. } | Adoption::Held { block }) = adoption else { continue };
        let Ok(handle) = &found.claim.handle else { continue };
        if !handle.may_be_of_vmi() {
            blocks.entry(handle.clone()).or_default().insert(*block);
        }
    }
    blocks
}

async fn suspects<S: Store>(
    store: &S,
    objects: &ReadObjects,
    blocks: BTreeMap<HandleId, BTreeSet<Cidr>>,
) -> Result<Vec<SuspectHandle>, StoreError> {
    if blocks.is_empty() {
        return Ok(Vec::new());
    }
    let read = find_each::<Handle>(store, blocks.keys()).await?;
    let mut suspects = Vec::new();
    for ((id, mut blocks), stored) in blocks.into_iter().zip(read) {
        let Ok(stored) = stored else { continue };
        let counted = |block: &Cidr| {
            let count = stored.as_ref().and_then(|stored| stored.value.block.get(block));
            count.copied().unwrap_or_default()
        };
        let differs = |block: &Cidr| {
            let named = objects.addresses_of(&id, block).and_then(|named| i64::try_from(named).ok());
            named.is_some_and(|named| named != counted(block))
        };
        if blocks.iter().any(differs) {
            blocks.extend(stored.iter().flat_map(|stored| stored.value.block.keys()).copied());
            suspects.push(SuspectHandle { id, revision: stored.map(|stored| stored.revision), blocks });
        }
    }
    Ok(suspects)
}
