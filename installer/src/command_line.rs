//! `calico install` from its command line to its exit status: 0, or 1 for every failure (INST-34), or 2 for arguments that
//! make no sense.

mod arguments;
mod doctor;
mod health;
mod refresh_token;
mod uninstall;
mod version;

pub use self::doctor::doctor;
pub use self::health::health;
pub use self::refresh_token::refresh_token;
pub use self::uninstall::uninstall;
pub use self::version::version;

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use ipam_plugin::logging::{self, LogConfig};
use ipam_plugin::process;
use ipam_plugin::variable::list;

use crate::agent::{self, AgentError, AgentSettings, Kept};
use crate::install::{InstallError, Installation};
use crate::kubeconfig;
use crate::layout::Layout;
use crate::service_account::{ServiceAccount, ServiceAccountError};
use crate::settings::variables::GROUPS;
use crate::settings::{Settings, SettingsError};

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Account(#[from] ServiceAccountError),
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error(transparent)]
    AgentSettings(#[from] agent::SettingsError),
    #[error(transparent)]
    Agent(#[from] AgentError),
}

/// What the arguments ask for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Install { root: Option<PathBuf> },
    Help,
    Nonsense(String),
}

/// Runs `calico install` with these arguments.
pub fn install(arguments: impl IntoIterator<Item = String>) -> ExitCode {
    let layout = match parse(arguments) {
        Asked::Help => return tell(&help(), true),
        Asked::Nonsense(what) => {
            tell(&format!("calico install: {what}; see `calico install --help`\n"), false);
            return ExitCode::from(2);
        }
        Asked::Install { root: None } => Layout::container(),
        Asked::Install { root: Some(root) } => Layout::below(&root),
    };
    logging::init(LogConfig::new("cni-installer"));
    match run(&layout) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(layout: &Layout) -> Result<(), CommandError> {
    let (settings, lookup) = environment()?;
    let account = ServiceAccount::discover(layout, &lookup)?;
    let installation = Installation { settings: &settings, layout, account: account.as_ref() };
    installation.run()?;
    // Outside of a pod there is no token to keep fresh, and a person who waits for the prompt.
    if settings.stay && account.is_some() {
        tracing::info!("staying as the agent; SLEEP=false ends after the installation");
        stay(&installation, true, &lookup)?;
    }
    Ok(())
}

/// What the environment says, and the environment itself.
fn environment() -> Result<(Settings, impl Fn(&str) -> Option<String>), SettingsError> {
    let lookup = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Ok((Settings::from_environment(&lookup, hostname.trim())?, lookup))
}

/// Stays as the agent, until SIGTERM (INST-37). With `keeps` it puts back what was installed.
fn stay(
    installation: &Installation<'_>,
    keeps: bool,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<(), CommandError> {
    let Installation { settings, layout, account } = *installation;
    let agent_settings = AgentSettings::from_environment(lookup)?;
    let kubeconfig = layout.net_dir(&settings.net_dir).join(kubeconfig::NAME);
    let keep = || if keeps { installation.keep() } else { Kept::default() };
    process::block_on(agent::run(&agent_settings, account.cloned(), kubeconfig, keep))?;
    Ok(())
}

fn parse(arguments: impl IntoIterator<Item = String>) -> Asked {
    let mut arguments = arguments.into_iter();
    let mut root = None;
    while let Some(argument) = arguments.next() {
        let value = match argument.as_str() {
            "-h" | "-help" | "--help" => return Asked::Help,
            "--root" => arguments.next(),
            other => match other.strip_prefix("--root=") {
                Some(value) => Some(value.to_owned()),
                None => return Asked::Nonsense(format!("`{other}` is not known")),
            },
        };
        match value.filter(|value| !value.is_empty()) {
            Some(value) => root = Some(value.into()),
            None => return Asked::Nonsense("--root needs a directory".to_owned()),
        }
    }
    Asked::Install { root }
}

/// Help is asked for, and belongs to stdout; complaints do not.
fn tell(text: &str, is_asked: bool) -> ExitCode {
    // A reader that went away cannot be told.
    let _ = if is_asked {
        std::io::stdout().write_all(text.as_bytes())
    } else {
        std::io::stderr().write_all(text.as_bytes())
    };
    ExitCode::SUCCESS
}

fn help() -> String {
    let mut text = String::from(
        "Installs Calico's CNI plugins, their credentials and their configuration on this node.\n\
         \n\
         Usage: calico install [--root DIR]\n\
         \n      \
               --root DIR  what to take for /: with a directory `host` in it a container's root, in which the node's\n                  \
                           directories are mounted below host/; else that of a node, or of the image of one\n  \
           -h, --help      this text\n\
         \n\
         In a container the node's directories are expected at /host/opt/cni/bin, /host/secondary-bin-dir (optional) and\n\
         /host/etc/cni/net.d, and /var/lib/calico at its own place. Everything else is in the environment:\n",
    );
    for (title, variables) in GROUPS {
        text.push('\n');
        text.push_str(&list(title, variables));
    }
    text.push_str(
        "\nA second run changes nothing that is as it should be. A run that fails leaves what was installed before.\n\
         \nExample, a node without a container: calico install --root / (and SLEEP=false)\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::variables::Variable;

    fn of(line: &str) -> Asked {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn arguments() {
        let root = |root: &str| Asked::Install { root: Some(root.into()) };
        assert_eq!(of(""), Asked::Install { root: None });
        assert_eq!(of("--root /mnt/sysroot"), root("/mnt/sysroot"));
        assert_eq!(of("--root=/mnt"), root("/mnt"));
        for help in ["-h", "--help", "--root / --help"] {
            assert_eq!(of(help), Asked::Help, "{help}");
        }
        for nonsense in ["--root", "--root=", "now", "-x"] {
            assert!(matches!(of(nonsense), Asked::Nonsense(_)), "{nonsense}");
        }
    }

    #[test]
    fn help_tells_every_variable() {
        let help = help();
        for Variable { name, .. } in GROUPS.iter().flat_map(|(_, variables)| *variables) {
            assert!(help.contains(&format!("\n  {name}\n")), "{name}");
        }
        assert!(help.lines().all(|line| line.len() <= 200), "{help}");
    }
}
