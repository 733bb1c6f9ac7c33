//! Runs programs: a plugin with a time limit, and `calico -v` once, to find out if the node's kernel can run the
//! plugin.

use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::statvfs::{FsFlags, statvfs};

/// Pause between two checks whether the program has ended.
const POLL: Duration = Duration::from_millis(10);

const BUSY_ATTEMPTS: u32 = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(25);

/// The exit status and the output of a program.
#[derive(Debug)]
pub(crate) struct ChildOutput {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
}

/// Runs `command` with `input` on stdin. Kills it at `deadline` and then returns `None`.
///
/// # Errors
/// Returns an error if the program cannot be started.
pub(crate) fn run(command: &mut Command, input: &[u8], deadline: Instant) -> io::Result<Option<ChildOutput>> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = spawn(command)?;
    let stdout_receiver = child.stdout.take().map(read_in_thread);
    // The input fits into the pipe, so the write does not block. If the program closes its stdin early, its own output
    // gives the reason.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(input);
    }
    loop {
        if let Some(status) = child.try_wait()? {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let stdout = stdout_receiver.and_then(|stdout_receiver| stdout_receiver.recv_timeout(remaining).ok());
            return Ok(stdout.map(|stdout| ChildOutput { status, stdout }));
        }
        if Instant::now() >= deadline {
            let _ = child.kill();
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

/// Reads the output in a thread of its own. A program blocks once the pipe is full, and a process that it left running
/// keeps the pipe open.
fn read_in_thread(mut stdout: ChildStdout) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stdout.read_to_end(&mut text);
        // Fails if the caller stopped waiting at the time limit.
        let _ = sender.send(text);
    });
    receiver
}

/// Reasons for a failed test run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The file system is mounted with `noexec`.
    #[error(
        "{} is on a file system that is mounted noexec: no plugin can be run from there; remount it with exec, or have \
         the runtime use another plugin directory", .0.display()
    )]
    NoExec(PathBuf),
    /// The program was built for another processor.
    #[error("{} is built for {}, which this kernel cannot run; use the image for the architecture of this machine",
        .0.display(), std::env::consts::ARCH)]
    WrongArchitecture(PathBuf),
    /// The kernel rejects the program for another reason.
    #[error("cannot run {}: {source}", .path.display())]
    NotRunnable {
        /// The path of the program.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The program ran and failed.
    #[error("{} -v ended with {status}: {stderr}", .path.display())]
    Failed {
        /// The path of the program.
        path: PathBuf,
        /// The exit status.
        status: ExitStatus,
        /// The program's stderr.
        stderr: String,
    },
}

/// Runs `program -v` and returns the version that it prints.
///
/// # Errors
/// Returns an error if the program cannot be run or fails.
pub(crate) fn run_version(program: &Path) -> Result<String, RunError> {
    let mut command = Command::new(program);
    command.arg("-v").env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ran = spawn(&mut command).and_then(Child::wait_with_output);
    let output = ran.map_err(|source| explain(program, source))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(RunError::Failed { path: program.into(), status: output.status, stderr });
    }
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    tracing::info!("CNI plugin version: {version}");
    Ok(version)
}

/// Starts a program that was just written. A fork in another thread inherits the open file descriptor until its exec,
/// and the kernel refuses to run a file that is open for writing. The start is then retried.
fn spawn(command: &mut Command) -> io::Result<Child> {
    for _ in 0..BUSY_ATTEMPTS {
        match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => thread::sleep(BUSY_PAUSE),
            started => return started,
        }
    }
    Err(ErrorKind::ExecutableFileBusy.into())
}

fn explain(program: &Path, source: io::Error) -> RunError {
    let path = program.to_owned();
    let flags = statvfs(program).map(|file_system| file_system.flags());
    match source.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EACCES) if flags.is_ok_and(|flags| flags.contains(FsFlags::ST_NOEXEC)) => RunError::NoExec(path),
        Some(Errno::ENOEXEC) => RunError::WrongArchitecture(path),
        _ => RunError::NotRunnable { path, source },
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Longer than any machine needs to start a shell.
    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str, input: &str, time: Duration) -> Option<ChildOutput> {
        super::run(Command::new("sh").args(["-c", script]), input.as_bytes(), Instant::now() + time).unwrap()
    }

    #[test]
    fn program_output_is_read_in_full() {
        let answer = shell("cat; head -c 200000 /dev/zero; exit 3", "said", LONG).unwrap();
        assert_eq!((&answer.stdout[..4], answer.stdout.len()), (&b"said"[..], 200_004));
        assert_eq!(answer.status.code(), Some(3));
    }

    #[test]
    fn hanging_program_is_killed_and_its_children_are_not_awaited() {
        let short = Duration::from_millis(300);
        assert!(shell("exec sleep 1000", "", short).is_none());
        // The loop ends when the directory is removed.
        let mark = tempfile::tempdir().unwrap();
        let left = format!("while [ -e {} ]; do sleep 0.1; done & exit 0", mark.path().display());
        assert!(shell(&left, "", short).is_none());
    }

    fn run(text: &str, mode: u32) -> Result<String, RunError> {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("calico");
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        run_version(&program)
    }

    #[test]
    fn version_of_a_running_program_is_returned() {
        assert_eq!(run("#!/bin/sh\n[ \"$*\" = -v ] && echo v1.2.3\n", 0o755).unwrap(), "v1.2.3");
    }

    #[test]
    fn run_failures_are_distinguished_by_cause() {
        assert!(matches!(run("\u{1}\u{2}", 0o755), Err(RunError::WrongArchitecture { .. })));
        assert!(matches!(run("#!/bin/sh\n", 0o644), Err(RunError::NotRunnable { .. })));
        let failed = run("#!/bin/sh\necho broken >&2; exit 4\n", 0o755).unwrap_err().to_string();
        assert!(failed.ends_with("exit status: 4: broken"), "{failed}");
    }
}
