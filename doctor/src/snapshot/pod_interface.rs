//! [`PodInterface`]: the host's end of a pod's interface, compared with the pod's endpoint.

use std::net::IpAddr;

use dataplane::host_network::{HostRoute, LinkChange};

/// The host's end of a pod's interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodInterface {
    /// The name of the interface.
    pub name: String,
    /// The destinations of the host routes through the interface.
    pub addresses: Vec<IpAddr>,
    /// The addresses of the pod's endpoint; `None` without an endpoint.
    pub endpoint: Option<Vec<IpAddr>>,
    /// The addresses of the pod's endpoint without a host route through the interface.
    pub unrouted: Vec<Unrouted>,
    /// The differences from the interface that an ADD sets up. Empty for an interface without an
    /// alias of this plugin.
    pub changes: Vec<LinkChange>,
}

/// An address of a pod to which no host route leads through the interface of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unrouted {
    /// The address.
    pub address: IpAddr,
    /// The interfaces of another host route to the address, empty if the route drops packets;
    /// `None` without a route.
    pub other_route: Option<Vec<String>>,
}

impl PodInterface {
    /// Returns the addresses with a host route that the endpoint does not have.
    pub fn stray_addresses(&self) -> impl Iterator<Item = &IpAddr> {
        let listed = self.endpoint.as_deref().unwrap_or_default();
        self.addresses
            .iter()
            .filter(|address| !listed.contains(address))
    }

    /// Returns true if the interface is as its endpoint demands, as far as a running ADD may change
    /// that.
    pub fn is_complete(&self) -> bool {
        self.endpoint.is_some()
            && self.stray_addresses().next().is_none()
            && self.unrouted.is_empty()
            && self.changes.is_empty()
    }
}

impl Unrouted {
    /// Returns the addresses of `wanted` to which no route of the main table leads through
    /// `interface`.
    pub fn find(interface: &str, wanted: &[IpAddr], routes: &[HostRoute]) -> Vec<Unrouted> {
        let to = |address: IpAddr| {
            let is_to = move |route: &&HostRoute| {
                route.destination.size() == 1 && route.destination.network() == address
            };
            routes.iter().filter(is_to)
        };
        let leads = |address: IpAddr| {
            to(address).any(|route| route.interfaces.iter().any(|name| name == interface))
        };
        let mut unrouted: Vec<Unrouted> = Vec::new();
        for &address in wanted.iter().filter(|address| !leads(**address)) {
            if unrouted.iter().all(|found| found.address != address) {
                unrouted.push(Unrouted {
                    address,
                    other_route: to(address).next().map(|route| route.interfaces.clone()),
                });
            }
        }
        unrouted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane::host_network::testing::route;

    #[test]
    fn address_whose_route_is_missing_or_leads_elsewhere_is_unrouted() {
        let routes = [
            route("10.65.0.1/32", &["cali1"]),
            route("10.65.0.2/32", &["tun0"]),
            route("10.65.0.3/32", &[]),
            route("10.65.0.4/30", &["cali1"]),
        ];
        let wanted: Vec<IpAddr> = [
            "10.65.0.1",
            "10.65.0.2",
            "10.65.0.3",
            "10.65.0.4",
            "10.65.0.4",
        ]
        .map(|ip| ip.parse().unwrap())
        .into();
        let found = Unrouted::find("cali1", &wanted, &routes);
        let found: Vec<_> = found
            .into_iter()
            .map(|found| (found.address.to_string(), found.other_route))
            .collect();
        assert_eq!(
            found,
            [
                ("10.65.0.2".to_owned(), Some(vec!["tun0".to_owned()])),
                ("10.65.0.3".to_owned(), Some(Vec::new())),
                ("10.65.0.4".to_owned(), None),
            ]
        );
    }
}
