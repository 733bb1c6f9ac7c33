//! The host's end of a pod's interface, for `calico-ipam trace` and `calico-ipam adopt`.

use libcalico::names::InterfaceAlias;
use serde::Serialize;

/// An interface of the host, with the routes through it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostLink {
    /// The name.
    pub name: String,
    /// The interface index.
    pub index: u32,
    /// The Ethernet address; empty if there is none.
    pub mac: String,
    /// The MTU in bytes.
    pub mtu: u32,
    /// True if the interface is administratively up.
    pub up: bool,
    /// True if the interface can carry packets.
    pub carrier: bool,
    /// The container ID, or a digest of it ([`libcalico::names::InterfaceAlias::container`]).
    /// `None` without one, as for an interface of upstream's plugin.
    pub container_id: Option<String>,
    /// The alias that the plugin gave the interface; `None` for an interface of upstream's plugin.
    #[serde(skip)]
    pub alias: Option<InterfaceAlias>,
    /// Destinations of the routes through this interface in the main table.
    pub routes: Vec<String>,
}

/// The reason why an interface cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HostLinkError(pub String);

/// The interfaces in the network namespace of this process.
pub trait HostLinks: std::fmt::Debug + Sync {
    /// Returns the interface of that name, or `None` if it does not exist.
    fn find(&self, name: &str) -> Result<Option<HostLink>, HostLinkError>;
}

/// An implementation for programs without access to the kernel's interfaces.
#[derive(Debug, Clone, Copy)]
pub struct NoHostLinks;

impl HostLinks for NoHostLinks {
    fn find(&self, _: &str) -> Result<Option<HostLink>, HostLinkError> {
        let reason = "this program cannot read network interfaces; use the calico-ipam that is \
                      installed with calico";
        Err(HostLinkError(reason.into()))
    }
}
