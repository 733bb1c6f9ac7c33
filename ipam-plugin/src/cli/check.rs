//! `check`: looks for contradictions between blocks, handles, affinities and endpoints, and changes nothing.

mod report;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

pub(super) use self::report::Report;
use super::error::CliError;
use super::output;
use super::reading::Reading;
use super::session::{Outcome, Session};

/// Look for addresses without endpoint, endpoints without address, wrong counts and the like
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam check
  calico-ipam check --json-report report.json || calico-ipam release --from-report report.json --dry-run
  calico-ipam check -o json | jq '.findings[].finding'

Exit status 1 when something is wrong. What looks wrong is looked at again a moment later, because ADD and DEL change
several objects one after the other; only what is the same both times is told. Addresses that another main plugin than
calico took have no endpoint, and are told as such.")]
pub(super) struct CheckArgs {
    /// Write what was found to a file, for `release --from-report`
    #[arg(long, visible_alias = "json", value_name = "FILE")]
    json_report: Option<PathBuf>,
    /// How long to wait before the second look; 0 tells what the first one saw
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    settle: u64,
}

pub(super) async fn run(args: &CheckArgs, session: &mut Session<'_>) -> Result<Outcome, CliError> {
    let report = take(session, Duration::from_secs(args.settle)).await?;
    if let Some(path) = &args.json_report {
        report.write(path)?;
    }
    if !output::document(session.format, session.out, &report)? {
        report.print(session)?;
    }
    Ok(if report.is_clean() { Outcome::Fine } else { Outcome::Wrong })
}

async fn take(session: &Session<'_>, settle: Duration) -> Result<Report, CliError> {
    let reading = Reading::take(session.store).await?;
    let first = Report::of(&reading);
    if first.is_clean() || settle.is_zero() {
        return Ok(first);
    }
    tokio::time::sleep(settle).await;
    let reading = Reading::take(session.store).await?;
    Ok(Report::of(&reading).also_in(&first))
}
