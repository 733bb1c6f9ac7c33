//! What the kernel has for one end of a pair.

use std::net::IpAddr;

use libcalico::net::IpVersion;

use super::DataplaneError;
use super::netlink::NetlinkSocket;
use super::netlink::address::{self, KernelAddress};
use super::netlink::link::{self, Link};
use super::netlink::neighbour::{self, PermanentNeighbour};
use super::netlink::route::{self, KernelRoute};
use super::netns::NetnsFd;
use super::plan::{End, SysctlKey};
use super::sysctl;

/// One end of a pair as found.
#[derive(Debug, Clone)]
pub(super) struct Observed {
    /// The interface.
    pub(super) link: Link,
    /// Its addresses, link-local ones included.
    pub(super) addresses: Vec<KernelAddress>,
    /// The main table's routes through it.
    pub(super) routes: Vec<KernelRoute>,
    /// The values of the end's settings, in the order of its list; an error's text where one cannot be read.
    pub(super) sysctls: Vec<(SysctlKey, Result<String, String>)>,
    /// Static neighbour entries on it.
    pub(super) neighbours: Vec<PermanentNeighbour>,
}

/// Whether there is neither an interface named `host_ifname` here nor one named `container_ifname` in the pod.
pub fn is_absent(host_ifname: &str, container_ifname: &str, netns: &NetnsFd) -> Result<bool, DataplaneError> {
    if link::find(&mut NetlinkSocket::open()?, host_ifname)?.is_some() {
        return Ok(false);
    }
    netns.run_in(|| Ok(link::find(&mut NetlinkSocket::open()?, container_ifname)?.is_none()))
}

/// Reads all that concerns `end` in the namespace of the calling thread; `None` when the interface does not exist.
pub(super) fn observe(socket: &mut NetlinkSocket, end: &End) -> Result<Option<Observed>, DataplaneError> {
    let Some(link) = link::find(socket, &end.ifname)? else { return Ok(None) };
    let mut routes = route::list(socket, IpVersion::V4, Some(link.index))?;
    routes.extend(route::list(socket, IpVersion::V6, Some(link.index))?);
    let read = |key: &SysctlKey| (key.clone(), sysctl::read(key).map_err(|error| error.to_string()));
    Ok(Some(Observed {
        addresses: address::list(socket, &link)?,
        neighbours: neighbour::list_permanent(socket, &link)?,
        sysctls: end.sysctls.iter().map(|setting| read(&setting.key)).collect(),
        routes,
        link,
    }))
}

impl Observed {
    /// Its IPv6 link-local addresses.
    pub(super) fn link_locals(&self) -> Vec<IpAddr> {
        let addresses = self.addresses.iter().map(|address| address.ip);
        addresses.filter(|ip| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())).collect()
    }
}
