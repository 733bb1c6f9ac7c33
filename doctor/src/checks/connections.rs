//! Checks of the way of packets: the node's default route, and the interfaces and host routes of
//! pods.

use std::collections::BTreeSet;

use libcalico::net::IpVersion;

use super::leftovers::join_first;
use crate::network_managers::{Claim, ManagingProgram, NetworkManager};
use crate::report::{Checked, Finding, fail, pass, warn};
use crate::snapshot::{Cluster, DatastoreAnswers, NodeSnapshot, PodInterface, Unrouted};
use dataplane::host_network::{LinkChange, LinkItem};

/// Runs the checks. The families of this node's pods, and their interfaces, are those that the
/// datastore names.
pub(super) fn check(snapshot: &NodeSnapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    let default = snapshot
        .cluster
        .as_ref()
        .map(|cluster| check_default(snapshot, cluster));
    findings.extend(default.map(|checked| Finding::new("default route", checked)));
    let answers = snapshot.cluster.as_ref().and_then(Cluster::answers);
    if let Some(Ok(found)) = answers.map(|answers| &answers.interfaces) {
        findings.extend(
            check_missing_routes(found).map(|checked| Finding::new("host routes of pods", checked)),
        );
        findings.extend(
            check_changes(found).map(|checked| Finding::new("settings of interfaces", checked)),
        );
    }
    let claims = snapshot
        .managers
        .iter()
        .filter_map(|manager| Some((manager, manager.claim()?)));
    findings.extend(claims.map(|(manager, claim)| check_manager(manager, &claim)));
    findings
}

/// Returns the families in which pods of this node have or get addresses. Empty if the datastore
/// names none.
fn families(answers: &DatastoreAnswers) -> BTreeSet<IpVersion> {
    let pools = answers
        .pools
        .iter()
        .flatten()
        .filter(|pool| pool.is_of_node());
    let of_pools = pools.map(|pool| {
        if pool.cidr.contains(':') {
            IpVersion::V6
        } else {
            IpVersion::V4
        }
    });
    let endpoints = answers
        .interfaces
        .iter()
        .flatten()
        .filter_map(|interface| interface.endpoint.as_ref());
    of_pools
        .chain(endpoints.flatten().map(|address| IpVersion::of(*address)))
        .collect()
}

/// A cluster may have no way to other networks on purpose, so a missing route is a warning.
fn check_default(snapshot: &NodeSnapshot, cluster: &Cluster) -> Checked {
    let found = snapshot.default_routes.as_ref().map_err(Clone::clone)?;
    let needed = cluster.answers().map(families).unwrap_or_default();
    let missing: BTreeSet<IpVersion> = needed.difference(&found.any).copied().collect();
    let remedy = "restore the route in the configuration of the node's network \
                  (docs/troubleshooting/pods.md, The way of packets); nothing is wrong if \
                  pods need no other networks";
    if !missing.is_empty() {
        let observation = format!(
            "the node has no default route for {}: its pods reach only networks to which the node \
             has a route",
            names(&missing)
        );
        return warn(observation, remedy);
    }
    if found.any.is_empty() {
        return warn(
            "the node has no default route: it reaches only networks to which it has a route",
            remedy,
        );
    }
    let elsewhere: BTreeSet<IpVersion> = found.any.difference(&found.main).copied().collect();
    let place = if elsewhere.is_empty() {
        String::new()
    } else {
        format!(
            "; for {} in another table than main, so `ip rule` decides which pods use it",
            names(&elsewhere)
        )
    };
    pass(format!("for {}{place}", names(&found.any)))
}

fn names(families: &BTreeSet<IpVersion>) -> String {
    families
        .iter()
        .map(|family| format!("IPv{family}"))
        .collect::<Vec<_>>()
        .join(" and ")
}

