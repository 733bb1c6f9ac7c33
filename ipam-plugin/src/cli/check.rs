//! `check`: finds inconsistencies of blocks, handles, affinities, endpoints, tunnels and Services.
//! It changes no stored object.

mod listing;
mod print;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, RandomState};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use libcalico::ipam::report::{IpamReport, ReportedCluster, build};
use libcalico::ipam::{Finding, PackedBlock};
use serde::Serialize;

use self::listing::{ListedAddress, listed_addresses};
use super::app::{App, CommandOutcome};
use super::cluster_read::{ClusterRead, UnreadableObject};
use super::documents;
use super::error::{CliError, no_identity};
use super::report_file;

/// Find addresses without endpoint, endpoints without address, wrong counts and similar
/// inconsistencies
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam check
  calico-ipam check --report report.json || calico-ipam release --from-report report.json --dry-run
  calico-ipam check --show-all-ips
  calico-ipam check -o json | jq '.findings[].finding'

`check` reads the objects a second time a moment later, because ADD and DEL change several objects one after the other,
and reports only the findings of both reads. Addresses that
another main plugin than calico requested have no endpoint. They are findings, except, on an API server, those that an
existing pod has. With etcd or a file as the datastore, Services are read from the API server that --kubeconfig, the
network configuration or KUBECONFIG names.

The report has the format of `calicoctl ipam check -o FILE`. calicoctl refuses reports of another version than its own.

Exit status: 0; 1 after an error or if there are findings, for which notes do not count; 2 if the arguments are
invalid.")]
pub(super) struct CheckArgs {
    /// Write a report in calicoctl's format, for `release --from-report`
    #[arg(long, visible_aliases = ["json-report", "json"], value_name = "FILE")]
    report: Option<PathBuf>,
    /// Version of the calicoctl that is to read the report [default: calicoVersion of
    /// ClusterInformation]
    #[arg(long, value_name = "VERSION", requires = "report")]
    report_version: Option<String>,
    /// List each allocated address with its handle and attributes
    #[arg(long)]
    show_all_ips: bool,
    /// Has no effect: addresses with problems are always shown
    #[arg(long = "show-problem-ips")]
    _show_problem_ips: bool,
    /// Seconds to wait before the second read; 0 reports the findings of the first read
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    settle: u64,
}

/// The result of `check`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct CheckResult {
    looked_at: ReadCounts,
    findings: Vec<Finding>,
    /// Findings that are not inconsistencies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<Finding>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<UnreadableObject>,
    /// Sentences about the objects that were not compared, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unchecked: Vec<String>,
    /// All allocated addresses, if they are requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    addresses: Option<Vec<ListedAddress>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReadCounts {
    pools: usize,
    blocks: usize,
    addresses: usize,
    handles: usize,
    endpoints: usize,
}

pub(super) async fn run(args: &CheckArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    let (mut result, cluster) = read(app, Duration::from_secs(args.settle)).await?;
    let written = match &args.report {
        None => Ok(()),
        Some(path) => report(
            args.report_version.as_deref(),
            &cluster,
            &result.findings,
            &app.datastore,
        )
        .and_then(|report| report_file::write(path, &report)),
    };
    result.addresses = args.show_all_ips.then(|| listed_addresses(&cluster.blocks));
    if !documents::print_document(app.format, app.out, &result)? {
        result.print(app)?;
    }
    // Without calico-node there may be no ClusterInformation. The findings are printed
    // nevertheless.
    written?;
    Ok(if result.is_clean() {
        CommandOutcome::Success
    } else {
        CommandOutcome::Findings
    })
}

