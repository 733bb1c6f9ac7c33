//! The binaries under test, executed as a container runtime executes them: with an environment,
//! stdin and a deadline.

mod freshness;
mod measured;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use serde_json::Value;

use self::freshness::require_fresh;
pub use self::measured::Usage;
use crate::skip::skipped;

/// Time limit of a call in the suites: longer than a DEL with an unreachable datastore takes.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// Time limit of runtimes for a call.
pub const RUNTIMES_LIMIT: Duration = Duration::from_secs(120);

/// Directory of Debian's `containernetworking-plugins`, which is in CNI_PATH of the recordings.
pub const FOREIGN_PLUGINS: &str = "/usr/lib/cni";

/// Maximum number of starts of a busy program, and the pause between two of them.
const BUSY_TRIES: usize = 500;
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// The directory of `calico` and `calico-ipam`.
#[derive(Debug, Clone)]
pub struct Plugins {
    dir: PathBuf,
}

/// A call of a plugin.
#[derive(Debug, Clone)]
pub struct Call {
    program: PathBuf,
    args: Vec<String>,
    env: BTreeMap<String, OsString>,
    stdin: Vec<u8>,
    deadline: Duration,
}

/// The result of a call.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Exit status; `None` if a signal ended the process.
    pub exit: Option<i32>,
    /// Everything on stdout.
    pub stdout: String,
    /// Everything on stderr.
    pub stderr: String,
    /// Time from exec to exit.
    pub wall: Duration,
}

/// Returns true if host-local is among the [`FOREIGN_PLUGINS`]. Skips the calling test otherwise.
pub fn is_host_local_installed() -> bool {
    let is_installed = Path::new(FOREIGN_PLUGINS).join("host-local").is_file();
    if !is_installed {
        skipped("host-local is not installed (Debian: containernetworking-plugins)");
    }
    is_installed
}

impl Plugins {
    /// Finds the binaries: in CALICO_BIN_DIR if set, else in `target/plugin`, where they must not
    /// be older than the sources.
    pub fn locate() -> Result<Plugins> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let given = std::env::var_os("CALICO_BIN_DIR").map(PathBuf::from);
        let dir = given
            .clone()
            .unwrap_or_else(|| workspace.join("target/plugin"));
        let dir = dir.canonicalize().with_context(|| {
            format!(
                "no plugin binaries in {}: run `make build`, or set CALICO_BIN_DIR",
                dir.display()
            )
        })?;
        for program in ["calico", "calico-ipam"] {
            let path = dir.join(program);
            ensure!(
                path.is_file(),
                "{} is not there: run `make build`, or set CALICO_BIN_DIR",
                path.display()
            );
        }
        if given.is_none() {
            static FRESH: OnceLock<Result<(), String>> = OnceLock::new();
            let programs = ["calico", "kube-controllers"].map(|program| dir.join(program));
            let built: Vec<_> = programs
                .into_iter()
                .filter(|program| program.exists())
                .collect();
            let fresh = FRESH.get_or_init(|| {
                require_fresh(&workspace, &built).map_err(|error| error.to_string())
            });
            fresh.clone().map_err(anyhow::Error::msg)?;
        }
        Ok(Plugins { dir })
    }

    /// Returns the directory of the binaries.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Prepares a call of `calico` or `calico-ipam` with CNI_PATH and PATH, nothing else yet.
    pub fn call(&self, program: &str) -> Call {
        let mut cni_path = self.dir.clone().into_os_string();
        cni_path.push(":");
        cni_path.push(FOREIGN_PLUGINS);
        let path = std::env::var_os("PATH").unwrap_or_default();
        Call {
            program: self.dir.join(program),
            args: Vec::new(),
            env: BTreeMap::from([("CNI_PATH".into(), cni_path), ("PATH".into(), path)]),
            stdin: Vec::new(),
            deadline: DEADLINE,
        }
    }

    /// Prepares a CNI call for one attachment.
    pub fn verb(
        &self,
        program: &str,
        verb: &str,
        container_id: &str,
        netns: &Path,
        conf: &Value,
    ) -> Call {
        self.call(program)
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", container_id)
            .env("CNI_NETNS", netns)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_ARGS", "")
            .stdin(conf.to_string())
    }
}

