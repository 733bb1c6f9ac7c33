use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::AddressMessageBuilder;

use super::link::Link;
use super::{NetlinkError, NetlinkSocket, Request};
use crate::MacAddr;

/// The multicast group for events about IPv6 addresses (RTNLGRP_IPV6_IFADDR).
pub(crate) const IPV6_ADDRESS_EVENTS: u32 = 9;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KernelAddress {
    pub(crate) interface: u32,
    pub(crate) ip: IpAddr,
    pub(crate) prefix: u8,
}

/// Returns the request that adds the address to `link` as a /32 or /128.
pub(crate) fn add(link: &Link, ip: IpAddr) -> Request {
    let message = match ip {
        IpAddr::V4(ip) => AddressMessageBuilder::<Ipv4Addr>::new()
            .index(link.index)
            .address(ip, 32)
            .build(),
        IpAddr::V6(ip) => AddressMessageBuilder::<Ipv6Addr>::new()
            .index(link.index)
            .address(ip, 128)
            .build(),
    };
    let step = format!("add address {ip} to interface {}", link.name);
    Request::new(
        step,
        RouteNetlinkMessage::NewAddress(message),
        NLM_F_CREATE | NLM_F_EXCL,
    )
}

pub(crate) fn list(
    socket: &mut NetlinkSocket,
    link: &Link,
) -> Result<Vec<KernelAddress>, NetlinkError> {
    let mut message = AddressMessage::default();
    message.header.index = link.index;
    let step = format!("list addresses of interface {}", link.name);
    let objects = socket.dump(&Request::new(
        step,
        RouteNetlinkMessage::GetAddress(message),
        0,
    ))?;
    let of_link = |address: &KernelAddress| address.interface == link.index;
    Ok(objects
        .into_iter()
        .filter_map(KernelAddress::from_object)
        .filter(of_link)
        .collect())
}

impl KernelAddress {
    /// Reads an RTM_NEWADDR message; returns `None` for any other message, and without an address.
    pub(crate) fn from_object(object: RouteNetlinkMessage) -> Option<Self> {
        let RouteNetlinkMessage::NewAddress(message) = object else {
            return None;
        };
        // `Address` is the remote end of a point-to-point link, and `Local` the interface's own
        // address. Without `Local`, `Address` is the interface's own.
        let (mut own, mut remote) = (None, None);
        for attribute in message.attributes {
            match attribute {
                AddressAttribute::Local(ip) => own = Some(ip),
                AddressAttribute::Address(ip) => remote = Some(ip),
                _ => {}
            }
        }
        let (interface, prefix) = (message.header.index, message.header.prefix_len);
        Some(KernelAddress {
            interface,
            ip: own.or(remote)?,
            prefix,
        })
    }
}

/// A neighbor entry that a user or a program added. The kernel neither creates nor expires it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PermanentNeighbour {
    pub(crate) ip: IpAddr,
    /// The Ethernet address to which packets for the neighbor are sent; `None` if the entry has
    /// none.
    pub(crate) mac: Option<MacAddr>,
}

pub(crate) fn list_permanent(
    socket: &mut NetlinkSocket,
    link: &Link,
) -> Result<Vec<PermanentNeighbour>, NetlinkError> {
    let mut message = NeighbourMessage::default();
    message
        .attributes
        .push(NeighbourAttribute::IfIndex(link.index));
    let step = format!("list neighbours of interface {}", link.name);
    let objects = socket.dump(&Request::new(
        step,
        RouteNetlinkMessage::GetNeighbour(message),
        0,
    ))?;
    Ok(objects
        .into_iter()
        .filter_map(|object| permanent_on(link, object))
        .collect())
}

fn permanent_on(link: &Link, object: RouteNetlinkMessage) -> Option<PermanentNeighbour> {
    let RouteNetlinkMessage::NewNeighbour(message) = object else {
        return None;
    };
    if message.header.ifindex != link.index || message.header.state != NeighbourState::Permanent {
        return None;
    }
    let (mut ip, mut mac) = (None, None);
    for attribute in message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => {
                ip = Some(IpAddr::V4(address))
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => {
                ip = Some(IpAddr::V6(address))
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = MacAddr::from_slice(&bytes),
            _ => {}
        }
    }
    Some(PermanentNeighbour { ip: ip?, mac })
}
