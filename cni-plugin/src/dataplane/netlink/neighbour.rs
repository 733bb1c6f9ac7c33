//! Static neighbor entries.

use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};

use super::link::Link;
use super::{NetlinkError, NetlinkSocket, Request};
use crate::dataplane::mac::MacAddr;

/// A neighbor entry that a user or a program added. The kernel neither creates nor expires it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PermanentNeighbour {
    /// The address of the neighbor.
    pub(crate) ip: IpAddr,
    /// The Ethernet address to which packets for the neighbor are sent.
    pub(crate) mac: Option<MacAddr>,
}

/// Returns the permanent entries of `link`.
pub(crate) fn list_permanent(socket: &mut NetlinkSocket, link: &Link) -> Result<Vec<PermanentNeighbour>, NetlinkError> {
    let mut message = NeighbourMessage::default();
    message.attributes.push(NeighbourAttribute::IfIndex(link.index));
    let step = format!("list neighbours of interface {}", link.name);
    let objects = socket.dump(&Request::new(step, RouteNetlinkMessage::GetNeighbour(message), 0))?;
    Ok(objects.into_iter().filter_map(|object| permanent_on(link, object)).collect())
}

fn permanent_on(link: &Link, object: RouteNetlinkMessage) -> Option<PermanentNeighbour> {
    let RouteNetlinkMessage::NewNeighbour(message) = object else { return None };
    if message.header.ifindex != link.index || message.header.state != NeighbourState::Permanent {
        return None;
    }
    let (mut ip, mut mac) = (None, None);
    for attribute in message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => ip = Some(IpAddr::V4(address)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => ip = Some(IpAddr::V6(address)),
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = MacAddr::try_from(bytes.as_slice()).ok(),
            _ => {}
        }
    }
    Some(PermanentNeighbour { ip: ip?, mac })
}
