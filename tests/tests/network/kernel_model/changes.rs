//! The changes by other programs, on the kernel and on the model.

use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use dataplane::MacAddr;
use dataplane::model::{Errno, ForeignPair, KernelModel};
use integration_tests::command::ip;
use integration_tests::namespaces::{Host, NETNS_DIR};
use libcalico::net::Cidr;

use super::operation::{Change, NewPair};

/// The other programs of a node.
pub(super) trait OtherPrograms {
    /// Makes a change. Returns false if the kernel refuses a part of it.
    fn change(&mut self, change: &Change) -> bool;
}

/// The other programs of a private host, which use `ip`.
pub(super) struct ChangesKernel<'a> {
    host: &'a Host,
    processes: Vec<(&'static str, Child)>,
}

/// The other programs of a modeled node.
pub(super) struct ChangesModel<'a> {
    model: &'a KernelModel,
    processes: Vec<(&'static str, u32)>,
}

impl<'a> ChangesKernel<'a> {
    pub(super) fn new(host: &'a Host) -> Self {
        ChangesKernel {
            host,
            processes: Vec::new(),
        }
    }

    fn stop_processes(&mut self, is_meant: impl Fn(&str) -> bool) {
        let stopped = self.processes.extract_if(.., |(pod, _)| is_meant(pod));
        for (_, mut process) in stopped {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

impl Drop for ChangesKernel<'_> {
    fn drop(&mut self) {
        self.stop_processes(|_| true);
    }
}

impl OtherPrograms for ChangesKernel<'_> {
    fn change(&mut self, change: &Change) -> bool {
        match change {
            Change::CreatePod(pod) => !path(pod).exists() && self.host.add_pod(pod).is_ok(),
            Change::RemovePod(pod) => path(pod).exists() && self.host.delete_pod(pod).is_ok(),
            Change::StartProcess(pod) => {
                let sleeping = || {
                    let mut command = Command::new("sleep");
                    Ok(command.arg("600").stdin(Stdio::null()).spawn()?)
                };
                let Ok(child) = self.host.in_pod(pod, sleeping) else {
                    return false;
                };
                self.processes.push((pod, child));
                true
            }
            Change::StopProcesses(pod) => {
                self.stop_processes(|of| of == *pod);
                true
            }
            Change::RenameInPod { pod, from, to } => in_pod(
                pod,
                &format!("link set {from} down\nlink set {from} name {to}\nlink set {to} up"),
            ),
            Change::SetUpInPod { pod, ifname, is_up } => {
                in_pod(pod, &format!("link set {ifname} {}", state(*is_up)))
            }
            Change::DeleteInPod { pod, ifname } => in_pod(pod, &format!("link delete {ifname}")),
            Change::AddPair(pair) => add_pair(pair),
            Change::AddBridge { pod, name } => {
                let commands = format!("link add {name} type bridge\nlink set {name} up");
                match pod {
                    Some(pod) => in_pod(pod, &commands),
                    None => batch(&[], &commands),
                }
            }
            Change::SetAlias { ifname, alias } => {
                let alias = alias
                    .as_ref()
                    .map_or("none".to_owned(), ToString::to_string);
                ip(&format!("link set dev {ifname} alias {alias}")).is_ok()
            }
            Change::SetHostLinkUp { ifname, is_up } => {
                ip(&format!("link set {ifname} {}", state(*is_up))).is_ok()
            }
            Change::DeleteHostLink(ifname) => ip(&format!("link delete {ifname}")).is_ok(),
            Change::AddRoute { address, ifname } => {
                batch(&[], &format!("route add {address} dev {ifname}"))
            }
            Change::DeleteRoute { address, ifname } => {
                batch(&[], &format!("route delete {address} dev {ifname}"))
            }
        }
    }
}

fn add_pair(pair: &NewPair) -> bool {
    let NewPair {
        host_ifname,
        container_ifname,
        ..
    } = pair;
    let mac = match pair.has_mac_of_calico {
        true => format!("address {}", MacAddr::HOST_SIDE),
        false => String::new(),
    };
    let netns = pair.pod.map(|pod| format!("netns {pod}"));
    let netns = netns.unwrap_or_default();
    let created =
        format!("link add {host_ifname} {mac} type veth peer name {container_ifname} {netns}");
    if ip(&created).is_err() {
        return false;
    }
    let mut inside = format!("link set {container_ifname} up\n");
    for address in &pair.addresses {
        let (length, option) = match address {
            IpAddr::V4(_) => (32, ""),
            IpAddr::V6(_) => (128, "nodad"),
        };
        inside += &format!("address add {address}/{length} dev {container_ifname} {option}\n");
    }
    let mut outside = format!("link set {host_ifname} up\n");
    if let Some(alias) = &pair.alias {
        outside += &format!("link set dev {host_ifname} alias {alias}\n");
    }
    for address in pair.addresses.iter().filter(|_| pair.has_routes) {
        outside += &format!("route add {address} dev {host_ifname}\n");
    }
    let is_inside = match pair.pod {
        Some(pod) => in_pod(pod, &inside),
        None => batch(&[], &inside),
    };
    batch(&[], &outside) && is_inside
}

fn in_pod(pod: &str, commands: &str) -> bool {
    batch(&["-n", pod], commands)
}

/// Runs commands of `ip`, which end with the first that fails.
fn batch(options: &[&str], commands: &str) -> bool {
    let mut program = Command::new("ip");
    program.args(options).args(["-batch", "-"]);
    let program = program.stdin(Stdio::piped()).stderr(Stdio::null());
    let mut running = program.stdout(Stdio::null()).spawn().unwrap();
    let mut input = running.stdin.take().unwrap();
    // A program that cannot enter the namespace reads nothing.
    let _ = input.write_all(commands.as_bytes());
    drop(input);
    running.wait().unwrap().success()
}

fn state(is_up: bool) -> &'static str {
    if is_up { "up" } else { "down" }
}

