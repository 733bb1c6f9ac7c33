//! Finds containers that run although a runtime does not name them: another runtime on this node may use the same network.

use std::collections::BTreeMap;
use std::net::IpAddr;

use libcalico::net::{Cidr, IpVersion};

use super::DataplaneError;
use super::netlink::link::{self, Link};
use super::netlink::route::{self, KernelRoute};
use super::netlink::{NetlinkSocket, nsid};
use super::processes;

/// A container whose network a collection is about to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspect {
    /// Its id.
    pub container_id: String,
    /// Its addresses. A host route to one of them tells an interface without alias, as upstream's.
    pub addresses: Vec<IpAddr>,
}

/// A container that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Its id.
    pub container_id: String,
    /// The host's end of its interface.
    pub ifname: String,
    /// A process in its network namespace.
    pub process: u32,
}

/// Returns those of the suspects whose host interface has carrier and whose other end is in a network namespace with a process
/// in it. A namespace that only a mount keeps has none.
///
/// # Errors
/// The kernel does not say.
pub fn running(suspects: &[Suspect]) -> Result<Vec<Running>, DataplaneError> {
    if suspects.is_empty() {
        return Ok(Vec::new());
    }
    let mut host = NetlinkSocket::open()?;
    let links = link::list(&mut host)?;
    let mut routes = route::list(&mut host, IpVersion::V4, None)?;
    routes.extend(route::list(&mut host, IpVersion::V6, None)?);
    let connected = connected(suspects, &links, &routes);
    if connected.is_empty() {
        return Ok(Vec::new());
    }
    let mut by_id = BTreeMap::new();
    for (process, netns) in processes::by_netns().map_err(|source| DataplaneError::Processes { source })? {
        if let Some(id) = nsid::of(&mut host, &netns)? {
            by_id.insert(id, process);
        }
    }
    let found = connected.into_iter().filter_map(|(suspect, link)| {
        let process = *by_id.get(&link.peer_netns_id?)?;
        Some(Running { container_id: suspect.container_id.clone(), ifname: link.name.clone(), process })
    });
    Ok(found.collect())
}

/// Returns the suspects whose host interface has carrier, with that interface. Its alias tells whose it is, or without alias a
/// host route to an address of the suspect.
fn connected<'a>(suspects: &'a [Suspect], links: &'a [Link], routes: &[KernelRoute]) -> Vec<(&'a Suspect, &'a Link)> {
    let leads_to = |link: &Link, suspect: &Suspect| {
        let mut through = routes.iter().filter(|route| route.interface == Some(link.index));
        through.any(|route| suspect.addresses.iter().any(|ip| Cidr::host(*ip) == route.destination))
    };
    let is_of = |link: &Link, suspect: &Suspect| match &link.alias {
        Some(alias) => alias.is_of_container(&suspect.container_id),
        None => leads_to(link, suspect),
    };
    let mut connected = Vec::new();
    for link in links.iter().filter(|link| link.paired && link.running) {
        connected.extend(suspects.iter().filter(|suspect| is_of(link, suspect)).map(|suspect| (suspect, link)));
    }
    connected
}
