//! The desired network of one endpoint as values. ADD brings the kernel to this state, CHECK
//! compares the kernel with it.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libcalico::failure::Failure;
use libcalico::names::InterfaceAlias;
use libcalico::net::{Cidr, IpVersion};
use netconf::conf::DeviceType;

use super::mac::MacAddr;

/// The interface that an ADD is about to create.
#[derive(Debug, Clone, Copy)]
pub struct DesiredInterface<'a> {
    /// Name of the host end.
    pub host_ifname: &'a str,
    /// CNI_IFNAME.
    pub container_ifname: &'a str,
    /// The alias for the host end.
    pub alias: &'a InterfaceAlias,
    /// The host interface that had the name `host_ifname` when the ADD started.
    pub prior: PriorInterface,
}

/// The host interface that already had the name of the interface to create when the ADD started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PriorInterface {
    /// It is not known if there was such an interface.
    #[default]
    Unknown,
    /// There was no interface of that name.
    Missing,
    /// There was an interface of that name, and the ADD may replace it.
    Present {
        /// Index of that interface.
        index: u32,
        /// True if IPAM proves that the interface belongs to this pod.
        is_proven: bool,
    },
}

/// The gateway of in-pod IPv4 routes unless the plan has another one: 169.254.1.1. No interface has
/// this address. The host end answers ARP requests for it (proxy_arp), and the pod has a route of
/// scope link to it, which `netlink/route.rs` explains.
pub const DEFAULT_IPV4_GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

/// The usual link-local address of the host end: EUI-64 of [`MacAddr::HOST_SIDE`].
pub const HOST_LINK_LOCAL: Ipv6Addr =
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0xecee, 0xeeff, 0xfeee, 0xeeee);

/// The MTU of an interface pair in bytes if the plan has none: the default of the kernel.
pub const KERNEL_DEFAULT_MTU: u32 = 1500;

const IFNAME_MAX: usize = 15;

/// The inputs that determine the network of one endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointPlan {
    /// Interface name in the host's namespace (`cali…`).
    pub host_ifname: String,
    /// Interface name in the pod's namespace (CNI_IFNAME).
    pub container_ifname: String,
    /// The alias for the host end.
    pub alias: InterfaceAlias,
    /// The interface that had the name of the host end when the ADD started.
    pub prior: PriorInterface,
    /// The pod's addresses, in the order of IPAM. An IPv4-mapped IPv6 address counts as IPv4.
    pub addresses: Vec<IpAddr>,
    /// MTU of both ends in bytes; 0 for the kernel's default.
    pub mtu: u32,
    /// Number of transmit queues and of receive queues of each end, at least 1.
    pub num_queues: u32,
    /// The kind of interface pair. On a kernel without netkit, the ADD creates a veth pair instead.
    pub device: DeviceType,
    /// MAC address of the pod's end; `None` lets the kernel choose. CHECK does not compare it.
    pub container_mac: Option<MacAddr>,
    /// Routes inside the pod, of either family. [`Self::container_end`] omits the routes of a
    /// family in which the pod has no address.
    pub routes: Vec<Cidr>,
    /// Next hop of the pod's IPv4 routes.
    pub ipv4_gateway: Ipv4Addr,
    /// Whether to let the pod forward packets (`container_settings.allow_ip_forwarding`).
    pub allow_ip_forwarding: bool,
    /// Whether to give the host a route to each address.
    pub host_routes: bool,
    /// Whether to replace a host route to one of the addresses if the interface of the route is one
    /// end of a pair and has no carrier.
    pub replaces_idle_routes: bool,
    /// Whether to fail the ADD if a host route to one of the addresses leads through another pod's
    /// interface that has carrier.
    pub refuses_addresses_of_pods: bool,
    /// True if errors withhold the names of other pods' interfaces. kubelet writes the errors of a
    /// pod into an Event, which each person of the pod's namespace can read.
    pub withholds_other_pods: bool,
}

/// Returns the in-pod routes of an endpoint without configured routes: `0.0.0.0/0` and `::/0`.
pub fn default_routes() -> Vec<Cidr> {
    let unspecified = [
        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    ];
    unspecified
        .into_iter()
        .filter_map(|any| Cidr::new(any, 0))
        .collect()
}

/// An end of the pair: its link, and the settings of its namespace. ADD applies each list in its
/// order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceEnd {
    /// Interface name.
    pub ifname: String,
    /// MAC address, if the plan prescribes one.
    pub mac: Option<MacAddr>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Addresses of the interface, as /32 and /128.
    pub addresses: Vec<Cidr>,
    /// Kernel settings.
    pub sysctls: Vec<Sysctl>,
    /// Routes through the interface, in the main table, with protocol boot.
    pub routes: Vec<Route>,
}

