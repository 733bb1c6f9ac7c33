//! `check-status`, the exec probe. It only reads the status file, and needs no runtime and no
//! configuration.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use super::file::{StatusFile, default_file};
use super::{HEARTBEAT_LIMIT, since_boot};

/// Reports the readiness or liveness of kube-controllers.
#[derive(Debug, Parser)]
#[command(name = "check-status", disable_version_flag = true)]
struct Arguments {
    /// Print the version.
    #[arg(short, long)]
    version: bool,
    /// File in which the process stores its status.
    #[arg(short, long, default_value_os_t = default_file())]
    file: PathBuf,
    /// Check readiness.
    #[arg(short, long)]
    ready: bool,
    /// Check liveness. The same as readiness, unless the process runs with
    /// STATUS_LIVENESS=heartbeat.
    #[arg(short, long)]
    live: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct ProbeResult {
    text: String,
    passes: bool,
}

/// Returns the arguments of `check-status` if the process was called as such, by its program name
/// or its first word, and otherwise `None`. Upstream's charts use the word
/// `kube-controllers-health`, with further words before it (KC-146).
pub fn probe_arguments(command_line: impl IntoIterator<Item = OsString>) -> Option<Vec<OsString>> {
    let mut words = command_line.into_iter();
    let program = words.next()?;
    let name = Path::new(&program).file_name()?;
    if name == "check-status" {
        return Some(words.collect());
    }
    let mut words = words.skip_while(|word| word == "component" || word == "kube-controllers");
    let word = words.next()?;
    (word == "kube-controllers-health" || word == "check-status").then(|| words.collect())
}

/// Runs `check-status` with these arguments.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(
        [OsString::from("check-status")]
            .into_iter()
            .chain(arguments),
    ) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    let result = evaluate(&arguments, since_boot());
    // There is no other place to report a closed stdout.
    let _ = writeln!(std::io::stdout(), "{}", result.text);
    if result.passes {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn evaluate(arguments: &Arguments, now: u64) -> ProbeResult {
    if arguments.version {
        return ProbeResult {
            text: env!("CARGO_PKG_VERSION").into(),
            passes: true,
        };
    }
    if !arguments.ready && !arguments.live {
        return ProbeResult {
            text: "No command specified to check-status".into(),
            passes: false,
        };
    }
    let file = match StatusFile::read(&arguments.file) {
        Ok(file) => file,
        Err(error) => {
            return ProbeResult {
                text: error.to_string(),
                passes: false,
            };
        }
    };
    match file.liveness {
        Some(liveness) if arguments.live && !arguments.ready => {
            let age = now.saturating_sub(liveness.heartbeat);
            if age <= HEARTBEAT_LIMIT.as_secs() {
                ProbeResult {
                    text: "Live".into(),
                    passes: true,
                }
            } else {
                ProbeResult {
                    text: format!("no heartbeat for {age} s"),
                    passes: false,
                }
            }
        }
        _ if file.is_ready() => ProbeResult {
            text: "Ready".into(),
            passes: true,
        },
        _ => ProbeResult {
            text: file.reasons(),
            passes: false,
        },
    }
}

#[cfg(test)]
mod tests;
