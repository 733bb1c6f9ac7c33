//! The memory and the processor time of a call, read when the process is about to exit.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use nix::libc::c_int;
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{Call, Outcome, feed, read_all};

/// The memory and the processor time of a process.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Peak resident memory, in KiB.
    pub peak_kib: u64,
    /// Processor time of all threads, in clock ticks of the kernel.
    pub ticks: u64,
}

impl Call {
    /// Runs the plugin to its end, without a deadline. In contrast to `wait4`, the peak memory does
    /// not include that of the forked process before its exec.
    pub fn run_measured(&self) -> Result<(Outcome, Usage)> {
        let started = Instant::now();
        let mut child = self.begin()?;
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        // The plugin waits for its stdin.
        ptrace::seize(pid, Options::PTRACE_O_TRACEEXIT).context("cannot trace the plugin")?;
        let stdout = read_all(child.stdout.take().context("stdout is piped")?);
        let stderr = read_all(child.stderr.take().context("stderr is piped")?);
        feed(&mut child, &self.stdin)?;
        let mut usage = None;
        let exit = loop {
            match waitpid(pid, None)? {
                WaitStatus::Exited(_, code) => break Some(code),
                WaitStatus::Signaled(..) => break None,
                WaitStatus::PtraceEvent(_, _, event) => {
                    if event == Event::PTRACE_EVENT_EXIT as c_int {
                        usage = Some(Usage::of(pid)?);
                    }
                    ptrace::cont(pid, None)?;
                }
                WaitStatus::Stopped(_, signal) => ptrace::cont(pid, signal)?,
                _ => {}
            }
        };
        let outcome = Outcome {
            exit,
            stdout: stdout.join().unwrap_or_default(),
            stderr: stderr.join().unwrap_or_default(),
            wall: started.elapsed(),
        };
        Ok((
            outcome,
            usage.ok_or_else(|| anyhow!("the plugin ended and was not seen to"))?,
        ))
    }
}

impl Usage {
    fn of(pid: Pid) -> Result<Usage> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .context("no VmHWM")?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let fields = stat
            .rsplit_once(')')
            .context("no name in stat")?
            .1
            .split_whitespace();
        let times: Vec<u64> = fields
            .skip(11)
            .take(2)
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        Ok(Usage {
            peak_kib: peak.trim().trim_end_matches("kB").trim().parse()?,
            ticks: times.iter().sum(),
        })
    }
}
