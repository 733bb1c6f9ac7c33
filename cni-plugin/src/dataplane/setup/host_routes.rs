//! The host's end of the work: link up, and a route to each of the pod's addresses.

use libcalico::net::Cidr;
use netlink_packet_route::route::RouteType;
use nix::errno::Errno;

use super::create::Pair;
use crate::dataplane::netlink::link::{self, Link};
use crate::dataplane::netlink::route::{self, KernelRoute};
use crate::dataplane::netlink::{NetlinkError, NetlinkSocket, Request};
use crate::dataplane::plan::{End, EndpointPlan};
use crate::dataplane::{BusyRoute, DataplaneError};

/// How often a route is added anew after others were found in its place: those come and go meanwhile.
const TRIES: usize = 5;

/// A route that is in the place of one of ours.
enum Obstacle {
    /// The very route, made by Felix before us.
    Ours,
    /// A route through one end of a pair, the interface of this number, which cannot carry packets: of an earlier sandbox, or of a pod
    /// whose DEL the kernel has not finished.
    Idle(u32, BusyRoute),
    /// A route in use.
    Busy(BusyRoute),
}

/// Notes on the host end whose it is, sets it up and adds its routes, in one send and in this order: an interface that is up
/// has its alias.
pub(super) fn bring_up_with_routes(
    host: &mut NetlinkSocket,
    pair: &Pair,
    end: &End,
    plan: &EndpointPlan,
) -> Result<(), DataplaneError> {
    let (link, replaces_idle) = (&pair.host, plan.replaces_idle_routes);
    if plan.refuses_addresses_of_pods {
        plan.hosts().try_for_each(|address| refuse_address_of_pod(host, address, link))?;
    }
    // The kernel refuses a second route with the same metric alone, and Felix gives its routes to pods another one.
    for route in &pair.routes_before {
        // The host has the address itself: its route is in another table, and comes before any of the main table.
        if route.kind == RouteType::Local {
            let owner = route.interface.map(|index| link::find_by_index(host, index)).transpose()?.flatten();
            return Err(busy(route, owner.as_ref(), link).into());
        }
        // No idle route goes for an ADD that fails because of the route to another address.
        refuse_busy(host, route.destination, link)?;
    }
    for route in &pair.routes_before {
        clear(host, route.destination, link, replaces_idle)?;
    }
    let mut requests = vec![link::set_alias(link, &plan.alias), link::set_up(link)];
    requests.extend(end.routes.iter().map(|route| add(route.destination, link)));
    let mut answers = host.exchange(requests)?.into_iter();
    for _ in 0..2 {
        answers.next().unwrap_or(Ok(None))?;
    }
    for (route, answer) in end.routes.iter().zip(answers) {
        match answer {
            // Each family on its own: upstream takes the first such route for all of them (CNI-180, CNI-243).
            Err(error) if exists(&error) => settle(host, route.destination, link, replaces_idle, error)?,
            answer => drop(answer?),
        }
    }
    Ok(())
}

/// Fails if a route to `address` leads to another pod that can be reached. The kernel tells that by itself only where a route is
/// added.
fn refuse_address_of_pod(host: &mut NetlinkSocket, address: Cidr, link: &Link) -> Result<(), DataplaneError> {
    for route in routes_to(host, address)? {
        let owner = route.interface.filter(|index| *index != link.index);
        let owner = owner.map(|index| link::find_by_index(host, index)).transpose()?.flatten();
        if let Some(owner) = owner.filter(|owner| owner.running && owner.is_pods()) {
            return Err(busy(&route, Some(&owner), link).into());
        }
    }
    Ok(())
}

/// Gets the route in despite one that is already there, unless that one has to stay. A route is never put into the place of
/// another: that one could be in use by then. The idle route is deleted by its interface, and the new one added if its place is
/// still free.
fn settle(
    host: &mut NetlinkSocket,
    destination: Cidr,
    link: &Link,
    replaces_idle: bool,
    mut refusal: NetlinkError,
) -> Result<(), DataplaneError> {
    for _ in 0..TRIES {
        if clear(host, destination, link, replaces_idle)? {
            return Ok(());
        }
        match host.ask(add(destination, link)) {
            Err(error) if exists(&error) => refusal = error,
            answer => return answer.map(drop).map_err(DataplaneError::from),
        }
    }
    Err(refusal.into())
}

