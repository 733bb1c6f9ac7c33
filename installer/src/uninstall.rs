//! `calico uninstall`: takes back what was installed (INST-149).
//!
//! ```text
//! state, digests on disk ─ plan (pure) ─▶ 1 the configuration is renamed away: no pod starts with it any more
//!                                         2 addresses, interfaces, where asked for
//!                                         3 programs, kubeconfig, TLS
//!                                         4 the renamed configuration, the state
//!                            report ◀─────┘
//! ```
//!
//! A file is ours if it is noted in the state and still has the digest that it was installed with; everything else stays and
//! is named. Without `--yes` nothing is changed.

mod addresses;
mod files;
mod interfaces;
mod kept;
mod plan;
mod report;

pub use plan::{Found, FoundState, Task, Verdict, plan};
pub use report::{Left, Outcome, Report, Step};

use crate::atomic_file::{self, AtomicFileError};
use crate::host_network::HostNetwork;
use crate::layout::{Layout, NET_DIR, Place};
use crate::nodename;
use crate::state::{self, State, StateError};

/// What to take back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Act; otherwise only say what would be done.
    pub yes: bool,
    /// Delete the interfaces of pods that are still there, and with them their routes.
    pub tear_down_pods: bool,
    /// Give back the addresses and blocks of this node.
    pub release_addresses: bool,
}

/// Why nothing was done, or not everything.
#[derive(Debug, thiserror::Error)]
pub enum UninstallError {
    /// What was installed is not known.
    #[error(transparent)]
    State(#[from] StateError),
    /// What is left cannot be noted.
    #[error(transparent)]
    Save(#[from] AtomicFileError),
}

/// Takes back what was installed on the node that `layout` shows, or says what would be.
pub async fn run(layout: &Layout, options: Options, network: &dyn HostNetwork) -> Result<Report, UninstallError> {
    let mut state = State::load(layout)?;
    let net_dir = if state.net_dir.is_empty() { NET_DIR.to_owned() } else { state.net_dir.clone() };
    let found = files::look(&state, layout, &net_dir);
    let tasks = plan(&found, &files::named_by_others(layout, &net_dir, &found));
    let mut report = Report { acted: options.yes, ..Report::default() };
    if state.files.is_empty() {
        report.leave("everything", format!("no run of the installer is noted in {}", state::path(layout).display()));
    }
    // The credentials go with the files.
    let conf = addresses::conf(layout, &net_dir, &found);

    let (configurations, others): (Vec<&Task>, Vec<&Task>) = tasks.iter().partition(|task| task.is_configuration());
    for task in &configurations {
        files::retire(task, options.yes, &mut report);
    }
    let released = addresses::release(conf, options, &mut report).await;
    interfaces::tear_down(options, network, &mut report);
    if !released {
        let reason = "they lead to the addresses: run it again, or without --release-addresses";
        report.leave("programs, kubeconfig and TLS files", reason);
        return Ok(report);
    }
    for task in others.iter().chain(&configurations) {
        let is_gone = files::remove(task, options.yes, &mut report);
        if is_gone {
            state.forget(task.place, &task.name);
        }
        if state.get(task.place, &task.name).is_none() && task.replaced {
            report.leave(task.path.display(), "what was there before the installation is not brought back");
        }
    }
    kept::remove(&tasks, &state, layout, options.yes, &mut report);
    let nodename = layout.state_dir().join(nodename::NAME);
    if nodename.exists() {
        report.leave(nodename.display(), "calico-node goes by it, too; another name would be another node to IPAM");
    }
    report.leave("/var/log/calico", "logs are kept");
    if options.yes {
        sweep(layout, &net_dir);
        finish(&state, layout, &mut report)?;
    }
    Ok(report)
}

/// Unfinished files of runs that were killed, and a directory that nothing is in any more.
fn sweep(layout: &Layout, net_dir: &str) {
    let net_dir = layout.net_dir(net_dir);
    let directories = layout.bin_dirs().into_iter().map(|(_, directory)| directory);
    for directory in directories.chain([net_dir.clone(), layout.state_dir()]) {
        atomic_file::sweep(&directory);
    }
    let _ = std::fs::remove_dir(net_dir.join(crate::tls_assets::DIRECTORY));
}

/// The state goes with the last file that it notes.
fn finish(state: &State, layout: &Layout, report: &mut Report) -> Result<(), UninstallError> {
    if !state.files.is_empty() {
        return Ok(state.save(layout)?);
    }
    let path = state::path(layout);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => report.fail("remove", path.display(), error),
        _ => {}
    }
    Ok(())
}

/// Where a place is, for people.
fn is_net(place: Place) -> bool {
    place == Place::Net
}
