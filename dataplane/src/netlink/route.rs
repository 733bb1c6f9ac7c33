use std::net::IpAddr;

use libcalico::net::{Cidr, IpVersion};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
    RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;

use super::{NetlinkError, NetlinkSocket, Request};

/// The table of the host's own addresses (RT_TABLE_LOCAL).
const TABLE_LOCAL: u8 = 255;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelRoute {
    pub(crate) destination: Cidr,
    /// The next hop; `None` for a destination on the link, and for a route that drops packets or
    /// has several next hops.
    pub(crate) gateway: Option<IpAddr>,
    /// The output interface; `None` for a route that drops packets or has several next hops.
    pub(crate) interface: Option<u32>,
    /// The output interfaces of a route with several next hops; empty for any other route.
    pub(crate) next_hops: Vec<u32>,
    /// The scope; the kernel reports universe for every IPv6 route.
    pub(crate) scope: RouteScope,
    pub(crate) kind: RouteType,
    pub(crate) protocol: RouteProtocol,
}

/// Returns the request that adds a route with protocol boot through interface `index`: to
/// `gateway`, or to a destination on the link without a gateway. The request fails with EEXIST if the kernel has
/// a route to the same destination with the same metric.
pub(crate) fn add(step: String, destination: Cidr, gateway: Option<IpAddr>, index: u32) -> Request {
    let mut message = through(destination, index);
    message.header.protocol = RouteProtocol::Boot;
    message.header.scope = scope_of(gateway);
    message.header.kind = RouteType::Unicast;
    message
        .attributes
        .extend(gateway.map(|gateway| RouteAttribute::Gateway(gateway.into())));
    Request::new(
        step,
        RouteNetlinkMessage::NewRoute(message),
        NLM_F_CREATE | NLM_F_EXCL,
    )
}

/// Returns the scope of a new route: link without a gateway.
///
/// The kernel accepts a gateway only if another route reaches it on the link, and the scope of that
/// route must be narrower than the scope of the route through the gateway. Usually this is the route
/// that the kernel adds with the address of an interface. No interface has the address 169.254.1.1,
/// the gateway of the pods. Without its own route of scope link, the kernel rejects the pod's
/// default route.
fn scope_of(gateway: Option<IpAddr>) -> RouteScope {
    match gateway {
        Some(_) => RouteScope::Universe,
        None => RouteScope::Link,
    }
}

/// Returns the request that deletes the route to `destination` through interface `index`.
pub(crate) fn delete(step: String, destination: Cidr, index: u32) -> Request {
    let mut message = through(destination, index);
    // The kernel then deletes a route of any scope, type and protocol.
    message.header.scope = RouteScope::NoWhere;
    Request::new(step, RouteNetlinkMessage::DelRoute(message), 0)
}

/// Returns the request that looks up the route for packets to a single address (Linux 4.13). The
/// answer is an error if there is no route, or if the route rejects packets.
pub(crate) fn find(destination: Cidr) -> Request {
    let mut message = message_to(destination);
    message.header.flags = RouteFlags::FibMatch;
    Request::new(
        format!("find the route to {destination}"),
        RouteNetlinkMessage::GetRoute(message),
        0,
    )
}

fn through(destination: Cidr, index: u32) -> RouteMessage {
    let mut message = message_to(destination);
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.attributes.push(RouteAttribute::Oif(index));
    message
}

fn message_to(destination: Cidr) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = address_family(destination.version());
    message.header.destination_prefix_length = destination.prefix();
    message
        .attributes
        .push(RouteAttribute::Destination(destination.network().into()));
    message
}

/// Returns the main table's routes of one family. If `interface` is given, returns only those
/// through that interface.
pub(crate) fn list(
    socket: &mut NetlinkSocket,
    family: IpVersion,
    interface: Option<u32>,
) -> Result<Vec<KernelRoute>, NetlinkError> {
    let mut message = RouteMessage::default();
    message.header.address_family = address_family(family);
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message
        .attributes
        .extend(interface.map(RouteAttribute::Oif));
    let request = Request::new(
        format!("list IPv{family} routes"),
        RouteNetlinkMessage::GetRoute(message),
        0,
    );
    let objects = match socket.dump(&request) {
        // The kernel creates the main table with its first route.
        Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(Vec::new()),
        // The interface disappeared after it was found.
        Err(error) if error.errno() == Some(Errno::ENODEV) && interface.is_some() => {
            return Ok(Vec::new());
        }
        outcome => outcome?,
    };
    let is_selected = |route: &KernelRoute| interface.is_none() || route.interface == interface;
    let in_main = |object| KernelRoute::from_tables(object, &[RouteHeader::RT_TABLE_MAIN]);
    Ok(objects
        .into_iter()
        .filter_map(in_main)
        .filter(is_selected)
        .collect())
}

