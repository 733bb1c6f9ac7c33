//! `calico health`, with upstream's options.

use std::process::ExitCode;
use std::time::Duration;

use libcalico::api::{DurationError, GoDuration};

use super::arguments::{GivenOptions, OptionSpec, print_error, run_with};
use crate::agent::DEFAULT_LISTEN;
use crate::health::{Probe, ask};

const SPEC: OptionSpec = OptionSpec { options: &["port", "host", "type", "timeout"], switches: &[] };

const HELP: &str = "\
Asks a process of Calico's whether it is well: exit status 0 if so.

Usage: calico health [--port N] [--host HOST] [--type readiness|liveness] [--timeout DURATION]

      --port N            its port for probes [default: 9097, this node's agent]
      --host HOST         where it is [default: localhost]
      --type TYPE         readiness or liveness [default: readiness]
      --timeout DURATION  how long it may take [default: 5s]
  -h, --help              this text
";

/// Runs the command.
pub fn health(arguments: impl IntoIterator<Item = String>) -> ExitCode {
    run_with(
        "health",
        || HELP.into(),
        SPEC.parse(arguments),
        |given| match parse_query(given) {
            Err(what) => {
                print_error(&format!("calico health: {what}; see `calico health --help`"));
                ExitCode::from(2)
            }
            Ok((port, probe, limit)) => match ask(given.value("host").unwrap_or("localhost"), port, probe, limit) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    print_error(&error.to_string());
                    ExitCode::FAILURE
                }
            },
        },
    )
}

/// Reasons for rejecting an argument.
#[derive(Debug, thiserror::Error)]
enum HealthArgumentError {
    #[error("`{0}` is no port")]
    Port(String),
    #[error("`{0}` is neither readiness nor liveness")]
    Probe(String),
    #[error(transparent)]
    Timeout(#[from] DurationError),
    #[error("--timeout must be above 0")]
    NoTimeout,
}

fn parse_query(given: &GivenOptions) -> Result<(u16, Probe, Duration), HealthArgumentError> {
    let port = match given.value("port") {
        None => DEFAULT_LISTEN.port(),
        Some(text) => {
            text.parse().ok().filter(|port| *port != 0).ok_or_else(|| HealthArgumentError::Port(text.to_owned()))?
        }
    };
    let probe = match given.value("type") {
        None | Some("readiness") => Probe::Readiness,
        Some("liveness") => Probe::Liveness,
        Some(other) => return Err(HealthArgumentError::Probe(other.to_owned())),
    };
    let limit = given.value("timeout").unwrap_or("5s");
    let limit = limit.parse::<GoDuration>()?.duration();
    if limit.is_zero() {
        return Err(HealthArgumentError::NoTimeout);
    }
    Ok((port, probe, limit))
}

#[cfg(test)]
mod tests {
    use super::super::arguments::ParsedArguments;
    use super::*;

    fn of(line: &str) -> Result<(u16, Probe, Duration), String> {
        match SPEC.parse(line.split_whitespace().map(str::to_owned)) {
            ParsedArguments::Run(given) => parse_query(&given).map_err(|error| error.to_string()),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn upstreams_options() {
        assert_eq!(of("--port=9440 --type=liveness"), Ok((9440, Probe::Liveness, Duration::from_secs(5))));
        assert_eq!(of("--timeout 500ms"), Ok((9097, Probe::Readiness, Duration::from_millis(500))));
        for nonsense in ["--port 0", "--port x", "--type health", "--timeout soon", "--timeout 0", "9440"] {
            assert!(of(nonsense).is_err(), "{nonsense}");
        }
    }
}
