//! [`IpamExec`]: runs another IPAM plugin as a child process, as the CNI specification requires it.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::{self, Read, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use netconf::args::for_delegate;
use netconf::{Call, CniError, CniResult, Code, Version};

use super::pod_cidr::Subnets;
use super::with_addresses;

/// The default time limit of a plugin; [`IpamExec::within`] sets another one. Kubelet's limit for the creation of a
/// sandbox is two minutes, which have to suffice for a failed ADD and the DEL after it.
const LIMIT: Duration = Duration::from_secs(60);

/// The number of repeated attempts to run a binary that an installer is writing at the same time ("text file busy").
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// Maximum interval between two checks whether a process that closed its streams has exited.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// Receives the content of one stream of the process when the stream is closed.
type Content = Receiver<io::Result<Vec<u8>>>;

/// Runs ADD of the plugin, with `subnets` in place of `usePodCidr`. After a failure the plugin may have allocated
/// addresses, so a DEL follows if `is_new` is true: the container had no addresses before. A DEL would release the
/// earlier addresses of the container as well.
pub(super) fn add(call: &Call, subnets: Option<&Subnets>, is_new: bool) -> Result<CniResult, CniError> {
    let conf = match subnets {
        Some(subnets) => subnets.fill_in(call)?,
        None => Cow::Borrowed(call.raw.as_slice()),
    };
    let outcome = IpamExec::of(call)?
        .call("ADD", &for_delegate(&call.raw_args), &conf)
        .and_then(|printed| CniResult::parse(&printed, call.version))
        .and_then(with_addresses);
    if outcome.is_err()
        && is_new
        && let Err(error) = release_by_plugin(call)
    {
        tracing::warn!(%error, "cannot release what the IPAM plugin may have allocated; DEL will");
    }
    outcome
}

/// Runs DEL of the plugin. Does nothing if the IPAM plugin is `calico-ipam`.
pub fn release_by_plugin(call: &Call) -> Result<(), CniError> {
    if call.conf.ipam.is_calico() {
        return Ok(());
    }
    call_plugin(call, "DEL")?;
    tracing::info!(plugin = call.conf.ipam.ipam_type, "the IPAM plugin released the addresses");
    Ok(())
}

/// Runs STATUS of the plugin within `limit`, if the version of the configuration has STATUS.
pub fn status_of_plugin(call: &Call, limit: Duration) -> Result<(), CniError> {
    let plugin = IpamExec::of(call)?.within(limit);
    if call.version < Version::V1_1_0 {
        return Ok(());
    }
    unless_too_old(plugin.call("STATUS", &for_delegate(&call.raw_args), &Subnets::any().fill_in(call)?))
}

/// Runs GC of the plugin.
pub(super) fn gc(call: &Call) -> Result<(), CniError> {
    unless_too_old(call_plugin(call, "GC"))
}

/// Runs a verb other than ADD. These verbs need a valid subnet but do not use it.
pub fn call_plugin(call: &Call, command: &str) -> Result<Vec<u8>, CniError> {
    let conf = Subnets::any().fill_in(call)?;
    IpamExec::of(call)?.call(command, &for_delegate(&call.raw_args), &conf)
}

/// Ignores the error of a plugin that does not implement CNI 1.1.0. Such a plugin rejects the version, the command, or,
/// as Debian's host-local does, the missing container ID.
fn unless_too_old(outcome: Result<Vec<u8>, CniError>) -> Result<(), CniError> {
    const TOO_OLD: [Code; 3] = [Code::INCOMPATIBLE_VERSION, Code::INVALID_ENVIRONMENT, Code::UNKNOWN_CONTAINER];
    match outcome {
        Err(error) if !TOO_OLD.contains(&error.code) => Err(error),
        _ => Ok(()),
    }
}

/// An IPAM plugin found in CNI_PATH.
#[derive(Debug, Clone, PartialEq, Eq)]
struct IpamExec {
    binary: PathBuf,
    limit: Duration,
}

impl IpamExec {
    /// Finds the plugin that a call's configuration names.
    fn of(call: &Call) -> Result<Self, CniError> {
        let path: Vec<_> = call.path.iter().map(Into::into).collect();
        IpamExec::find(&call.conf.ipam.ipam_type, &path)
    }

    /// Looks for `plugin` in the directories of CNI_PATH, in order.
    fn find(plugin: &str, path: &[PathBuf]) -> Result<Self, CniError> {
        if plugin.is_empty() {
            return Err(CniError::new(Code::INVALID_CONFIG, "no plugin name provided").with_details(
                "set \"ipam\": {\"type\": …} in the network configuration, for example to \"calico-ipam\"",
            ));
        }
        if plugin.contains('/') {
            return Err(CniError::new(Code::INVALID_CONFIG, format!("invalid plugin name: {plugin}"))
                .with_details("ipam.type names a file in CNI_PATH and cannot contain '/'"));
        }
        match path.iter().map(|directory| directory.join(plugin)).find(|file| file.is_file()) {
            Some(binary) => Ok(IpamExec { binary, limit: LIMIT }),
            None => {
                let searched: Vec<_> = path.iter().map(|directory| directory.to_string_lossy()).collect();
                Err(CniError::internal(format!("failed to find plugin {plugin:?} in path [{}]", searched.join(" ")))
                    .with_details("install the plugin into a directory of CNI_PATH, or change ipam.type"))
            }
        }
    }

