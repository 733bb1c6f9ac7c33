//! `release`: releases unused addresses, and repairs wrong counts of handles and inconsistent blocks.

mod addresses;
mod blocks;
mod handles;
mod plan;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use self::plan::{Step, Verdict};
use super::check::Report;
use super::error::CliError;
use super::output::{self, Format};
use super::progress::Progress;
use super::reading::Reading;
use super::session::{Outcome, Session};

/// Release addresses, or repair the findings of a report of `check`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam release 10.65.0.7 fd65::7
  calico-ipam check --json-report report.json || calico-ipam release --from-report report.json --dry-run
  calico-ipam release --from-report report.json

What an endpoint has, its pod reports or may yet report, a node keeps for itself, or was allocated moments ago is refused
without --force. Everything is read again before anything is freed: what is not as the report has it, to the sequence number,
is left alone.
Exit status 1 when something was refused.")]
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

/// The outcome for one address, handle or block.
#[derive(Serialize)]
struct Row {
    target: String,
    action: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    detail: String,
}

pub(super) async fn run(args: &ReleaseArgs, session: &mut Session<'_>) -> Result<Outcome, CliError> {
    let report = args.from_report.as_deref().map(Report::read).transpose()?;
    let reading = Reading::take(session.store).await?;
    let steps = match &report {
        Some(report) => plan::of_report(report, &reading, args.force),
        None => plan::of_addresses(&args.addresses, &reading, args.force),
    };
    let progress = Progress::new("releasing", steps.len());
    let mut rows = Vec::new();
    for step in steps {
        rows.push(take(step, session, args.dry_run).await?);
        progress.step();
    }
    drop(progress);
    print(&rows, session)?;
    Ok(if rows.iter().any(|row| row.action == REFUSED) { Outcome::Wrong } else { Outcome::Fine })
}

const REFUSED: &str = "refused";
const SKIPPED: &str = "left alone";

async fn take(step: Step, session: &Session<'_>, dry_run: bool) -> Result<Row, CliError> {
    let row = |action, detail| Row { target: step.target.clone(), action, detail };
    let mend = match step.verdict {
        Verdict::Do(mend) => mend,
        Verdict::Leave(reason) => return Ok(row(SKIPPED, reason)),
        Verdict::Refuse(reason) => return Ok(row(REFUSED, reason)),
    };
    let done = mend.name();
    if dry_run {
        return Ok(row("would be", format!("{done}, {}", mend.reason())));
    }
    let reason = mend.reason();
    match mend.carry_out(session.store).await? {
        Ok(()) => Ok(row(done, reason)),
        Err(changed) => Ok(row(REFUSED, changed)),
    }
}

fn print(rows: &[Row], session: &mut Session<'_>) -> Result<(), CliError> {
    if session.format != Format::Table {
        output::document(session.format, session.out, &rows)?;
        return Ok(());
    }
    for Row { target, action, detail } in rows {
        session.say(format_args!("{target}: {action}{}{detail}", if detail.is_empty() { "" } else { ": " }))?;
    }
    if rows.is_empty() {
        session.say("nothing to release")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
