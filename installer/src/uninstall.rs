//! `calico uninstall`: removes the installed files from a node.
//!
//! ```text
//! state, digests on disk ─ plan (pure) ─▶ 0 obstacles are reported, and nothing is changed
//!                                         1 the configuration is renamed, so no new pod uses it
//!                                         2 interfaces, then addresses, if requested
//!                                         3 programs, kubeconfig, TLS files
//!                                         4 the renamed configuration, the state
//!                            report ◀─────┘
//! ```
//!
//! Each step needs files that later steps remove, so a failed step ends the run.
//!
//! A file is removed only if it is recorded in the state and still has the recorded digest. All others stay and are
//! reported. Without `--yes` nothing is changed.

mod addresses;
mod chained;
mod endpoints;
mod files;
mod interfaces;
mod kept;
mod obstacles;
mod others;
mod plan;
mod pods;
mod report;

pub use plan::{Found, FoundState, Task, Verdict, plan};
pub use report::{Left, Outcome, Report, Step};

use std::collections::BTreeSet;
use std::net::IpAddr;

use netconf::NetConf;

use crate::atomic_file;
use crate::host_network::HostNetwork;
use crate::layout::{Layout, NET_DIR};
use crate::state::{self, State, StateError};

/// The options of the command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether to act. Otherwise the run only reports its plan.
    pub yes: bool,
    /// Whether to delete the interfaces of pods that still exist, and with them their routes.
    pub tear_down_pods: bool,
    /// Whether to release the addresses and blocks of this node.
    pub release_addresses: bool,
    /// Whether to treat missing files as removed, even if all files of a directory are missing.
    pub forget_gone: bool,
}

/// Removes the installed files of the node that `layout` describes, or reports the plan.
///
/// # Errors
/// Returns an error if the records of the installation cannot be read. Nothing was changed then.
pub async fn run(layout: &Layout, options: Options, network: &dyn HostNetwork) -> Result<Report, StateError> {
    let mut state = State::load(layout)?;
    let net_dir = if state.net_dir.is_empty() { NET_DIR.to_owned() } else { state.net_dir.clone() };
    let found = files::look(&state, layout, &net_dir);
    let named = files::named_by_others(layout, &net_dir, &found);
    let tasks = plan(&found, &named);
    let mut report = Report { acted: options.yes, ..Report::default() };
    if state.files.is_empty() {
        // Pods on this node belong to another installation, such as upstream's, so their interfaces and addresses stay.
        report.leave("everything", format!("no run of the installer is noted in {}", state::path(layout).display()));
        others::name(layout, false, &mut report);
        return Ok(report);
    }
    // The configuration is read now because its kubeconfig is removed later.
    let conf = addresses::conf(layout, &net_dir, &found);

    let node = obstacles::Installed { layout, net_dir: &net_dir, found: &found, named: &named, conf: &conf };
    let obstacles = obstacles::all(&node, options, network);
    if !obstacles.is_empty() {
        obstacles.into_iter().for_each(|obstacle| obstacle.told(&mut report));
        report.leave("everything", "nothing is changed while something is in the way");
        return Ok(report);
    }

    let (configurations, others): (Vec<&Task>, Vec<&Task>) = tasks.iter().partition(|task| task.is_configuration());
    if options.tear_down_pods {
        // Recorded before the interfaces are deleted, because this run may fail to release the addresses and be
        // repeated.
        state.torn_down.extend(interfaces::behind_torn_down(network));
        if options.yes && !note(&state, layout, &mut report) {
            report.leave(
                "everything",
                "nothing is changed: a later run could not tell which interfaces this run deleted",
            );
            return Ok(report);
        }
    }
    let chained = chained::Chained::of(&configurations, &state, &layout.net_dir(&net_dir));
    match first_steps(&configurations, &chained, conf, options, &state.torn_down, network, &mut report).await {
        Err(reason) => {
            report.leave("programs, kubeconfig and TLS files", reason);
            configurations.iter().for_each(|task| files::leave_retired(task, &mut report));
        }
        Ok(()) => {
            remove(&others, &mut state, options.yes, &mut report);
            // The renamed configuration shows the next run that this one started, so it is removed last.
            if options.yes && !note(&state, layout, &mut report) {
                configurations.iter().for_each(|task| files::leave_retired(task, &mut report));
            } else {
                remove(&configurations, &mut state, options.yes, &mut report);
            }
            kept::remove(&tasks, &state, layout, options.yes, &mut report);
            if options.yes {
                sweep(layout, &net_dir);
                finish(&state, layout, &mut report);
            }
        }
    }
    let is_noted = options.yes || tasks.iter().any(|task| matches!(task.verdict, Verdict::Leave(_)));
    others::name(layout, is_noted, &mut report);
    others::name_copies(&layout.net_dir(&net_dir), &mut report);
    report.leave("/var/log/calico", "logs are kept");
    Ok(report)
}