    /// Sets the time limit of one call.
    fn within(self, limit: Duration) -> Self {
        IpamExec { limit, ..self }
    }

    /// Runs the plugin and returns its stdout. `args` is the plugin's CNI_ARGS; it inherits the rest of the
    /// environment. A plugin that exceeds its time limit is killed.
    fn call(&self, command: &str, args: &str, stdin: &[u8]) -> Result<Vec<u8>, CniError> {
        let run = self.spawn(command, args).and_then(|child| finish(child, stdin, self.limit));
        let output = run.map_err(|error| {
            CniError::internal(format!("cannot run IPAM plugin {}: {error}", self.binary.display()))
        })?;
        let output = output.ok_or_else(|| {
            let (binary, limit) = (self.binary.display(), self.limit);
            CniError::new(Code::TRY_AGAIN, format!("IPAM plugin {binary} did not finish {command} within {limit:?}"))
                .with_details("it was killed; find out what it waits for: a lock, a daemon or a server of its own")
        })?;
        if !output.status.success() {
            return Err(self.failure(&output));
        }
        if !output.stderr.is_empty() {
            let _ = io::stderr().write_all(&output.stderr);
        }
        Ok(output.stdout)
    }

    fn spawn(&self, command: &str, args: &str) -> io::Result<Child> {
        let mut plugin = Command::new(&self.binary);
        plugin.env("CNI_COMMAND", command).env("CNI_ARGS", args);
        plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for _ in 0..BUSY_TRIES {
            match plugin.spawn() {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => thread::sleep(BUSY_PAUSE),
                started => return started,
            }
        }
        plugin.spawn()
    }

    /// Returns the error object that the plugin printed, or else an error with its stderr (CNI-57).
    fn failure(&self, output: &Output) -> CniError {
        if let Some(error) = CniError::parse(&output.stdout).filter(|error| !error.msg.is_empty()) {
            return error;
        }
        let name = self.binary.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let texts = [&output.stderr, &output.stdout].map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned());
        let text = texts.iter().find(|text| !text.is_empty()).map_or("no error message", String::as_str);
        CniError::internal(format!("IPAM plugin {name} failed ({}): {text}", output.status))
    }
}

/// Writes `stdin` to the process and waits until it exits. Returns `None` if it does not exit within `limit`, and kills
/// it. All three pipes are served at the same time: a full pipe would block the process, and with it the other pipes.
fn finish(mut child: Child, stdin: &[u8], limit: Duration) -> io::Result<Option<Output>> {
    let outcome = converse(&mut child, stdin, Instant::now() + limit);
    if !matches!(outcome, Ok(Some(_))) {
        // The process may be dead already. No further wait is necessary: when this process exits, init reaps the child.
        let _ = child.kill();
        let _ = child.try_wait();
    }
    outcome
}

/// Writes stdin and collects the output and the exit status until the time limit. The threads continue after the limit:
/// a grandchild may keep the pipes open indefinitely.
fn converse(child: &mut Child, stdin: &[u8], until: Instant) -> io::Result<Option<Output>> {
    let (pipe, stdin) = (child.stdin.take(), stdin.to_vec());
    // Ignores a broken pipe: a plugin that fails early may close its stdin, and its output states the reason.
    let feeder = move || pipe.map(|mut pipe| pipe.write_all(&stdin));
    thread::Builder::new().name("ipam-stdin".into()).spawn(feeder)?;
    let (stdout, stderr) = (listen(child.stdout.take())?, listen(child.stderr.take())?);
    let Some(stdout) = closed(&stdout, until)? else { return Ok(None) };
    let Some(stderr) = closed(&stderr, until)? else { return Ok(None) };
    Ok(ended(child, until)?.map(|status| Output { status, stdout, stderr }))
}

fn listen(pipe: Option<impl Read + Send + 'static>) -> io::Result<Content> {
    let (sender, content) = channel();
    let listener = move || {
        let mut bytes = Vec::new();
        let read = pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes));
        // The receiver no longer exists if the time limit has passed.
        let _ = sender.send(read.map(|_| bytes));
    };
    thread::Builder::new().name("ipam-output".into()).spawn(listener)?;
    Ok(content)
}

