//! A server on a private host, which can be started, stopped and restarted. Killed on drop.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

/// The process, from its start until it is stopped.
#[derive(Debug, Default)]
pub struct ServerProcess(Option<Child>);

impl ServerProcess {
    /// Stops the running process and starts `program`. The output is appended to `log`.
    pub fn start(&mut self, program: &Path, args: &[String], log: &Path) -> Result<()> {
        self.stop();
        let log = File::options().create(true).append(true).open(log)?;
        // The kernel kills the server when the thread that starts it here ends, even if the test
        // process is killed.
        let server = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        self.0 = Some(server);
        Ok(())
    }

    pub(crate) fn stop(&mut self) {
        if let Some(mut server) = self.0.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    /// Freezes the server: it accepts connections and does not respond until
    /// [`ServerProcess::thaw`].
    pub(crate) fn freeze(&self) -> Result<()> {
        let pid = self.signal(Signal::SIGSTOP)?;
        waitid(Id::Pid(pid), WaitPidFlag::WSTOPPED).context("cannot wait for a frozen server")?;
        Ok(())
    }

    pub(crate) fn thaw(&self) -> Result<()> {
        self.signal(Signal::SIGCONT).map(drop)
    }

    pub(crate) fn terminate(&self) -> Result<()> {
        self.signal(Signal::SIGTERM).map(drop)
    }

    fn signal(&self, signal: Signal) -> Result<Pid> {
        let pid = Pid::from_raw(self.pid().context("the server does not run")?.try_into()?);
        kill(pid, signal)?;
        Ok(pid)
    }

    /// Returns `None` if the server was stopped or never started.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.0.as_ref().map(Child::id)
    }

    /// Returns the exit status of a server that has exited; `None` if it runs, was stopped or never
    /// started.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.0
            .as_mut()
            .and_then(|server| server.try_wait().ok().flatten())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.stop();
    }
}
