//! Runs a program with a time limit: the plugin on trial, or a plugin that the doctor examines.

use std::io::{self, Read, Write};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crate::binaries::spawn;

/// Pause between two checks whether the program has ended.
const POLL: Duration = Duration::from_millis(10);

/// The exit status and the output of a program.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
}

/// Runs `command` with `input` on stdin. Kills it at `until` and then returns `None`.
///
/// # Errors
/// Returns an error if the program cannot be started.
pub(crate) fn run(command: &mut Command, input: &[u8], until: Instant) -> io::Result<Option<Answer>> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = spawn(command)?;
    let printed = child.stdout.take().map(read_beside);
    // The input fits into the pipe, so the write does not block. If the program closes its stdin early, its own output
    // gives the reason.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(input);
    }
    loop {
        if let Some(status) = child.try_wait()? {
            let left = until.saturating_duration_since(Instant::now());
            let stdout = printed.and_then(|printed| printed.recv_timeout(left).ok());
            return Ok(stdout.map(|stdout| Answer { status, stdout }));
        }
        if Instant::now() >= until {
            let _ = child.kill();
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

/// Reads the output in a thread of its own. A program blocks once the pipe is full, and a process that it left running
/// keeps the pipe open.
fn read_beside(mut stdout: ChildStdout) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stdout.read_to_end(&mut text);
        // Fails if the caller stopped waiting at the time limit.
        let _ = sender.send(text);
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any machine needs to start a shell.
    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str, input: &str, time: Duration) -> Option<Answer> {
        run(Command::new("sh").args(["-c", script]), input.as_bytes(), Instant::now() + time).unwrap()
    }

    #[test]
    fn what_a_program_prints_is_read_however_long_it_is() {
        let answer = shell("cat; head -c 200000 /dev/zero; exit 3", "said", LONG).unwrap();
        assert_eq!((&answer.stdout[..4], answer.stdout.len()), (&b"said"[..], 200_004));
        assert_eq!(answer.status.code(), Some(3));
    }

    #[test]
    fn what_hangs_is_ended_and_what_it_left_running_is_not_waited_for() {
        let short = Duration::from_millis(300);
        assert!(shell("exec sleep 1000", "", short).is_none());
        // The loop ends when the directory is removed.
        let mark = tempfile::tempdir().unwrap();
        let left = format!("while [ -e {} ]; do sleep 0.1; done & exit 0", mark.path().display());
        assert!(shell(&left, "", short).is_none());
    }
}
