//! Runs an uninstallation, step by step.

use std::collections::BTreeSet;
use std::net::IpAddr;

use libcalico::failure::Failure;
use netconf::NetConf;

use super::chained_plugins::ChainedPlugins;
use super::plan::{Options, RemovalTask, Verdict, plan};
use super::preconditions::Blocker;
use super::report::UninstallReport;
use super::{address_users, addresses, files, other_files, preconditions};
use dataplane::host_network::HostNetwork;
use installation::former;
use installation::layout::{Layout, NET_DIR};
use installation::state::{self, State};
use os::atomic_file;

/// Removes the installed files of the node that `layout` describes, or without `options.yes`
/// reports the plan.
pub async fn run(
    layout: &Layout,
    options: Options,
    network: &dyn HostNetwork,
) -> Result<UninstallReport, Failure> {
    let mut state = State::load(layout)?;
    let net_dir = if state.net_dir.is_empty() {
        NET_DIR.to_owned()
    } else {
        state.net_dir.clone()
    };
    let found = files::inspect(&state, layout, &net_dir);
    let named = files::programs_in_use(layout, &net_dir, &found);
    let tasks = plan(&found, &named);
    let mut report = UninstallReport {
        acted: options.yes,
        ..UninstallReport::default()
    };
    if state.files.is_empty() {
        // Pods on this node may belong to another installation, so their interfaces and addresses
        // stay.
        report.add_remaining(
            "everything",
            format!(
                "no installation is recorded in {}",
                state::path(layout).display()
            ),
        );
        other_files::report_unowned(layout, false, &mut report);
        return Ok(report);
    }
    // The configuration is read now because its kubeconfig is removed later.
    let conf = addresses::conf(layout, &net_dir, &found);

    let blockers =
        preconditions::find_blockers(layout, &net_dir, &found, &named, &conf, options, network);
    if !blockers.is_empty() {
        for Blocker {
            action,
            target,
            reason,
        } in blockers
        {
            report.add_refusal(action, target, reason);
        }
        report.add_remaining(
            "everything",
            "nothing is changed until the failures above are corrected",
        );
        return Ok(report);
    }

    let (configurations, others): (Vec<&RemovalTask>, Vec<&RemovalTask>) =
        tasks.iter().partition(|task| task.file.is_configuration());
    if options.tear_down_pods {
        // Recorded before the interfaces are deleted, because a later run may have to release the
        // addresses.
        state
            .torn_down
            .extend(address_users::addresses_behind_pods(network));
        if options.yes && !save_records(&state, layout, &mut report) {
            let reason =
                "nothing is changed: the deleted interfaces could not be recorded for a later run";
            report.add_remaining("everything", reason);
            return Ok(report);
        }
    }
    let chained = ChainedPlugins::new(&configurations, &state, &layout.net_dir(&net_dir));
    match run_first_steps(
        &configurations,
        &chained,
        conf,
        options,
        &state.torn_down,
        network,
        &mut report,
    )
    .await
    {
        Err(reason) => {
            report.add_remaining("programs, kubeconfig and TLS files", reason);
            configurations
                .iter()
                .for_each(|task| files::report_retired(task, &mut report));
        }
        Ok(()) => {
            remove(&others, &mut state, options.yes, &mut report);
            // The renamed configuration shows the next run that this one started, so it is removed
            // last.
            if options.yes && !save_records(&state, layout, &mut report) {
                configurations
                    .iter()
                    .for_each(|task| files::report_retired(task, &mut report));
            } else {
                remove(&configurations, &mut state, options.yes, &mut report);
            }
            other_files::remove(&tasks, &state, layout, options.yes, &mut report);
            if options.yes {
                sweep(layout, &net_dir);
                remove_state(&state, layout, &mut report);
            }
        }
    }
    let is_recorded = options.yes
        || tasks
            .iter()
            .any(|task| matches!(task.verdict, Verdict::Keep(_)));
    other_files::report_unowned(layout, is_recorded, &mut report);
    other_files::report_backups(&layout.net_dir(&net_dir), &mut report);
    for path in former::remaining(&state, layout) {
        report.add_remaining(
            path.display(),
            "it is in a directory of an earlier installation; delete it by hand",
        );
    }
    report.add_remaining("/var/log/calico", "logs are kept");
    Ok(report)
}

