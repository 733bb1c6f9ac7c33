//! Access to the host's network for the commands of the installer and of `calico-ipam`.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::IpAddr;

use crate::host_link::{HostLink, HostLinkError, HostLinks};
use crate::host_network::{
    HostNetwork, HostRoute, Interface, LinkChange, LinkItem, NetworkError, PodLink,
};
use libcalico::dead_interface::DeadLink;
use libcalico::ipam::Statement;

use super::compare::{CheckedItem, Difference, changes_of_host_end};
use super::netlink::{KernelRoute, Link, NetlinkSocket, link, route};
use super::{HostLinkProof, NetlinkError, Teardown, TeardownTarget, dead_link};

/// The network of the kernel in the network namespace of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelNetwork;

impl HostNetwork for KernelNetwork {
    fn interfaces(&self) -> Result<Vec<Interface>, NetworkError> {
        let links = NetlinkSocket::open().and_then(|mut socket| link::list(&mut socket));
        let links = links.map_err(network_error)?;
        let interface = |link: Link| Interface {
            is_pod_interface: link.is_of_pod(),
            name: link.name,
            mtu: link.mtu,
        };
        Ok(links.into_iter().map(interface).collect())
    }

    fn routes(&self) -> Result<Vec<HostRoute>, NetworkError> {
        named_routes(|socket| route::list_both(socket, None)).map_err(network_error)
    }

    fn routes_of_all_tables(&self) -> Result<Vec<HostRoute>, NetworkError> {
        named_routes(route::list_all_tables).map_err(network_error)
    }

    fn remove_pod_interface(&self, name: &str) -> Result<bool, NetworkError> {
        // Deletes the host end of a pair with an alias of this plugin, or with the MAC address of
        // Calico's host ends. The kernel deletes the other end and the routes with it.
        let target = TeardownTarget::of_host_interface(name.to_owned(), None, HostLinkProof::Name);
        let removed = Teardown::start(target)
            .and_then(Teardown::finish)
            .map_err(network_error)?;
        Ok(removed.interface.is_some())
    }

    fn pod_links(&self) -> Result<Vec<PodLink>, NetworkError> {
        dead_link::pod_links().map_err(network_error)
    }

    fn changes_of_pod_link(
        &self,
        name: &str,
        addresses: &[IpAddr],
    ) -> Result<Vec<LinkChange>, NetworkError> {
        let differences = changes_of_host_end(name, addresses).map_err(network_error)?;
        Ok(differences.into_iter().filter_map(link_change).collect())
    }

    fn inhabited_namespaces(&self) -> Result<Statement<BTreeSet<i32>>, NetworkError> {
        dead_link::inhabited_namespaces().map_err(network_error)
    }

    fn containers_of_calls(&self) -> Result<Statement<BTreeSet<String>>, NetworkError> {
        dead_link::containers_of_calls().map_err(network_error)
    }

    fn remove_dead_link(&self, link: &DeadLink) -> Result<bool, NetworkError> {
        dead_link::remove(link).map_err(network_error)
    }
}

impl HostLinks for KernelNetwork {
    fn find(&self, name: &str) -> Result<Option<HostLink>, HostLinkError> {
        find(name).map_err(|error| HostLinkError(error.to_string()))
    }
}

fn network_error(error: impl Display) -> NetworkError {
    NetworkError(error.to_string())
}

fn find(name: &str) -> Result<Option<HostLink>, NetlinkError> {
    let mut socket = NetlinkSocket::open()?;
    let Some(link) = link::find(&mut socket, name)? else {
        return Ok(None);
    };
    let routes = route::list_both(&mut socket, Some(link.index))?;
    Ok(Some(HostLink {
        name: link.name,
        index: link.index,
        mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        mtu: link.mtu,
        up: link.is_up,
        carrier: link.has_carrier,
        container_id: link
            .alias
            .as_ref()
            .map(|alias| alias.container().to_owned()),
        alias: link.alias,
        routes: routes
            .iter()
            .map(|route| route.destination.to_string())
            .collect(),
    }))
}

fn link_change(
    Difference {
        item,
        expected,
        found,
    }: Difference,
) -> Option<LinkChange> {
    let item = match item {
        CheckedItem::State(_) => LinkItem::State,
        CheckedItem::Mac(_) => LinkItem::Mac,
        CheckedItem::Sysctl(name) => LinkItem::Setting(name),
        _ => return None,
    };
    Some(LinkChange {
        item,
        expected,
        found,
    })
}

fn named_routes(
    list: impl FnOnce(&mut NetlinkSocket) -> Result<Vec<KernelRoute>, NetlinkError>,
) -> Result<Vec<HostRoute>, NetlinkError> {
    let mut socket = NetlinkSocket::open()?;
    let links = link::list(&mut socket)?;
    let name = |index: &u32| Some(links.iter().find(|link| link.index == *index)?.name.clone());
    let named = |route: KernelRoute| HostRoute {
        destination: route.destination,
        interfaces: route
            .interface
            .iter()
            .chain(&route.next_hops)
            .filter_map(name)
            .collect(),
    };
    Ok(list(&mut socket)?.into_iter().map(named).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_interfaces_and_routes_of_the_test_host_are_readable() {
        let interfaces = KernelNetwork.interfaces().unwrap();
        assert!(
            interfaces
                .iter()
                .any(|interface| interface.name == "lo" && !interface.is_pod_interface),
            "{interfaces:?}"
        );
        let routes = KernelNetwork.routes().unwrap();
        let known = |route: &HostRoute| {
            route
                .interfaces
                .iter()
                .all(|name| interfaces.iter().any(|i| i.name == *name))
        };
        assert!(routes.iter().all(known), "{routes:?}");
        let of_main_table = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
        for name in of_main_table
            .lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().next())
        {
            assert!(
                routes
                    .iter()
                    .any(|route| route.interfaces.iter().any(|known| known == name)),
                "{name}: {routes:?}"
            );
        }
        let all = KernelNetwork.routes_of_all_tables().unwrap();
        assert!(
            routes.iter().all(|route| all.contains(route)),
            "{routes:?}\n{all:?}"
        );
        let lo = KernelNetwork.find("lo").unwrap().unwrap();
        assert_eq!((lo.name.as_str(), lo.container_id), ("lo", None));
        assert_eq!(KernelNetwork.find("no-such-link"), Ok(None));
    }
}
