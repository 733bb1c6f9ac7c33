//! Deletes or reports interfaces of pods that still exist. Their routes go with them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::plan::Options;
use super::report::UninstallReport;
use crate::host_network::{HostNetwork, Interface, NetworkError, addresses_behind, pod_interface_prefix};

/// The addresses behind interfaces that were deleted on this node, which no pod uses any more. The configuration may
/// name another node by mistake, whose pods still run. An address that was not behind an interface of this kernel
/// therefore counts as used.
#[derive(Debug, Clone, Copy)]
pub(super) struct TornDown<'a> {
    /// The node that the configuration names.
    pub(super) node: &'a str,
    pub(super) addresses: &'a BTreeSet<IpAddr>,
}

impl TornDown<'_> {
    /// Returns true if a pod on `node` had this address behind a deleted interface.
    pub(super) fn has(&self, node: &str, address: &IpAddr) -> bool {
        self.node == node && self.addresses.contains(address)
    }
}

/// Deletes Calico's interfaces of pods, or reports the plan. Without `--tear-down-pods` they are reported only: their
/// pods stay connected, but no plugin removes the interfaces any more. Returns true if the requested deletion is
/// complete.
pub(super) fn tear_down(options: Options, network: &dyn HostNetwork, report: &mut UninstallReport) -> bool {
    let interfaces = match network.interfaces() {
        Ok(interfaces) => interfaces,
        Err(reason) => {
            report.add_failure("remove", "the interfaces of pods", reason);
            return !options.tear_down_pods;
        }
    };
    let mut all_done = true;
    let mut names: Vec<String> = interfaces.into_iter().map(|interface| interface.name).collect();
    names.retain(|name| is_calicos(name));
    names.sort();
    for name in names {
        let what = format!("interface {name}");
        if !options.tear_down_pods {
            report.add_remaining(what, "its pod is still connected; --tear-down-pods deletes it");
        } else if !options.yes {
            report.add_success("remove", what);
        } else {
            match network.remove_pod_interface(&name) {
                Ok(true) => report.add_success("remove", what),
                Ok(false) => report.add_remaining(what, "it is no interface of a pod of Calico's"),
                Err(reason) => {
                    report.add_failure("remove", what, reason);
                    all_done = false;
                }
            }
        }
    }
    all_done
}

/// Returns the addresses behind the interfaces that [`tear_down`] deletes. The result is empty if the kernel cannot be
/// queried.
pub(super) fn behind_torn_down(network: &dyn HostNetwork) -> BTreeSet<IpAddr> {
    let (Ok(routes), Ok(interfaces)) = (network.routes(), network.interfaces()) else { return BTreeSet::new() };
    let pods = interfaces.into_iter().filter(|interface| interface.is_pods && is_calicos(&interface.name));
    pods.flat_map(|interface| addresses_behind(&interface.name, &routes)).collect()
}

/// Returns the interfaces through which pods use addresses, with these addresses. An interface counts if its kind and
/// MAC address are Calico's, or if its name is and a route to a single address leads through it. With `torn_down`,
/// those that [`tear_down`] deletes are left out.
///
/// # Errors
/// Returns an error if the kernel cannot be queried.
pub(super) fn connected_pods(network: &dyn HostNetwork, torn_down: bool) -> Result<Vec<String>, NetworkError> {
    let routes = network.routes()?;
    let mut used = Vec::new();
    for Interface { name, is_pods, .. } in network.interfaces()? {
        let addresses: Vec<String> = addresses_behind(&name, &routes).iter().map(ToString::to_string).collect();
        let is_used = is_pods || (is_calicos(&name) && !addresses.is_empty());
        if !is_used || (torn_down && is_pods && is_calicos(&name)) {
            continue;
        }
        used.push(if addresses.is_empty() { name } else { format!("{name} ({})", addresses.join(", ")) });
    }
    used.sort();
    Ok(used)
}

fn is_calicos(name: &str) -> bool {
    name.starts_with(&pod_interface_prefix())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_network::testing::{FixedNetwork, interface, route};

    #[test]
    fn an_address_is_used_through_a_pods_interface_or_a_route_through_one_that_is_named_so() {
        let pods = |name: &str| Interface { is_pods: true, ..interface(name, 1500) };
        let network = FixedNetwork {
            interfaces: vec![
                pods("cali1"),
                interface("cali2", 1500),
                interface("cali-theirs", 1500),
                pods("eni3"),
                interface("eth0", 1500),
            ],
            routes: vec![
                route("10.65.0.1/32", &["cali1"]),
                route("fd65::1/128", &["cali1"]),
                route("10.65.0.2/32", &["cali2"]),
                route("fe80::/64", &["cali-theirs"]),
                route("10.65.0.9/32", &["eth0"]),
            ],
        };
        assert_eq!(
            connected_pods(&network, false).unwrap(),
            ["cali1 (10.65.0.1, fd65::1)", "cali2 (10.65.0.2)", "eni3"]
        );
        assert_eq!(connected_pods(&network, true).unwrap(), ["cali2 (10.65.0.2)", "eni3"]);
        assert_eq!(behind_torn_down(&network), ["10.65.0.1", "fd65::1"].map(|ip| ip.parse().unwrap()).into());
    }
}
