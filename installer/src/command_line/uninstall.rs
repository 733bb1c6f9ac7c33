//! `calico uninstall`: a dry run unless `--yes` is said.

use std::process::ExitCode;

use ipam_plugin::logging::{self, LogConfig};
use ipam_plugin::process;

use super::arguments::{Known, complain, print, with};
use crate::host_network::HostNetwork;
use crate::uninstall::{self, Options};

const KNOWN: Known = Known { options: &["root"], switches: &["yes", "tear-down-pods", "release-addresses"] };

const HELP: &str = "\
Takes back what `calico install` installed on this node: the configuration first, so that no pod starts with it any more,
then programs, kubeconfig and TLS files. What was changed since, or is not ours, stays and is named. Logs always stay.

Usage: calico uninstall [--yes] [--tear-down-pods] [--release-addresses] [--root DIR]

      --yes                act; without it, only say what would be done
      --tear-down-pods     delete the interfaces of pods that are still there, and with them their routes
      --release-addresses  give back the addresses and blocks of this node
      --root DIR           what to take for /; with a directory `host` in it, the node's directories are mounted below that
  -h, --help               this text

Before: drain the node, and delete the DaemonSet, whose agent would install everything again.
";

/// Runs it with these arguments.
pub fn uninstall(arguments: impl IntoIterator<Item = String>, network: &dyn HostNetwork) -> ExitCode {
    with(
        "uninstall",
        || HELP.into(),
        KNOWN.parse(arguments),
        |said| {
            logging::init(LogConfig::new("cni-installer"));
            let options = Options {
                yes: said.is_on("yes"),
                tear_down_pods: said.is_on("tear-down-pods"),
                release_addresses: said.is_on("release-addresses"),
            };
            match process::block_on(uninstall::run(&said.layout(), options, network)) {
                Ok(report) => {
                    print(&report.to_string());
                    if report.succeeded() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
                }
                Err(error) => {
                    complain(&format!("calico uninstall: {error}"));
                    ExitCode::FAILURE
                }
            }
        },
    )
}
