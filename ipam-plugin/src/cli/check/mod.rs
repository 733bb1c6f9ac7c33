//! `check`: finds inconsistencies of blocks, handles, affinities and endpoints. It changes no stored object.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use libcalico::ipam::Finding;
use serde::{Deserialize, Serialize};

use super::app::{App, CommandOutcome};
use super::cluster_read::{ClusterRead, UnreadableObject};
use super::documents;
use super::error::CliError;

/// Find addresses without endpoint, endpoints without address, wrong counts and similar inconsistencies
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam check
  calico-ipam check --json-report report.json || calico-ipam release --from-report report.json --dry-run
  calico-ipam check -o json | jq '.findings[].finding'

Exit status 1 if there are findings; notes do not count. `check` reads the objects a second time a moment later, because
ADD and DEL change several objects one after the other, and reports only the findings of both reads. Addresses that
another main plugin than calico requested have no endpoint. They are findings, except, on an API server, those that an
existing pod has.")]
pub(super) struct CheckArgs {
    /// Write the findings to a file, for `release --from-report`
    #[arg(long, visible_alias = "json", value_name = "FILE")]
    json_report: Option<PathBuf>,
    /// Seconds to wait before the second read; 0 reports the findings of the first read
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    settle: u64,
}

pub(super) async fn run(args: &CheckArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    let report = read_report(app, Duration::from_secs(args.settle)).await?;
    if let Some(path) = &args.json_report {
        report.write(path)?;
    }
    if !documents::print_document(app.format, app.out, &report)? {
        report.print(app)?;
    }
    Ok(if report.is_clean() { CommandOutcome::Success } else { CommandOutcome::Findings })
}

async fn read_report(app: &App<'_>, settle: Duration) -> Result<Report, CliError> {
    let cluster = ClusterRead::read(app.store).await?;
    let first = Report::new(&cluster);
    if first.is_empty() || settle.is_zero() {
        return Ok(first);
    }
    tokio::time::sleep(settle).await;
    let cluster = ClusterRead::read(app.store).await?;
    Ok(Report::new(&cluster).retain_common(&first))
}

/// The findings of `check`. `release --from-report` reads a report as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) looked_at: ReadCounts,
    pub(super) findings: Vec<Finding>,
    /// Findings that are not inconsistencies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) notes: Vec<Finding>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) unreadable: Vec<UnreadableObject>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReadCounts {
    pub(super) pools: usize,
    pub(super) blocks: usize,
    pub(super) addresses: usize,
    pub(super) handles: usize,
    pub(super) endpoints: usize,
}

impl Report {
    pub(super) fn new(cluster: &ClusterRead) -> Self {
        let looked_at = ReadCounts {
            pools: cluster.pools.len(),
            blocks: cluster.blocks.len(),
            addresses: cluster.blocks.iter().map(|block| block.value.allocated().count()).sum(),
            handles: cluster.handles.len(),
            endpoints: cluster.endpoints.len(),
        };
        // A second read distinguishes operations in progress from inconsistencies; age does not.
        let (notes, findings) = cluster.audit(time::Duration::ZERO).into_iter().partition(Finding::is_note);
        Report { looked_at, findings, notes, unreadable: cluster.unreadable.clone() }
    }

    /// Removes the findings that `earlier` does not contain, because an operation in progress may have caused them.
    pub(super) fn retain_common(mut self, earlier: &Report) -> Self {
        self.findings.retain(|finding| earlier.findings.contains(finding));
        self.notes.retain(|note| earlier.notes.contains(note));
        self.unreadable.retain(|value| earlier.unreadable.contains(value));
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.is_clean() && self.notes.is_empty()
    }

    /// Returns true if there are no findings and no unreadable values. Notes do not count.
    pub(super) fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.unreadable.is_empty()
    }

    pub(super) fn print(&self, app: &mut App<'_>) -> Result<(), CliError> {
        let ReadCounts { pools, blocks, addresses, handles, endpoints } = self.looked_at;
        app.print_line(format_args!(
            "{pools} pools, {blocks} blocks, {addresses} addresses in use, {handles} handles, {endpoints} endpoints"
        ))?;
        for finding in &self.findings {
            app.print_line(finding)?;
        }
        for UnreadableObject { key, reason } in &self.unreadable {
            app.print_line(format_args!("unreadable: {key}: {reason}"))?;
        }
        for note in &self.notes {
            app.print_line(format_args!("note: {note}"))?;
        }
        match self.findings.len() + self.unreadable.len() {
            0 => app.print_line("nothing is wrong"),
            1 => app.print_line("1 thing is wrong"),
            n => app.print_line(format_args!("{n} things are wrong")),
        }
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), CliError> {
        let text = serde_json::to_string_pretty(self).map_err(CliError::encode)?;
        std::fs::write(path, text + "\n").map_err(CliError::file("write", path))
    }

    pub(super) fn read(path: &Path) -> Result<Self, CliError> {
        let text = std::fs::read(path).map_err(CliError::file("read", path))?;
        let unreadable =
            |error: serde_json::Error| CliError::Report { path: path.display().to_string(), reason: error.to_string() };
        serde_json::from_slice(&text).map_err(unreadable)
    }
}