/// Starts a program. A program that was just written is busy while a process that another test
/// forked has the file open.
fn start(command: &mut Command) -> io::Result<Child> {
    for _ in 0..BUSY_TRIES {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                thread::sleep(BUSY_PAUSE)
            }
            outcome => return outcome,
        }
    }
    command.spawn()
}

impl Call {
    /// Appends command-line arguments.
    #[must_use]
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Call {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Replaces the program.
    #[must_use]
    pub fn program(mut self, program: &Path) -> Call {
        self.program = program.to_owned();
        self
    }

    /// Lets another program start this one, such as `strace …`.
    #[must_use]
    pub fn under(mut self, wrapper: &str) -> Call {
        let mut words: Vec<String> = wrapper.split_whitespace().map(str::to_owned).collect();
        words.push(self.program.display().to_string());
        self.program = PathBuf::from(words.remove(0));
        words.append(&mut self.args);
        self.args = words;
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Call {
        self.env.insert(name.to_owned(), value.into());
        self
    }

    /// Removes an environment variable.
    #[must_use]
    pub fn without_env(mut self, name: &str) -> Call {
        self.env.remove(name);
        self
    }

    /// Sets the plugin's stdin.
    #[must_use]
    pub fn stdin(mut self, stdin: impl Into<Vec<u8>>) -> Call {
        self.stdin = stdin.into();
        self
    }

    /// Sets the time after which the plugin is killed.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Call {
        self.deadline = deadline;
        self
    }

    /// Starts the plugin and passes it all of its stdin, without waiting for its end.
    pub fn spawn(&self) -> Result<Child> {
        let mut child = self.begin()?;
        feed(&mut child, &self.stdin)?;
        Ok(child)
    }

    fn begin(&self) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear().envs(&self.env);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        start(&mut command).with_context(|| format!("cannot start {}", self.program.display()))
    }

    /// Runs the plugin to its end.
    ///
    /// # Panics
    /// Panics, with the caller's place, if the plugin does not start or does not end in time.
    #[track_caller]
    pub fn run(&self) -> Outcome {
        self.try_run().unwrap()
    }

    /// Does the same as [`Call::run`], with an error instead of a panic.
    pub fn try_run(&self) -> Result<Outcome> {
        let started = Instant::now();
        wait(self.spawn()?, started, self.deadline)
            .with_context(|| format!("{}", self.program.display()))
    }
}

/// Writes all of a plugin's stdin in a separate thread, because the input may be larger than the
/// pipe.
fn feed(child: &mut Child, stdin: &[u8]) -> Result<()> {
    let mut pipe = child.stdin.take().context("stdin is piped")?;
    let stdin = stdin.to_vec();
    thread::spawn(move || pipe.write_all(&stdin));
    Ok(())
}

/// Collects a started plugin's output and exit status. Kills the plugin if it still runs `deadline`
/// after `started`.
pub fn wait(mut child: Child, started: Instant, deadline: Duration) -> Result<Outcome> {
    let stdout = read_all(child.stdout.take().context("stdout is piped")?);
    let stderr = read_all(child.stderr.take().context("stderr is piped")?);
    let (ended, end) = mpsc::channel::<()>();
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    let watchdog = thread::spawn(move || {
        let late = end.recv_timeout(deadline.saturating_sub(started.elapsed()))
            == Err(RecvTimeoutError::Timeout);
        late && kill(pid, Signal::SIGKILL).is_ok()
    });
    // WNOWAIT keeps the process as a zombie, so that the watchdog cannot kill another process with
    // the same ID.
    waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)?;
    let wall = started.elapsed();
    drop(ended);
    let killed = watchdog.join().unwrap_or(false);
    let status = child.wait()?;
    if killed {
        let stderr = stderr.join().unwrap_or_default();
        bail!("still running after {deadline:?}, killed; stderr: {stderr}");
    }
    Ok(Outcome {
        exit: status.code(),
        stdout: stdout.join().unwrap_or_default(),
        stderr: stderr.join().unwrap_or_default(),
        wall,
    })
}

