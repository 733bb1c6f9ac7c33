//! Examines the interfaces that have the names of the pair that an ADD is about to create.

use std::net::IpAddr;

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;

use super::host_access::HostAccess;
use super::netlink::{Link, NetlinkSocket, link};
use super::ownership::{PeerLocation, conflict_reason};
use super::{
    ConflictReason, ConflictingInterface, DataplaneError, DesiredInterface, NetlinkError, NetnsFd,
    PriorInterface,
};

/// The result of the search for a host interface with the name that an ADD is about to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExistingInterface {
    /// There is no such interface, or the ADD may replace it.
    Replaceable(PriorInterface),
    /// The interface prevents the ADD from creating its own.
    Conflicting(ConflictingInterface),
}

/// Returns the host interface that has the name of the interface to create.
pub fn existing_interface(
    desired: DesiredInterface<'_>,
    netns: &NetnsFd,
) -> Result<ExistingInterface, DataplaneError> {
    if if_nametoindex(desired.host_ifname) == Err(Errno::ENODEV) {
        return Ok(ExistingInterface::Replaceable(PriorInterface::Missing));
    }
    examine(&mut NetlinkSocket::open()?, desired, netns)
}

/// Returns the host interface that has the name of the interface to create.
pub(super) fn examine<H: HostAccess>(
    host: &mut H,
    desired: DesiredInterface<'_>,
    netns: &H::Netns,
) -> Result<ExistingInterface, DataplaneError> {
    let prior = match replaceable(host, &desired, netns) {
        Ok(Some(found)) => PriorInterface::Present {
            index: found.index,
            is_proven: false,
        },
        // `ContainerInterfaceExists` concerns the pod's end, not the host's. The ADD reports it
        // when it creates the pair.
        Ok(None) | Err(DataplaneError::ContainerInterfaceExists { .. }) => PriorInterface::Missing,
        Err(DataplaneError::HostInterfaceConflict(found)) => {
            return Ok(ExistingInterface::Conflicting(*found));
        }
        Err(error) => return Err(error),
    };
    Ok(ExistingInterface::Replaceable(prior))
}

/// Returns true if the namespace of this thread has no interface `host_ifname` and the pod has no
/// interface `container_ifname`.
pub fn is_absent(
    host_ifname: &str,
    container_ifname: &str,
    netns: &NetnsFd,
) -> Result<bool, DataplaneError> {
    if link::find(&mut NetlinkSocket::open()?, host_ifname)?.is_some() {
        return Ok(false);
    }
    netns.run_in(|| Ok(link::find(&mut NetlinkSocket::open()?, container_ifname)?.is_none()))
}

/// Returns the host interface that an ADD may replace; `None` if there is no interface of that
/// name. Fails if the ADD may not replace it, or if another interface in the pod's namespace is
/// named CNI_IFNAME: nothing may be deleted for an ADD that cannot succeed (CNI-258).
pub(super) fn replaceable<H: HostAccess>(
    host: &mut H,
    desired: &DesiredInterface<'_>,
    netns: &H::Netns,
) -> Result<Option<Link>, DataplaneError> {
    let host_end = host.link(desired.host_ifname)?;
    let peer_index = host_end.as_ref().and_then(|host_end| host_end.peer_index);
    let (container_end, peer) = host.links_in(netns, desired.container_ifname, peer_index)?;
    let netns_id = host.netns_id(netns)?;
    let has_requested_peer = |found: &Link| {
        container_end
            .as_ref()
            .is_some_and(|end| found.is_peer_of(end, netns_id))
    };
    let peer_location = |found: &Link| match &peer {
        _ if has_requested_peer(found) => PeerLocation::RequestedName,
        Some(peer) if found.is_peer_of(peer, netns_id) => {
            PeerLocation::OtherName(peer.name.clone())
        }
        _ => PeerLocation::Elsewhere,
    };
    // If the other end is in the pod under another name, the conflict is with that interface of
    // Calico, whatever interface is named CNI_IFNAME.
    let is_named = |found: &Link| matches!(peer_location(found), PeerLocation::OtherName(_));
    if container_end.is_some()
        && !host_end
            .as_ref()
            .is_some_and(|found| has_requested_peer(found) || is_named(found))
    {
        let ifname = desired.container_ifname.to_owned();
        let netns = H::path_of(netns).to_owned();
        return Err(DataplaneError::ContainerInterfaceExists { ifname, netns });
    }
    let Some(found) = host_end else {
        return Ok(None);
    };
    let Some(reason) = conflict_reason(&found, peer_location(&found), desired) else {
        return Ok(Some(found));
    };
    let peer_mac = peer.and_then(|peer| peer.mac);
    let conflicting = ConflictingInterface {
        peer_mac,
        ..ConflictingInterface::new(host, found, reason)?
    };
    Err(DataplaneError::HostInterfaceConflict(Box::new(conflicting)))
}

impl ConflictingInterface {
    pub(super) fn new(
        host: &mut impl HostAccess,
        found: Link,
        reason: ConflictReason,
    ) -> Result<Self, NetlinkError> {
        Ok(ConflictingInterface {
            index: found.index,
            container: found
                .alias
                .as_ref()
                .map(|alias| alias.container().to_owned()),
            peer_mac: None,
            addresses: routed_addresses(host, &found)?,
            ifname: found.name,
            alias: found.alias,
            reason,
        })
    }
}

/// Returns the addresses to which the host has /32 or /128 routes through `link`.
fn routed_addresses(host: &mut impl HostAccess, link: &Link) -> Result<Vec<IpAddr>, NetlinkError> {
    let destinations = host
        .routes_of_both(Some(link.index))?
        .into_iter()
        .map(|route| route.destination);
    Ok(destinations
        .filter(|destination| destination.size() == 1)
        .map(|destination| destination.network())
        .collect())
}
