//! `release`: releases addresses, and repairs wrong counts of handles and inconsistent blocks.

mod lock;
mod plan;
mod repairs;
mod run_steps;
mod step;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use libcalico::ipam::report::{NamedReport, ReportedProblems, intersect, is_carried_as_finding};
use serde::Serialize;
use time::Duration;

use self::lock::permit;
use self::plan::{steps_for_addresses, steps_for_report};
use self::run_steps::{REFUSED, run_steps};
use super::app::{App, CommandOutcome};
use super::cluster_read::ClusterRead;
use super::documents::{self, Format};
use super::error::CliError;
use super::report_file;

/// Release addresses, or repair the findings of reports of `check`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam release 10.65.0.7 fd65::7
  calico-ipam check --report report.json || calico-ipam release --from-report report.json --dry-run
  calico-ipam release --from-report monday.json tuesday.json
  calico-ipam release --from-report locked.json monday.json --require-lock

Without --force, an address is refused if an endpoint has it, if its pod reports it or may still report it, if a node
keeps it for itself, or if it was allocated moments ago. The objects are read again before the first change. Objects
that differ from the report, down to the sequence number, are left alone. Of several reports, only what all of them list
is released or repaired. Reports of calicoctl are read too, but list no inconsistent blocks and no wrong counts.

--require-lock refuses under the conditions of calicoctl: each report has the version of the cluster, one of them was
written after the last change of ClusterInformation, and the datastore is locked. With --require-lock, --force only
overrides the version and the lock.

Exit status: 0; 1 if a change was refused or failed; 2 if the arguments are invalid.")]
pub(super) struct ReleaseArgs {
    /// Addresses to release
    #[arg(
        value_name = "ADDRESS",
        required_unless_present = "from_report",
        conflicts_with = "from_report"
    )]
    addresses: Vec<IpAddr>,
    /// Release the addresses without endpoint that all these reports of `check` list, and repair
    /// their handles and blocks
    #[arg(long, value_name = "FILE", num_args = 1..)]
    from_report: Vec<PathBuf>,
    /// Refuse unless the datastore is locked and a report was written since
    #[arg(long, requires = "from_report", conflicts_with = "addresses")]
    require_lock: bool,
    /// Version that the reports must have [default: calicoVersion of ClusterInformation]
    #[arg(long, value_name = "VERSION", requires = "require_lock")]
    report_version: Option<String>,
    /// Release addresses even if they are in use. The workload is not stopped and keeps using them
    #[arg(long)]
    force: bool,
    /// Print the changes without making them
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    target: String,
    action: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    detail: String,
}

pub(super) async fn run(args: &ReleaseArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    let reports: Vec<NamedReport> = args
        .from_report
        .iter()
        .map(|path| report_file::read(path))
        .collect::<Result<_, _>>()?;
    let permit = if reports.is_empty() {
        None
    } else {
        Some(permit(args, &reports, app).await?)
    };
    // With the lock rule, this option overrides conditions of the reports, and not those of an
    // address.
    let force = args.force && !args.require_lock;
    let steps = if reports.is_empty() {
        let cluster = ClusterRead::read_for(app.store, app.services, &args.addresses).await?;
        steps_for_addresses(&args.addresses, &cluster, force)
    } else {
        let cluster = ClusterRead::read(app.store, app.services).await?;
        let reported = intersect(reports.iter().map(|named| &named.report));
        note_unreported(&reported, &cluster, app);
        steps_for_report(&reported, &cluster, force)
    };
    let (rows, failure) = run_steps(steps, app.store, args.dry_run).await;
    print(&rows, app)?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let is_refused = rows.iter().any(|row| row.action == REFUSED);
    if let Some(permit) = permit.filter(|_| args.require_lock) {
        permit.verify(app).await?;
        if !is_refused && !args.dry_run {
            // Upstream's text.
            app.notice("You may now unlock the data store.");
        }
    }
    Ok(if is_refused {
        CommandOutcome::Findings
    } else {
        CommandOutcome::Success
    })
}

/// Notes the findings that only reports of `calico-ipam check` carry and that not every report has.
fn note_unreported(reported: &ReportedProblems, cluster: &ClusterRead, app: &mut App<'_>) {
    let current = cluster.audit(Duration::ZERO);
    let carried = current
        .iter()
        .filter(|finding| is_carried_as_finding(finding));
    match carried
        .filter(|finding| !reported.findings.contains(finding))
        .count()
    {
        0 => {}
        n => app.notice(format_args!(
            "note: findings about blocks and handles that are not in every report, and stay as \
             they are: {n}; `calico-ipam check --report` writes a report with them"
        )),
    }
}

fn print(rows: &[Row], app: &mut App<'_>) -> Result<(), CliError> {
    if app.format != Format::Table {
        documents::print_document(app.format, app.out, &rows)?;
        return Ok(());
    }
    for Row {
        target,
        action,
        detail,
    } in rows
    {
        app.print_line(format_args!(
            "{target}: {action}{}{detail}",
            if detail.is_empty() { "" } else { ": " }
        ))?;
    }
    if rows.is_empty() {
        app.print_line("nothing to release")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
