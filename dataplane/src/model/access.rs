//! The modeled host, as the decisions of ADD, DEL and GC read and change it.

use std::path::Path;

use libcalico::names::InterfaceAlias;
use libcalico::net::{Cidr, IpVersion};
use netlink_packet_route::route::{RouteProtocol, RouteScope, RouteType};
use os::lock::{LONGEST_WAIT, LockError};

use super::tables::HOST;
use super::{KernelModel, ModelLock, ModelNetns, steps};
use crate::host_access::HostAccess;
use crate::netlink::{KernelRoute, Link, link};
use crate::{DataplaneError, NetlinkError};

impl KernelModel {
    /// Returns all host interfaces, in the order of their indexes.
    pub(super) fn host_interfaces(&self) -> Vec<Link> {
        let tables = self.tables();
        let indexes = tables.indexes(HOST).into_iter();
        indexes
            .filter_map(|index| tables.reported(HOST, index))
            .collect()
    }

    pub(super) fn find_in(&self, netns: &ModelNetns, name: &str) -> Option<Link> {
        let tables = self.tables();
        let index = tables.index_of(netns.id, name)?;
        tables.reported(netns.id, index)
    }
}

impl HostAccess for KernelModel {
    type Netns = ModelNetns;
    type Lock = ModelLock;

    fn path_of(netns: &ModelNetns) -> &Path {
        &netns.path
    }

    fn lock(&mut self, ifname: &str) -> Result<Option<ModelLock>, DataplaneError> {
        let busy = || DataplaneError::LockBusy {
            ifname: ifname.to_owned(),
            source: LockError::Busy {
                path: "interfaces.lock".to_owned(),
                waited: LONGEST_WAIT,
            },
        };
        self.try_lock(true).map(Some).ok_or_else(busy)
    }

    fn link(&mut self, name: &str) -> Result<Option<Link>, NetlinkError> {
        let tables = self.tables();
        let index = tables.index_of(HOST, name);
        Ok(index.and_then(|index| tables.reported(HOST, index)))
    }

    fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, NetlinkError> {
        Ok(self.tables().reported(HOST, index))
    }

    fn links_in(
        &mut self,
        netns: &ModelNetns,
        name: &str,
        index: Option<u32>,
    ) -> Result<(Option<Link>, Option<Link>), DataplaneError> {
        let named = self.find_in(netns, name);
        let tables = self.tables();
        let numbered = index.and_then(|index| tables.reported(netns.id, index));
        Ok((named, numbered))
    }

    fn netns_id(&mut self, netns: &ModelNetns) -> Result<Option<i32>, NetlinkError> {
        Ok(Some(netns.id as i32))
    }

    fn routes(
        &mut self,
        family: IpVersion,
        interface: Option<u32>,
    ) -> Result<Vec<KernelRoute>, NetlinkError> {
        let tables = self.tables();
        let is_selected = |(destination, index): &(Cidr, u32)| {
            destination.version() == family && interface.is_none_or(|wanted| wanted == *index)
        };
        let routes = tables.routes().filter(is_selected);
        Ok(routes
            .map(|(to, index)| reported_route(to, index))
            .collect())
    }

    fn bring_up(
        &mut self,
        link: &Link,
        alias: &InterfaceAlias,
        destinations: &[Cidr],
    ) -> Result<Vec<Result<(), NetlinkError>>, NetlinkError> {
        let index = link.index;
        let mut results = vec![
            self.step(steps::SET_ALIAS, |tables| {
                tables.link_mut(HOST, index)?.alias = Some(alias.clone());
                Ok(())
            }),
            self.step(steps::SET_HOST_END_UP, |tables| tables.set_up(HOST, index)),
        ];
        for destination in destinations {
            results.push(self.step(steps::ADD_HOST_ROUTE, |tables| {
                tables.add_route(HOST, *destination, index)
            }));
        }
        Ok(results)
    }

    fn add_route(&mut self, destination: Cidr, link: &Link) -> Result<(), NetlinkError> {
        self.step(steps::ADD_HOST_ROUTE_AGAIN, |tables| {
            tables.add_route(HOST, destination, link.index)
        })
    }

    fn delete_route(&mut self, destination: Cidr, interface: u32) -> Result<(), NetlinkError> {
        self.step(steps::DELETE_IDLE_ROUTE, |tables| {
            tables.delete_route(destination, interface)
        })
    }

    fn delete_link(&mut self, link: &Link) -> Result<(), NetlinkError> {
        link::ignore_missing(
            self.step(steps::DELETE_PAIR, |tables| tables.delete(HOST, link.index)),
        )
    }
}

/// Returns a host route as the kernel reports it.
pub(super) fn reported_route(destination: Cidr, index: u32) -> KernelRoute {
    KernelRoute {
        destination,
        gateway: None,
        interface: Some(index),
        next_hops: Vec::new(),
        scope: match destination.version() {
            IpVersion::V4 => RouteScope::Link,
            IpVersion::V6 => RouteScope::Universe,
        },
        kind: RouteType::Unicast,
        protocol: RouteProtocol::Boot,
    }
}
