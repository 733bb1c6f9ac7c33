//! `calico uninstall`: a dry run unless `--yes` is given.

use std::process::ExitCode;

use clap::Parser;
use netconf::conf::LogConf;
use node_process::logging::{self, Subject};
use node_process::process;

use super::arguments::{LayoutArgs, exit_with, print, run_with};
use dataplane::host_network::HostNetwork;
use installer::uninstall::{self, Options};

const HELP: &str = "\
Removes the files that `calico install` installed on this node: the configuration first, so that no pod starts with it,
then programs, kubeconfig and TLS files. Files that were changed or are not ours are kept and listed. Logs are kept.

Usage: calico uninstall [--yes] [--tear-down-pods] [--release-addresses] [--missing-as-removed]
                        [--root DIR] [--bin-dir DIR] [--secondary-bin-dir DIR]

      --yes                    remove the files; without --yes, only print the plan
      --tear-down-pods         delete the interfaces of the remaining pods, and with them their routes: these pods lose
                               their network. In a container this needs the capability NET_ADMIN
      --release-addresses      release the addresses and blocks of this node; refused while a pod is connected with one
                               of these addresses, or reports one to the API server
      --missing-as-removed     treat missing files as removed; without it, nothing is done if all files of a directory
                               are missing, because another directory may be mounted there
      --root DIR               directory to use as / [default: /]; if it contains a directory `host`, the node's
                               directories are mounted below that directory
      --bin-dir DIR            plugin directory of the container runtime, on the node [default: /opt/cni/bin]; in a
                               container its mount point /host/opt/cni/bin is used
      --secondary-bin-dir DIR  second plugin directory, if it has programs; in a container /host/secondary-bin-dir
  -h, --help                   print this text

First drain the node, and delete the DaemonSet, whose agent would install the files again. The first step that fails
ends the run with exit status 1; the next run continues with this step.
";

#[derive(Debug, Parser)]
#[command(name = "uninstall", override_help = HELP, args_override_self = true)]
struct UninstallArgs {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    layout: LayoutArgs,
}

/// Runs `calico uninstall`.
pub fn uninstall(
    arguments: impl IntoIterator<Item = String>,
    network: &dyn HostNetwork,
) -> ExitCode {
    run_with(arguments, |given: UninstallArgs| {
        logging::init(&LogConf::default(), "cni-installer", &Subject::default());
        let layout = given.layout.layout();
        match process::block_on(uninstall::run(&layout, given.options, network)) {
            Ok(report) => {
                print(&report.to_string());
                if report.succeeded() {
                    ExitCode::SUCCESS
                } else {
                    ExitCode::FAILURE
                }
            }
            Err(error) => exit_with(1, &format!("calico uninstall: {error}")),
        }
    })
}
