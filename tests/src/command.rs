//! Tools of the system (`ip`, `sysctl`, `podman` …), run to completion.

use std::ffi::OsStr;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Runs a tool and returns its stdout.
pub fn run<A: AsRef<OsStr>>(program: &str, args: &[A]) -> Result<String> {
    let line = || {
        let args: Vec<_> = args
            .iter()
            .map(|a| a.as_ref().to_string_lossy().into_owned())
            .collect();
        format!("{program} {}", args.join(" "))
    };
    let output = Command::new(program)
        .args(args)
        .output()
        .with_context(|| format!("cannot run {}", line()))?;
    if !output.status.success() {
        bail!(
            "{} failed ({}): {}",
            line(),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `ip <args>`, with the arguments separated by spaces.
pub fn ip(args: &str) -> Result<()> {
    run("ip", &args.split_whitespace().collect::<Vec<_>>()).map(|_| ())
}

/// Runs `ip -json <args>`. iproute2 prints nothing for some empty lists.
pub fn ip_json(args: &str) -> Result<Value> {
    let words: Vec<_> = ["-json"]
        .into_iter()
        .chain(args.split_whitespace())
        .collect();
    let stdout = run("ip", &words)?;
    if stdout.trim().is_empty() {
        return Ok(Value::Array(Vec::new()));
    }
    serde_json::from_str(&stdout).with_context(|| format!("ip {args} printed no JSON: {stdout}"))
}

/// Returns true if PATH has a program of this name.
pub fn present(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
