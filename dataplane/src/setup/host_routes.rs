//! Configures the host end: sets the link up and adds a route to each of the pod's addresses.

use libcalico::names::InterfaceAlias;
use libcalico::net::Cidr;
use netlink_packet_route::route::RouteType;
use nix::errno::Errno;

use super::create::NewPair;
use crate::host_access::HostAccess;
use crate::netlink::{KernelRoute, Link};
use crate::plan::InterfaceEnd;
use crate::{BusyRoute, DataplaneError, EndpointPlan, NetlinkError};

/// Maximum number of attempts to add a route after another route was in its place.
const MAX_ATTEMPTS: usize = 5;

/// An existing route to the destination of a route that ADD is about to add.
enum ConflictingRoute {
    /// A route through the host end, which Felix may have added first.
    Identical,
    /// A route through the interface with this index, one end of a pair that cannot carry packets.
    Idle(u32, BusyRoute),
    /// Any other route.
    Busy(BusyRoute),
}

impl ConflictingRoute {
    /// Returns the place in the order in which routes are examined. Busy routes come first, so that
    /// a failure precedes any deletion.
    fn rank(&self) -> u8 {
        match self {
            ConflictingRoute::Busy(_) => 0,
            ConflictingRoute::Identical => 1,
            ConflictingRoute::Idle(..) => 2,
        }
    }
}

/// Sets the alias of the host end, sets the link up and adds the routes, in one send and in this
/// order, so that the alias precedes the state up. Before that, deletes idle routes to the
/// addresses; fails if an existing route may not be replaced.
pub(crate) fn bring_up_with_routes(
    host: &mut impl HostAccess,
    pair: &NewPair,
    end: &InterfaceEnd,
    plan: &EndpointPlan,
) -> Result<(), DataplaneError> {
    let link = &pair.host;
    let mut routes = HostRoutes { host, link, plan };
    if plan.refuses_addresses_of_pods {
        plan.full_length_cidrs()
            .try_for_each(|address| routes.ensure_not_routed_to_pod(address))?;
    }
    // The kernel rejects a second route only if the metric is the same. Felix adds routes to pods
    // with another metric, so the routes are looked up before the new ones are added.
    for route in &pair.routes_before {
        // The address is the host's own. Its route is in the local table, which takes precedence
        // over the main table.
        if route.kind == RouteType::Local {
            let owner = route
                .interface
                .map(|index| routes.host.link_by_index(index))
                .transpose()?
                .flatten();
            return Err(busy(route, owner.as_ref(), link, plan).into());
        }
        // Check all addresses before a route is deleted: if the route to one address is in use, the
        // idle routes to the others stay.
        routes.ensure_not_busy(route.destination)?;
    }
    for route in &pair.routes_before {
        routes.delete_idle_routes(route.destination)?;
    }
    let destinations: Vec<Cidr> = end.routes.iter().map(|route| route.destination).collect();
    let answers = routes.host.bring_up(link, &plan.alias, &destinations)?;
    let mut answers = answers.into_iter();
    for _ in 0..2 {
        answers.next().unwrap_or(Ok(()))?;
    }
    for (route, answer) in end.routes.iter().zip(answers) {
        match answer {
            // Each route is handled separately. Upstream skips all later routes after the first one
            // that exists (CNI-243).
            Err(error) if is_existing_route(&error) => {
                routes.replace_idle_route(route.destination, error)?
            }
            answer => answer?,
        }
    }
    Ok(())
}

struct HostRoutes<'a, H> {
    host: &'a mut H,
    link: &'a Link,
    plan: &'a EndpointPlan,
}

