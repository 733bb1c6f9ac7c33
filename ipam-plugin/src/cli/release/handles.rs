//! Making handles count what blocks say.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use datastore::Datastore;
use libcalico::ipam::{Finding, HandleId, SuspectHandle};
use libcalico::net::Cidr;

use super::plan::{Mend, Step, Verdict};
use crate::cli::error::CliError;
use crate::cli::reading::Reading;
use crate::mend_handles::mend_unwatched_handles;
use crate::release_addresses::OpenGate;

/// A handle that is to count what blocks say.
#[derive(Debug, PartialEq)]
pub(super) struct Correction {
    suspect: SuspectHandle,
    /// How many addresses it holds in each block. Without one it is to be deleted.
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

/// The handles among the findings, each once. One whose addresses are `to_release` need not be created for that.
pub(super) fn steps(findings: &[&Finding], reading: &Reading, to_release: &BTreeSet<IpAddr>) -> Vec<Step> {
    let mut ids = BTreeSet::new();
    for finding in findings {
        match finding {
            Finding::OrphanHandle { handle, .. } | Finding::HandleCount { handle, .. } => {
                ids.insert(handle.as_str());
            }
            Finding::MissingHandle(held) if !to_release.contains(&held.address) => ids.extend(held.handle.as_deref()),
            _ => {}
        }
    }
    let step =
        |id: &str| Step { target: format!("handle {id}"), verdict: Verdict::Do(Mend::Handle(correction(id, reading))) };
    ids.into_iter().map(step).collect()
}

fn correction(id: &str, reading: &Reading) -> Correction {
    let stored = reading.handles.iter().find(|entry| entry.key.as_str() == id);
    let id = stored.map_or_else(|| HandleId::new(id), |entry| entry.key.clone());
    let held = held(&id, reading);
    let counted = stored.into_iter().flat_map(|entry| entry.value.block.keys());
    let blocks = counted.chain(held.keys()).copied().collect();
    let suspect = SuspectHandle { id, revision: stored.map(|entry| entry.revision.clone()), blocks };
    Correction { suspect, held }
}

/// How many addresses the handle holds in each block. Resting ones are nobody's.
fn held(id: &HandleId, reading: &Reading) -> BTreeMap<Cidr, i64> {
    let cut = HandleId::new(id.as_str());
    let counts = reading.blocks.iter().map(|block| (block.key, block.value.addresses_of(&cut).len() as i64));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Stores a correction. The inner error says that handle or blocks have changed.
pub(super) async fn correct(store: &Datastore, correction: Correction) -> Result<Result<(), String>, CliError> {
    let mended = mend_unwatched_handles(store, &OpenGate, &[correction.suspect]).await?;
    match mended.failed.into_iter().next() {
        Some((_, error)) => Err(error.into()),
        None if mended.left.is_empty() => Ok(Ok(())),
        None => Ok(Err("it or a block of it was changed by another just now, or is corrupt".into())),
    }
}
