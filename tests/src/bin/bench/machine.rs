//! The machine that runs the measurements.

use std::fs;

use anyhow::Result;
use nix::sys::utsname::uname;

/// Describes the machine in one line.
pub(crate) fn describe() -> Result<String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or("unknown processor");
    let model = model.trim_start_matches(['\t', ' ', ':']);
    let processors = cpuinfo
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    let kib: u64 = meminfo
        .split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg")?;
    let load = load.split_whitespace().next().unwrap_or_default();
    let system = uname()?;
    Ok(format!(
        "{processors} × {model}, {} GiB, Linux {}, load average {load} at the start\n",
        kib.div_ceil(1024 * 1024),
        system.release().to_string_lossy()
    ))
}
