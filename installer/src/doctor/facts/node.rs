//! What is on the node itself.

use std::net::IpAddr;
use std::path::PathBuf;

/// Whether packets go from one interface to another.
pub(in crate::doctor) const FORWARD: &str = "net.ipv4.ip_forward";
/// The same for IPv6.
pub(in crate::doctor) const FORWARD_IPV6: &str = "net.ipv6.conf.all.forwarding";
/// Whether a packet must come from where answers to it would go.
pub(in crate::doctor) const REVERSE_PATH: &str = "net.ipv4.conf.all.rp_filter";
/// The kernel settings that matter.
pub(in crate::doctor) const SETTINGS: [&str; 3] = [FORWARD, FORWARD_IPV6, REVERSE_PATH];

/// The name of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName {
    /// As the plugins find it, or why they do not.
    pub name: Result<String, String>,
    /// `nodename` of the configuration; may be empty.
    pub configured: String,
    /// Where calico-node, or our installer, writes it.
    pub path: PathBuf,
    /// What is written there.
    pub written: Option<String>,
    /// Whether the file may be missing.
    pub optional: bool,
}

/// The host's end of a pod's interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodInterface {
    /// Its name.
    pub name: String,
    /// The addresses that routes through it lead to.
    pub addresses: Vec<IpAddr>,
    /// The addresses of its endpoint; `None` where there is no endpoint.
    pub endpoint: Option<Vec<IpAddr>>,
}

impl PodInterface {
    /// Addresses that routes lead to and the endpoint does not have.
    pub fn stray_addresses(&self) -> impl Iterator<Item = &IpAddr> {
        let known = self.endpoint.as_deref().unwrap_or_default();
        self.addresses.iter().filter(|address| !known.contains(address))
    }

    /// Whether it has an endpoint with all its addresses.
    pub fn is_in_order(&self) -> bool {
        self.endpoint.is_some() && self.stray_addresses().next().is_none()
    }
}

/// An address that IPAM may give to a pod although the kernel has a route to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BusyAddress {
    /// The address.
    pub address: IpAddr,
    /// The route, in words.
    pub route: String,
}

/// A lock of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// What for.
    pub name: &'static str,
    /// Its file.
    pub path: PathBuf,
    /// Who has had it as long as it was looked at; `None`: it was free at some time. Or why nobody can tell.
    pub holder: Result<Option<Holder>, String>,
}

/// The process that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its id; `None` for one that is not seen from here.
    pub process: Option<u32>,
    /// How it was started.
    pub command: String,
}

/// What libcni keeps of containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// Where.
    pub directory: PathBuf,
    /// Results with an interface of Calico's.
    pub results: usize,
    /// Names of those whose interface is gone.
    pub stale: Vec<String>,
}

/// A kernel setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// As sysctl(8) calls it.
    pub name: &'static str,
    /// Its value; `None` where the kernel has none.
    pub value: Option<String>,
}
