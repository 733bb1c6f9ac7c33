//! [`Report`]: what `check` found.

use std::path::Path;

use libcalico::ipam::Finding;
use serde::{Deserialize, Serialize};
use time::Duration;

use crate::cli::error::CliError;
use crate::cli::reading::{Reading, Unreadable};
use crate::cli::session::Session;

/// What was looked at and what is wrong. As JSON it is what `release --from-report` reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct Report {
    /// What was looked at.
    pub(in crate::cli) looked_at: LookedAt,
    /// What is wrong.
    pub(in crate::cli) findings: Vec<Finding>,
    /// What is worth a note, and in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::cli) notes: Vec<Finding>,
    /// What cannot be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::cli) unreadable: Vec<Unreadable>,
}

/// How much of each kind there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct LookedAt {
    pub(in crate::cli) pools: usize,
    pub(in crate::cli) blocks: usize,
    pub(in crate::cli) addresses: usize,
    pub(in crate::cli) handles: usize,
    pub(in crate::cli) endpoints: usize,
}

impl Report {
    /// Compares what was read.
    pub(in crate::cli) fn of(reading: &Reading) -> Self {
        let looked_at = LookedAt {
            pools: reading.pools.len(),
            blocks: reading.blocks.len(),
            addresses: reading.blocks.iter().map(|block| block.value.allocated().count()).sum(),
            handles: reading.handles.len(),
            endpoints: reading.endpoints.len(),
        };
        // What is under way is told from what is wrong by looking twice, not by age.
        let (notes, findings) = reading.audit(Duration::ZERO).into_iter().partition(Finding::is_note);
        Report { looked_at, findings, notes, unreadable: reading.unreadable.clone() }
    }

    /// Without what `earlier` does not tell as well, to the revision: that is in motion.
    pub(in crate::cli) fn also_in(mut self, earlier: &Report) -> Self {
        self.findings.retain(|finding| earlier.findings.contains(finding));
        self.notes.retain(|note| earlier.notes.contains(note));
        self.unreadable.retain(|value| earlier.unreadable.contains(value));
        self
    }

    /// There is nothing to tell.
    pub(in crate::cli) fn is_empty(&self) -> bool {
        self.is_clean() && self.notes.is_empty()
    }

    /// Nothing is wrong.
    pub(in crate::cli) fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.unreadable.is_empty()
    }

    /// Prints it for people.
    pub(in crate::cli) fn print(&self, session: &mut Session<'_>) -> Result<(), CliError> {
        let LookedAt { pools, blocks, addresses, handles, endpoints } = self.looked_at;
        session.say(format_args!(
            "{pools} pools, {blocks} blocks, {addresses} addresses in use, {handles} handles, {endpoints} endpoints"
        ))?;
        for finding in &self.findings {
            session.say(finding)?;
        }
        for Unreadable { key, reason } in &self.unreadable {
            session.say(format_args!("unreadable: {key}: {reason}"))?;
        }
        for note in &self.notes {
            session.say(format_args!("note: {note}"))?;
        }
        match self.findings.len() + self.unreadable.len() {
            0 => session.say("nothing is wrong"),
            1 => session.say("1 thing is wrong"),
            n => session.say(format_args!("{n} things are wrong")),
        }
    }

    /// Writes it to a file.
    pub(in crate::cli) fn write(&self, path: &Path) -> Result<(), CliError> {
        let text = serde_json::to_string_pretty(self).map_err(|error| CliError::Encode(error.to_string()))?;
        let written = std::fs::write(path, text + "\n");
        written.map_err(|cause| CliError::File { what: "write", path: path.display().to_string(), cause })
    }

    /// Reads what [`Report::write`] wrote.
    pub(in crate::cli) fn read(path: &Path) -> Result<Self, CliError> {
        let shown = path.display().to_string();
        let text = std::fs::read(path);
        let text = text.map_err(|cause| CliError::File { what: "read", path: shown.clone(), cause })?;
        serde_json::from_slice(&text).map_err(|error| CliError::Report { path: shown, reason: error.to_string() })
    }
}
