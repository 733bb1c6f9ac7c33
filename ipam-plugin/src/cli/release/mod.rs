//! `release`: releases addresses, and repairs wrong counts of handles and inconsistent blocks.

mod plan;
mod repairs;
mod step;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use self::plan::{steps_for_addresses, steps_for_report};
use self::step::{ChangeOutcome, ReleaseStep, StepVerdict, execute};
use super::app::{App, CommandOutcome, Progress};
use super::check::Report;
use super::cluster_read::ClusterRead;
use super::documents::{self, Format};
use super::error::CliError;

/// Release addresses, or repair the findings of a report of `check`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam release 10.65.0.7 fd65::7
  calico-ipam check --json-report report.json || calico-ipam release --from-report report.json --dry-run
  calico-ipam release --from-report report.json

Without --force, an address is refused if an endpoint has it, if its pod reports it or may still report it, if a node
keeps it for itself, or if it was allocated moments ago. All objects are read again before the first change. Objects
that differ from the report, down to the sequence number, are left alone.
Exit status 1 if a change was refused.")]
pub(super) struct ReleaseArgs {
    /// Addresses to release
    #[arg(value_name = "ADDRESS", required_unless_present = "from_report", conflicts_with = "from_report")]
    addresses: Vec<IpAddr>,
    /// Release the addresses without endpoint in a report of `check`, and repair its handles and blocks
    #[arg(long, value_name = "FILE")]
    from_report: Option<PathBuf>,
    /// Release addresses even if they are in use. The workload is not stopped and keeps using them
    #[arg(long)]
    force: bool,
    /// Print the changes without making them
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Row {
    target: String,
    action: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    detail: String,
}

pub(super) async fn run(args: &ReleaseArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    let report = args.from_report.as_deref().map(Report::read).transpose()?;
    let cluster = ClusterRead::read(app.store).await?;
    let steps = match &report {
        Some(report) => steps_for_report(report, &cluster, args.force),
        None => steps_for_addresses(&args.addresses, &cluster, args.force),
    };
    let progress = Progress::new("releasing", steps.len());
    let mut rows = Vec::new();
    for step in steps {
        rows.push(run_step(step, app, args.dry_run).await?);
        progress.step();
    }
    drop(progress);
    print(&rows, app)?;
    Ok(if rows.iter().any(|row| row.action == REFUSED) { CommandOutcome::Findings } else { CommandOutcome::Success })
}

const REFUSED: &str = "refused";
const SKIPPED: &str = "left alone";

async fn run_step(step: ReleaseStep, app: &App<'_>, dry_run: bool) -> Result<Row, CliError> {
    let row = |action, detail| Row { target: step.target.clone(), action, detail };
    let change = match step.verdict {
        StepVerdict::Do(change) => change,
        StepVerdict::Leave(reason) => return Ok(row(SKIPPED, reason)),
        StepVerdict::Refuse(reason) => return Ok(row(REFUSED, reason)),
    };
    let (name, reason) = (change.name(), change.reason());
    if dry_run {
        return Ok(row("would be", format!("{name}, {reason}")));
    }
    match execute(app.store, change).await? {
        ChangeOutcome::Applied => Ok(row(name, reason)),
        ChangeOutcome::Refused(changed) => Ok(row(REFUSED, changed)),
    }
}

fn print(rows: &[Row], app: &mut App<'_>) -> Result<(), CliError> {
    if app.format != Format::Table {
        documents::print_document(app.format, app.out, &rows)?;
        return Ok(());
    }
    for Row { target, action, detail } in rows {
        app.print_line(format_args!("{target}: {action}{}{detail}", if detail.is_empty() { "" } else { ": " }))?;
    }
    if rows.is_empty() {
        app.print_line("nothing to release")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
