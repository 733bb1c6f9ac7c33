//! Observations about the node itself.

use std::net::IpAddr;
use std::path::PathBuf;

use super::observation::Observed;

/// Setting for forwarding packets between interfaces.
pub(in crate::doctor) const FORWARD: &str = "net.ipv4.ip_forward";
/// Setting for forwarding IPv6 packets.
pub(in crate::doctor) const FORWARD_IPV6: &str = "net.ipv6.conf.all.forwarding";
/// Setting for dropping packets whose source address is not routed to the interface they came from.
pub(in crate::doctor) const REVERSE_PATH: &str = "net.ipv4.conf.all.rp_filter";
/// The relevant kernel settings.
pub(in crate::doctor) const SETTINGS: [&str; 3] = [FORWARD, FORWARD_IPV6, REVERSE_PATH];

/// The name of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName {
    /// The name that the plugins use, or their error.
    pub name: Observed<String>,
    /// `nodename` in the configuration; may be empty.
    pub configured: String,
    /// The file in which calico-node or the installer writes the name.
    pub path: PathBuf,
    /// The content of that file.
    pub written: Option<String>,
    /// True if the file may be missing.
    pub optional: bool,
}

/// The host's end of a pod's interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodInterface {
    /// The name.
    pub name: String,
    /// The destinations of the host routes through the interface.
    pub addresses: Vec<IpAddr>,
    /// The addresses of the pod's endpoint; `None` without an endpoint.
    pub endpoint: Option<Vec<IpAddr>>,
}

impl PodInterface {
    /// Returns the addresses with a host route that the endpoint does not have.
    pub fn stray_addresses(&self) -> impl Iterator<Item = &IpAddr> {
        let known = self.endpoint.as_deref().unwrap_or_default();
        self.addresses.iter().filter(|address| !known.contains(address))
    }

    /// Returns true if an endpoint exists and has all addresses of the host routes.
    pub fn is_in_order(&self) -> bool {
        self.endpoint.is_some() && self.stray_addresses().next().is_none()
    }
}

/// An address that IPAM may assign to a pod, although the kernel has a host route to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BusyAddress {
    /// The address.
    pub address: IpAddr,
    /// A description of the route.
    pub route: String,
}

/// A lock of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// The name of the lock, for people.
    pub name: &'static str,
    /// The lock file.
    pub path: PathBuf,
    /// The process that held the lock during the whole observation; `None` if the lock was released meanwhile.
    pub holder: Observed<Option<Holder>>,
}

/// A process that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The process ID; `None` if the process is not visible from this PID namespace.
    pub process: Option<u32>,
    /// The command line.
    pub command: String,
}

/// libcni's cached results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// The directory of the cache.
    pub directory: PathBuf,
    /// Number of results with an interface of Calico's.
    pub results: usize,
    /// Names of the results whose interface no longer exists.
    pub stale: Vec<String>,
}

/// A kernel setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The name, as in sysctl(8).
    pub name: &'static str,
    /// The value; `None` if the kernel lacks the setting.
    pub value: Option<String>,
}