fn read_all(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Outcome {
    /// Returns stdout in the form of the recordings: the JSON value, or the text if it is not JSON.
    pub fn answer(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|_| Value::String(self.stdout.clone()))
    }

    /// Returns the stdout of a successful call as [`Outcome::answer`] does.
    ///
    /// # Panics
    /// Panics if the call failed.
    #[track_caller]
    pub fn success(&self) -> Value {
        assert_eq!(
            self.exit,
            Some(0),
            "stdout: {}\nstderr: {}",
            self.stdout,
            self.stderr
        );
        self.answer()
    }

    /// Returns the error object of a failed call.
    ///
    /// # Panics
    /// Panics if the call succeeded, if it failed other than with an error of the CNI
    /// specification, or if the plugin panicked.
    #[track_caller]
    pub fn error(&self) -> CniError {
        assert_eq!(
            self.exit,
            Some(1),
            "stdout: {}\nstderr: {}",
            self.stdout,
            self.stderr
        );
        let error = serde_json::from_str::<CniError>(&self.stdout).unwrap_or_else(|e| {
            panic!(
                "no CNI error ({e}) on stdout: {}\nstderr: {}",
                self.stdout, self.stderr
            )
        });
        // The plugin reports its panic as a CNI error.
        assert!(
            !error.msg.contains("the plugin panicked"),
            "stdout: {}\nstderr: {}",
            self.stdout,
            self.stderr
        );
        error
    }
}

/// A CNI error object.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct CniError {
    /// Error code of the CNI specification.
    pub code: u32,
    /// Message.
    pub msg: String,
    /// Additional details, or empty.
    #[serde(default)]
    pub details: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Call {
        let plugins = Plugins {
            dir: PathBuf::from("/bin"),
        };
        plugins.call("sh").args(["-c", script])
    }

    #[test]
    fn call_gets_only_the_given_environment_and_stdin() {
        let call = shell("cat; env | sort | cut -d= -f1; echo words >&2; exit 3")
            .env("CNI_COMMAND", "ADD")
            .stdin("{}");
        let outcome = call.run();
        assert_eq!(outcome.exit, Some(3));
        assert_eq!(outcome.stdout.lines().next(), Some("{}CNI_COMMAND"));
        assert!(!outcome.stdout.contains("HOME"), "{}", outcome.stdout);
        assert_eq!(outcome.stderr, "words\n");
    }

    #[test]
    fn wrapper_starts_the_plugin_with_its_arguments() {
        let outcome = shell("echo $0").args(["name"]).under("env -u PATH").run();
        assert_eq!(outcome.stdout, "name\n");
    }

    #[test]
    fn call_past_the_deadline_is_killed() {
        let error = shell("exec sleep 100")
            .deadline(Duration::from_millis(50))
            .try_run()
            .unwrap_err();
        assert!(format!("{error:#}").contains("still running"), "{error:#}");
    }

    #[test]
    fn unread_stdin_does_not_block_the_call() {
        let outcome = shell("exit 0").stdin(vec![b'x'; 1 << 20]).run();
        assert_eq!(outcome.exit, Some(0));
    }

    #[test]
    fn error_object_on_stdout_is_parsed() {
        let error = shell(r#"echo '{"code":7,"msg":"m"}'; exit 1"#)
            .run()
            .error();
        assert_eq!(
            error,
            CniError {
                code: 7,
                msg: "m".into(),
                details: String::new()
            }
        );
    }
}
