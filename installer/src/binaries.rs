//! The plugins' programs: from this container into the node's plugin directories (INST-15..INST-22, INST-28, INST-29).
//!
//! ```text
//! own programs ─┐
//!               ├▶ plan (pure) ─▶ noted in the state ─▶ copied beside ─ digest ─ run once ─▶ renamed into place
//! directories ──┘
//! ```

mod copy;
mod plan;
mod run_once;
mod source;

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

pub use self::plan::{Plan, Present, PresentFile, Step, Task};
pub(crate) use self::run_once::spawn;
pub use self::run_once::{RunError, run_once};
pub use self::source::Program;
use crate::atomic_file::{self, AtomicFileError};
use crate::layout::{Layout, Place};
use crate::settings::{Settings, Update};
use crate::state::State;

/// The plugin.
pub const CALICO: &str = "calico";
/// The IPAM plugin, the same program under another name.
pub const CALICO_IPAM: &str = "calico-ipam";

/// Why the programs are not installed. What was there before still is.
#[derive(Debug, thiserror::Error)]
pub enum BinariesError {
    /// A program of this container.
    #[error("cannot read {}: {source}", .path.display())]
    Source {
        /// The program.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No directory will do (INST-29).
    #[error("found no writeable directory, exiting: {}; mount the node's plugin directory there for writing", list(.skipped))]
    NoDirectory {
        /// Those that were looked at, and what is wrong with them.
        skipped: Vec<(PathBuf, &'static str)>,
    },
    /// The name of a program is taken.
    #[error("{} is no file and in the way of the plugin of that name; remove it, or name the plugin in SKIP_CNI_BINARIES if it is not Calico's", .path.display())]
    NoFile {
        /// What is there.
        path: PathBuf,
    },
    /// The copy cannot be written.
    #[error(transparent)]
    Copy(#[from] AtomicFileError),
    /// The copy is not what was copied.
    #[error("{} was written and reads back otherwise; is the disk sound?", .path.display())]
    Differs {
        /// The file that it should have become.
        path: PathBuf,
    },
    /// The copy does not run.
    #[error(transparent)]
    Run(#[from] RunError),
}

fn list(skipped: &[(PathBuf, &'static str)]) -> String {
    let words: Vec<String> = skipped.iter().map(|(path, why)| format!("{} {why}", path.display())).collect();
    words.join(", ")
}

/// What has to be done to all directories.
#[derive(Debug)]
pub struct Binaries {
    plans: Vec<Plan>,
    skipped: Vec<(PathBuf, &'static str)>,
}

impl Binaries {
    /// Looks at this container and at the node, and decides what is to be done.
    ///
    /// # Errors
    /// There is no directory that programs could go to, or a program of this container cannot be read.
    pub fn plan(settings: &Settings, layout: &Layout, state: &State) -> Result<Binaries, BinariesError> {
        let own = Program::of_this_process()?;
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

    /// Notes what is going to be installed, beside what it takes the place of.
    pub fn note(&self, state: &mut State) {
        for (place, task) in self.ours() {
            state.note_over(place, &task.name, task.source.digest.clone(), task.there.as_deref());
        }
    }

    /// Does it, and notes what is in place. A directory from which programs cannot be run is left as it was, and its notes as
    /// they were `before`, as long as there is another one.
    ///
    /// # Errors
    /// A copy fails.
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
            state.note(place, &task.name, Some(task.source.digest.clone()), false);
        }
        if ready.is_empty() { Err(BinariesError::NoDirectory { skipped: self.skipped }) } else { Ok(ready) }
    }

    /// What is or will be what we installed.
    fn ours(&self) -> impl Iterator<Item = (Place, &Task)> {
        self.plans
            .iter()
            .flat_map(|plan| plan.tasks.iter().filter(|task| task.is_ours()).map(|task| (plan.place, task)))
    }
}

/// Forgets programs that somebody took away, and that a run that succeeded did not put back: they are not wanted any more, or
/// their directory was skipped. A directory that is not there tells nothing about them.
pub fn forget_missing(layout: &Layout, state: &mut State) {
    let is_gone = |path: PathBuf| path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    for (place, directory) in layout.bin_dirs().into_iter().filter(|(_, directory)| directory.is_dir()) {
        let noted = state.files.get(&place).into_iter().flat_map(|files| files.keys());
        let gone: Vec<String> = noted.filter(|name| is_gone(directory.join(name))).cloned().collect();
        gone.iter().for_each(|name| state.forget(place, name));
    }
}

/// The names of what this container installs.
#[must_use]
pub fn names(settings: &Settings, layout: &Layout) -> Vec<String> {
    let extra = source::extra_paths(layout, &settings.extra_plugins).into_iter().map(|(_, name)| name);
    [CALICO, CALICO_IPAM].into_iter().map(str::to_owned).chain(extra).collect()
}

/// Asks the system, and leaves no trace as a file on trial would: runtimes watch the directory.
fn is_writeable(directory: &Path) -> bool {
    access(directory, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}