impl<'a> ChangesModel<'a> {
    pub(super) fn new(model: &'a KernelModel) -> Self {
        ChangesModel {
            model,
            processes: Vec::new(),
        }
    }

    fn try_change(&mut self, change: &Change) -> Result<(), Errno> {
        let model = self.model;
        match change {
            Change::CreatePod(pod) => done(model.create_netns(&path(pod))),
            Change::RemovePod(pod) => done(model.remove_netns(&path(pod))),
            Change::StartProcess(pod) => {
                let process = model.start_process(&path(pod)).ok_or(Errno::ENOENT)?;
                self.processes.push((pod, process));
                Ok(())
            }
            Change::StopProcesses(pod) => {
                for (_, process) in self.processes.extract_if(.., |(of, _)| of == pod) {
                    done(model.stop_process(process))?;
                }
                Ok(())
            }
            Change::RenameInPod { pod, from, to } => {
                let pod = path(pod);
                model.set_up_in_pod(&pod, from, false)?;
                model.rename_in_pod(&pod, from, to)?;
                model.set_up_in_pod(&pod, to, true)
            }
            Change::SetUpInPod { pod, ifname, is_up } => {
                model.set_up_in_pod(&path(pod), ifname, *is_up)
            }
            Change::DeleteInPod { pod, ifname } => model.delete_in_pod(&path(pod), ifname),
            Change::AddPair(pair) => {
                let netns = pair.pod.map(path);
                let pair = ForeignPair {
                    host_ifname: pair.host_ifname,
                    host_mac: pair.has_mac_of_calico.then_some(MacAddr::HOST_SIDE),
                    alias: pair.alias.as_ref(),
                    netns: netns.as_deref(),
                    container_ifname: pair.container_ifname,
                    addresses: &pair.addresses,
                    has_routes: pair.has_routes,
                };
                model.add_pair(&pair).map(drop)
            }
            Change::AddBridge { pod, name } => model.add_bridge(pod.map(path).as_deref(), name),
            Change::SetAlias { ifname, alias } => model.set_alias(ifname, alias.clone()),
            Change::SetHostLinkUp { ifname, is_up } => model.set_host_link_up(ifname, *is_up),
            Change::DeleteHostLink(ifname) => model.delete_host_link(ifname),
            Change::AddRoute { address, ifname } => {
                model.add_host_route(Cidr::host(*address), ifname)
            }
            Change::DeleteRoute { address, ifname } => {
                model.delete_host_route(Cidr::host(*address), ifname)
            }
        }
    }
}

impl OtherPrograms for ChangesModel<'_> {
    fn change(&mut self, change: &Change) -> bool {
        self.try_change(change).is_ok()
    }
}

fn done(is_done: bool) -> Result<(), Errno> {
    is_done.then_some(()).ok_or(Errno::ENOENT)
}

fn path(pod: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(pod)
}