fn check_missing_routes(found: &[PodInterface]) -> Option<Checked> {
    let unrouted: Vec<(&PodInterface, &Unrouted)> = found
        .iter()
        .flat_map(|interface| {
            interface
                .unrouted
                .iter()
                .map(move |missing| (interface, missing))
        })
        .collect();
    let (interface, first) = unrouted.first()?;
    let describe = |(
        interface,
        Unrouted {
            address,
            other_route,
        },
    ): &(&PodInterface, &Unrouted)| {
        let name = &interface.name;
        match other_route.as_deref() {
            None => format!("{address} through {name}"),
            Some([]) => format!("{address} through {name} (a route drops its packets)"),
            Some(others) => format!(
                "{address} through {name} (a route leads through {})",
                others.join(", ")
            ),
        }
    };
    let (count, listed) = (
        unrouted.len(),
        join_first(&unrouted.iter().map(describe).collect::<Vec<_>>()),
    );
    let (name, address) = (&interface.name, first.address);
    let remedy = match first.other_route {
        None => format!("ip route add {address} dev {name} scope link; or delete the pod"),
        Some(_) => format!(
            "find the program that made the other route (`ip route show {address}`) and delete the \
             route there; then ip route add {address} dev {name} scope link; or delete the pod"
        ),
    };
    Some(fail(
        format!(
            "{count} addresses of pods have no host route, so their pods get no packets: {listed}"
        ),
        format!(
            "{remedy}; the page docs/troubleshooting/pods.md, The way of packets, names \
             programs that remove routes"
        ),
    ))
}

fn check_changes(found: &[PodInterface]) -> Option<Checked> {
    let changes: Vec<(&str, &LinkChange)> = found
        .iter()
        .flat_map(|interface| {
            interface
                .changes
                .iter()
                .map(|change| (&*interface.name, change))
        })
        .collect();
    // The first one that cuts the connection of a pod, if there is one.
    let cuts = |change: &LinkChange| change.item != LinkItem::Mac;
    let (name, first) = changes
        .iter()
        .find(|(_, change)| cuts(change))
        .or(changes.first())?;
    let described: Vec<String> = changes
        .iter()
        .map(|(name, change)| describe_change(name, change))
        .collect();
    let observation = format!(
        "{} items of pods' interfaces are not as the ADD set them: {}",
        changes.len(),
        join_first(&described)
    );
    let command = match &first.item {
        LinkItem::State => format!("ip link set {name} up, and add the host routes again"),
        LinkItem::Mac => format!("ip link set {name} address {}", first.expected),
        LinkItem::Setting(setting) => format!("sysctl -w {setting}={}", first.expected),
    };
    let remedy = format!(
        "{command}; if it changes again, find the program: docs/troubleshooting/pods.md, The \
         way of packets"
    );
    Some(if cuts(first) {
        fail(observation, remedy)
    } else {
        warn(observation, remedy)
    })
}

fn describe_change(
    name: &str,
    LinkChange {
        item,
        expected,
        found,
    }: &LinkChange,
) -> String {
    match item {
        LinkItem::State => format!("{name} is {found}"),
        LinkItem::Mac => format!("the MAC address of {name} is {found} instead of {expected}"),
        LinkItem::Setting(setting) => format!("{setting} is {found} instead of {expected}"),
    }
}

fn check_manager(manager: &NetworkManager, claim: &Claim) -> Finding {
    let prefix = &manager.prefix;
    let (name, checked) = match (manager.program, claim) {
        (ManagingProgram::NetworkManager, _) => (
            "NetworkManager",
            warn(
                format!(
                    "NetworkManager runs without an exception for {prefix}*: it may remove routes \
                     of pods"
                ),
                format!(
                    "write `[keyfile]` and `unmanaged-devices+=interface-name:{prefix}*` into \
                     /etc/NetworkManager/conf.d/zz-calico.conf, and run: nmcli general reload"
                ),
            ),
        ),
        (ManagingProgram::Networkd, claim) => {
            let file = match claim {
                Claim::File(file) => file.display().to_string(),
                Claim::NoException => "its configuration".to_owned(),
            };
            (
                "systemd-networkd",
                warn(
                    format!(
                        "{file} applies to {prefix}*: systemd-networkd may remove routes of pods"
                    ),
                    format!(
                        "write `[Match]`, `Name={prefix}*`, `[Link]` and `Unmanaged=yes` into \
                         /etc/systemd/network/00-calico.network, and run: networkctl reload"
                    ),
                ),
            )
        }
    };
    Finding::new(name, checked)
}
