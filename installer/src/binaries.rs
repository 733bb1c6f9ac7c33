//! Copies the plugins' programs from this container into the node's plugin directories.
//!
//! ```text
//! own programs ─┐
//!               ├▶ plan (pure) ─▶ digests recorded in the state ─▶ temporary copy
//! directories ──┘                                        ─▶ digest compared ─▶ renamed
//! ```
//!
//! The copy of `calico` is also run once before it is renamed.

mod plan;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use libcalico::failure::Failure;
use nix::unistd::{AccessFlags, access};

use self::plan::{Plan, Present, ProgramAction, ProgramTask, SourceProgram};
use installation::digest;
use installation::directory_access::UnwritableDirectory;
use installation::layout::{CALICO, CALICO_IPAM, DirectoryRole, Layout};
use installation::settings::{Settings, Update};
use installation::state::State;
use installation::version_run::{RunError, run_version};
use os::atomic_file::{self, AtomicFileError, Draft, Finished};

/// The plans for all plugin directories.
#[derive(Debug)]
pub struct Binaries {
    plans: Vec<Plan>,
    /// The directories that are not used, each with the reason.
    skipped: Vec<String>,
}

impl Binaries {
    /// Reads this container's programs and the node's directories, and plans the installation.
    /// Skips a directory that is missing, or in which a file cannot be written, unless its present
    /// programs suffice.
    ///
    /// # Errors
    /// Returns an error if no directory is usable, if a program of this container cannot be read,
    /// or if a program's path on the node is not a regular file.
    pub fn plan(settings: &Settings, layout: &Layout, state: &State) -> Result<Binaries, Failure> {
        let own = SourceProgram::current()?;
        let extra = plan::extra_plugins(layout, &settings.extra_plugins)?;
        let (mut plans, mut skipped) = (Vec::new(), Vec::new());
        for (place, dir) in layout.bin_dirs() {
            if !dir.is_dir() {
                skipped.push(format!("{} does not exist", dir.display()));
                continue;
            }
            atomic_file::sweep(&dir);
            let examine = |name: &str| {
                Present::examine(&dir.join(name), |digest| state.is_ours(place, name, digest))
            };
            let mut plan = Plan::new(place, &dir, settings, &own, &extra, examine)?;
            if is_writable(&dir) || !plan.writes() {
                plans.push(plan);
            } else if settings.update == Update::Never && plan.has_both() {
                tracing::info!(
                    "{} is not writeable; the programs in it are used",
                    dir.display()
                );
                plan.tasks.retain(|task| !task.writes());
                plans.push(plan);
            } else {
                let mut reason = format!("{} is not writeable", dir.display());
                if let Some(denied) = UnwritableDirectory::denied(&dir) {
                    reason += &format!(": {denied}");
                }
                tracing::info!("{reason}, skipping the directory");
                skipped.push(reason);
            }
        }
        if plans.is_empty() {
            return Err(no_directory(&skipped));
        }
        Ok(Binaries { plans, skipped })
    }

    /// Records in the state the programs that are Calico's after this run, and the files that they
    /// replace.
    pub fn record(&self, state: &mut State) {
        for (place, task) in self.owned_tasks() {
            state.record_replacement(
                place,
                &task.name,
                task.source.digest.clone(),
                task.present_digest.as_deref(),
            );
        }
    }

    /// Carries out the plans, records the installed files, and returns the directories with the
    /// programs. Skips a directory on a file system mounted noexec.
    ///
    /// # Errors
    /// Returns an error if a program cannot be copied or run, or if all directories are skipped.
    pub fn install(mut self, old: &State, state: &mut State) -> Result<Vec<PathBuf>, Failure> {
        let mut ready = Vec::new();
        for plan in &self.plans {
            match execute(plan) {
                Ok(()) => ready.push((plan.place, plan.directory.clone())),
                Err(RunError::NoExec(path)) => {
                    tracing::error!(
                        path = %path.display(),
                        "skipping a directory, whose file system is mounted noexec"
                    );
                    let reason = format!("{} is mounted noexec", plan.directory.display());
                    self.skipped.push(reason);
                    state.restore(plan.place, old);
                }
                Err(RunError::Failure(failure)) => return Err(failure),
            }
        }
        for (place, task) in self
            .owned_tasks()
            .filter(|(place, _)| ready.iter().any(|(usable, _)| usable == place))
        {
            state.record(place, &task.name, Some(task.source.digest.clone()), false);
        }
        let directories: Vec<PathBuf> = ready.into_iter().map(|(_, directory)| directory).collect();
        if directories.is_empty() {
            Err(no_directory(&self.skipped))
        } else {
            Ok(directories)
        }
    }

    /// Returns the tasks after which the file is one that Calico installed, each with the role of
    /// its directory.
    fn owned_tasks(&self) -> impl Iterator<Item = (DirectoryRole, &ProgramTask)> {
        self.plans.iter().flat_map(|plan| {
            plan.tasks
                .iter()
                .filter(|task| task.is_ours())
                .map(|own| (plan.place, own))
        })
    }
}

