//! CHECK: compares the kernel with the plan of an endpoint, and describes each difference.
//!
//! A later plugin of the configuration list may own the MTU, the MAC address, the routes and the
//! settings of the pod's end, and may add addresses: `tuning` changes the first two and the
//! settings, and `sbr` deletes the routes. So these are no difference.

use std::fmt::{self, Display};
use std::net::IpAddr;

use libcalico::net::IpVersion;

use super::netlink::{
    KernelAddress, KernelRoute, Link, NetlinkSocket, PermanentNeighbour, address, link, route,
};
use super::plan::{Gateway, HOST_LINK_LOCAL, InterfaceEnd, Route, host_sysctls};
use super::{DataplaneError, EndpointPlan, MacAddr, NetnsFd, SysctlError, sysctl};

/// A difference between the kernel and the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The item that was compared.
    pub item: CheckedItem,
    /// The value in the plan.
    pub expected: String,
    /// The value in the kernel; `none` if the item is missing; for a setting also the error of the
    /// read.
    pub found: String,
}

/// The item that a [`Difference`] is about, with the name of the interface, address, route, setting
/// or neighbor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckedItem {
    /// An interface.
    Link(String),
    /// The interface at the other end of a pair.
    Peer(String),
    /// The state of an interface: up or down.
    State(String),
    /// The MAC address of an interface.
    Mac(String),
    /// The MTU of an interface.
    Mtu(String),
    /// An address of an interface.
    Address(String),
    /// A route.
    Route(String),
    /// A kernel setting.
    Sysctl(String),
    /// A static neighbor entry.
    Neighbour(String),
}

/// Compares the kernel with the plan and returns the differences. Of the pod's end, compares the
/// existence, the state and the planned addresses only.
pub fn verify(plan: &EndpointPlan, netns: &NetnsFd) -> Result<Vec<Difference>, DataplaneError> {
    plan.validate().map_err(DataplaneError::Plan)?;
    let (host_end, container_end) = (plan.host_end(), plan.container_end());
    let container_end = InterfaceEnd {
        sysctls: Vec::new(),
        ..container_end
    };
    let mut socket = NetlinkSocket::open()?;
    let host = read_state(&mut socket, &host_end)?;
    let container = netns.run_in(|| read_state(&mut NetlinkSocket::open()?, &container_end))?;
    let netns_id = link::netns_id_of(&mut socket, netns)?;
    Ok(compare(
        (host_end, host),
        (container_end, container),
        netns_id,
    ))
}

/// Compares both ends with their state; `None` is the state of a missing end. `netns_id` is the ID
/// of the pod's namespace.
pub(super) fn compare(
    (host_end, host): (InterfaceEnd, Option<KernelState>),
    (container_end, container): (InterfaceEnd, Option<KernelState>),
    netns_id: Option<i32>,
) -> Vec<Difference> {
    let link_locals = host
        .as_ref()
        .map(KernelState::link_locals)
        .filter(|addresses| !addresses.is_empty());
    let link_locals = link_locals.unwrap_or_else(|| vec![IpAddr::V6(HOST_LINK_LOCAL)]);
    let mut differences = Vec::new();
    for (end, state) in [(&host_end, &host), (&container_end, &container)] {
        match state {
            Some(state) => {
                compare_state(end, state, &mut differences);
                compare_addresses(end, state, &mut differences);
            }
            None => differences.push(difference(
                CheckedItem::Link(end.ifname.clone()),
                "present",
                "none",
            )),
        }
    }
    if let Some(host) = &host {
        compare_mac(&host_end, host, &mut differences);
        compare_routes(&host_end, host, &mut differences);
        compare_sysctls(&host_end, host, &mut differences);
    }
    let (Some(host), Some(container)) = (host, container) else {
        return differences;
    };
    // The host's end drops packets of the pod that are larger than its MTU.
    if host.link.mtu != host_end.mtu && host.link.mtu < container.link.mtu {
        differences.push(difference(
            CheckedItem::Mtu(host_end.ifname.clone()),
            host_end.mtu,
            host.link.mtu,
        ));
    }
    if !host.link.is_peer_of(&container.link, netns_id) {
        let found = host.link.peer_index.map_or_else(none, |index| {
            format!("interface number {index} of another pair")
        });
        let expected = format!("{} in the pod", container_end.ifname);
        differences.push(difference(
            CheckedItem::Peer(host_end.ifname),
            expected,
            found,
        ));
    }
    // A static neighbor entry with another MAC address than that of the other end misdirects
    // packets.
    compare_neighbours(
        &container,
        &gateways(&container_end, &link_locals),
        host.link.mac,
        &mut differences,
    );
    let pod_addresses: Vec<IpAddr> = container_end
        .addresses
        .iter()
        .map(|host| host.network())
        .collect();
    compare_neighbours(&host, &pod_addresses, container.link.mac, &mut differences);
    differences
}

