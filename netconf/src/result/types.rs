//! The types of a result. Each encodes itself as in version 1.0.0 of the CNI specification and later.

use std::net::IpAddr;

use serde::Serialize;

use crate::ipnet::IpNet;

/// The result of an ADD. The plugin prints it on stdout, and the runtime passes it to later calls as `prevResult`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CniResult {
    /// The created interfaces, host side and container side.
    pub interfaces: Vec<Interface>,
    /// The assigned addresses.
    pub ips: Vec<IpConfig>,
    /// The routes as the IPAM plugin returned them, not the routes that the plugin programs (CNI-41).
    pub routes: Vec<Route>,
    /// Resolver settings, as the IPAM plugin returned them.
    pub dns: Dns,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// The hardware address in text form; empty if not given.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// The MTU in bytes; 0 if not given.
    #[serde(skip_serializing_if = "is_zero")]
    pub mtu: u32,
    /// Path of the interface's network namespace; empty on the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    /// Path of the socket of a vhost-user device; empty for others.
    #[serde(rename = "socketPath", skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
    /// PCI address of a passed-through device; empty for others.
    #[serde(rename = "pciID", skip_serializing_if = "String::is_empty")]
    pub pci_id: String,
}

/// An address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IpConfig {
    /// The interface that has the address: an index into [`CniResult::interfaces`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
    /// The address with its prefix length.
    pub address: IpNet,
    /// The gateway of the address's subnet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Route {
    /// The destination; host bits may be set and are kept.
    pub dst: IpNet,
    /// The next hop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// MTU of the path in bytes; 0 if not given.
    #[serde(skip_serializing_if = "is_zero")]
    pub mtu: u32,
    /// Advertised maximum segment size in bytes; 0 if not given.
    #[serde(skip_serializing_if = "is_zero")]
    pub advmss: u32,
    /// Metric; 0 if not given.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: u32,
    /// Routing table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// Scope, in the kernel's numbering.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

impl Route {
    /// Creates a route that has only a destination.
    pub fn to(dst: IpNet) -> Route {
        Route { dst, gw: None, mtu: 0, advmss: 0, priority: 0, table: None, scope: None }
    }
}

/// Resolver settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Dns {
    /// Name servers in order of preference.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain; empty if not given.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Search domains.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Resolver options.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Returns true if no setting is given.
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}