/// Removes the records of programs whose files are missing. The records of a missing directory
/// stay, as that directory may exist on the node without a mount in this container.
pub fn remove_missing_records(layout: &Layout, state: &mut State) {
    let is_gone = |path: PathBuf| {
        path.symlink_metadata()
            .is_err_and(|error| error.kind() == ErrorKind::NotFound)
    };
    for (place, directory) in layout
        .bin_dirs()
        .into_iter()
        .filter(|(_, directory)| directory.is_dir())
    {
        let recorded = state
            .files
            .get(&place)
            .into_iter()
            .flat_map(|files| files.keys());
        let gone: Vec<String> = recorded
            .filter(|name| is_gone(directory.join(name)))
            .cloned()
            .collect();
        gone.iter()
            .for_each(|name| state.remove_record(place, name));
    }
}

/// Returns the names of the programs that this container installs: Calico's two and the wanted
/// other plugins of its image.
#[must_use]
pub fn program_names(settings: &Settings, layout: &Layout) -> Vec<String> {
    let extra = plan::extra_paths(layout, &settings.extra_plugins)
        .into_iter()
        .map(|(_, name)| name);
    [CALICO, CALICO_IPAM]
        .into_iter()
        .map(str::to_owned)
        .chain(extra)
        .collect()
}

/// Returns true if the directory is writable. Does not create a test file, because a runtime may
/// watch the directory.
fn is_writable(directory: &Path) -> bool {
    access(directory, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}

/// Returns the failure if no directory is usable, for the reason beside each (INST-29).
fn no_directory(skipped: &[String]) -> Failure {
    Failure::new("found no writeable directory, exiting")
        .because(skipped.join(", "))
        .way_out("mount the node's plugin directory there for writing")
}

/// Runs the tasks of the plan in order. `calico` comes first because `calico-ipam` may be a hard
/// link to it.
fn execute(plan: &Plan) -> Result<(), RunError> {
    for ProgramTask {
        name,
        source,
        action,
        ..
    } in &plan.tasks
    {
        let target = plan.directory.join(name);
        match action {
            ProgramAction::Keep => {
                tracing::info!(
                    "{} differs from the program of this image and is kept",
                    target.display()
                );
            }
            ProgramAction::UpToDate => {
                if name == CALICO {
                    run_version(&target)?;
                }
                tracing::info!("{} is up to date", target.display());
            }
            ProgramAction::Copy => {
                copy(source, &target)?;
                tracing::info!("installed {}", target.display());
            }
            ProgramAction::Link => {
                // A file system may not support hard links.
                atomic_file::link(&plan.directory.join(CALICO), &target).or_else(|error| {
                    tracing::info!("{error}; copying the program instead");
                    copy(source, &target)
                })?;
                tracing::info!("installed {}", target.display());
            }
        }
    }
    Ok(())
}

/// Copies the program to a temporary file, and renames it only after its digest is compared and,
/// for Calico's program, the copy has run. Upstream sets the mode after the rename, so that for a
/// moment the program cannot be executed (INST-20).
fn copy(source: &SourceProgram, target: &Path) -> Result<(), RunError> {
    let finished = write_copy(source, target)?;
    if source.name == CALICO {
        run_version(finished.path())?;
    }
    Ok(finished.put_in_place().map_err(Failure::from)?)
}

/// Writes the temporary file, and compares its digest.
fn write_copy(source: &SourceProgram, target: &Path) -> Result<Finished, Failure> {
    let unreadable = |error| AtomicFileError {
        action: "read",
        path: source.path.clone(),
        source: error,
    };
    let contents = fs::read(&source.path).map_err(unreadable)?;
    let mut draft = Draft::beside(target)?;
    draft.write(&contents)?;
    let finished = draft.finish(source.mode)?;
    let written = digest::of_file(finished.path()).unwrap_or_default();
    if written != source.digest {
        if digest::of_bytes(&contents) != source.digest {
            let path = source.path.display();
            return Err(
                Failure::new(format_args!("{path} changed while it was being installed"))
                    .way_out("run the installer again"),
            );
        }
        return Err(Failure::new(format_args!(
            "the copy {} differs from its source after it was written",
            target.display()
        ))
        .way_out("check the disk"));
    }
    Ok(finished)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn source_changed_during_the_copy_is_not_installed() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::write(&from, "new").unwrap();
        fs::write(&to, "old").unwrap();
        let mut source = SourceProgram {
            path: from,
            name: "portmap".into(),
            digest: digest::of_bytes(b"newer"),
            mode: 0o755,
        };
        let error = copy(&source, &to).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("/from changed while it was being installed; run the installer again")
        );
        assert_eq!(fs::read(&to).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);

        source.digest = digest::of_bytes(b"new");
        copy(&source, &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"new");
        assert_eq!(
            fs::metadata(&to).unwrap().permissions().mode() & 0o7777,
            0o755
        );
    }

    #[test]
    fn program_that_does_not_run_does_not_replace_a_working_program() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("calico"));
        fs::write(&to, "old").unwrap();
        for broken in ["not a program of any kind", "#!/bin/sh\nexit 3\n"] {
            fs::write(&from, broken).unwrap();
            let digest = digest::of_file(&from).unwrap();
            let source = SourceProgram {
                path: from.clone(),
                name: CALICO.into(),
                digest,
                mode: 0o755,
            };
            assert!(copy(&source, &to).is_err(), "{broken}");
            assert_eq!(fs::read(&to).unwrap(), b"old");
        }
    }
}
