//! The IDs of network namespaces. Each namespace has its own IDs for other namespaces.

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};

use super::{NetlinkError, NetlinkSocket, Request};
use crate::dataplane::netns::NetnsFd;

/// Returns the ID of `netns` in the socket's namespace, if it has one. It has one if a pair spans the two namespaces.
pub(crate) fn of(socket: &mut NetlinkSocket, netns: &NetnsFd) -> Result<Option<i32>, NetlinkError> {
    let mut message = NsidMessage::default();
    message.attributes.push(NsidAttribute::Fd(netns.raw_fd().unsigned_abs()));
    let step = format!("look up the id of network namespace {}", netns.path().display());
    let Some(RouteNetlinkMessage::NewNsId(answer)) =
        socket.ask(Request::new(step, RouteNetlinkMessage::GetNsId(message), 0))?
    else {
        return Ok(None);
    };
    Ok(answer.attributes.into_iter().find_map(|attribute| match attribute {
        NsidAttribute::Id(id) if id >= 0 => Some(id),
        _ => None,
    }))
}
