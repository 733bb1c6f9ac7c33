//! Carries out a [`Plan`].

use std::fs;
use std::path::Path;

use super::error::BinariesError;
use super::plan::{Plan, ProgramAction, ProgramTask};
use super::source::SourceProgram;
use crate::atomic_file::{self, AtomicFileError, Draft};
use crate::child_process::run_once;
use crate::digest;
use crate::layout::CALICO;

/// Runs the tasks of the plan in order. `calico` comes first because `calico-ipam` may be a hard link to it.
pub(super) fn carry_out(plan: &Plan) -> Result<(), BinariesError> {
    for ProgramTask { name, source, step, .. } in &plan.tasks {
        let target = plan.directory.join(name);
        match step {
            ProgramAction::Keep => tracing::info!("{} is there and stays as it is", target.display()),
            ProgramAction::Same => {
                if name == CALICO {
                    run_once(&target)?;
                }
                tracing::info!("{} is up to date", target.display());
            }
            ProgramAction::Copy => {
                copy(source, &target)?;
                tracing::info!("installed {}", target.display());
            }
            ProgramAction::Link => {
                link_or_copy(source, &plan.directory.join(CALICO), &target)?;
                tracing::info!("installed {}", target.display());
            }
        }
    }
    Ok(())
}

/// Links `target` to `calico`, or copies the program on a file system without hard links.
fn link_or_copy(source: &SourceProgram, calico: &Path, target: &Path) -> Result<(), BinariesError> {
    atomic_file::link(calico, target).or_else(|error| {
        tracing::info!("{error}; copying");
        copy(source, target)
    })
}

/// Writes a temporary copy, compares its digest with the source and runs it once. Only then does it replace the old
/// program. Upstream sets the mode after the rename, so that for a moment the program cannot be executed (INST-20).
fn copy(source: &SourceProgram, target: &Path) -> Result<(), BinariesError> {
    let unreadable = |error| AtomicFileError { action: "read", path: source.path.clone(), source: error };
    let contents = fs::read(&source.path).map_err(unreadable)?;
    let mut draft = Draft::beside(target)?;
    draft.write(&contents)?;
    let finished = draft.finish(source.mode)?;
    let written = digest::of_file(finished.path()).unwrap_or_default();
    if written != source.digest {
        return Err(BinariesError::Differs { path: target.to_owned() });
    }
    if source.name == CALICO {
        run_once(finished.path())?;
    }
    Ok(finished.put_in_place()?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_source_that_changes_while_it_is_copied_is_not_installed() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::write(&from, "new").unwrap();
        fs::write(&to, "old").unwrap();
        let mut source =
            SourceProgram { path: from, name: "portmap".into(), digest: digest::of_bytes(b"newer"), mode: 0o755 };
        let error = copy(&source, &to).unwrap_err();
        assert!(error.to_string().contains("reads back otherwise"), "{error}");
        assert_eq!(fs::read(&to).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);

        source.digest = digest::of_bytes(b"new");
        copy(&source, &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"new");
        assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o7777, 0o755);
    }

    #[test]
    fn a_plugin_that_does_not_run_does_not_replace_the_one_that_did() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("calico"));
        fs::write(&to, "old").unwrap();
        for broken in ["not a program of any kind", "#!/bin/sh\nexit 3\n"] {
            fs::write(&from, broken).unwrap();
            let digest = digest::of_file(&from).unwrap();
            let source = SourceProgram { path: from.clone(), name: CALICO.into(), digest, mode: 0o755 };
            assert!(matches!(copy(&source, &to), Err(BinariesError::Run(_))), "{broken}");
            assert_eq!(fs::read(&to).unwrap(), b"old");
        }
    }
}