/// Compares the state, the MAC address and the required settings of a host end with those that an
/// ADD sets for `addresses`. Returns no differences for an interface that is missing.
pub(super) fn changes_of_host_end(
    ifname: &str,
    addresses: &[IpAddr],
) -> Result<Vec<Difference>, DataplaneError> {
    let mut socket = NetlinkSocket::open()?;
    let Some(link) = link::find(&mut socket, ifname)? else {
        return Ok(Vec::new());
    };
    let has_family = |family| {
        addresses
            .iter()
            .any(|address| IpVersion::of(address.to_canonical()) == family)
    };
    let settings = host_sysctls(ifname, has_family)
        .into_iter()
        .filter(|setting| setting.is_required);
    let end = InterfaceEnd {
        ifname: ifname.to_owned(),
        mac: Some(MacAddr::HOST_SIDE),
        mtu: link.mtu,
        addresses: Vec::new(),
        sysctls: settings.collect(),
        routes: Vec::new(),
    };
    let sysctls = end
        .sysctls
        .iter()
        .map(|setting| sysctl::read(&setting.key))
        .collect();
    let (addresses, routes, neighbours) = (Vec::new(), Vec::new(), Vec::new());
    let state = KernelState {
        link,
        addresses,
        routes,
        sysctls,
        neighbours,
    };
    let mut differences = Vec::new();
    // The pod itself can set its end down, and the host's end has no carrier then.
    if !state.link.is_up {
        compare_state(&end, &state, &mut differences);
    }
    compare_mac(&end, &state, &mut differences);
    compare_sysctls(&end, &state, &mut differences);
    // The interface of a pod that ends disappears at any time.
    let is_gone =
        link::find(&mut socket, ifname)?.is_none_or(|found| found.index != state.link.index);
    Ok(if is_gone { Vec::new() } else { differences })
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: expected {}, found {}",
            self.item, self.expected, self.found
        )
    }
}

impl fmt::Display for CheckedItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (noun, name) = match self {
            CheckedItem::Link(name) => ("interface", name),
            CheckedItem::Peer(name) => ("peer of interface", name),
            CheckedItem::State(name) => ("state of interface", name),
            CheckedItem::Mac(name) => ("MAC address of interface", name),
            CheckedItem::Mtu(name) => ("MTU of interface", name),
            CheckedItem::Address(name) => ("address", name),
            CheckedItem::Route(name) => ("route", name),
            CheckedItem::Sysctl(name) => ("sysctl", name),
            CheckedItem::Neighbour(name) => ("neighbour", name),
        };
        write!(f, "{noun} {name}")
    }
}

pub(super) struct KernelState {
    pub(super) link: Link,
    pub(super) addresses: Vec<KernelAddress>,
    /// The routes of the main table through the interface.
    pub(super) routes: Vec<KernelRoute>,
    /// The values of the planned settings, in the order of the plan.
    pub(super) sysctls: Vec<Result<String, SysctlError>>,
    pub(super) neighbours: Vec<PermanentNeighbour>,
}

/// Reads the state of `end` in the namespace of the calling thread.
fn read_state(
    socket: &mut NetlinkSocket,
    end: &InterfaceEnd,
) -> Result<Option<KernelState>, DataplaneError> {
    let Some(link) = link::find(socket, &end.ifname)? else {
        return Ok(None);
    };
    Ok(Some(KernelState {
        routes: route::list_both(socket, Some(link.index))?,
        addresses: address::list(socket, &link)?,
        neighbours: address::list_permanent(socket, &link)?,
        sysctls: end
            .sysctls
            .iter()
            .map(|setting| sysctl::read(&setting.key))
            .collect(),
        link,
    }))
}

impl KernelState {
    fn link_locals(&self) -> Vec<IpAddr> {
        let addresses = self.addresses.iter().map(|address| address.ip);
        addresses
            .filter(|ip| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()))
            .collect()
    }
}

