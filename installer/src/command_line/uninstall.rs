//! `calico uninstall`: a dry run unless `--yes` is given.

use std::process::ExitCode;

use node_process::logging::{self, Subject};
use node_process::process;
use netconf::conf::LogConf;

use super::arguments::{OptionSpec, exit_with, print, run_with};
use crate::host_network::HostNetwork;
use crate::uninstall::{self, Options};

const SPEC: OptionSpec = OptionSpec {
    options: &["root", "bin-dir", "secondary-bin-dir"],
    switches: &["yes", "tear-down-pods", "release-addresses", "forget-gone"],
};

const HELP: &str = "\
Takes back what `calico install` installed on this node: the configuration first, so that no pod starts with it any \
    more,
then programs, kubeconfig and TLS files. What was changed since, or is not ours, stays and is named. Logs always stay.

Usage: calico uninstall [--yes] [--tear-down-pods] [--release-addresses] [--forget-gone] [--root DIR]
                        [--bin-dir DIR] [--secondary-bin-dir DIR]

      --yes                    act; without it, only say what would be done
      --tear-down-pods         delete the interfaces of pods that are still there, and with them their routes: these \
    pods have
                               no network any more. In a container this takes the capability NET_ADMIN
      --release-addresses      give back the addresses and blocks of this node; refused while a pod is connected with \
    one, or
                               reports one to the API server
      --forget-gone            files that are not where they were installed were removed by somebody; without it \
    nothing is
                               done where all of a directory are gone, which may be another directory
      --root DIR               what to take for /; with a directory `host` in it, the node's directories are mounted \
    below that
      --bin-dir DIR            plugin directory of the container runtime, on the node [default: /opt/cni/bin]; in a \
    container it
                               is looked for where it is mounted, at /host/opt/cni/bin
      --secondary-bin-dir DIR  the second one, if programs were installed there; in a container /host/secondary-bin-dir
  -h, --help                   this text

Before: drain the node, and delete the DaemonSet, whose agent would install everything again. The first step that \
    fails ends the
run, with exit status 1; the next run goes on with it.
";

/// Runs the command.
pub fn uninstall(arguments: impl IntoIterator<Item = String>, network: &dyn HostNetwork) -> ExitCode {
    run_with("uninstall", HELP, SPEC.parse(arguments), |given| {
        logging::init(&LogConf::default(), "cni-installer", &Subject::default());
        let options = Options {
            yes: given.is_on("yes"),
            tear_down_pods: given.is_on("tear-down-pods"),
            release_addresses: given.is_on("release-addresses"),
            forget_gone: given.is_on("forget-gone"),
        };
        match process::block_on(uninstall::run(&given.layout(), options, network)) {
            Ok(report) => {
                print(&report.to_string());
                if report.succeeded() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
            }
            Err(error) => exit_with(1, &format!("calico uninstall: {error}")),
        }
    })
}
