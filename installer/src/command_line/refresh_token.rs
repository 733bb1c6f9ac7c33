//! `calico refresh-token`, also spelled `calico component cni agent`: `calico install` with SLEEP=true, without the
//! installation.

use std::process::ExitCode;

use ipam_plugin::logging::{self, Subject};
use ipam_plugin::process::variables_help;
use netconf::conf::LogConf;

use super::arguments::{OptionSpec, run_with};
use super::node_command::{CommandError, exit_code, read_environment, run_agent};
use crate::agent::{Pass, Plugins, ReplayError, VARIABLES};
use crate::host_network::HostNetwork;
use crate::install::{InstallReconciler, Installation};
use crate::layout::Layout;
use crate::service_account::ServiceAccount;

const SPEC: OptionSpec = OptionSpec { options: &["root"], switches: &[] };

/// Runs the command. `replay` replays deferred DELs.
pub fn refresh_token(
    arguments: impl IntoIterator<Item = String>,
    network: &dyn HostNetwork,
    replay: impl AsyncFn(&Plugins) -> Result<Pass, ReplayError>,
) -> ExitCode {
    run_with("refresh-token", help, SPEC.parse(arguments), |given| {
        logging::init(&LogConf::default(), "cni-agent", &Subject::default());
        exit_code(run(&given.layout(), network, replay))
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
    run_agent(&installation, InstallReconciler::for_any_installation(installation), &lookup, replay)
}

fn help() -> String {
    let mut text = String::from(
        "Keeps the token in the plugins' kubeconfig fresh, for as long as it runs, and puts back what `calico install` \
         has\n\
         installed with the same environment. Pays what DELs of this node owe, with the plugins' token. Needs a pod \
         whose service account may create serviceaccounts/token of the plugins'\naccount.\n\
         \n\
         Usage: calico refresh-token [--root DIR]\n\
         \n      \
               --root DIR  what to take for /; with a directory `host` in it, the node's directories are mounted below \
               that\n  \
           -h, --help      this text\n\
         \n\
         ",
    );
    text.push_str(&variables_help("Environment, beside that of `calico install`", &VARIABLES));
    text
}

#[cfg(test)]
mod tests {
    use ipam_plugin::process::Variable;

    use super::*;

    #[test]
    fn help_tells_every_variable() {
        let help = help();
        for Variable { name, .. } in VARIABLES {
            assert!(help.contains(&format!("\n  {name}\n")), "{name}");
        }
    }
}
