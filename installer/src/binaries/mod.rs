//! Copies the plugins' programs from this container into the node's plugin directories.
//!
//! ```text
//! own programs ─┐
//!               ├▶ plan (pure) ─▶ recorded in the state ─▶ temporary copy ─ digest ─ test run ─▶ renamed into place
//! directories ──┘
//! ```
//!
//! Read `source`, `plan` and `copy` in this order.

mod copy;
mod error;
mod plan;
mod source;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

pub use self::error::BinariesError;
pub use self::plan::{Plan, Present, PresentFile, ProgramAction, ProgramTask};
pub use self::source::SourceProgram;
use crate::atomic_file;
use crate::child_process::RunError;
use crate::layout::{CALICO, CALICO_IPAM, Layout, Place};
use crate::settings::{Settings, Update};
use crate::state::State;

/// The plans for all plugin directories.
#[derive(Debug)]
pub struct Binaries {
    plans: Vec<Plan>,
    skipped: Vec<(PathBuf, &'static str)>,
}

impl Binaries {
    /// Reads this container's programs and the node's directories, and plans the installation.
    ///
    /// # Errors
    /// Returns an error if no directory is usable, or if a program of this container cannot be read.
    pub fn plan(settings: &Settings, layout: &Layout, state: &State) -> Result<Binaries, BinariesError> {
        let own = SourceProgram::current()?;
        let extra = source::extra_plugins(layout, &settings.extra_plugins)?;
        let (mut plans, mut skipped) = (Vec::new(), Vec::new());
        for (place, directory) in layout.bin_dirs() {
            if !directory.is_dir() {
                skipped.push((directory, "is not there"));
                continue;
            }
            atomic_file::sweep(&directory);
            let look = |name: &str| Present::look(&directory.join(name), |digest| state.is_ours(place, name, digest));
            let plan = Plan::new(place, &directory, settings, &own, &extra, look)?;
            if is_writeable(&directory) || !plan.writes() {
                plans.push(plan);
            } else if settings.update == Update::Never && plan.has_both() {
                tracing::info!("{} is not writeable; what is there is used", directory.display());
                plans.push(plan.without_writes());
            } else {
                tracing::info!("{} is not writeable, skipping", directory.display());
                skipped.push((directory, "is not writeable"));
            }
        }
        if plans.is_empty() {
            return Err(BinariesError::NoDirectory { skipped });
        }
        Ok(Binaries { plans, skipped })
    }

    /// Records in the state the files that will be installed, together with the files that they replace.
    pub fn record(&self, state: &mut State) {
        for (place, task) in self.ours() {
            state.record_replacement(place, &task.name, task.source.digest.clone(), task.there.as_deref());
        }
    }

    /// Carries out the plans and records the installed files. If programs cannot be run from a directory but another
    /// directory is usable, the former is skipped and its records are restored from `before`.
    ///
    /// # Errors
    /// Returns an error if a copy fails.
    pub fn install(mut self, before: &State, state: &mut State) -> Result<Vec<(Place, PathBuf)>, BinariesError> {
        let mut ready = Vec::new();
        for plan in &self.plans {
            match copy::carry_out(plan) {
                Ok(()) => ready.push((plan.place, plan.directory.clone())),
                Err(BinariesError::Run(RunError::NoExec { path })) => {
                    tracing::error!("{} is on a file system that is mounted noexec, skipping", path.display());
                    self.skipped.push((plan.directory.clone(), "is mounted noexec"));
                    state.restore(plan.place, before);
                }
                Err(error) => return Err(error),
            }
        }
        for (place, task) in self.ours().filter(|(place, _)| ready.iter().any(|(known, _)| known == place)) {
            state.record(place, &task.name, Some(task.source.digest.clone()), false);
        }
        if ready.is_empty() { Err(BinariesError::NoDirectory { skipped: self.skipped }) } else { Ok(ready) }
    }

    /// Returns the tasks whose files are, or will be, installed by Calico.
    fn ours(&self) -> impl Iterator<Item = (Place, &ProgramTask)> {
        self.plans
            .iter()
            .flat_map(|plan| plan.tasks.iter().filter(|task| task.is_ours()).map(|task| (plan.place, task)))
    }
}

/// Removes records of programs that no longer exist after a successful run: they are no longer wanted, or their
/// directory was skipped. The records of a missing directory stay, as that directory may only be unmounted.
pub fn remove_missing_records(layout: &Layout, state: &mut State) {
    let is_gone = |path: PathBuf| path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    for (place, directory) in layout.bin_dirs().into_iter().filter(|(_, directory)| directory.is_dir()) {
        let recorded = state.files.get(&place).into_iter().flat_map(|files| files.keys());
        let gone: Vec<String> = recorded.filter(|name| is_gone(directory.join(name))).cloned().collect();
        gone.iter().for_each(|name| state.forget(place, name));
    }
}

/// Returns the names of all programs that this container installs.
#[must_use]
pub fn program_names(settings: &Settings, layout: &Layout) -> Vec<String> {
    let extra = source::extra_paths(layout, &settings.extra_plugins).into_iter().map(|(_, name)| name);
    [CALICO, CALICO_IPAM].into_iter().map(str::to_owned).chain(extra).collect()
}

/// Returns true if the directory is writable. A test file would answer that as well, but runtimes watch the directory.
fn is_writeable(directory: &Path) -> bool {
    access(directory, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}
