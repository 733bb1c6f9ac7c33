//! The host's end of the work: link up, and a route to each of the pod's addresses.

use libcalico::net::Cidr;
use netlink_packet_route::route::RouteType;
use nix::errno::Errno;

use crate::dataplane::DataplaneError;
use crate::dataplane::netlink::link::{self, Link};
use crate::dataplane::netlink::route::{self, IfPresent, KernelRoute};
use crate::dataplane::netlink::{NetlinkSocket, Request};
use crate::dataplane::plan::End;

/// What stands in the way of a host route.
enum Obstacle {
    /// Nothing any more.
    Gone,
    /// The very route, made by Felix before us.
    Ours,
    /// A route by an interface that cannot carry packets: an earlier sandbox that the kernel has not finished deleting.
    Stale,
    /// A route in use.
    InUse(String),
}

/// Sets the host end up and adds its routes, in one send.
pub(super) fn bring_up_with_routes(host: &mut NetlinkSocket, link: &Link, end: &End) -> Result<(), DataplaneError> {
    let mut requests = vec![link::set_up(link)];
    requests.extend(end.routes.iter().map(|route| add(route.destination, link, IfPresent::Refuse)));
    let mut answers = host.exchange(requests)?.into_iter();
    answers.next().unwrap_or(Ok(None))?;
    for (route, answer) in end.routes.iter().zip(answers) {
        match answer {
            // Each family on its own: upstream takes the first such route for all of them (CNI-180, CNI-243).
            Err(error) if error.errno() == Some(Errno::EEXIST) => settle(host, route.destination, link)?,
            answer => drop(answer?),
        }
    }
    Ok(())
}

/// Gets the route in despite one that is already there, unless that one is in use.
fn settle(host: &mut NetlinkSocket, destination: Cidr, link: &Link) -> Result<(), DataplaneError> {
    let if_present = match obstacle(host, destination, link)? {
        Obstacle::Ours => return Ok(()),
        Obstacle::InUse(owner) => {
            return Err(DataplaneError::RouteConflict { destination, ifname: link.name.clone(), owner });
        }
        Obstacle::Gone => IfPresent::Refuse,
        Obstacle::Stale => IfPresent::Replace,
    };
    host.carry_out(vec![add(destination, link, if_present)])?;
    Ok(())
}

fn obstacle(host: &mut NetlinkSocket, destination: Cidr, link: &Link) -> Result<Obstacle, DataplaneError> {
    let routes = route::list(host, destination.version(), None)?;
    let Some(present) = routes.into_iter().find(|route| route.destination == destination) else {
        return Ok(Obstacle::Gone);
    };
    let Some(index) = present.interface else {
        return Ok(Obstacle::InUse(describe(&present, None)));
    };
    if index == link.index {
        return Ok(Obstacle::Ours);
    }
    Ok(match link::find_by_index(host, index)? {
        Some(owner) if owner.running => Obstacle::InUse(describe(&present, Some(&owner))),
        _ => Obstacle::Stale,
    })
}

fn describe(route: &KernelRoute, owner: Option<&Link>) -> String {
    let via = route.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
    match owner {
        Some(owner) => format!("through interface {}{via} (protocol {:?})", owner.name, route.protocol),
        None if route.kind == RouteType::Unicast => format!("with several next hops (protocol {:?})", route.protocol),
        None => format!("of type {:?} (protocol {:?})", route.kind, route.protocol),
    }
}

fn add(destination: Cidr, link: &Link, if_present: IfPresent) -> Request {
    let step = format!("add host route {destination} to interface {}", link.name);
    route::add(step, destination, None, link.index, if_present)
}
