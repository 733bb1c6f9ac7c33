//! `calico install`, also spelled `calico component cni install`, and `calico refresh-token`, also
//! spelled `calico component cni agent`.
//!
//! The exit status is 0, or 1 for every failure as in upstream (INST-34), or 2 for invalid
//! arguments.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use libcalico::failure::Failure;
use libcalico::variables::Variables;
use netconf::conf::{DatastoreType, LogConf};
use node_process::logging::{self, Subject};
use node_process::process::{self, variables_help};

use super::arguments::run_with;
use dataplane::host_network::HostNetwork;
use installation::kubeconfig;
use installation::layout::Layout;
use installation::service_account::ServiceAccount;
use installation::settings::Settings;
use installation::settings::variables::GROUPS;
use installer::cluster::configured_group;
use installer::install::{InstallReconciler, Installation};
use node_agent::{
    AgentSettings, ApiGroupWatch, InterfaceRepair, NodeCondition, NodePlugins, ReplayPass, Watched,
    deferred_dels, log_compression,
};

#[derive(Debug, Parser)]
#[command(name = "install", override_help = install_help(), args_override_self = true)]
struct InstallArgs {
    #[arg(long)]
    root: Option<PathBuf>,
}

#[derive(Debug, Parser)]
#[command(
    name = "refresh-token", override_help = refresh_token_help(), args_override_self = true
)]
struct RefreshTokenArgs {
    #[arg(long, default_value = "/")]
    root: PathBuf,
}

/// Time limit for replaying deferred DELs after an installation without agent.
const REPLAY_TIME_LIMIT: Duration = Duration::from_secs(5);

/// Runs `calico install`. `replay` replays deferred DELs.
pub fn install(
    arguments: impl IntoIterator<Item = String>,
    network: &dyn HostNetwork,
    replay: impl AsyncFn(&NodePlugins) -> Result<ReplayPass, Failure>,
) -> ExitCode {
    run_with(arguments, |given: InstallArgs| {
        // Without `--root`, the layout is that of a container, even if `/host` does not exist.
        let layout = given
            .root
            .map_or_else(Layout::container, |root| Layout::below(&root));
        run("cni-installer", || {
            run_command(true, &layout, network, replay)
        })
    })
}

/// Runs `calico refresh-token`. `replay` replays deferred DELs.
pub fn refresh_token(
    arguments: impl IntoIterator<Item = String>,
    network: &dyn HostNetwork,
    replay: impl AsyncFn(&NodePlugins) -> Result<ReplayPass, Failure>,
) -> ExitCode {
    run_with(arguments, |given: RefreshTokenArgs| {
        run("cni-agent", || {
            run_command(false, &Layout::below(&given.root), network, replay)
        })
    })
}