/// Deletes idle routes to `destination`. Returns true if ours is there already.
///
/// # Errors
/// A route has to stay: its interface carries packets, or idle routes may not be replaced.
fn clear(
    host: &mut NetlinkSocket,
    destination: Cidr,
    link: &Link,
    replaces_idle: bool,
) -> Result<bool, DataplaneError> {
    for obstacle in obstacles(host, destination, link)? {
        match obstacle {
            Obstacle::Ours => return Ok(true),
            Obstacle::Idle(interface, _) if replaces_idle => remove(host, destination, interface)?,
            Obstacle::Idle(_, busy) | Obstacle::Busy(busy) => return Err(busy.into()),
        }
    }
    Ok(false)
}

/// Fails where a route to `destination` is in use.
fn refuse_busy(host: &mut NetlinkSocket, destination: Cidr, link: &Link) -> Result<(), DataplaneError> {
    match obstacles(host, destination, link)?.into_iter().next() {
        Some(Obstacle::Busy(busy)) => Err(busy.into()),
        _ => Ok(()),
    }
}

/// The routes to `destination`. Those that have to stay come before the idle ones: nothing is removed before a failure.
fn obstacles(host: &mut NetlinkSocket, destination: Cidr, link: &Link) -> Result<Vec<Obstacle>, NetlinkError> {
    let routes = routes_to(host, destination)?;
    let mut found = Vec::with_capacity(routes.len());
    for route in &routes {
        found.extend(obstacle(host, route, link)?);
    }
    found.sort_by_key(|obstacle| match obstacle {
        Obstacle::Ours => 0,
        Obstacle::Busy(_) => 1,
        Obstacle::Idle(..) => 2,
    });
    Ok(found)
}

fn routes_to(host: &mut NetlinkSocket, destination: Cidr) -> Result<Vec<KernelRoute>, NetlinkError> {
    let mut routes = route::list(host, destination.version(), None)?;
    routes.retain(|route| route.destination == destination);
    Ok(routes)
}

fn busy(route: &KernelRoute, owner: Option<&Link>, link: &Link) -> BusyRoute {
    BusyRoute {
        address: route.destination.network(),
        route: describe(route, owner),
        interface: owner.map(|owner| owner.name.clone()),
        ifname: link.name.clone(),
    }
}

/// `None` for a route whose interface has gone meanwhile, and the route with it.
fn obstacle(host: &mut NetlinkSocket, route: &KernelRoute, link: &Link) -> Result<Option<Obstacle>, NetlinkError> {
    let busy = |owner: Option<&Link>| busy(route, owner, link);
    let Some(index) = route.interface else { return Ok(Some(Obstacle::Busy(busy(None)))) };
    if index == link.index {
        return Ok(Some(Obstacle::Ours));
    }
    let owner = link::find_by_index(host, index)?;
    Ok(owner.map(|owner| match owner.running || !owner.paired {
        true => Obstacle::Busy(busy(Some(&owner))),
        false => Obstacle::Idle(index, busy(Some(&owner))),
    }))
}

fn remove(host: &mut NetlinkSocket, destination: Cidr, interface: u32) -> Result<(), NetlinkError> {
    let step = format!("delete the host route to {destination} through interface number {interface}");
    match host.ask(route::delete(step, destination, interface)) {
        // It has gone meanwhile.
        Err(error) if matches!(error.errno(), Some(Errno::ESRCH | Errno::ENODEV)) => Ok(()),
        answer => answer.map(drop),
    }
}

fn exists(error: &NetlinkError) -> bool {
    error.errno() == Some(Errno::EEXIST)
}

fn describe(route: &KernelRoute, owner: Option<&Link>) -> String {
    let via = route.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
    match owner {
        Some(owner) if route.kind == RouteType::Local => {
            format!("that is the host's own, on interface {}", owner.name)
        }
        Some(owner) => format!("through interface {}{via} (protocol {:?})", owner.name, route.protocol),
        None if route.kind == RouteType::Unicast => format!("with several next hops (protocol {:?})", route.protocol),
        None => format!("of type {:?} (protocol {:?})", route.kind, route.protocol),
    }
}

fn add(destination: Cidr, link: &Link) -> Request {
    let step = format!("add host route {destination} to interface {}", link.name);
    route::add(step, destination, None, link.index)
}
