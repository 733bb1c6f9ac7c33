//! Examines the interfaces that have the names of the pair that an ADD is about to create.

use std::net::IpAddr;

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;

use super::netlink::{Link, NetlinkSocket, link, route};
use super::ownership::{OtherEnd, reason_to_stay};
use super::{Before, DataplaneError, Holder, NetlinkError, NetnsFd, Reason, Wanted};

/// The host interface with the name of the one that an ADD is about to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Occupant {
    /// There is no such interface, or the ADD may replace it.
    Free(Before),
    /// The interface prevents the ADD from creating its own.
    Holder(Holder),
}

/// Returns the host interface with the name of an ADD's own. In the ordinary case there is none, and the function opens
/// no netlink socket.
pub fn occupant(wanted: &Wanted<'_>, netns: &NetnsFd) -> Result<Occupant, DataplaneError> {
    if if_nametoindex(wanted.host_ifname) == Err(Errno::ENODEV) {
        return Ok(Occupant::Free(Before::Nothing));
    }
    let mut host = NetlinkSocket::open()?;
    match replaceable(&mut host, wanted, netns) {
        Ok(None) => Ok(Occupant::Free(Before::Nothing)),
        Ok(Some(found)) => Ok(Occupant::Free(Before::Interface { index: found.index, is_proven: false })),
        Err(DataplaneError::HostInterfaceTaken(holder)) => Ok(Occupant::Holder(*holder)),
        // This error concerns the pod's end, not the host's. The ADD reports it when it creates the pair.
        Err(DataplaneError::ContainerInterfaceExists { .. }) => Ok(Occupant::Free(Before::Nothing)),
        Err(error) => Err(error),
    }
}

/// Returns true if there is no interface `host_ifname` here and no interface `container_ifname` in the pod.
pub fn is_absent(host_ifname: &str, container_ifname: &str, netns: &NetnsFd) -> Result<bool, DataplaneError> {
    if link::find(&mut NetlinkSocket::open()?, host_ifname)?.is_some() {
        return Ok(false);
    }
    netns.run_in(|| Ok(link::find(&mut NetlinkSocket::open()?, container_ifname)?.is_none()))
}

/// Returns the host interface that an ADD may replace; `None` if there is no interface of that name.
///
/// An interface in the pod's namespace with the name CNI_IFNAME must be the other end of that host interface. The ADD
/// may not replace any other interface, so it cannot succeed then, and nothing may be deleted for it (CNI-258).
pub(super) fn replaceable(
    host: &mut NetlinkSocket,
    wanted: &Wanted<'_>,
    netns: &NetnsFd,
) -> Result<Option<Link>, DataplaneError> {
    let found = link::find(host, wanted.host_ifname)?;
    let peer_index = found.as_ref().and_then(|found| found.peer_index);
    // The interface with the name CNI_IFNAME, and the one whose index the host end reports as its other end.
    let (inside, peer) = netns.run_in(|| {
        let mut socket = NetlinkSocket::open()?;
        let inside = link::find(&mut socket, wanted.container_ifname)?;
        let peer = peer_index.map(|index| link::find_by_index(&mut socket, index)).transpose()?.flatten();
        Ok::<_, DataplaneError>((inside, peer))
    })?;
    let netns_id = link::nsid_of(host, netns)?;
    let is_asked = |found: &Link| inside.as_ref().is_some_and(|inside| found.is_peer_of(inside, netns_id));
    let other_end = |found: &Link| match &peer {
        _ if is_asked(found) => OtherEnd::Asked,
        Some(peer) if found.is_peer_of(peer, netns_id) => OtherEnd::Named(peer.name.clone()),
        _ => OtherEnd::Elsewhere,
    };
    // The pod has an interface of Calico with another name. That is the reason to report, whatever interface is named
    // CNI_IFNAME.
    let is_named = |found: &Link| matches!(other_end(found), OtherEnd::Named(_));
    if inside.is_some() && !found.as_ref().is_some_and(|found| is_asked(found) || is_named(found)) {
        return Err(DataplaneError::ContainerInterfaceExists {
            ifname: wanted.container_ifname.to_owned(),
            netns: netns.path().to_owned(),
        });
    }
    let Some(found) = found else { return Ok(None) };
    match reason_to_stay(&found, other_end(&found), wanted) {
        None => Ok(Some(found)),
        Some(reason) => Err(DataplaneError::HostInterfaceTaken(Box::new(Holder::of(host, found, reason)?))),
    }
}

impl Holder {
    /// Returns the description of an interface that stays for this reason.
    pub(super) fn of(host: &mut NetlinkSocket, found: Link, reason: Reason) -> Result<Self, NetlinkError> {
        Ok(Holder {
            index: found.index,
            container: found.alias.as_ref().map(|alias| alias.container().to_owned()),
            addresses: addresses_behind(host, &found)?,
            ifname: found.name,
            reason,
        })
    }
}

/// Returns the single addresses to which the host has routes through `link`.
fn addresses_behind(host: &mut NetlinkSocket, link: &Link) -> Result<Vec<IpAddr>, NetlinkError> {
    let destinations = route::list_both(host, Some(link.index))?.into_iter().map(|route| route.destination);
    Ok(destinations.filter(|destination| destination.size() == 1).map(|destination| destination.network()).collect())
}