impl<H: HostAccess> HostRoutes<'_, H> {
    /// Fails if a route to `address` leads through another pod's interface that can carry packets.
    /// The kernel would report a conflict only for a route that the ADD adds.
    fn ensure_not_routed_to_pod(&mut self, address: Cidr) -> Result<(), DataplaneError> {
        for route in self.routes_to(address)? {
            let owner = route.interface.filter(|index| *index != self.link.index);
            let owner = owner
                .map(|index| self.host.link_by_index(index))
                .transpose()?
                .flatten();
            if let Some(owner) = owner.filter(|owner| owner.has_carrier && owner.is_of_pod()) {
                return Err(busy(&route, Some(&owner), self.link, self.plan).into());
            }
        }
        Ok(())
    }

    /// Adds a route although another one exists; fails if the existing route has to stay. A route
    /// is never replaced in place, because another program could use it by then.
    fn replace_idle_route(
        &mut self,
        destination: Cidr,
        mut last_error: NetlinkError,
    ) -> Result<(), DataplaneError> {
        for _ in 0..MAX_ATTEMPTS {
            if self.delete_idle_routes(destination)? {
                return Ok(());
            }
            match self.host.add_route(destination, self.link) {
                Err(error) if is_existing_route(&error) => last_error = error,
                answer => return answer.map_err(DataplaneError::from),
            }
        }
        Err(last_error.into())
    }

    /// Deletes idle routes to `destination`. Returns true, and deletes nothing, if the route to add
    /// already exists. Fails if a route may not be replaced.
    fn delete_idle_routes(&mut self, destination: Cidr) -> Result<bool, DataplaneError> {
        for route in self.conflicting_routes(destination)? {
            match route {
                ConflictingRoute::Identical => return Ok(true),
                ConflictingRoute::Idle(interface, _) if self.plan.replaces_idle_routes => {
                    self.remove(destination, interface)?
                }
                ConflictingRoute::Idle(_, busy) | ConflictingRoute::Busy(busy) => {
                    return Err(busy.into());
                }
            }
        }
        Ok(false)
    }

    /// Fails if a route to `destination` is in use. The kernel may have such a route and the route
    /// to add at the same time, with different metrics.
    fn ensure_not_busy(&mut self, destination: Cidr) -> Result<(), DataplaneError> {
        match self.conflicting_routes(destination)?.into_iter().next() {
            Some(ConflictingRoute::Busy(busy)) => Err(busy.into()),
            _ => Ok(()),
        }
    }

    /// Returns the routes to `destination`, in the order of [`ConflictingRoute::rank`].
    fn conflicting_routes(
        &mut self,
        destination: Cidr,
    ) -> Result<Vec<ConflictingRoute>, NetlinkError> {
        let routes = self.routes_to(destination)?;
        let mut found = Vec::with_capacity(routes.len());
        for route in &routes {
            found.extend(self.classify(route)?);
        }
        found.sort_by_key(ConflictingRoute::rank);
        Ok(found)
    }

    fn routes_to(&mut self, destination: Cidr) -> Result<Vec<KernelRoute>, NetlinkError> {
        let mut routes = self.host.routes(destination.version(), None)?;
        routes.retain(|route| route.destination == destination);
        Ok(routes)
    }

    /// Classifies a route. Returns `None` if its interface, and so the route, disappeared after the
    /// route was read.
    fn classify(&mut self, route: &KernelRoute) -> Result<Option<ConflictingRoute>, NetlinkError> {
        let (link, plan) = (self.link, self.plan);
        let busy = |owner: Option<&Link>| busy(route, owner, link, plan);
        let Some(index) = route.interface else {
            return Ok(Some(ConflictingRoute::Busy(busy(None))));
        };
        if index == link.index {
            return Ok(Some(ConflictingRoute::Identical));
        }
        let owner = self.host.link_by_index(index)?;
        Ok(
            owner.map(|owner| match owner.has_carrier || !owner.is_paired {
                true => ConflictingRoute::Busy(busy(Some(&owner))),
                false => ConflictingRoute::Idle(index, busy(Some(&owner))),
            }),
        )
    }

    fn remove(&mut self, destination: Cidr, interface: u32) -> Result<(), NetlinkError> {
        match self.host.delete_route(destination, interface) {
            // The route disappeared after it was read.
            Err(error) if matches!(error.errno(), Some(Errno::ESRCH | Errno::ENODEV)) => Ok(()),
            answer => answer,
        }
    }
}

/// Logs the route that the error withholds.
pub(crate) fn log_withheld(error: &DataplaneError) {
    if let DataplaneError::BusyRoute(BusyRoute {
        address,
        route,
        is_withheld: true,
        ..
    }) = error
    {
        tracing::warn!(
            %address, route,
            "the host route leads through the interface of another pod"
        );
    }
}

fn busy(route: &KernelRoute, owner: Option<&Link>, link: &Link, plan: &EndpointPlan) -> BusyRoute {
    BusyRoute {
        address: route.destination.network(),
        route: describe(route, owner),
        is_withheld: plan.withholds_other_pods
            && owner.is_some_and(|owner| leads_to_other_pod(route, owner, &plan.alias)),
        interface: owner.map(|owner| owner.name.clone()),
        ifname: link.name.clone(),
    }
}

