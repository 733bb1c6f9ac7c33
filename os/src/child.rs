//! Runs a program as a child process with input, output and a time limit.

use std::io::{self, ErrorKind, Read, Write};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

/// Maximum interval between two checks whether a process that closed its streams has exited.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// The limits of repeated starts of a program. The kernel refuses to run a file while some process
/// has it open for writing.
#[derive(Debug, Clone, Copy)]
pub struct BusyRetry {
    /// Maximum number of starts.
    pub attempts: u32,
    /// Pause between two starts.
    pub pause: Duration,
}

/// The receiver of all bytes of one output stream, which are sent when the stream is closed.
type Content = Receiver<io::Result<Vec<u8>>>;

/// Starts `command`. Retries as `busy` says while some process has the program's file open for
/// writing.
///
/// # Errors
/// Returns an error if the program cannot be started.
pub fn spawn(command: &mut Command, busy: BusyRetry) -> io::Result<Child> {
    for _ in 1..busy.attempts {
        match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                thread::sleep(busy.pause)
            }
            started => return started,
        }
    }
    command.spawn()
}

/// Runs `command` with `input` on stdin, and returns its exit status and output. Kills a process
/// that has not exited and closed its output within `limit`, and returns `None`.
///
/// All pipes are served at the same time: a full pipe would block the process, and with it the
/// other pipes.
///
/// # Errors
/// Returns an error if the program cannot be started, or its output cannot be read.
pub fn run(
    command: &mut Command,
    input: &[u8],
    limit: Duration,
    busy: BusyRetry,
) -> io::Result<Option<Output>> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = spawn(command, busy)?;
    let outcome = converse(&mut child, input, Instant::now() + limit);
    if !matches!(outcome, Ok(Some(_))) {
        let _ = child.kill();
        // A killed process stays as a zombie until its parent reads its status. The kernel may be
        // unable to end it now, so a thread waits.
        let _ = thread::Builder::new()
            .name("child-exit".into())
            .spawn(move || child.wait());
    }
    outcome
}

/// Runs `command` as [`run`] does, without any capability. Capabilities and `no_new_privs` are
/// attributes of a thread, so a separate thread starts the program. Without `no_new_privs`, a
/// program of root would gain capabilities.
///
/// # Errors
/// Returns an error if the capabilities cannot be dropped, and the errors of [`run`].
pub fn run_without_capabilities(
    command: &mut Command,
    input: &[u8],
    limit: Duration,
    busy: BusyRetry,
) -> io::Result<Option<Output>> {
    thread::scope(|scope| {
        let starter = move || drop_capabilities().and_then(|()| run(command, input, limit, busy));
        let running = thread::Builder::new()
            .name("child-start".into())
            .spawn_scoped(scope, starter)?;
        running
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that runs the program ended")))
    })
}

fn drop_capabilities() -> io::Result<()> {
    let none = CapabilitySet::empty();
    set_no_new_privs(true)?;
    set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )?;
    Ok(())
}

/// Returns `None` if the output or the exit status is missing at `until`. The threads continue
/// after that, because a grandchild may keep the pipes open.
fn converse(child: &mut Child, input: &[u8], until: Instant) -> io::Result<Option<Output>> {
    let (pipe, input) = (child.stdin.take(), input.to_vec());
    // A program that fails early may close its stdin, so a broken pipe is ignored.
    let writer = move || pipe.map(|mut pipe| pipe.write_all(&input));
    thread::Builder::new()
        .name("child-stdin".into())
        .spawn(writer)?;
    let (stdout, stderr) = (
        read_in_thread(child.stdout.take())?,
        read_in_thread(child.stderr.take())?,
    );
    let Some(stdout) = content(&stdout, until)? else {
        return Ok(None);
    };
    let Some(stderr) = content(&stderr, until)? else {
        return Ok(None);
    };
    Ok(exit_status(child, until)?.map(|status| Output {
        status,
        stdout,
        stderr,
    }))
}

fn read_in_thread(pipe: Option<impl Read + Send + 'static>) -> io::Result<Content> {
    let (sender, content) = channel();
    let reader = move || {
        let mut bytes = Vec::new();
        let read = pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes));
        // The receiver no longer exists if the time limit has passed.
        let _ = sender.send(read.map(|_| bytes));
    };
    thread::Builder::new()
        .name("child-output".into())
        .spawn(reader)?;
    Ok(content)
}

fn content(stream: &Content, until: Instant) -> io::Result<Option<Vec<u8>>> {
    match stream.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(bytes) => bytes.map(Some),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => {
            Err(io::Error::other("the thread that reads its output ended"))
        }
    }
}

