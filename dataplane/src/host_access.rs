//! [`HostAccess`]: the interfaces and routes of a host, as the decisions of ADD, DEL and GC read
//! and change them. The same decisions run on the kernel and on a model of it.

use std::path::Path;

use libcalico::names::InterfaceAlias;
use libcalico::net::{Cidr, IpVersion};
use os::lock::HostLock;

use super::netlink::{KernelRoute, Link, NetlinkSocket, Request, link, route};
use super::{DataplaneError, NetlinkError, NetnsFd, interfaces_lock};

/// The interfaces and routes of a host. A method sends its requests at once.
pub(super) trait HostAccess {
    /// An open network namespace of a pod.
    type Netns;
    /// The lock of [`interfaces_lock`].
    type Lock;

    /// Returns the path by which a namespace was opened.
    fn path_of(netns: &Self::Netns) -> &Path;

    /// Takes the exclusive lock; see [`interfaces_lock::acquire`].
    fn lock(&mut self, ifname: &str) -> Result<Option<Self::Lock>, DataplaneError>;

    /// Returns the host interface of this name; `None` if there is none.
    fn link(&mut self, name: &str) -> Result<Option<Link>, NetlinkError>;

    /// Returns the host interface with this index; `None` if there is none.
    fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, NetlinkError>;

    /// Returns two interfaces in a pod: that of a name, and that with an index.
    fn links_in(
        &mut self,
        netns: &Self::Netns,
        name: &str,
        index: Option<u32>,
    ) -> Result<(Option<Link>, Option<Link>), DataplaneError>;

    /// Returns the ID of a namespace; see [`link::netns_id_of`].
    fn netns_id(&mut self, netns: &Self::Netns) -> Result<Option<i32>, NetlinkError>;

    /// Returns the routes of one family; see [`route::list`].
    fn routes(
        &mut self,
        family: IpVersion,
        interface: Option<u32>,
    ) -> Result<Vec<KernelRoute>, NetlinkError>;

    /// Sets the alias of a link, sets the link up and adds routes through it, in this order and
    /// whatever the result of each. Returns the result of each.
    fn bring_up(
        &mut self,
        link: &Link,
        alias: &InterfaceAlias,
        destinations: &[Cidr],
    ) -> Result<Vec<Result<(), NetlinkError>>, NetlinkError>;

    /// Adds a route through a link.
    fn add_route(&mut self, destination: Cidr, link: &Link) -> Result<(), NetlinkError>;

    /// Deletes the route through the interface with this index.
    fn delete_route(&mut self, destination: Cidr, interface: u32) -> Result<(), NetlinkError>;

    /// Deletes a pair. A missing interface is no failure.
    fn delete_link(&mut self, link: &Link) -> Result<(), NetlinkError>;

    /// Returns the routes of both families; see [`route::list_both`].
    fn routes_of_both(&mut self, interface: Option<u32>) -> Result<Vec<KernelRoute>, NetlinkError> {
        let mut routes = self.routes(IpVersion::V4, interface)?;
        routes.extend(self.routes(IpVersion::V6, interface)?);
        Ok(routes)
    }
}

/// The host is the namespace of the socket.
impl HostAccess for NetlinkSocket {
    type Netns = NetnsFd;
    type Lock = HostLock;

    fn path_of(netns: &NetnsFd) -> &Path {
        netns.path()
    }

    fn lock(&mut self, ifname: &str) -> Result<Option<HostLock>, DataplaneError> {
        interfaces_lock::acquire(ifname)
    }

    fn link(&mut self, name: &str) -> Result<Option<Link>, NetlinkError> {
        link::find(self, name)
    }

    fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, NetlinkError> {
        link::find_by_index(self, index)
    }

    fn links_in(
        &mut self,
        netns: &NetnsFd,
        name: &str,
        index: Option<u32>,
    ) -> Result<(Option<Link>, Option<Link>), DataplaneError> {
        netns.run_in(|| {
            let mut socket = NetlinkSocket::open()?;
            let named = link::find(&mut socket, name)?;
            let numbered = index
                .map(|index| link::find_by_index(&mut socket, index))
                .transpose()?
                .flatten();
            Ok((named, numbered))
        })
    }

    fn netns_id(&mut self, netns: &NetnsFd) -> Result<Option<i32>, NetlinkError> {
        link::netns_id_of(self, netns)
    }

    fn routes(
        &mut self,
        family: IpVersion,
        interface: Option<u32>,
    ) -> Result<Vec<KernelRoute>, NetlinkError> {
        route::list(self, family, interface)
    }

    fn bring_up(
        &mut self,
        link: &Link,
        alias: &InterfaceAlias,
        destinations: &[Cidr],
    ) -> Result<Vec<Result<(), NetlinkError>>, NetlinkError> {
        let mut requests = vec![link::set_alias(link, alias), link::set_up(link)];
        requests.extend(destinations.iter().map(|to| host_route(*to, link)));
        let answers = self.exchange(requests)?.into_iter();
        Ok(answers.map(|answer| answer.map(drop)).collect())
    }

    fn add_route(&mut self, destination: Cidr, link: &Link) -> Result<(), NetlinkError> {
        self.exchange_one(host_route(destination, link)).map(drop)
    }

    fn delete_route(&mut self, destination: Cidr, interface: u32) -> Result<(), NetlinkError> {
        let step =
            format!("delete the host route to {destination} through interface number {interface}");
        self.exchange_one(route::delete(step, destination, interface))
            .map(drop)
    }

    fn delete_link(&mut self, link: &Link) -> Result<(), NetlinkError> {
        link::delete(self, link)
    }
}

fn host_route(destination: Cidr, link: &Link) -> Request {
    let step = format!("add host route {destination} to interface {}", link.name);
    route::add(step, destination, None, link.index)
}