async fn read(app: &App<'_>, settle: Duration) -> Result<(CheckResult, ClusterRead), CliError> {
    let cluster = ClusterRead::read(app.store, app.services).await?;
    let first = CheckResult::new(&cluster);
    if first.is_empty() || settle.is_zero() {
        return Ok((first, cluster));
    }
    // The second read then needs no memory beside that of the first one.
    drop(cluster);
    let earlier = EarlierProblems::of(first);
    let progress = app.progress("waiting for the second read");
    tokio::time::sleep(settle).await;
    drop(progress);
    let cluster = ClusterRead::read(app.store, app.services).await?;
    Ok((CheckResult::new(&cluster).retain_common(&earlier), cluster))
}

/// Returns the report of these findings. `version` replaces the version in ClusterInformation.
fn report(
    version: Option<&str>,
    cluster: &ClusterRead,
    findings: &[Finding],
    datastore: &str,
) -> Result<IpamReport, CliError> {
    let information = cluster
        .information
        .as_ref()
        .filter(|entry| !entry.value.spec.cluster_guid.is_empty());
    let information = information.ok_or_else(|| no_identity(datastore))?;
    let version = report_file::version(version, &information.value.spec)?;
    let revision = information.revision.resource_version();
    let reported = ReportedCluster {
        version,
        information: &information.value.spec,
        revision,
    };
    // An endpoint that cannot be read may have any address, and calicoctl releases all leaks of a
    // report.
    let has_leaks = cluster.unreadable_endpoint().is_none();
    let is_reported =
        |finding: &&Finding| has_leaks || !matches!(finding, Finding::AddressWithoutEndpoint(_));
    let findings: Vec<Finding> = findings.iter().filter(is_reported).cloned().collect();
    Ok(cluster.with_inventory(time::Duration::ZERO, |inventory| {
        build(&reported, inventory, &findings)
    }))
}

impl CheckResult {
    fn new(cluster: &ClusterRead) -> Self {
        let looked_at = ReadCounts {
            pools: cluster.pools.len(),
            blocks: cluster.blocks.len(),
            addresses: cluster.blocks.iter().map(PackedBlock::in_use).sum(),
            handles: cluster.handles.len(),
            endpoints: cluster.endpoints.len(),
        };
        // A second read distinguishes operations in progress from inconsistencies; age does not.
        let (notes, findings) = cluster
            .audit(time::Duration::ZERO)
            .into_iter()
            .partition(Finding::is_note);
        let (unreadable, unchecked) = (cluster.unreadable.clone(), cluster.unchecked.clone());
        CheckResult {
            looked_at,
            findings,
            notes,
            unreadable,
            unchecked,
            addresses: None,
        }
    }

    /// Removes the findings that `earlier` does not contain, because an operation in progress may
    /// have caused them.
    fn retain_common(mut self, earlier: &EarlierProblems) -> Self {
        self.findings.retain(|finding| earlier.contains(finding));
        self.notes.retain(|note| earlier.contains(note));
        self.unreadable.retain(|value| earlier.contains(value));
        self
    }

    fn is_empty(&self) -> bool {
        self.is_clean() && self.notes.is_empty()
    }

    /// Returns true if there are no findings and no unreadable values. Notes do not count.
    fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.unreadable.is_empty()
    }
}

/// The hashes of the findings, notes and unreadable values of the first read, in a fraction of
/// their memory.
struct EarlierProblems {
    /// Its random keys prevent chosen collisions.
    hasher: RandomState,
    hashes: HashSet<u64>,
}

impl EarlierProblems {
    fn of(result: CheckResult) -> Self {
        let mut earlier = EarlierProblems {
            hasher: RandomState::new(),
            hashes: HashSet::new(),
        };
        result
            .findings
            .iter()
            .chain(&result.notes)
            .for_each(|finding| earlier.insert(finding));
        result
            .unreadable
            .iter()
            .for_each(|value| earlier.insert(value));
        earlier
    }

    fn insert(&mut self, problem: &impl Hash) {
        self.hashes.insert(self.hasher.hash_one(problem));
    }

    fn contains(&self, problem: &impl Hash) -> bool {
        self.hashes.contains(&self.hasher.hash_one(problem))
    }
}
