//! The host's end of a pod's interface, as far as `calico-ipam trace` looks at it. The plugin speaks with the kernel,
//! and it depends on this crate: so the kernel is asked through [`HostLinks`].

use serde::Serialize;

/// An interface of the host, with the routes through it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostLink {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Its Ethernet address; empty without one.
    pub mac: String,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Whether it is set up.
    pub up: bool,
    /// Whether it can carry packets, which takes the pod's end, too.
    pub carrier: bool,
    /// Id of the container that an ADD noted on it; `None` for an interface of upstream's.
    pub container_id: Option<String>,
    /// Destinations of the routes of the main table that lead through it.
    pub routes: Vec<String>,
}

/// The interfaces in the network namespace of this process.
pub trait HostLinks: std::fmt::Debug + Sync {
    /// The interface of that name; `None` where there is none. An error is the kernel's words.
    fn find(&self, name: &str) -> Result<Option<HostLink>, String>;
}

/// A program that does not speak with the kernel.
#[derive(Debug, Clone, Copy)]
pub struct NoHostLinks;

impl HostLinks for NoHostLinks {
    fn find(&self, _: &str) -> Result<Option<HostLink>, String> {
        Err("this program does not look at the kernel; the calico-ipam that is installed with calico does".into())
    }
}
