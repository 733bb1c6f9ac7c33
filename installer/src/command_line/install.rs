//! `calico install`, also spelled `calico component cni install`. The exit status is 0, or 1 for every failure as in
//! upstream (INST-34), or 2 for invalid arguments.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use ipam_plugin::logging::{self, Subject};
use ipam_plugin::process;
use ipam_plugin::process::variables_help;
use netconf::conf::LogConf;

use super::arguments::{OptionSpec, run_with};
use super::node_command::{CommandError, exit_code, read_environment, run_agent};
use crate::agent::{Pass, Plugins, ReplayError, deferred_dels};
use crate::host_network::HostNetwork;
use crate::install::{InstallReconciler, Installation};
use crate::layout::Layout;
use crate::service_account::ServiceAccount;
use crate::settings::variables::GROUPS;

const SPEC: OptionSpec = OptionSpec { options: &["root"], switches: &[] };

/// Time limit for reading the identity of the datastore.
const LEARNING: Duration = Duration::from_secs(5);

/// Runs the command. `replay` replays deferred DELs.
pub fn install(
    arguments: impl IntoIterator<Item = String>,
    network: &dyn HostNetwork,
    replay: impl AsyncFn(&Plugins) -> Result<Pass, ReplayError>,
) -> ExitCode {
    run_with("install", help, SPEC.parse(arguments), |given| {
        logging::init(&LogConf::default(), "cni-installer", &Subject::default());
        // Without `--root`, a directory that is not mounted below `/host` is never installed to.
        let layout = given.value("root").map_or_else(Layout::container, |root| Layout::below(Path::new(root)));
        exit_code(run(&layout, network, replay))
    })
}

fn run(
    layout: &Layout,
    network: &dyn HostNetwork,
    replay: impl AsyncFn(&Plugins) -> Result<Pass, ReplayError>,
) -> Result<(), CommandError> {
    let (settings, lookup) = read_environment()?;
    let account = ServiceAccount::discover(layout, &lookup)?;
    let installation = Installation { settings: &settings, layout, account: account.as_ref(), network };
    installation.run()?;
    // Outside of a pod there is no token to renew, and a person waits for the prompt.
    if settings.stay && account.is_some() {
        tracing::info!("staying as the agent; SLEEP=false ends after the installation");
        return run_agent(&installation, InstallReconciler::for_own_installation(installation), &lookup, replay);
    }
    if !settings.try_for.is_zero() {
        let conf = layout.net_dir(&settings.net_dir).join(&settings.conf_name);
        process::block_on(deferred_dels::replay_once(&conf, layout, &settings.net_dir, LEARNING, replay));
    }
    Ok(())
}

fn help() -> String {
    let mut text = String::from(
        "Installs Calico's CNI plugins, their credentials and their configuration on this node.\n\
         \n\
         Usage: calico install [--root DIR]\n\
         \n      \
               --root DIR  what to take for /: with a directory `host` in it a container's root, in which the \
               node's\n                  \
                           directories are mounted below host/; else that of a node, or of the image of one\n  \
           -h, --help      this text\n\
         \n\
         In a container the node's directories are expected at /host/opt/cni/bin, /host/secondary-bin-dir (optional) \
         and\n\
         /host/etc/cni/net.d, and /var/lib/calico at its own place. Everything else is in the environment:\n",
    );
    for (title, variables) in GROUPS {
        text.push('\n');
        text.push_str(&variables_help(title, variables));
    }
    text.push_str(
        "\nA second run changes nothing that is as it should be. A run that fails leaves what was installed before.\n\
         \nExample, a node without a container: calico install --root /\n\
         It brings calico and calico-ipam, the configuration, and the node's name from KUBERNETES_NODE_NAME or the \
         host. What it\n\
         does not bring: other plugins (portmap, loopback), which are in the image; and calico-kubeconfig, which needs \
         a pod's\n\
         account. An image of a node gets no name without KUBERNETES_NODE_NAME: each node writes \
         /var/lib/calico/nodename.\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use ipam_plugin::process::Variable;

    use super::*;

    #[test]
    fn help_tells_every_variable() {
        let help = help();
        for Variable { name, .. } in GROUPS.iter().flat_map(|(_, variables)| *variables) {
            assert!(help.contains(&format!("\n  {name}\n")), "{name}");
        }
        assert!(help.lines().all(|line| line.len() <= 200), "{help}");
    }
}
