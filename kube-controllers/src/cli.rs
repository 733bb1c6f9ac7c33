//! The command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, FromArgMatches, Parser};
use node_process::process::variables_help;

use crate::settings::variables::{CONTROLLERS, DATASTORE};
use crate::status::default_file;

/// Keeps Calico's objects consistent with Kubernetes, and releases addresses that are no longer in
/// use.
#[derive(Debug, Clone, PartialEq, Eq, Parser)]
#[command(name = "kube-controllers", version)]
pub struct Options {
    /// File to which the status for `check-status` is written.
    #[arg(long, value_name = "FILE", default_value_os_t = default_file())]
    pub status_file: PathBuf,
    /// TCP port for /readiness and /liveness, on all addresses. 0 disables both.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub health_port: u16,
}

impl Options {
    /// Parses a command line. The program's own name may be preceded by the words that upstream's
    /// images and charts use: `calico component kube-controllers` (KC-100) and
    /// `/usr/bin/wrapper /usr/bin/kube-controllers` (INST-88).
    pub fn parse_from_command(
        words: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, clap::Error> {
        let mut words = words.into_iter();
        let program = words.next().unwrap_or_else(|| "kube-controllers".into());
        let is_name = |word: &OsString| {
            Path::new(word)
                .file_name()
                .is_some_and(|name| name == "kube-controllers")
        };
        let rest = words.skip_while(|word| word == "component" || is_name(word));
        let matches = Self::command()
            .after_help(environment())
            .try_get_matches_from(std::iter::once(program).chain(rest))?;
        Self::from_arg_matches(&matches)
    }
}

fn environment() -> String {
    let datastore = variables_help("Datastore and API server", &DATASTORE);
    format!(
        "{}\n{datastore}",
        variables_help("Environment", &CONTROLLERS)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::variables::Variable;

    fn parse(line: &str) -> Result<Options, clap::Error> {
        Options::parse_from_command(line.split(' ').map(OsString::from))
    }

    #[test]
    fn command_line_accepts_upstreams_flags() {
        let none = Options {
            status_file: "/status/status.json".into(),
            health_port: 0,
        };
        let both = Options {
            status_file: "/tmp/s".into(),
            health_port: 9099,
        };
        assert_eq!(parse("kube-controllers").unwrap(), none);
        assert_eq!(
            parse("kube-controllers --health-port=9099 --status-file /tmp/s").unwrap(),
            both
        );
        assert_eq!(
            parse("calico component kube-controllers --health-port 9099 --status-file=/tmp/s")
                .unwrap(),
            both
        );
        let wrapped =
            "/usr/bin/wrapper /usr/bin/kube-controllers --health-port 9099 --status-file /tmp/s";
        assert_eq!(parse(wrapped).unwrap(), both);
        assert!(parse("kube-controllers --port 1").is_err());
        assert!(parse("kube-controllers --health-port 70000").is_err());
    }

    #[test]
    fn help_lists_every_controller_variable() {
        let help = parse("kube-controllers --help").unwrap_err().to_string();
        for Variable { name, .. } in CONTROLLERS.iter().chain(&DATASTORE) {
            assert!(help.contains(&format!("\n  {name}\n")), "{name}");
        }
        assert!(
            parse("kube-controllers --version")
                .unwrap_err()
                .to_string()
                .starts_with("kube-controllers 0.")
        );
    }
}