fn closed(content: &Content, until: Instant) -> io::Result<Option<Vec<u8>>> {
    match content.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(bytes) => bytes.map(Some),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the thread that reads its output ended")),
    }
}

/// Waits for the process to exit. The exit usually closes the streams, so this takes microseconds unless the process
/// closed them itself.
fn ended(child: &mut Child, until: Instant) -> io::Result<Option<ExitStatus>> {
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
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn plugin(script: &str) -> (tempfile::TempDir, IpamExec) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("test-ipam");
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let delegate = IpamExec::find("test-ipam", &["/no/such/dir".into(), directory.path().into()]).unwrap();
        (directory, delegate)
    }

    /// Returns true if the process is a zombie, as it is until the test ends, or has been reaped.
    fn is_dead(process: &str) -> bool {
        fs::read_to_string(format!("/proc/{process}/status")).map_or(true, |text| text.contains("State:\tZ"))
    }

    #[test]
    fn missing_ipam_plugin_is_reported_with_the_search_path() {
        let error = IpamExec::find("no-such-ipam", &["/a".into(), "/b".into()]).unwrap_err();
        assert_eq!(error.msg, "failed to find plugin \"no-such-ipam\" in path [/a /b]");
        assert_eq!(IpamExec::find("", &[]).unwrap_err().code, Code::INVALID_CONFIG);
        assert_eq!(IpamExec::find("../x", &["/".into()]).unwrap_err().code, Code::INVALID_CONFIG);
    }

    #[test]
    fn ipam_plugin_receives_command_arguments_and_configuration() {
        let (_kept, delegate) = plugin("cat; echo \"$CNI_COMMAND $CNI_ARGS\"");
        let printed = delegate.call("ADD", "IP=10.0.0.1", b"conf ").unwrap();
        assert_eq!(printed, b"conf ADD IP=10.0.0.1\n");
    }

    #[test]
    fn error_object_of_the_ipam_plugin_is_returned_with_its_code() {
        let (_kept, delegate) = plugin("echo '{\"code\": 11, \"msg\": \"full\", \"details\": \"d\"}'; exit 1");
        let error = delegate.call("ADD", "", b"").unwrap_err();
        assert_eq!((error.code, error.msg.as_str(), error.details.as_str()), (Code(11), "full", "d"));
    }

    #[test]
    fn stderr_of_the_ipam_plugin_is_returned_without_an_error_object() {
        let (_kept, delegate) = plugin("echo 'lost my mind' >&2; exit 3");
        let error = delegate.call("ADD", "", &vec![b' '; 1 << 20]).unwrap_err();
        assert!(error.msg.contains("test-ipam") && error.msg.contains("lost my mind"), "{error}");
        let (_kept, delegate) = plugin("exit 3");
        assert!(delegate.call("ADD", "", b"").unwrap_err().msg.contains("no error message"));
    }

    /// Sends more bytes than the capacity of a pipe in every direction, in the order that blocks most easily.
    #[test]
    fn full_pipes_in_all_directions_do_not_block() {
        let (_kept, delegate) = plugin("yes | head -c 1000000 >&2; yes | head -c 1000000; cat >/dev/null; exit 3");
        let error = delegate.call("ADD", "", &vec![b' '; 1 << 20]).unwrap_err();
        assert!(error.msg.len() > 900_000, "{} bytes", error.msg.len());
    }

    #[test]
    fn hanging_ipam_plugin_is_killed_and_named() {
        let (kept, delegate) = plugin("echo $$ >\"$CNI_ARGS\"; exec sleep 600");
        let pid_file = kept.path().join("pid");
        let delegate = delegate.within(Duration::from_secs(1));
        let error = delegate.call("ADD", pid_file.to_str().unwrap(), b"").unwrap_err();
        assert_eq!(error.code, Code::TRY_AGAIN);
        assert!(error.msg.contains("test-ipam did not finish ADD within 1s"), "{error}");
        let process = fs::read_to_string(pid_file).unwrap();
        let given_up = Instant::now() + Duration::from_secs(20);
        while !is_dead(process.trim()) {
            assert!(Instant::now() < given_up, "it still runs");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The background process has the pipes open for a minute. The call returns while it runs.
    #[test]
    fn grandchild_holding_the_pipes_does_not_block() {
        let (kept, delegate) = plugin("sleep 60 & echo $! >\"$CNI_ARGS\"; echo done");
        let pid_file = kept.path().join("pid");
        let delegate = delegate.within(Duration::from_secs(1));
        let error = delegate.call("DEL", pid_file.to_str().unwrap(), b"").unwrap_err();
        assert!(error.msg.contains("did not finish DEL within 1s"), "{error}");
        let grandchild = fs::read_to_string(pid_file).unwrap();
        assert!(!is_dead(grandchild.trim()), "the call waited for the grandchild");
        assert!(Command::new("kill").arg(grandchild.trim()).status().unwrap().success());
    }
}
