//! `check`: finds inconsistencies between blocks, handles, affinities and endpoints. It changes nothing.

mod report;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

pub(super) use self::report::Report;
use super::app::{App, CommandOutcome};
use super::cluster_read::ClusterRead;
use super::documents;
use super::error::CliError;

/// Find addresses without endpoint, endpoints without address, wrong counts and similar inconsistencies
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam check
  calico-ipam check --json-report report.json || calico-ipam release --from-report report.json --dry-run
  calico-ipam check -o json | jq '.findings[].finding'

Exit status 1 when something is wrong; a note is not. What looks wrong is looked at again a moment later, because ADD \
and DEL change
several objects one after the other; only what is the same both times is told. Addresses that another main plugin than
calico took have no endpoint, and are told as such.")]
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
    Ok(if report.is_clean() { CommandOutcome::Fine } else { CommandOutcome::Wrong })
}

async fn read_report(app: &App<'_>, settle: Duration) -> Result<Report, CliError> {
    let cluster = ClusterRead::read(app.store).await?;
    let first = Report::new(&cluster);
    if first.is_empty() || settle.is_zero() {
        return Ok(first);
    }
    tokio::time::sleep(settle).await;
    let cluster = ClusterRead::read(app.store).await?;
    Ok(Report::new(&cluster).also_in(&first))
}

#[cfg(test)]
mod tests {
    use libcalico::ipam::Finding;

    use super::*;
    use crate::cli::testing::Shell;

    #[test]
    fn a_datastore_in_order() {
        let shell = Shell::with_pool();
        let ip = shell.allocate("a");
        shell.endpoint("a", &ip);
        let text = shell.ok(&["check"]);
        assert_eq!(text, "1 pools, 1 blocks, 1 addresses in use, 1 handles, 1 endpoints\nnothing is wrong\n");
    }

    #[test]
    fn what_is_wrong_is_told_and_written() {
        let shell = Shell::with_pool();
        let leaked = shell.allocate("a");
        shell.endpoint("b", "10.0.0.250");
        shell.put("/calico/ipam/v2/handle/orphan", r#"{"block":{"10.0.0.0/29":1},"deleted":false}"#);
        shell.put("/calico/ipam/v2/handle/garbage", "{");
        let file = shell.dir.path().join("report.json");
        let line = ["check", "--settle", "0", "--json-report", file.to_str().unwrap()];
        let text = shell.wrong(&line);
        for told in [
            format!("address without endpoint: {leaked} (handle a, node node1"),
            "endpoint without address: default/b on node node1 has 10.0.0.250, which is free\n".into(),
            "orphan handle: orphan counts 1 addresses".into(),
            "unreadable: /calico/ipam/v2/handle/garbage: failed to parse".into(),
            "\n4 things are wrong\n".into(),
        ] {
            assert!(text.contains(&told), "{told}: {text}");
        }
        let report = Report::read(&file).unwrap();
        assert_eq!((report.findings.len(), report.unreadable.len()), (3, 1));
        assert_eq!(shell.json(&["check", "--settle", "0"])["findings"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn a_claim_that_a_killed_add_left_is_a_note() {
        let shell = Shell::with_pool();
        shell.put("/calico/ipam/v2/host/node1/ipv4/block/10.0.0.64-29", r#"{"state":"pending","deleted":false}"#);
        let told = "unfinished claim: host:node1 to 10.0.0.64/29 is pending; its next ADD finishes or drops it";
        for settle in ["0", "1"] {
            let text = shell.ok(&["check", "--settle", settle]);
            assert!(text.ends_with(&format!("\nnote: {told}\nnothing is wrong\n")), "{text}");
        }
        let report = shell.json(&["check", "--settle", "0"]);
        assert_eq!(report["notes"][0]["finding"], "unfinishedClaim");
        assert_eq!(report["findings"].as_array().unwrap().len(), 0);
    }

    #[test]
    fn what_only_one_of_two_looks_sees_is_in_motion() {
        let overlap =
            Finding::OverlappingBlocks { outer: "10.0.0.0/26".parse().unwrap(), inner: "10.0.0.0/29".parse().unwrap() };
        let orphan =
            |revision: &str| Finding::OrphanHandle { handle: "h".into(), revision: revision.into(), blocks: [].into() };
        let report =
            |findings| Report { looked_at: Default::default(), findings, notes: Vec::new(), unreadable: Vec::new() };
        let (first, second) = (report(vec![overlap.clone(), orphan("1")]), report(vec![overlap.clone(), orphan("2")]));
        assert_eq!(second.also_in(&first), report(vec![overlap]));
    }

    #[test]
    fn the_second_look_is_a_new_reading() {
        let shell = Shell::with_pool();
        shell.allocate("a");
        let asked = std::time::Instant::now();
        shell.wrong(&["check", "--settle", "1"]);
        assert!(asked.elapsed() >= Duration::from_secs(1));
    }
}
