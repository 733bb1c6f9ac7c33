//! [`Report`]: the findings of `check`.

use std::path::Path;

use libcalico::ipam::Finding;
use serde::{Deserialize, Serialize};
use time::Duration;

use crate::cli::app::App;
use crate::cli::cluster_read::{ClusterRead, UnreadableObject};
use crate::cli::error::CliError;

/// The numbers of objects read, and the findings. `release --from-report` reads it as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct Report {
    /// Numbers of the objects read.
    pub(in crate::cli) looked_at: LookedAt,
    /// Inconsistencies.
    pub(in crate::cli) findings: Vec<Finding>,
    /// Findings worth a note that are not inconsistencies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::cli) notes: Vec<Finding>,
    /// Values that cannot be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::cli) unreadable: Vec<UnreadableObject>,
}

/// Number of objects of each kind.
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
    /// Compares the objects read.
    pub(in crate::cli) fn new(cluster: &ClusterRead) -> Self {
        let looked_at = LookedAt {
            pools: cluster.pools.len(),
            blocks: cluster.blocks.len(),
            addresses: cluster.blocks.iter().map(|block| block.value.allocated().count()).sum(),
            handles: cluster.handles.len(),
            endpoints: cluster.endpoints.len(),
        };
        // A second read distinguishes operations in progress from inconsistencies; age does not.
        let (notes, findings) = cluster.audit(Duration::ZERO).into_iter().partition(Finding::is_note);
        Report { looked_at, findings, notes, unreadable: cluster.unreadable.clone() }
    }

    /// Removes the findings that `earlier` does not contain with the same revisions, because an operation in progress
    /// causes those.
    pub(in crate::cli) fn also_in(mut self, earlier: &Report) -> Self {
        self.findings.retain(|finding| earlier.findings.contains(finding));
        self.notes.retain(|note| earlier.notes.contains(note));
        self.unreadable.retain(|value| earlier.unreadable.contains(value));
        self
    }

    /// Returns true if there are no findings and no notes.
    pub(in crate::cli) fn is_empty(&self) -> bool {
        self.is_clean() && self.notes.is_empty()
    }

    /// Returns true if there are no inconsistencies.
    pub(in crate::cli) fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.unreadable.is_empty()
    }

    /// Prints the report as text.
    pub(in crate::cli) fn print(&self, app: &mut App<'_>) -> Result<(), CliError> {
        let LookedAt { pools, blocks, addresses, handles, endpoints } = self.looked_at;
        app.say(format_args!(
            "{pools} pools, {blocks} blocks, {addresses} addresses in use, {handles} handles, {endpoints} endpoints"
        ))?;
        for finding in &self.findings {
            app.say(finding)?;
        }
        for UnreadableObject { key, reason } in &self.unreadable {
            app.say(format_args!("unreadable: {key}: {reason}"))?;
        }
        for note in &self.notes {
            app.say(format_args!("note: {note}"))?;
        }
        match self.findings.len() + self.unreadable.len() {
            0 => app.say("nothing is wrong"),
            1 => app.say("1 thing is wrong"),
            n => app.say(format_args!("{n} things are wrong")),
        }
    }

    /// Writes the report to a file.
    pub(in crate::cli) fn write(&self, path: &Path) -> Result<(), CliError> {
        let text = serde_json::to_string_pretty(self).map_err(|error| CliError::Encode(error.to_string()))?;
        let written = std::fs::write(path, text + "\n");
        written.map_err(|cause| CliError::File { what: "write", path: path.display().to_string(), cause })
    }

    /// Reads a report that [`Report::write`] wrote.
    pub(in crate::cli) fn read(path: &Path) -> Result<Self, CliError> {
        let shown = path.display().to_string();
        let text = std::fs::read(path);
        let text = text.map_err(|cause| CliError::File { what: "read", path: shown.clone(), cause })?;
        serde_json::from_slice(&text).map_err(|error| CliError::Report { path: shown, reason: error.to_string() })
    }
}
