//! Corrects the counts of handles to match blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use datastore::Datastore;
use libcalico::ipam::{Finding, HandleId, SuspectHandle};
use libcalico::net::Cidr;

use super::blocks::Repair;
use super::plan::{Mend, Step, Verdict};
use crate::cli::error::CliError;
use crate::cli::reading::Reading;
use crate::release::handle_repair::repair_unwatched_handles;
use crate::write_gate::OpenGate;

/// The planned correction of a handle's counts.
#[derive(Debug, PartialEq)]
pub(super) struct Correction {
    suspect: SuspectHandle,
    /// Number of the handle's addresses in each block. An empty map deletes the handle.
    held: BTreeMap<Cidr, i64>,
}

impl Correction {
    pub(super) fn name(&self) -> &'static str {
        match (&self.suspect.revision, self.held.is_empty()) {
            (_, true) => "deleted",
            (None, false) => "created",
            (Some(_), false) => "corrected",
        }
    }

    pub(super) fn reason(&self) -> String {
        if self.held.is_empty() {
            return "no block names it".into();
        }
        let counts: Vec<String> = self.held.iter().map(|(block, n)| format!("{n} in {block}")).collect();
        format!("it holds {}", counts.join(", "))
    }
}

/// The other work of the same run.
pub(super) struct Run<'a> {
    /// The repairs of blocks, which come first.
    pub(super) repairs: &'a [&'a Repair],
    /// The inconsistent blocks that stay unchanged.
    pub(super) unrepaired: BTreeSet<Cidr>,
    /// Addresses that are released afterwards.
    pub(super) to_release: &'a BTreeSet<IpAddr>,
}

/// Returns the steps for the handles in the findings and of addresses that the repairs keep, each handle once. A
/// missing handle is not created for addresses that are to be released. A handle that counts correctly after the
/// repairs needs no step.
pub(super) fn steps(findings: &[&Finding], reading: &Reading, run: &Run<'_>) -> Vec<Step> {
    let Run { repairs, unrepaired, to_release } = run;
    let mut ids: BTreeSet<String> =
        repairs.iter().flat_map(|repair| repair.handles()).map(|id| id.to_string()).collect();
    for finding in findings {
        match finding {
            Finding::OrphanHandle { handle, .. } | Finding::HandleCount { handle, .. } => {
                ids.insert(handle.clone());
            }
            Finding::MissingHandle(held) if !to_release.contains(&held.address) => ids.extend(held.handle.clone()),
            _ => {}
        }
    }
    let step = |id: String| {
        let correction = correction(&id, reading, repairs)?;
        let verdict = match correction.suspect.blocks.intersection(unrepaired).next() {
            // Only the handle records addresses that the block has lost.
            Some(block) => Verdict::Leave(format!("block {block} contradicts itself")),
            None => Verdict::Do(Mend::Handle(correction)),
        };
        Some(Step { target: format!("handle {id}"), verdict })
    };
    ids.into_iter().filter_map(step).collect()
}

fn correction(id: &str, reading: &Reading, repairs: &[&Repair]) -> Option<Correction> {
    let stored = reading.handles.iter().find(|entry| entry.key.as_str() == id);
    let id = stored.map_or_else(|| HandleId::new(id), |entry| entry.key.clone());
    let held = held(&id, reading, repairs);
    if stored.map_or(held.is_empty(), |entry| !held.is_empty() && entry.value.block == held) {
        return None;
    }
    let counted = stored.into_iter().flat_map(|entry| entry.value.block.keys());
    let blocks = counted.chain(held.keys()).copied().collect();
    let suspect = SuspectHandle { id, revision: stored.map(|entry| entry.revision.clone()), blocks };
    Some(Correction { suspect, held })
}

/// Returns the number of the handle's addresses in each block, after the repairs. Addresses that are cooling down do
/// not count.
fn held(id: &HandleId, reading: &Reading, repairs: &[&Repair]) -> BTreeMap<Cidr, i64> {
    let cut = HandleId::new(id.as_str());
    let counts = reading.blocks.iter().map(|entry| {
        let repaired = repairs.iter().map(|repair| repair.repaired()).find(|block| block.cidr == entry.key);
        (entry.key, repaired.unwrap_or(&entry.value).addresses_of(&cut).len() as i64)
    });
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Stores a correction. The inner error says that the handle or its blocks have changed.
pub(super) async fn correct(store: &Datastore, correction: Correction) -> Result<Result<(), String>, CliError> {
    let repaired = repair_unwatched_handles(store, &OpenGate, &[correction.suspect]).await?;
    match repaired.failed.into_iter().next() {
        Some((_, error)) => Err(error.into()),
        None if repaired.left.is_empty() => Ok(Ok(())),
        None => Ok(Err("it or a block of it was changed by another just now, or is corrupt".into())),
    }
}
