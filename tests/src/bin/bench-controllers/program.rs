//! The program under measurement.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

const METRICS: &str = "http://127.0.0.1:9094/metrics";
const SYNC_WITHIN: Duration = Duration::from_secs(300);
/// Interval between two requests for the metrics, each of which costs the program processor time.
const GLANCE: Duration = Duration::from_secs(1);
/// Clock ticks per second in which the kernel reports processor time.
const TICKS: f64 = 100.0;

/// A running kube-controllers, killed on drop.
pub(crate) struct Program {
    child: Child,
    pub(crate) started: Instant,
}

impl Program {
    /// Starts the program with more variables in its environment. Its output is appended to `log`
    /// in `directory`.
    pub(crate) fn start(
        program: &Path,
        kubeconfig: &Path,
        directory: &Path,
        more: &[(&str, String)],
    ) -> Result<Program> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(directory.join("log"))?;
        // The kernel kills the program when the thread that started it ends, also if the bench is
        // killed.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .env_clear()
            .env("DATASTORE_TYPE", "kubernetes")
            .env("KUBECONFIG", kubeconfig)
            .env("LEADER_ELECTION", "false")
            .envs(more.iter().map(|variable| (variable.0, &variable.1)))
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| program.display().to_string())?;
        Ok(Program {
            child,
            started: Instant::now(),
        })
    }

    /// Waits until the metrics name at least `feeds` watches and all of them have their first
    /// lists. Returns the time since the start of the program.
    pub(crate) fn synced(&mut self, feeds: usize) -> Result<Duration> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("kube-controllers ended: {status}; see its log");
            }
            let text = metrics().unwrap_or_default();
            let mut feed = text
                .lines()
                .filter(|line| line.starts_with("kube_controllers_feed_synced{"))
                .peekable();
            let known = text.matches("kube_controllers_feed_synced{").count();
            if feed.peek().is_some() && known >= feeds && feed.all(|line| line.ends_with(" 1")) {
                return Ok(self.started.elapsed());
            }
            ensure!(
                self.started.elapsed() < SYNC_WITHIN,
                "the feeds are not synced; see the log"
            );
            thread::sleep(GLANCE);
        }
    }

    /// Returns true if the program has ended by itself.
    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    pub(crate) fn cpu(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let after_name = stat.rsplit_once(')').context("no name in stat")?.1;
        let ticks = |field: usize| {
            after_name
                .split_whitespace()
                .nth(field)
                .and_then(|text| text.parse::<f64>().ok())
        };
        // Fields 14 and 15 of the whole line.
        Ok((ticks(11).context("utime")? + ticks(12).context("stime")?) / TICKS)
    }

    pub(crate) fn memory(&self) -> Result<(f64, f64)> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let of = |name: &str| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .with_context(|| name.to_owned())?;
            let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
            Ok::<_, anyhow::Error>(kib / 1024.0)
        };
        Ok((of("VmRSS:")?, of("VmHWM:")?))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn metrics() -> Result<String> {
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(2)))
        .proxy(None)
        .build();
    Ok(ureq::Agent::from(agent)
        .get(METRICS)
        .call()?
        .body_mut()
        .read_to_string()?)
}