/// Runs the steps that need the installed files: moves foreign plugins, renames the configurations, deletes the
/// interfaces of pods, and releases the addresses once no interface uses them. An error is the reason why the remaining
/// files stay.
async fn first_steps(
    configurations: &[&Task],
    chained: &chained::Chained<'_>,
    conf: Result<NetConf, String>,
    options: Options,
    torn_down: &BTreeSet<IpAddr>,
    network: &dyn HostNetwork,
    report: &mut Report,
) -> Result<(), &'static str> {
    const NOT_MOVED: &str =
        "plugins that others chained into the configuration cannot be moved: run it again when they can";
    if !chained.move_on(options.yes, report) {
        return Err(NOT_MOVED);
    }
    let mut are_retired = true;
    for task in configurations {
        are_retired &= files::retire(task, options.yes, report);
    }
    // Moves plugins that other programs added before the rename.
    let mut late = Report::default();
    if options.yes && !chained.move_on(true, &mut late) {
        report.steps.extend(late.steps);
        return Err(NOT_MOVED);
    }
    if !are_retired {
        return Err("a configuration that cannot be renamed still runs them: run it again when it can");
    }
    let is_torn_down = interfaces::tear_down(options, network, report);
    let released = addresses::release(conf, options, torn_down, network, report).await;
    match (is_torn_down, released) {
        (true, true) => Ok(()),
        (false, _) => Err("pods that are still connected need them: run it again, or without --tear-down-pods"),
        (true, false) => Err("they lead to the addresses: run it again, or without --release-addresses"),
    }
}

/// Removes files and the records of those that no longer exist.
fn remove(tasks: &[&Task], state: &mut State, acts: bool, report: &mut Report) {
    for task in tasks {
        let is_gone = files::remove(task, acts, report);
        if is_gone {
            state.forget(task.place, &task.name);
        }
        if state.get(task.place, &task.name).is_none() && task.replaced {
            report.leave(task.path.display(), "what was there before the installation is not brought back");
        }
    }
}

/// Removes temporary files of killed runs, and the directory of TLS files if it is empty.
fn sweep(layout: &Layout, net_dir: &str) {
    let net_dir = layout.net_dir(net_dir);
    let directories = layout.bin_dirs().into_iter().map(|(_, directory)| directory);
    for directory in directories.chain([net_dir.clone(), layout.state_dir()]) {
        atomic_file::sweep(&directory);
    }
    let _ = std::fs::remove_dir(net_dir.join(crate::tls_assets::DIRECTORY));
}

/// Saves the remaining records, if any. Returns true if the next run can read them.
fn note(state: &State, layout: &Layout, report: &mut Report) -> bool {
    if state.files.is_empty() {
        return true;
    }
    let saved = state.save(layout);
    let path = state::path(layout).display().to_string();
    match &saved {
        Err(_) if report.names(&path) => {}
        Err(error) => report.fail("note what is left in", path, error),
        Ok(()) => {}
    }
    saved.is_ok()
}

/// Removes the state file if it records no file, and else saves it.
fn finish(state: &State, layout: &Layout, report: &mut Report) {
    if !state.files.is_empty() {
        note(state, layout, report);
        return;
    }
    let path = state::path(layout);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => report.fail("remove", path.display(), error),
        _ => {}
    }
}