/// Returns true if a route leads to another pod, also of another CNI plugin. The uplink of a node
/// that is a container is one end of a pair too, but its routes to single addresses are the host's
/// own, or have a gateway.
fn leads_to_other_pod(route: &KernelRoute, owner: &Link, own: &InterfaceAlias) -> bool {
    let is_direct = route.kind == RouteType::Unicast && route.gateway.is_none();
    let is_of_pod =
        owner.is_of_pod() || (is_direct && owner.is_paired && owner.peer_netns_id.is_some());
    is_of_pod
        && !owner
            .alias
            .as_ref()
            .is_some_and(|alias| alias.is_of_same_pod(own))
}

fn is_existing_route(error: &NetlinkError) -> bool {
    error.errno() == Some(Errno::EEXIST)
}

fn describe(route: &KernelRoute, owner: Option<&Link>) -> String {
    let via = route
        .gateway
        .map(|gateway| format!(" via {gateway}"))
        .unwrap_or_default();
    match owner.map(|owner| &owner.name) {
        Some(name) if route.kind == RouteType::Local => {
            format!("that is the host's own, on interface {name}")
        }
        Some(name) => format!(
            "through interface {name}{via} (protocol {:?})",
            route.protocol
        ),
        None if route.kind == RouteType::Unicast => {
            format!("with several next hops (protocol {:?})", route.protocol)
        }
        None => format!("of type {:?} (protocol {:?})", route.kind, route.protocol),
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::route::{RouteProtocol, RouteScope};

    use super::*;
    use crate::MacAddr;

    #[test]
    fn busy_route_with_another_metric_is_examined_before_the_identical_route() {
        let busy = || BusyRoute {
            address: "10.0.0.1".parse().unwrap(),
            route: "through interface live0 (protocol Static)".into(),
            is_withheld: false,
            interface: Some("live0".into()),
            ifname: "cali1".into(),
        };
        let mut routes = [
            ConflictingRoute::Idle(7, busy()),
            ConflictingRoute::Identical,
            ConflictingRoute::Busy(busy()),
        ];
        routes.sort_by_key(ConflictingRoute::rank);
        assert!(matches!(
            routes,
            [
                ConflictingRoute::Busy(_),
                ConflictingRoute::Identical,
                ConflictingRoute::Idle(..)
            ]
        ));
    }

    /// Shows SEC-9.
    #[test]
    fn interface_of_another_pod_is_not_named_to_a_pod() {
        let own = InterfaceAlias::for_pod("net", "shop", "web", "c1");
        let of = |pod: &str| Some(InterfaceAlias::for_pod("net", "shop", pod, "c0"));
        let link = |alias, mac| Link {
            name: "cali9".into(),
            is_paired: true,
            alias,
            mac,
            ..Link::default()
        };
        let leads = |kind, gateway, owner: &Link| {
            let route = KernelRoute {
                destination: "10.0.0.1/32".parse().unwrap(),
                gateway,
                interface: Some(9),
                next_hops: Vec::new(),
                scope: RouteScope::Link,
                kind,
                protocol: RouteProtocol::Static,
            };
            leads_to_other_pod(&route, owner, &own)
        };
        let uplink = Link {
            is_paired: true,
            peer_netns_id: Some(0),
            ..Link::default()
        };
        assert!(!leads(RouteType::Local, None, &uplink));
        assert!(!leads(
            RouteType::Unicast,
            Some("192.0.2.1".parse().unwrap()),
            &uplink
        ));
        for (owner, is_withheld) in [
            (link(of("web"), None), false),
            (link(None, None), false),
            (link(of("db"), None), true),
            (link(None, Some(MacAddr::HOST_SIDE)), true),
            (
                Link {
                    peer_netns_id: Some(3),
                    ..link(None, None)
                },
                true,
            ),
        ] {
            let busy = BusyRoute {
                address: "10.0.0.1".parse().unwrap(),
                route: "through interface cali9 (protocol Static)".into(),
                is_withheld: leads(RouteType::Unicast, None, &owner),
                interface: Some(owner.name),
                ifname: "cali1".into(),
            };
            assert_eq!(busy.is_withheld, is_withheld, "{:?}", owner.alias);
            let route = if is_withheld {
                "through the interface of another pod"
            } else {
                "through interface cali9 (protocol Static)"
            };
            assert_eq!(
                busy.to_string(),
                format!(
                    "host route to 10.0.0.1 for cali1 conflicts with the route {route}: the \
                     address is in use"
                )
            );
        }
    }
}