fn compare_state(end: &InterfaceEnd, state: &KernelState, differences: &mut Vec<Difference>) {
    let item = || CheckedItem::State(end.ifname.clone());
    if !state.link.is_up {
        differences.push(difference(item(), "up", "down"));
    } else if !state.link.has_carrier {
        differences.push(difference(
            item(),
            "up",
            "up without carrier: its peer is down",
        ));
    }
}

fn compare_mac(end: &InterfaceEnd, state: &KernelState, differences: &mut Vec<Difference>) {
    if let Some(mac) = end.mac
        && state.link.mac != Some(mac)
    {
        let found = state.link.mac.map_or_else(none, |mac| mac.to_string());
        differences.push(difference(CheckedItem::Mac(end.ifname.clone()), mac, found));
    }
}

fn compare_addresses(end: &InterfaceEnd, state: &KernelState, differences: &mut Vec<Difference>) {
    for host in &end.addresses {
        let same_ip: Vec<_> = state
            .addresses
            .iter()
            .filter(|address| address.ip == host.network())
            .collect();
        if !same_ip
            .iter()
            .any(|address| address.prefix == host.prefix())
        {
            let found = same_ip
                .first()
                .map_or_else(none, |address| format!("{}/{}", address.ip, address.prefix));
            let item =
                CheckedItem::Address(format!("{} of interface {}", host.network(), end.ifname));
            differences.push(difference(item, host, found));
        }
    }
}

/// Compares the routes of the host's end, none of which has a gateway.
fn compare_routes(end: &InterfaceEnd, state: &KernelState, differences: &mut Vec<Difference>) {
    for route in &end.routes {
        let similar: Vec<_> = state
            .routes
            .iter()
            .filter(|present| present.destination == route.destination)
            .collect();
        if !similar.iter().any(|present| present.is_on_link()) {
            let item = CheckedItem::Route(format!(
                "{} through interface {}",
                route.destination, end.ifname
            ));
            let found = similar
                .first()
                .map_or_else(none, |present| describe(present));
            differences.push(difference(item, route, found));
        }
    }
}

fn describe(route: &KernelRoute) -> String {
    let via = route
        .gateway
        .map(|gateway| format!(" via {gateway}"))
        .unwrap_or_default();
    format!(
        "{}{via} scope {:?} type {:?}",
        route.destination, route.scope, route.kind
    )
    .to_lowercase()
}

/// Compares the kernel settings. A setting that ADD may leave unwritten is skipped if it cannot be
/// read.
fn compare_sysctls(end: &InterfaceEnd, state: &KernelState, differences: &mut Vec<Difference>) {
    for (setting, value) in end.sysctls.iter().zip(&state.sysctls) {
        let expected = setting.value.to_string();
        let value = match value {
            Ok(value) if *value == expected => continue,
            Err(_) if !setting.is_required => continue,
            Ok(value) => value.clone(),
            Err(error) => error.to_string(),
        };
        differences.push(difference(
            CheckedItem::Sysctl(setting.key.to_string()),
            expected,
            value,
        ));
    }
}

fn gateways(container: &InterfaceEnd, link_locals: &[IpAddr]) -> Vec<IpAddr> {
    let of_route = |route: &Route| match route.gateway {
        Some(Gateway::Address(gateway)) => vec![IpAddr::V4(gateway)],
        Some(Gateway::HostLinkLocal) => link_locals.to_vec(),
        None => Vec::new(),
    };
    container.routes.iter().flat_map(of_route).collect()
}

fn compare_neighbours(
    state: &KernelState,
    peers: &[IpAddr],
    mac: Option<MacAddr>,
    differences: &mut Vec<Difference>,
) {
    for entry in &state.neighbours {
        if peers.contains(&entry.ip) && entry.mac != mac {
            let item =
                CheckedItem::Neighbour(format!("{} on interface {}", entry.ip, state.link.name));
            let expected = format!(
                "{} or no static entry",
                mac.map_or_else(none, |mac| mac.to_string())
            );
            let found = entry
                .mac
                .map_or_else(none, |mac| format!("static entry {mac}"));
            differences.push(difference(item, expected, found));
        }
    }
}

fn none() -> String {
    "none".to_owned()
}

fn difference(item: CheckedItem, expected: impl Display, found: impl Display) -> Difference {
    Difference {
        item,
        expected: expected.to_string(),
        found: found.to_string(),
    }
}