pub(crate) fn list_both(
    socket: &mut NetlinkSocket,
    interface: Option<u32>,
) -> Result<Vec<KernelRoute>, NetlinkError> {
    let mut routes = list(socket, IpVersion::V4, interface)?;
    routes.extend(list(socket, IpVersion::V6, interface)?);
    Ok(routes)
}

/// Returns the routes of all tables but that of the host's own addresses, of both families.
pub(crate) fn list_all_tables(
    socket: &mut NetlinkSocket,
) -> Result<Vec<KernelRoute>, NetlinkError> {
    let mut routes = Vec::new();
    for family in [IpVersion::V4, IpVersion::V6] {
        let mut message = RouteMessage::default();
        message.header.address_family = address_family(family);
        let request = Request::new(
            format!("list all IPv{family} routes"),
            RouteNetlinkMessage::GetRoute(message),
            0,
        );
        routes.extend(
            socket
                .dump(&request)?
                .into_iter()
                .filter_map(KernelRoute::outside_of_local_table),
        );
    }
    Ok(routes)
}

fn address_family(family: IpVersion) -> AddressFamily {
    match family {
        IpVersion::V4 => AddressFamily::Inet,
        IpVersion::V6 => AddressFamily::Inet6,
    }
}

impl KernelRoute {
    /// Reads the answer to [`find`]: a route of the main table, or the local route to an address of
    /// the host itself. Returns `None` for any other route.
    pub(crate) fn from_answer(object: RouteNetlinkMessage) -> Option<Self> {
        Self::from_tables(object, &[RouteHeader::RT_TABLE_MAIN, TABLE_LOCAL])
    }

    /// Returns true if the route delivers packets to a destination on the link, as a route that
    /// [`add`] creates without a gateway.
    pub(crate) fn is_on_link(&self) -> bool {
        // The kernel reports scope universe for every IPv6 route (CNI-181).
        let has_scope = self.scope == scope_of(None) || self.destination.version() == IpVersion::V6;
        self.gateway.is_none() && has_scope && self.kind == RouteType::Unicast
    }

    fn outside_of_local_table(object: RouteNetlinkMessage) -> Option<Self> {
        match &object {
            RouteNetlinkMessage::NewRoute(message) if message.header.table != TABLE_LOCAL => {
                let table = message.header.table;
                Self::from_tables(object, &[table])
            }
            _ => None,
        }
    }

    fn from_tables(object: RouteNetlinkMessage, tables: &[u8]) -> Option<Self> {
        let RouteNetlinkMessage::NewRoute(message) = object else {
            return None;
        };
        let header = message.header;
        let any = match header.address_family {
            AddressFamily::Inet => IpAddr::from([0; 4]),
            AddressFamily::Inet6 => IpAddr::from([0; 16]),
            _ => return None,
        };
        if !tables.contains(&header.table) || header.flags.contains(RouteFlags::Cloned) {
            return None;
        }
        let (mut network, mut gateway, mut interface, mut next_hops) =
            (any, None, None, Vec::new());
        for attribute in message.attributes {
            match attribute {
                RouteAttribute::Destination(address) => network = ip(address).unwrap_or(any),
                RouteAttribute::Gateway(address) => gateway = ip(address),
                RouteAttribute::Oif(index) => interface = Some(index),
                RouteAttribute::MultiPath(hops) => {
                    next_hops = hops.iter().map(|hop| hop.interface_index).collect()
                }
                _ => {}
            }
        }
        let destination = Cidr::new(network, header.destination_prefix_length)?;
        let RouteHeader {
            scope,
            kind,
            protocol,
            ..
        } = header;
        Some(KernelRoute {
            destination,
            gateway,
            interface,
            next_hops,
            scope,
            kind,
            protocol,
        })
    }
}

fn ip(address: RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some(ip.into()),
        RouteAddress::Inet6(ip) => Some(ip.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The interface may disappear with the pod's namespace while DEL looks up the routes.
    #[test]
    fn missing_interface_has_no_routes() {
        let mut socket = NetlinkSocket::open().unwrap();
        for family in [IpVersion::V4, IpVersion::V6] {
            assert_eq!(
                list(&mut socket, family, Some(i32::MAX as u32)).unwrap(),
                []
            );
        }
    }
}