/// A route through an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route {
    /// The destination.
    pub destination: Cidr,
    /// The next hop; `None` for a route with scope link.
    pub gateway: Option<Gateway>,
}

/// A next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gateway {
    /// An IPv4 address.
    Address(Ipv4Addr),
    /// The IPv6 link-local address that the kernel gave the host end; usually [`HOST_LINK_LOCAL`].
    HostLinkLocal,
}

/// A kernel setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sysctl {
    /// Name of the setting.
    pub key: SysctlKey,
    /// Value of the setting.
    pub value: u8,
    /// True if ADD fails when the setting cannot be written. Otherwise ADD only logs a warning.
    pub is_required: bool,
}

/// The name of a kernel setting. It is displayed with slashes, because an interface name may
/// contain dots.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SysctlKey {
    /// A setting of the namespace, in dotted form (`net.ipv4.ip_forward`).
    Namespace(&'static str),
    /// A setting of one interface: `net/<tree>/<ifname>/<leaf>`.
    Interface {
        /// `ipv4/conf`, `ipv4/neigh` or `ipv6/conf`.
        tree: &'static str,
        /// The interface.
        ifname: String,
        /// The setting.
        leaf: &'static str,
    },
}

impl EndpointPlan {
    /// Rejects an invalid plan. An ADD with such a plan does not change the kernel's state.
    pub fn validate(&self) -> Result<(), Failure> {
        if let Some(name) = [&self.host_ifname, &self.container_ifname]
            .into_iter()
            .find(|name| !is_ifname(name))
        {
            return Err(Failure::new(format_args!(
                "invalid interface name {name:?}: use 1 to 15 bytes without '/', ':' or white space"
            )));
        }
        if self.addresses.is_empty() {
            return Err(Failure::new(format_args!(
                "no address to assign to interface {}",
                self.container_ifname
            )));
        }
        if self.num_queues == 0 {
            return Err(Failure::new(format_args!(
                "interface {} needs at least one queue",
                self.container_ifname
            )));
        }
        match self.container_mac {
            Some(mac) if !mac.is_assignable() => Err(Failure::new(format_args!(
                "invalid MAC address {mac} for an interface: the address is zero or multicast"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns true if the endpoint has an address of this family.
    pub fn has_family(&self, family: IpVersion) -> bool {
        self.full_length_cidrs()
            .any(|host| host.version() == family)
    }

    /// Returns the names and the alias of the interfaces to create.
    pub fn desired_interface(&self) -> DesiredInterface<'_> {
        let EndpointPlan {
            host_ifname,
            container_ifname,
            alias,
            prior,
            ..
        } = self;
        DesiredInterface {
            host_ifname,
            container_ifname,
            alias,
            prior: *prior,
        }
    }

    /// Returns the end in the host's namespace.
    pub fn host_end(&self) -> InterfaceEnd {
        let route = |destination| Route {
            destination,
            gateway: None,
        };
        InterfaceEnd {
            ifname: self.host_ifname.clone(),
            mac: Some(MacAddr::HOST_SIDE),
            mtu: self.effective_mtu(),
            addresses: Vec::new(),
            sysctls: host_sysctls(&self.host_ifname, |family| self.has_family(family)),
            routes: self.host_destinations().map(route).collect(),
        }
    }

    /// Returns the addresses to which the host gets routes; none if `host_routes` is false.
    pub(super) fn host_destinations(&self) -> impl Iterator<Item = Cidr> + '_ {
        distinct(self.full_length_cidrs()).filter(|_| self.host_routes)
    }

    /// Returns the end in the pod's namespace.
    pub fn container_end(&self) -> InterfaceEnd {
        InterfaceEnd {
            ifname: self.container_ifname.clone(),
            mac: self.container_mac,
            mtu: self.effective_mtu(),
            addresses: distinct(self.full_length_cidrs()).collect(),
            sysctls: self.container_sysctls(),
            routes: self.container_routes(),
        }
    }

    pub(super) fn full_length_cidrs(&self) -> impl Iterator<Item = Cidr> + '_ {
        self.addresses
            .iter()
            .map(|address| Cidr::host(address.to_canonical()))
    }

    fn effective_mtu(&self) -> u32 {
        if self.mtu == 0 {
            KERNEL_DEFAULT_MTU
        } else {
            self.mtu
        }
    }

    /// Returns the kernel settings of the pod's end. ADD writes them before the link is up, so that
    /// one batch can contain the rest of the work.
    fn container_sysctls(&self) -> Vec<Sysctl> {
        let forwarding = u8::from(self.allow_ip_forwarding);
        let mut list = Vec::with_capacity(6);
        if self.has_family(IpVersion::V6) {
            list.push(Sysctl::of_interface(
                "ipv6/conf",
                &self.container_ifname,
                "accept_dad",
                0,
            ));
            list.push(Sysctl::of_namespace("net.ipv6.conf.all.disable_ipv6", 0));
            list.push(Sysctl::of_namespace(
                "net.ipv6.conf.default.disable_ipv6",
                0,
            ));
            list.push(Sysctl::of_namespace("net.ipv6.conf.lo.disable_ipv6", 0));
        }
        if self.has_family(IpVersion::V4) {
            list.push(Sysctl::of_namespace("net.ipv4.ip_forward", forwarding));
        }
        if self.has_family(IpVersion::V6) {
            list.push(Sysctl::of_namespace(
                "net.ipv6.conf.all.forwarding",
                forwarding,
            ));
        }
        list
    }

    /// Returns the routes in the pod. The route to the IPv4 gateway (169.254.1.1) comes first: the
    /// kernel rejects a route through a gateway that it cannot reach.
    fn container_routes(&self) -> Vec<Route> {
        let mut list = Vec::with_capacity(self.routes.len() + 1);
        if self.has_family(IpVersion::V4) {
            list.push(Route {
                destination: Cidr::host(self.ipv4_gateway.into()),
                gateway: None,
            });
        }
        for destination in distinct(self.routes.iter().copied()) {
            let gateway = match destination.version() {
                IpVersion::V4 => Gateway::Address(self.ipv4_gateway),
                IpVersion::V6 => Gateway::HostLinkLocal,
            };
            if self.has_family(destination.version()) {
                list.push(Route {
                    destination,
                    gateway: Some(gateway),
                });
            }
        }
        list
    }
}

/// Returns the kernel settings of a host end. ADD writes all of them before the link is up.
pub(super) fn host_sysctls(ifname: &str, has_family: impl Fn(IpVersion) -> bool) -> Vec<Sysctl> {
    let set = |tree, leaf, value| Sysctl::of_interface(tree, ifname, leaf, value);
    let mut list = Vec::with_capacity(9);
    if has_family(IpVersion::V4) {
        list.push(set("ipv4/conf", "route_localnet", 1));
        list.push(set("ipv4/neigh", "proxy_delay", 0).optional());
        list.push(set("ipv4/conf", "proxy_arp", 1));
        list.push(set("ipv4/conf", "forwarding", 1));
    }
    if has_family(IpVersion::V6) {
        list.push(set("ipv6/conf", "accept_dad", 0));
        list.push(set("ipv6/conf", "disable_ipv6", 0));
        list.push(set("ipv6/conf", "proxy_ndp", 1));
        list.push(set("ipv6/conf", "forwarding", 1));
    }
    list.push(set("ipv6/conf", "accept_ra", 0).optional());
    list
}

impl Sysctl {
    fn of_namespace(name: &'static str, value: u8) -> Self {
        Sysctl {
            key: SysctlKey::Namespace(name),
            value,
            is_required: true,
        }
    }

    fn of_interface(tree: &'static str, ifname: &str, leaf: &'static str, value: u8) -> Self {
        Sysctl {
            key: SysctlKey::Interface {
                tree,
                ifname: ifname.to_owned(),
                leaf,
            },
            value,
            is_required: true,
        }
    }

    fn optional(self) -> Self {
        Sysctl {
            is_required: false,
            ..self
        }
    }
}

pub(super) fn is_ifname(name: &str) -> bool {
    let forbidden = |c: char| c == '/' || c == ':' || c == '\0' || c.is_ascii_whitespace();
    !name.is_empty()
        && name.len() <= IFNAME_MAX
        && name != "."
        && name != ".."
        && !name.contains(forbidden)
}

/// Keeps the first of equal CIDRs, in order. A repeated address or route would fail with EEXIST.
fn distinct(cidrs: impl Iterator<Item = Cidr>) -> impl Iterator<Item = Cidr> {
    let mut yielded = HashSet::new();
    cidrs.filter(move |cidr| yielded.insert(*cidr))
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gateway {
            None => write!(f, "{} scope link", self.destination),
            Some(Gateway::Address(gateway)) => write!(f, "{} via {gateway}", self.destination),
            Some(Gateway::HostLinkLocal) => write!(
                f,
                "{} via the host end's link-local address",
                self.destination
            ),
        }
    }
}

impl fmt::Display for SysctlKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SysctlKey::Namespace(name) => f.write_str(&name.replace('.', "/")),
            SysctlKey::Interface { tree, ifname, leaf } => write!(f, "net/{tree}/{ifname}/{leaf}"),
        }
    }
}

#[cfg(test)]
mod tests;
