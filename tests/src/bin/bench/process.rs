//! Processes under measurement: wall-clock time from exec to exit, CPU time, peak memory, system
//! calls.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// Argument with which the bench program runs [`print_peak_rss`].
pub(crate) const PEAK_RSS: &str = "--peak-rss";

#[derive(Debug, Clone, Copy)]
pub(crate) struct Took {
    pub(crate) wall: Duration,
    /// User and system time.
    pub(crate) cpu: Duration,
}

/// Runs a command that must succeed. No other child of the calling process may exit meanwhile: its
/// CPU time would count too.
pub(crate) fn timed(command: &mut Command) -> Result<Took> {
    let before = cpu(&getrusage(UsageWho::RUSAGE_CHILDREN)?);
    let begin = Instant::now();
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{command:?}"))?;
    let wall = begin.elapsed();
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    Ok(Took {
        wall,
        cpu: cpu(&getrusage(UsageWho::RUSAGE_CHILDREN)?) - before,
    })
}

fn cpu(usage: &Usage) -> Duration {
    let duration =
        |time: TimeVal| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000);
    duration(usage.user_time()) + duration(usage.system_time())
}

/// Measures the peak resident memory of a command in KiB, in a separate process, because the kernel
/// starts a child's peak at that of the process it was forked from.
pub(crate) fn peak_rss(command: &Command, stdin: &Path) -> Result<u64> {
    let output = Command::new(std::env::current_exe()?)
        .arg(PEAK_RSS)
        .arg(command.get_program())
        .args(command.get_args())
        .envs(
            command
                .get_envs()
                .filter_map(|(key, value)| Some((key, value?))),
        )
        .stdin(fs::File::open(stdin)?)
        .output()?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// Measures a command on behalf of [`peak_rss`], in a separate process.
pub(crate) fn print_peak_rss(command: &[String]) -> Result<()> {
    let (program, args) = command.split_first().context("no command")?;
    let status = Command::new(program)
        .args(args)
        .stdout(Stdio::null())
        .status()?;
    ensure!(status.success(), "{program}: {status}");
    Ok(writeln!(
        std::io::stdout(),
        "{}",
        getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss()
    )?)
}

pub(crate) fn system_calls(
    command: &Command,
    stdin: &Path,
    counts: &Path,
) -> Result<BTreeMap<String, u64>> {
    let status = Command::new("strace")
        .args([
            "--follow-forks",
            "--summary-only",
            "--summary-columns=calls,name",
            "--output",
        ])
        .arg(counts)
        .arg(command.get_program())
        .args(command.get_args())
        .envs(
            command
                .get_envs()
                .filter_map(|(key, value)| Some((key, value?))),
        )
        .stdin(fs::File::open(stdin)?)
        .stdout(Stdio::null())
        .status()
        .context("cannot run strace")?;
    ensure!(status.success(), "{command:?} under strace: {status}");
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let calls = words.next()?.parse().ok()?;
        Some((words.next()?.to_owned(), calls))
    };
    Ok(fs::read_to_string(counts)?
        .lines()
        .filter_map(row)
        .filter(|(name, _)| name != "total")
        .collect())
}