/// Runs `command`, whose log lines name `program`.
fn run(program: &'static str, command: impl FnOnce() -> Result<(), Failure>) -> ExitCode {
    logging::init(&LogConf::default(), program, &Subject::default());
    match command() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("the command failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_command(
    installs: bool,
    layout: &Layout,
    network: &dyn HostNetwork,
    replay: impl AsyncFn(&NodePlugins) -> Result<ReplayPass, Failure>,
) -> Result<(), Failure> {
    let variables = process::lossy_variables();
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let settings = Settings::from_environment(variables, hostname.trim())?;
    // On a node, `bin_dir` is the directory for the programs; in a container it is only recorded.
    let layout = &layout.clone().with_bin_dir(&settings.bin_dir);
    let account = ServiceAccount::discover(layout, variables)?;
    let installation = Installation {
        settings: &settings,
        layout,
        account: account.as_ref(),
        network,
    };
    if !installs {
        return run_agent(&installation, false, variables, replay);
    }
    installation.run()?;
    // Outside of a pod there is no token to renew, and a person waits for the prompt.
    if settings.stays_as_agent && account.is_some() {
        tracing::info!("running as the agent; SLEEP=false ends the process after the installation");
        return run_agent(&installation, true, variables, replay);
    }
    if !settings.trial_time.is_zero() {
        process::block_on(deferred_dels::replay_once(
            &settings,
            layout,
            REPLAY_TIME_LIMIT,
            replay,
        ));
    }
    Ok(())
}

/// Runs the agent until SIGTERM or SIGINT (INST-37), or until an error ends it.
fn run_agent(
    installation: &Installation<'_>,
    is_installer: bool,
    variables: Variables<'_>,
    replay: impl AsyncFn(&NodePlugins) -> Result<ReplayPass, Failure>,
) -> Result<(), Failure> {
    let Installation {
        settings,
        layout,
        account,
        network,
    } = *installation;
    let agent_settings = AgentSettings::from_environment(variables)?;
    let net_dir = layout.net_dir(&settings.net_dir);
    let kubeconfig = net_dir.join(kubeconfig::NAME);
    let planned = installation.plugin_conf();
    let configured = planned
        .as_ref()
        .and_then(|conf| match conf.datastore.kind() {
            DatastoreType::Kubernetes => Some(configured_group(conf)),
            DatastoreType::Etcdv3 | DatastoreType::Local => None,
        });
    let group = configured
        .zip(account.cloned())
        .map(|(configured, account)| ApiGroupWatch {
            account,
            configured,
        });
    let condition =
        agent_settings
            .node_interval
            .zip(account.cloned())
            .map(|(interval, account)| NodeCondition {
                account,
                node: settings
                    .node_name
                    .clone()
                    .unwrap_or_else(|| settings.host_name.clone()),
                net_dir: settings.net_dir.clone(),
                interval,
            });
    let mut reconciler = InstallReconciler::new(*installation, is_installer);
    let replaying = deferred_dels::replay_repeatedly(settings, layout, replay);
    let reconcile = || reconciler.reconcile();
    let compressing =
        log_compression::compress_repeatedly(agent_settings.log_interval, settings, layout);
    let log = log_compression::log_path(settings, layout, planned.as_ref().map(|conf| &conf.log));
    let log_dir = log.and_then(|log| log.parent().map(Path::to_owned));
    let directories = [net_dir, layout.state_dir(), layout.run_dir()]
        .into_iter()
        .chain(log_dir);
    let directories = layout.bin_paths().chain(directories).collect();
    let repair = agent_settings
        .removes_dead_interfaces
        .then_some(InterfaceRepair {
            settings,
            layout,
            network,
        });
    let watched = Watched {
        directories,
        group,
        condition,
        repair,
    };
    let account = account.cloned();
    process::block_on(node_agent::run(
        &agent_settings,
        account,
        kubeconfig,
        watched,
        reconcile,
        replaying,
        compressing,
    ))
}

/// The help of `calico install` before the variables.
const INSTALL_HELP: &str = "\
Installs Calico's CNI plugins, their credentials and their configuration on this node.

Usage: calico install [--root DIR]

      --root DIR  directory to use as /: the root of a container if it contains a directory `host`, in which the node's
                  directories are mounted; else the root of a node, or of a node's image
  -h, --help      print this text

In a container the node's directories are expected at /host/opt/cni/bin, /host/secondary-bin-dir (optional) and
/host/etc/cni/net.d, and /var/lib/calico at the same path. The environment contains all other settings:
";

/// The help of `calico install` after the variables.
const INSTALL_NOTES: &str = "
A second run changes no file that is up to date. A failed run keeps the previous configuration of the network. Programs,
TLS files and calico-kubeconfig may be new by then; each of them is complete.

Example, a node without a container: calico install --root /
It installs calico and calico-ipam, the configuration, and the node's name from KUBERNETES_NODE_NAME or the host. It
does not install other plugins (portmap, loopback), which are in the image, or calico-kubeconfig, which needs a pod's
account. An image of a node gets no name without KUBERNETES_NODE_NAME: each node writes /var/lib/calico/nodename.
";

/// The help of `calico refresh-token` before the variables.
const REFRESH_TOKEN_HELP: &str = "\
Runs permanently. Renews the token in the plugins' kubeconfig, and restores the files that `calico install` has
installed with the same environment. Replays deferred DELs of this node with the plugins' token. Compresses rotated log
files of the plugins. With CNI_AGENT_REPAIR=true, removes interfaces of ended containers. Needs a pod whose service
account may create serviceaccounts/token of the plugins' account.

Usage: calico refresh-token [--root DIR]

      --root DIR  directory to use as / [default: /]; if it contains a directory `host`, the node's directories are
                  mounted below that directory
  -h, --help      print this text

";

fn install_help() -> String {
    let groups = GROUPS.map(|(title, variables)| format!("\n{}", variables_help(title, variables)));
    format!("{INSTALL_HELP}{}{INSTALL_NOTES}", groups.concat())
}

fn refresh_token_help() -> String {
    let variables = variables_help(
        "Environment, in addition to that of `calico install`",
        &node_agent::VARIABLES,
    );
    format!("{REFRESH_TOKEN_HELP}{variables}")
}

#[cfg(test)]
mod tests {
    use node_process::process::Variable;

    use super::*;

    const OPTIONS: &str = include_str!("../../docs/options.md");

    #[test]
    fn help_of_install_lists_every_variable() {
        let help = install_help();
        for Variable { name, .. } in GROUPS.iter().flat_map(|(_, variables)| *variables) {
            assert!(help.contains(&format!("\n  {name}\n")), "{name}");
        }
        assert!(help.lines().all(|line| line.len() <= 200), "{help}");
    }

    #[test]
    fn help_of_refresh_token_lists_every_variable() {
        let help = refresh_token_help();
        for Variable { name, .. } in node_agent::VARIABLES {
            assert!(help.contains(&format!("\n  {name}\n")), "{name}");
        }
    }

    #[test]
    fn options_page_has_the_help_of_every_variable() {
        let groups = GROUPS.map(|(title, variables)| variables_help(title, variables));
        let agents = variables_help("Only of the agent", &node_agent::VARIABLES);
        for help in groups.iter().chain([&agents]) {
            assert!(OPTIONS.contains(help), "docs/options.md lacks:\n{help}");
        }
    }
}