/// Waits for the exit of a process that has closed its output streams; usually that takes
/// microseconds.
fn exit_status(child: &mut Child, until: Instant) -> io::Result<Option<ExitStatus>> {
    let mut pause = Duration::from_micros(50);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const ONCE: BusyRetry = BusyRetry {
        attempts: 1,
        pause: Duration::ZERO,
    };

    fn shell(script: &str, input: &[u8], limit: Duration) -> Option<Output> {
        run(
            Command::new("sh")
                .args(["-c", script])
                .stderr(Stdio::piped()),
            input,
            limit,
            ONCE,
        )
        .unwrap()
    }

    /// Runs a script that writes a process ID to the file `pid` and keeps its output open. Doubles
    /// the limit until the script writes the ID in time, and returns the ID.
    fn run_past_the_limit(script: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!("cd {}; {script}", dir.path().display());
        let id = (0..8).find_map(|doublings| {
            assert!(
                shell(
                    &script,
                    b"",
                    Duration::from_millis(250) * 2_u32.pow(doublings)
                )
                .is_none()
            );
            fs::read_to_string(&file)
                .ok()?
                .strip_suffix('\n')
                .map(str::to_owned)
        });
        id.unwrap()
    }

    #[test]
    fn run_of_a_program_returns_status_and_both_outputs() {
        let output = shell("cat; echo words >&2; exit 3", b"input", LONG).unwrap();
        assert_eq!(
            (output.status.code(), &output.stdout[..], &output.stderr[..]),
            (Some(3), &b"input"[..], &b"words\n"[..])
        );
    }

    #[test]
    fn full_pipes_in_all_directions_do_not_block() {
        let script = "yes | head -c 1000000 >&2; yes | head -c 1000000; cat >/dev/null";
        let output = shell(script, &vec![b' '; 1 << 20], LONG).unwrap();
        assert_eq!(
            (output.stdout.len(), output.stderr.len()),
            (1_000_000, 1_000_000)
        );
    }

    #[test]
    fn program_run_without_capabilities_has_none_and_gains_none() {
        let privileges = || fs::read_to_string("/proc/thread-self/status").unwrap();
        let of = |status: &str| -> Vec<String> {
            let names = ["CapPrm:", "CapEff:", "NoNewPrivs:"];
            status
                .lines()
                .filter(|line| names.iter().any(|name| line.starts_with(name)))
                .map(str::to_owned)
                .collect()
        };
        let before = of(&privileges());
        let output = run_without_capabilities(
            Command::new("cat").arg("/proc/self/status"),
            b"",
            LONG,
            ONCE,
        );
        let status = String::from_utf8(output.unwrap().unwrap().stdout).unwrap();
        assert_eq!(
            of(&status),
            [
                "CapPrm:\t0000000000000000",
                "CapEff:\t0000000000000000",
                "NoNewPrivs:\t1"
            ]
        );
        assert_eq!(of(&privileges()), before);
    }

    #[test]
    fn hanging_program_is_killed_and_reaped() {
        let process = format!(
            "/proc/{}",
            run_past_the_limit("echo $$ >pid; exec sleep 1000")
        );
        let given_up = Instant::now() + LONG;
        while fs::exists(&process).unwrap() {
            assert!(Instant::now() < given_up, "{process} still exists");
            thread::sleep(LONGEST_PAUSE);
        }
    }

    #[test]
    fn grandchild_with_the_open_output_is_not_awaited() {
        let grandchild = run_past_the_limit("sleep 60 & echo $! >pid; exit 0");
        let status = fs::read_to_string(format!("/proc/{grandchild}/status")).unwrap();
        assert!(!status.contains("State:\tZ"), "{status}");
        assert!(
            Command::new("kill")
                .arg(grandchild)
                .status()
                .unwrap()
                .success()
        );
    }

    #[test]
    fn file_open_for_writing_is_started_again_until_the_last_attempt() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        fs::copy("/bin/true", &program).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let writer = fs::File::options().append(true).open(&program).unwrap();
        let error = spawn(
            &mut Command::new(&program),
            BusyRetry {
                attempts: 3,
                pause: Duration::ZERO,
            },
        )
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ExecutableFileBusy);
        drop(writer);
        let often = BusyRetry {
            attempts: 1000,
            pause: Duration::from_millis(10),
        };
        assert!(
            spawn(&mut Command::new(&program), often)
                .unwrap()
                .wait()
                .unwrap()
                .success()
        );
    }
}
