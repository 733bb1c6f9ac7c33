//! Runs `calico -v` once, to find out if the node's kernel can run the plugin.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use libcalico::failure::Failure;
use nix::errno::Errno;
use nix::sys::statvfs::{FsFlags, statvfs};
use os::child::{self, BusyRetry};

/// Attempts to run a program that is busy. A program that was just written stays busy while a fork
/// in another thread has its open descriptor.
pub const BUSY: BusyRetry = BusyRetry {
    attempts: 20,
    pause: Duration::from_millis(25),
};

/// Reasons for a failed test run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The file system is mounted with `noexec`.
    #[error("{} is on a file system that is mounted noexec: no plugin can be run from there; \
             remount it with exec, or have the runtime use another plugin directory", .0.display())]
    NoExec(PathBuf),
    /// The program cannot be run for another reason, or failed.
    #[error("{0}")]
    Failure(Failure),
}

impl From<Failure> for RunError {
    fn from(failure: Failure) -> Self {
        RunError::Failure(failure)
    }
}

/// Runs `program -v` and returns the version that it prints.
pub fn run_version(program: &Path) -> Result<String, RunError> {
    let mut command = Command::new(program);
    command
        .arg("-v")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let ran = child::spawn(&mut command, BUSY).and_then(Child::wait_with_output);
    let output = ran.map_err(|source| explain(program, source))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let ended = format!("{} -v ended with {}", program.display(), output.status);
        return Err(Failure::new(ended).because(stderr).into());
    }
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    tracing::info!("CNI plugin version: {version}");
    Ok(version)
}

fn explain(program: &Path, source: io::Error) -> RunError {
    let path = program.display();
    let flags = statvfs(program).map(|file_system| file_system.flags());
    match source.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EACCES) if flags.is_ok_and(|flags| flags.contains(FsFlags::ST_NOEXEC)) => {
            RunError::NoExec(program.to_owned())
        }
        // The program was probably built for another processor.
        Some(Errno::ENOEXEC) => Failure::new(format_args!(
            "{path} is built for {}, which this kernel cannot run",
            std::env::consts::ARCH
        ))
        .way_out("use the image for the architecture of this machine")
        .into(),
        _ => Failure::new(format_args!("cannot run {path}"))
            .because(source)
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn run(text: &str, mode: u32) -> Result<String, RunError> {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("calico");
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        run_version(&program)
    }

    #[test]
    fn version_of_a_running_program_is_returned() {
        assert_eq!(
            run("#!/bin/sh\n[ \"$*\" = -v ] && echo v1.2.3\n", 0o755).unwrap(),
            "v1.2.3"
        );
    }

    #[test]
    fn run_failures_are_distinguished_by_cause() {
        let failure = |text, mode| run(text, mode).unwrap_err().to_string();
        let other = failure("\u{1}\u{2}", 0o755);
        assert!(
            other.contains(", which this kernel cannot run; "),
            "{other}"
        );
        let denied = failure("#!/bin/sh\n", 0o644);
        assert!(denied.starts_with("cannot run /"), "{denied}");
        let failed = failure("#!/bin/sh\necho broken >&2; exit 4\n", 0o755);
        assert!(failed.ends_with("exit status: 4: broken"), "{failed}");
    }
}
