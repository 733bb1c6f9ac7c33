//! Finds the interfaces of containers whose network a GC is about to remove.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use libcalico::names::InterfaceAlias;
use libcalico::net::Cidr;

use super::netlink::{KernelRoute, Link, NetlinkSocket, link, route};
use super::processes::{Examined, each_netns};
use super::{DataplaneError, HostLinkProof, Teardown, TeardownTarget};

/// A container whose network a GC is about to remove.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SuspectContainer {
    /// The ID of the container.
    pub container_id: String,
    /// True if the runtime names another attachment of the container. An interface is then removed
    /// only if a route proves that it belongs to the attachment to be removed.
    pub has_valid_attachment: bool,
    /// True if the container may have an address in another network.
    pub may_have_other_network: bool,
    /// The aliases that the container's interfaces in this network may have. An interface of the
    /// container with another alias is a suspect only if a host route leads through it to an
    /// address in `allocated` or `listed`.
    pub aliases: Vec<InterfaceAlias>,
    /// The addresses that IPAM has allocated to the container. A host route to one of them
    /// identifies an interface without an alias.
    pub allocated: Vec<IpAddr>,
    /// The addresses that endpoints of the container list. IPAM may have allocated them to another
    /// container.
    pub listed: Vec<IpAddr>,
}

/// The host end of a suspect's interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuspectInterface {
    /// The ID of the container.
    pub container_id: String,
    /// Name of the interface.
    pub ifname: String,
    proof: HostLinkProof,
    /// The ID of the other end's namespace in the host's namespace. `None` if the interface has no
    /// carrier, if both ends are in the host's namespace, or if the runtime names the container.
    peer_netns_id: Option<i32>,
}

/// A running container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningContainer {
    /// The ID of the container.
    pub container_id: String,
    /// The host end of the container's interface.
    pub ifname: String,
    /// The PID of a process in the container's network namespace.
    pub process: u32,
}

/// Returns the interfaces of the suspects. The alias identifies the owner of an interface. Without
/// an alias, a host route to an address does.
pub fn suspect_interfaces(
    suspects: &[SuspectContainer],
) -> Result<Vec<SuspectInterface>, DataplaneError> {
    if suspects.is_empty() {
        return Ok(Vec::new());
    }
    let mut host = NetlinkSocket::open()?;
    let links = link::list(&mut host)?;
    let routes = route::list_both(&mut host, None)?;
    Ok(interfaces_of(suspects, &links, &routes))
}

/// Returns the suspects' interfaces among the links.
pub(super) fn interfaces_of(
    suspects: &[SuspectContainer],
    links: &[Link],
    routes: &[KernelRoute],
) -> Vec<SuspectInterface> {
    let of_link = |link| {
        suspects
            .iter()
            .filter_map(|suspect| interface_of(link, suspect, routes))
            .collect::<Vec<_>>()
    };
    links
        .iter()
        .filter(|link| link.is_paired)
        .flat_map(of_link)
        .collect()
}

/// Returns the aliases of all interfaces, by interface name.
pub fn interface_aliases() -> Result<BTreeMap<String, InterfaceAlias>, DataplaneError> {
    Ok(aliases_of(link::list(&mut NetlinkSocket::open()?)?))
}

/// Returns the aliases of the links, by interface name.
pub(super) fn aliases_of(links: Vec<Link>) -> BTreeMap<String, InterfaceAlias> {
    links
        .into_iter()
        .filter_map(|link| Some((link.name, link.alias?)))
        .collect()
}

/// Returns true if an interface of this host was created for the container, or has a host route to
/// one of the addresses.
pub fn has_interface<'a>(
    container_id: &str,
    addresses: impl Iterator<Item = &'a IpAddr>,
) -> Result<bool, DataplaneError> {
    let mut host = NetlinkSocket::open()?;
    if link::list(&mut host)?
        .iter()
        .any(|link| is_of_container(link, container_id))
    {
        return Ok(true);
    }
    let routes = route::list_both(&mut host, None)?;
    Ok(leads_to_any(&routes, addresses))
}