/// Runs the steps that need the installed files. An error is the reason why the remaining files
/// stay.
async fn run_first_steps(
    configurations: &[&RemovalTask],
    chained: &ChainedPlugins<'_>,
    conf: Result<NetConf, Failure>,
    options: Options,
    torn_down: &BTreeSet<IpAddr>,
    network: &dyn HostNetwork,
    report: &mut UninstallReport,
) -> Result<(), &'static str> {
    const NOT_MOVED: &str = "plugins that other programs chained into the configuration cannot be \
                             moved; correct the failure and run the command again";
    if !chained.move_foreign(options.yes, report) {
        return Err(NOT_MOVED);
    }
    let mut are_retired = true;
    for task in configurations {
        are_retired &= files::retire(task, options.yes, report);
    }
    // Other programs may have added plugins between the first move and the rename.
    let mut late_report = UninstallReport::default();
    if options.yes && !chained.move_foreign(true, &mut late_report) {
        report.steps.extend(late_report.steps);
        return Err(NOT_MOVED);
    }
    if !are_retired {
        return Err(
            "a configuration that cannot be renamed still runs them; correct the failure and run \
             the command again",
        );
    }
    let is_torn_down = address_users::tear_down(options, network, report);
    let released = addresses::release(conf, options, torn_down, network, report).await;
    match (is_torn_down, released) {
        (true, true) => Ok(()),
        (false, _) => {
            Err("connected pods need them; run the command again, or without --tear-down-pods")
        }
        (true, false) => Err(
            "a later run needs them to release the addresses; run the command again, or without \
             --release-addresses",
        ),
    }
}

fn remove(tasks: &[&RemovalTask], state: &mut State, acts: bool, report: &mut UninstallReport) {
    for task in tasks {
        let is_gone = files::remove(task, acts, report);
        if is_gone {
            state.remove_record(task.file.place, &task.file.name);
        }
        if state.get(task.file.place, &task.file.name).is_none() && task.file.replaced {
            report.add_remaining(
                task.file.path.display(),
                "the file that the installation replaced is not restored",
            );
        }
    }
}

/// Removes temporary files of killed runs, and the directory of TLS files if it is empty.
fn sweep(layout: &Layout, net_dir: &str) {
    let net_dir = layout.net_dir(net_dir);
    let directories = layout.bin_paths();
    for directory in directories.chain([net_dir.clone(), layout.state_dir()]) {
        atomic_file::sweep(&directory);
    }
    let _ = std::fs::remove_dir(net_dir.join(installation::tls_assets::DIRECTORY));
}

/// Saves the remaining records, unless there are none. Returns false if the records cannot be
/// saved.
fn save_records(state: &State, layout: &Layout, report: &mut UninstallReport) -> bool {
    if !state.has_files() {
        return true;
    }
    let saved = state.save(layout);
    let path = state::path(layout).display().to_string();
    match &saved {
        Err(_) if report.mentions(&path) => {}
        Err(error) => report.add_failure("record the remaining files in", path, error),
        Ok(()) => {}
    }
    saved.is_ok()
}

fn remove_state(state: &State, layout: &Layout, report: &mut UninstallReport) {
    for role in state.later.roles() {
        let reason = "only the later version that recorded these files can remove them";
        report.add_remaining(format!("files of the role `{role}`"), reason);
    }
    if state.has_files() {
        save_records(state, layout, report);
        return;
    }
    let path = state::path(layout);
    if let Err(error) = other_files::ignore_missing(std::fs::remove_file(&path)) {
        report.add_failure("remove", path.display(), error);
    }
}
