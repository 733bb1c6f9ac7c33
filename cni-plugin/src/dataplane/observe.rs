//! Reads the kernel's state of one end of a pair.

use std::net::IpAddr;

use libcalico::net::IpVersion;

use super::DataplaneError;
use super::netlink::NetlinkSocket;
use super::netlink::address::{self, KernelAddress, PermanentNeighbour};
use super::netlink::link::{self, Link};
use super::netlink::route::{self, KernelRoute};
use super::netns::NetnsFd;
use super::plan::{End, SysctlKey};
use super::sysctl;

/// The state of one end of a pair.
#[derive(Debug, Clone)]
pub(super) struct Observed {
    /// The interface.
    pub(super) link: Link,
    /// Its addresses, link-local ones included.
    pub(super) addresses: Vec<KernelAddress>,
    /// The routes of the main table through the interface.
    pub(super) routes: Vec<KernelRoute>,
    /// The values of the planned settings, in the order of the plan, or the error text of a setting that cannot be
    /// read.
    pub(super) sysctls: Vec<(SysctlKey, Result<String, String>)>,
    /// The static neighbor entries of the interface.
    pub(super) neighbours: Vec<PermanentNeighbour>,
}

/// Returns true if there is no interface `host_ifname` here and no interface `container_ifname` in the pod.
pub fn is_absent(host_ifname: &str, container_ifname: &str, netns: &NetnsFd) -> Result<bool, DataplaneError> {
    if link::find(&mut NetlinkSocket::open()?, host_ifname)?.is_some() {
        return Ok(false);
    }
    netns.run_in(|| Ok(link::find(&mut NetlinkSocket::open()?, container_ifname)?.is_none()))
}

/// Reads the state of `end` in the namespace of the calling thread. Returns `None` if the interface does not exist.
pub(super) fn observe(socket: &mut NetlinkSocket, end: &End) -> Result<Option<Observed>, DataplaneError> {
    let Some(link) = link::find(socket, &end.ifname)? else { return Ok(None) };
    let mut routes = route::list(socket, IpVersion::V4, Some(link.index))?;
    routes.extend(route::list(socket, IpVersion::V6, Some(link.index))?);
    let read = |key: &SysctlKey| (key.clone(), sysctl::read(key).map_err(|error| error.to_string()));
    Ok(Some(Observed {
        addresses: address::list(socket, &link)?,
        neighbours: address::list_permanent(socket, &link)?,
        sysctls: end.sysctls.iter().map(|setting| read(&setting.key)).collect(),
        routes,
        link,
    }))
}

impl Observed {
    /// Returns the IPv6 link-local addresses of the interface.
    pub(super) fn link_locals(&self) -> Vec<IpAddr> {
        let addresses = self.addresses.iter().map(|address| address.ip);
        addresses.filter(|ip| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())).collect()
    }
}