/// Returns true if the alias of the link names the container.
pub(super) fn is_of_container(link: &Link, container_id: &str) -> bool {
    link.alias
        .as_ref()
        .is_some_and(|alias| alias.is_of_container(container_id))
}

/// Returns true if one of the routes leads to one of the addresses alone.
pub(super) fn leads_to_any<'a>(
    routes: &[KernelRoute],
    mut addresses: impl Iterator<Item = &'a IpAddr>,
) -> bool {
    addresses.any(|ip| {
        routes
            .iter()
            .any(|route| route.destination == Cidr::host(ip.to_canonical()))
    })
}

/// Returns the containers that run: the host interface has carrier, and its other end is in a
/// network namespace with at least one process. Omits containers with another attachment that the
/// runtime names.
pub fn running_containers(
    interfaces: &[SuspectInterface],
) -> Result<Vec<RunningContainer>, DataplaneError> {
    if interfaces
        .iter()
        .all(|interface| interface.peer_netns_id.is_none())
    {
        return Ok(Vec::new());
    }
    let mut host = NetlinkSocket::open()?;
    let mut by_id = BTreeMap::new();
    each_netns(Path::new("/proc"), Examined::Processes, |process, netns| {
        by_id.extend(link::netns_id_of(&mut host, netns)?.map(|id| (id, process)));
        Ok(())
    })?;
    Ok(running_in(interfaces, &by_id))
}

/// Returns the containers whose interfaces lead into one of these namespaces. `by_id` has a process
/// of each, by the ID of the namespace.
pub(super) fn running_in(
    interfaces: &[SuspectInterface],
    by_id: &BTreeMap<i32, u32>,
) -> Vec<RunningContainer> {
    let found = interfaces.iter().filter_map(|interface| {
        let SuspectInterface {
            container_id,
            ifname,
            peer_netns_id,
            ..
        } = interface;
        let process = *by_id.get(peer_netns_id.as_ref()?)?;
        Some(RunningContainer {
            container_id: container_id.clone(),
            ifname: ifname.clone(),
            process,
        })
    });
    found.collect()
}

impl SuspectInterface {
    /// Removes the interface if it still belongs to the container. Fails if a host route is the
    /// only evidence and the interface has carrier.
    pub fn remove(self) -> Result<(), DataplaneError> {
        let teardown = Teardown::start(self.into_target())?;
        match teardown.unproven {
            Some(conflicting) => Err(DataplaneError::HostInterfaceConflict(Box::new(conflicting))),
            None => teardown.finish().map(drop),
        }
    }

    pub(super) fn into_target(self) -> TeardownTarget {
        TeardownTarget::of_host_interface(self.ifname, Some(self.container_id), self.proof)
    }
}

fn interface_of(
    link: &Link,
    suspect: &SuspectContainer,
    routes: &[KernelRoute],
) -> Option<SuspectInterface> {
    let container_id = &suspect.container_id;
    let has_route_to = |addresses: &[IpAddr]| {
        let mut through = routes
            .iter()
            .filter(|route| route.interface == Some(link.index));
        through.any(|route| {
            addresses
                .iter()
                .any(|ip| Cidr::host(ip.to_canonical()) == route.destination)
        })
    };
    let proof = match &link.alias {
        Some(alias) if !alias.is_of_container(container_id) => return None,
        Some(alias) => {
            let is_shared = suspect.may_have_other_network
                && *alias == InterfaceAlias::for_container(container_id);
            let is_proven_by_alias =
                suspect.aliases.contains(alias) && !suspect.has_valid_attachment && !is_shared;
            if !is_proven_by_alias
                && !has_route_to(&suspect.allocated)
                && !has_route_to(&suspect.listed)
            {
                return None;
            }
            HostLinkProof::Absent
        }
        None if has_route_to(&suspect.allocated) => HostLinkProof::Index(link.index),
        None if has_route_to(&suspect.listed) => HostLinkProof::RouteTo(suspect.listed.clone()),
        None => return None,
    };
    let peer_netns_id = link
        .peer_netns_id
        .filter(|_| link.has_carrier && !suspect.has_valid_attachment);
    Some(SuspectInterface {
        container_id: container_id.clone(),
        ifname: link.name.clone(),
        proof,
        peer_netns_id,
    })
}