#[cfg(test)]
mod tests {
    use libcalico::ipam::Finding;

    use super::*;
    use crate::cli::testing::Shell;
    use node_process::process::block_on;

    #[test]
    fn check_of_a_consistent_datastore_reports_no_problem() {
        let shell = Shell::with_pool();
        let ip = shell.allocate("a");
        shell.endpoint("a", &ip);
        let text = shell.ok(&["check"]);
        assert_eq!(text, "1 pools, 1 blocks, 1 addresses in use, 1 handles, 1 endpoints\nnothing is wrong\n");
    }

    #[test]
    fn check_reports_all_inconsistencies_in_text_and_json() {
        let shell = Shell::with_pool();
        let leaked = shell.allocate("a");
        shell.endpoint("b", "10.0.0.250");
        shell.put("/calico/ipam/v2/handle/orphan", r#"{"block":{"10.0.0.0/29":1},"deleted":false}"#);
        shell.put("/calico/ipam/v2/handle/garbage", "{");
        let file = shell.dir.path().join("report.json");
        let line = ["check", "--settle", "0", "--json-report", file.to_str().unwrap()];
        let text = shell.wrong(&line);
        for expected in [
            format!("address without endpoint: {leaked} (handle a, node node1"),
            "endpoint without address: default/b on node node1 has 10.0.0.250, which is not allocated\n".into(),
            "orphan handle: orphan counts 1 addresses".into(),
            "unreadable: /calico/ipam/v2/handle/garbage: failed to parse".into(),
            "\n4 things are wrong\n".into(),
        ] {
            assert!(text.contains(&expected), "{expected}: {text}");
        }
        let report = Report::read(&file).unwrap();
        assert_eq!((report.findings.len(), report.unreadable.len()), (3, 1));
        assert_eq!(shell.json(&["check", "--settle", "0"])["findings"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn pending_affinity_of_a_killed_add_is_only_a_note() {
        let shell = Shell::with_pool();
        shell.put("/calico/ipam/v2/host/node1/ipv4/block/10.0.0.64-29", r#"{"state":"pending","deleted":false}"#);
        let expected = "unfinished affinity: host:node1 to 10.0.0.64/29 is pending; the owner's next use of the block \
            or garbage collection completes or deletes it";
        for settle in ["0", "1"] {
            let text = shell.ok(&["check", "--settle", settle]);
            assert!(text.ends_with(&format!("\nnote: {expected}\nnothing is wrong\n")), "{text}");
        }
        let report = shell.json(&["check", "--settle", "0"]);
        assert_eq!(report["notes"][0]["finding"], "unfinishedClaim");
        assert_eq!(report["findings"].as_array().unwrap().len(), 0);
    }

    #[test]
    fn finding_missing_from_the_second_read_is_dropped() {
        let overlap =
            Finding::OverlappingBlocks { outer: "10.0.0.0/26".parse().unwrap(), inner: "10.0.0.0/29".parse().unwrap() };
        let orphan =
            |revision: &str| Finding::OrphanHandle { handle: "h".into(), revision: revision.into(), blocks: [].into() };
        let report =
            |findings| Report { looked_at: Default::default(), findings, notes: Vec::new(), unreadable: Vec::new() };
        let (first, second) = (report(vec![overlap.clone(), orphan("1")]), report(vec![overlap.clone(), orphan("2")]));
        assert_eq!(second.retain_common(&first), report(vec![overlap]));
    }

    #[test]
    fn check_reads_again_after_the_settle_time() {
        let shell = Shell::with_pool();
        shell.allocate("a");
        let requests_of = |settle: &str| {
            let before = shell.store.requests();
            shell.wrong(&["check", "--settle", settle]);
            shell.store.requests() - before
        };
        let once = requests_of("0");
        assert!(once > 0);
        assert_eq!(requests_of("1"), 2 * once);
    }

    #[test]
    fn check_waits_between_its_reads() {
        let shell = Shell::with_pool();
        shell.allocate("a");
        let before = shell.store.requests();
        shell.wrong(&["check", "--settle", "0"]);
        let once = shell.store.requests() - before;
        shell.run_with(&["check", "--settle", "0"], |app| {
            block_on(async {
                let before = shell.store.requests();
                let is_read = async {
                    while shell.store.requests() < before + once {
                        tokio::task::yield_now().await;
                    }
                    tokio::time::sleep(Duration::from_millis(200)).await;
                };
                tokio::select! {
                    _ = read_report(app, Duration::from_secs(3600)) => panic!("there is no pause"),
                    () = is_read => assert_eq!(shell.store.requests(), before + once),
                }
            });
        });
    }
}
