//! The result of an ADD, in memory as version 1.1.0 has it.

mod decode;
mod encode;
mod ipnet;

use std::net::IpAddr;

pub use ipnet::{IpNet, IpNetParseError};

/// What an ADD did: printed on stdout, and given back to later calls as `prevResult`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CniResult {
    /// The interfaces that were made, host side and container side.
    pub interfaces: Vec<Interface>,
    /// The addresses that were assigned.
    pub ips: Vec<IpConfig>,
    /// The routes, as the IPAM plugin returned them (CNI-41).
    pub routes: Vec<Route>,
    /// Resolver settings, as the IPAM plugin returned them.
    pub dns: Dns,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its hardware address in text form; empty when not said.
    pub mac: String,
    /// Its MTU in bytes; 0 when not said.
    pub mtu: u32,
    /// Path of the network namespace it is in; empty on the host.
    pub sandbox: String,
    /// Path of the socket of a vhost-user device; empty for others.
    pub socket_path: String,
    /// PCI address of a passed-through device; empty for others.
    pub pci_id: String,
}

/// An address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpConfig {
    /// The interface that has it: an index of [`CniResult::interfaces`].
    pub interface: Option<usize>,
    /// The address with its prefix length.
    pub address: IpNet,
    /// The gateway of its subnet.
    pub gateway: Option<IpAddr>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination; host bits may be set and are kept.
    pub dst: IpNet,
    /// The next hop.
    pub gw: Option<IpAddr>,
    /// MTU of the path in bytes; 0 when not said.
    pub mtu: u32,
    /// Advertised maximum segment size in bytes; 0 when not said.
    pub advmss: u32,
    /// Metric; 0 when not said.
    pub priority: u32,
    /// Routing table.
    pub table: Option<u32>,
    /// Scope, as the kernel numbers them.
    pub scope: Option<u8>,
}

impl Route {
    /// A route with nothing but a destination.
    pub fn to(dst: IpNet) -> Route {
        Route { dst, gw: None, mtu: 0, advmss: 0, priority: 0, table: None, scope: None }
    }
}

/// Resolver settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Name servers in order of preference.
    pub nameservers: Vec<String>,
    /// The local domain; empty when not said.
    pub domain: String,
    /// Search domains.
    pub search: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}

impl Dns {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }
}

#[cfg(test)]
mod tests;
