//! `calico doctor`. The exit status is 1 if a check or a repair fails, 2 for invalid arguments, and
//! otherwise 0.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::builder::NonEmptyStringValueParser;
use libcalico::dead_interface::LOOK_INTERVAL;
use node_process::process;

use super::arguments::{LayoutArgs, exit_with, print, run_with};
use dataplane::host_network::HostNetwork;
use doctor::{self, DoctorReport, Format};
use installation::layout::NET_DIR;
use installation::state::State;

const HELP: &str = "\
Finds problems of Calico's CNI plugins on this node and names a remedy for each. Changes nothing without --repair.

Usage: calico doctor [-o json] [--repair [--runtime-socket PATH]] [--root DIR] [--net-dir DIR] [--bin-dir DIR]
                     [--secondary-bin-dir DIR]

  -o, --output FORMAT          text or json [default: text]
      --repair                 remove interfaces of ended containers first. Such an interface has an alias of this
                               plugin, but no process in its container's network namespace, no running CNI call, no
                               sandbox in the container runtime and no endpoint in the datastore, now and 60 s later.
                               On Kubernetes, one whose pod IPAM does not name stays. Needs root on the node
      --runtime-socket PATH    socket of the container runtime (CRI) for --repair [default: each usual socket that
                               exists]
      --root DIR               directory to use as / [default: /]; if it contains a directory `host`, the node's
                               directories are mounted below that directory
      --net-dir DIR            configuration directory of the container runtime, on the node [default: CNI_NET_DIR,
                               else the directory of the installation, else /etc/cni/net.d]
      --bin-dir DIR            plugin directory of the container runtime, on the node [default: /opt/cni/bin]; in a
                               container its mount point /host/opt/cni/bin is used
      --secondary-bin-dir DIR  second plugin directory, if it has programs; in a container /host/secondary-bin-dir
  -h, --help                   print this text

The exit status is 1 if a check or the removal of an interface fails, or if --repair cannot examine the interfaces. A
warning is not a failure.

Examples:
  calico doctor
  calico doctor --repair
  kubectl -n kube-system exec ds/calico-cni -- calico doctor -o json
  calico doctor --bin-dir /home/kubernetes/bin
";

#[derive(Debug, Parser)]
#[command(name = "doctor", override_help = HELP, args_override_self = true)]
struct DoctorArgs {
    #[arg(short, long, alias = "o", value_parser = format, default_value = "text")]
    output: Format,
    #[arg(long)]
    repair: bool,
    #[arg(long)]
    runtime_socket: Option<PathBuf>,
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    net_dir: Option<String>,
    #[command(flatten)]
    layout: LayoutArgs,
}

fn format(text: &str) -> Result<Format, &'static str> {
    match text {
        "text" | "table" => Ok(Format::Text),
        "json" => Ok(Format::Json),
        _ => Err("use text or json"),
    }
}

/// Runs `calico doctor`.
pub fn doctor(arguments: impl IntoIterator<Item = String>, network: &dyn HostNetwork) -> ExitCode {
    run_with(arguments, |given: DoctorArgs| {
        let runtime_socket = given.runtime_socket.as_deref();
        if runtime_socket.is_some() && !given.repair {
            return exit_with(2, "calico doctor: --runtime-socket is for --repair");
        }
        let layout = given.layout.layout();
        let (pod_net_dir, recorded_net_dir) = (
            process::variables().get("CNI_NET_DIR"),
            State::load(&layout).unwrap_or_default().net_dir,
        );
        let net_dir = net_dir(
            given.net_dir.as_deref(),
            pod_net_dir.as_deref(),
            &recorded_net_dir,
        );
        let repairs = if given.repair {
            match process::block_on(doctor::repair(
                &layout,
                net_dir,
                network,
                runtime_socket,
                announce,
            )) {
                Ok(repairs) => Some(repairs),
                Err(error) => {
                    return exit_with(
                        1,
                        &format!("calico doctor: cannot look at the interfaces: {error}"),
                    );
                }
            }
        } else {
            None
        };
        let report = process::block_on(doctor::examine(&layout, net_dir, network));
        let report = DoctorReport { repairs, ..report };
        print(&report.render(given.output));
        if report.passes() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    })
}

/// Prints on stderr that the command waits.
fn announce(count: usize) {
    let seconds = LOOK_INTERVAL.as_secs();
    let _ = writeln!(
        io::stderr(),
        "waiting {seconds} s before the second look at {count} interfaces"
    );
}

/// Returns the configuration directory on the node. An empty value counts as missing.
fn net_dir<'a>(
    given: Option<&'a str>,
    pod_net_dir: Option<&'a str>,
    recorded_net_dir: &'a str,
) -> &'a str {
    let mut candidates = [given, pod_net_dir, Some(recorded_net_dir)]
        .into_iter()
        .flatten();
    candidates.find(|dir| !dir.is_empty()).unwrap_or(NET_DIR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn net_dir_precedence_is_flag_then_pod_then_record_then_default() {
        for (given, pod_net_dir, recorded_net_dir, expected) in [
            (Some("/given"), Some("/pod"), "/noted", "/given"),
            (None, Some("/pod"), "/noted", "/pod"),
            (None, Some(""), "/noted", "/noted"),
            (None, None, "", NET_DIR),
        ] {
            assert_eq!(net_dir(given, pod_net_dir, recorded_net_dir), expected);
        }
    }
}
