//! Making handles count what blocks say.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use datastore::Datastore;
use libcalico::ipam::{Finding, Handle, HandleId};
use libcalico::net::Cidr;
use libcalico::store::{Revision, Store, StoreError, Write};

use super::plan::{Mend, Step, Verdict};
use crate::cli::error::CliError;
use crate::cli::reading::Reading;

/// What a handle should be.
#[derive(Debug, PartialEq)]
pub(super) struct Correction {
    id: HandleId,
    /// What it should say. Without a block it is to be deleted.
    should_be: Handle,
    /// Its revision; `None` when it is not there.
    revision: Option<Revision>,
}

impl Correction {
    pub(super) fn name(&self) -> &'static str {
        match (&self.revision, self.should_be.is_empty()) {
            (_, true) => "deleted",
            (None, false) => "created",
            (Some(_), false) => "corrected",
        }
    }

    pub(super) fn reason(&self) -> String {
        if self.should_be.is_empty() {
            return "no block names it".into();
        }
        let counts: Vec<String> = self.should_be.block.iter().map(|(block, n)| format!("{n} in {block}")).collect();
        format!("it holds {}", counts.join(", "))
    }

    fn write(&self) -> Result<Write, StoreError> {
        match &self.revision {
            Some(revision) if self.should_be.is_empty() => Ok(Write::delete::<Handle>(&self.id, Some(revision))),
            Some(revision) => Write::update::<Handle>(&self.id, &self.should_be, revision),
            None => Write::create::<Handle>(&self.id, &self.should_be),
        }
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
    let mut should_be = stored.map(|entry| entry.value.clone()).unwrap_or_default();
    should_be.block = held(&id, reading);
    Correction { id, should_be, revision: stored.map(|entry| entry.revision.clone()) }
}

/// How many addresses the handle holds in each block. Resting ones are nobody's.
fn held(id: &HandleId, reading: &Reading) -> BTreeMap<Cidr, i64> {
    let cut = HandleId::new(id.as_str());
    let counts = reading.blocks.iter().map(|block| (block.key, block.value.addresses_of(&cut).len() as i64));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Stores a correction. The inner error says that the handle has changed.
pub(super) async fn correct(store: &Datastore, correction: &Correction) -> Result<Result<(), String>, CliError> {
    match store.write_one(correction.write()?).await {
        Ok(_) => Ok(Ok(())),
        Err(error) if error.is_race() => Ok(Err("it was changed by another just now".into())),
        Err(error) => Err(error.into()),
    }
}
