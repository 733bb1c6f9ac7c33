//! The node's network, as the installer and the node agent query and change it. Their tests replace
//! the kernel's network by another implementation of [`HostNetwork`].

use std::collections::BTreeSet;
use std::net::IpAddr;

use libcalico::dead_interface::{DeadLink, Peer};
use libcalico::ipam::Statement;
use libcalico::names::{InterfaceAlias, interface_prefix};
use libcalico::net::{Cidr, IpVersion};
use node_process::process;

/// A network interface of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// The name of the interface.
    pub name: String,
    /// The MTU in bytes.
    pub mtu: u32,
    /// True if the kind, and the alias or the MAC address, are those of the host's end of a pod's
    /// interface.
    pub is_pod_interface: bool,
}

/// The host's end of a pod's interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodLink {
    /// The name of the interface.
    pub name: String,
    /// The index of the interface.
    pub index: u32,
    /// The container and the pod for which the interface was created; `None` if no ADD of this
    /// plugin set an alias.
    pub alias: Option<InterfaceAlias>,
    /// The place of the pod's end.
    pub peer: Peer,
}

/// A route of the main table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRoute {
    /// The destination.
    pub destination: Cidr,
    /// The outgoing interfaces; empty for example for a route that drops packets.
    pub interfaces: Vec<String>,
}

/// A difference between the host's end of a pod's interface and the interface that an ADD sets up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkChange {
    /// The changed item.
    pub item: LinkItem,
    /// The value that an ADD sets.
    pub expected: String,
    /// The value in the kernel.
    pub found: String,
}

/// An item of the host's end of a pod's interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkItem {
    /// The state: up or down.
    State,
    /// The MAC address.
    Mac,
    /// A kernel setting, with slashes, such as `net/ipv4/conf/cali1/proxy_arp`.
    Setting(String),
}

/// Access to the kernel's network configuration.
pub trait HostNetwork: std::fmt::Debug + Sync {
    /// Returns all interfaces.
    fn interfaces(&self) -> Result<Vec<Interface>, NetworkError>;

    /// Returns all routes of the main table, for IPv4 and IPv6.
    fn routes(&self) -> Result<Vec<HostRoute>, NetworkError>;

    /// Returns all routes of all tables except the table of the host's own addresses, for IPv4 and
    /// IPv6.
    fn routes_of_all_tables(&self) -> Result<Vec<HostRoute>, NetworkError>;

    /// Deletes the host's end of a pod's interface, and with it the pod's end and all routes
    /// through it. Returns false if the interface is missing, or is not a pod's.
    fn remove_pod_interface(&self, name: &str) -> Result<bool, NetworkError>;

    /// Returns the host's ends of all pods' interfaces.
    fn pod_links(&self) -> Result<Vec<PodLink>, NetworkError>;

    /// Returns the differences between the host's end of a pod's interface and the interface that
    /// an ADD sets up for `addresses`. Returns none for an interface that is missing. Routes are
    /// not compared.
    fn changes_of_pod_link(
        &self,
        name: &str,
        addresses: &[IpAddr],
    ) -> Result<Vec<LinkChange>, NetworkError>;

    /// Returns the IDs of the network namespaces that contain a process or a thread, in the
    /// namespace of this process, or the reason why some processes of this node may be hidden from
    /// this one. A namespace without an ID is left out. The kernel gives an ID to the namespace of
    /// a pod's end at the latest when [`Self::pod_links`] reads the link, so call that first.
    fn inhabited_namespaces(&self) -> Result<Statement<BTreeSet<i32>>, NetworkError>;

    /// Returns the IDs of the containers for which a CNI plugin runs in the network namespace of
    /// this process, or the reason why some processes of this node may be hidden from this one.
    fn containers_of_calls(&self) -> Result<Statement<BTreeSet<String>>, NetworkError>;

    /// Deletes an interface if it still has the name, the index and the alias of `link`. Returns
    /// false if not.
    fn remove_dead_link(&self, link: &DeadLink) -> Result<bool, NetworkError>;
}

/// The reason for a failed query or change of the kernel's network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NetworkError(pub String);

/// Returns the prefix of the names of pods' interfaces on the host.
pub fn pod_interface_prefix() -> String {
    interface_prefix(process::felix_interface_prefix().as_deref()).to_owned()
}

/// Returns the single addresses with a route through an interface.
pub fn addresses_behind(interface: &str, routes: &[HostRoute]) -> Vec<IpAddr> {
    let through = routes
        .iter()
        .filter(|route| route.interfaces.iter().any(|name| name == interface));
    through
        .filter(|route| route.destination.size() == 1)
        .map(|route| route.destination.network())
        .collect()
}

/// Returns the interfaces with a default route, other than `lo`.
pub fn uplinks(network: &dyn HostNetwork) -> Result<Vec<Interface>, NetworkError> {
    let routes = network.routes()?;
    let default = routes
        .iter()
        .filter(|route| route.destination.prefix() == 0);
    let names: Vec<&String> = default.flat_map(|route| &route.interfaces).collect();
    let mut interfaces = network.interfaces()?;
    // The kernel's own unreachable IPv6 default route is on lo.
    interfaces.retain(|interface| interface.name != "lo" && names.contains(&&interface.name));
    Ok(interfaces)
}

/// Ranges that together contain every public address of a family. Programs that divert all traffic,
/// such as VPNs, create two routes to halves.
const EVERYWHERE: [(IpVersion, &[&str]); 5] = [
    (IpVersion::V4, &["0.0.0.0/0"]),
    (IpVersion::V4, &["0.0.0.0/1", "128.0.0.0/1"]),
    (IpVersion::V6, &["::/0"]),
    (IpVersion::V6, &["::/1", "8000::/1"]),
    (IpVersion::V6, &["2000::/3"]),
];

/// Returns the families in which the routes lead to every public address. Routes that drop packets,
/// and the kernel's own unreachable IPv6 default route on `lo`, do not count.
pub fn families_with_default(routes: &[HostRoute]) -> BTreeSet<IpVersion> {
    let leads = |route: &&HostRoute| route.interfaces.iter().any(|name| name != "lo");
    let destinations: BTreeSet<String> = routes
        .iter()
        .filter(leads)
        .map(|route| route.destination.to_string())
        .collect();
    let covering = EVERYWHERE
        .iter()
        .filter(|(_, ranges)| ranges.iter().all(|range| destinations.contains(*range)));
    covering.map(|(family, _)| *family).collect()
}

#[cfg(any(test, feature = "testing"))]
pub mod testing {
    //! For tests: a network that does not change.

    use super::*;

    /// Interfaces and routes that do not change.
    #[derive(Debug, Clone, Default)]
    pub struct FixedNetwork {
        /// All interfaces.
        pub interfaces: Vec<Interface>,
        /// All routes.
        pub routes: Vec<HostRoute>,
    }

    impl HostNetwork for FixedNetwork {
        fn interfaces(&self) -> Result<Vec<Interface>, NetworkError> {
            Ok(self.interfaces.clone())
        }

        fn routes(&self) -> Result<Vec<HostRoute>, NetworkError> {
            Ok(self.routes.clone())
        }

        fn routes_of_all_tables(&self) -> Result<Vec<HostRoute>, NetworkError> {
            self.routes()
        }

        fn remove_pod_interface(&self, _: &str) -> Result<bool, NetworkError> {
            Err(NetworkError("nothing is changed here".into()))
        }

        fn changes_of_pod_link(
            &self,
            _: &str,
            _: &[IpAddr],
        ) -> Result<Vec<LinkChange>, NetworkError> {
            Ok(Vec::new())
        }

        /// Returns the interfaces of pods, as upstream's plugin creates them: without an alias.
        fn pod_links(&self) -> Result<Vec<PodLink>, NetworkError> {
            let pods = self
                .interfaces
                .iter()
                .zip(1..)
                .filter(|(interface, _)| interface.is_pod_interface);
            let link = |(interface, index): (&Interface, u32)| PodLink {
                name: interface.name.clone(),
                index,
                alias: None,
                peer: Peer::Unknown,
            };
            Ok(pods.map(link).collect())
        }

        fn inhabited_namespaces(&self) -> Result<Statement<BTreeSet<i32>>, NetworkError> {
            Ok(Statement::Unknown("no process is visible here".into()))
        }

        fn containers_of_calls(&self) -> Result<Statement<BTreeSet<String>>, NetworkError> {
            Ok(Statement::Unknown("no process is visible here".into()))
        }

        fn remove_dead_link(&self, _: &DeadLink) -> Result<bool, NetworkError> {
            Err(NetworkError("nothing is changed here".into()))
        }
    }

    /// Returns an interface that is not of a pod.
    pub fn interface(name: &str, mtu: u32) -> Interface {
        Interface {
            name: name.into(),
            mtu,
            is_pod_interface: false,
        }
    }

    /// Returns a route to `destination`.
    pub fn route(destination: &str, interfaces: &[&str]) -> HostRoute {
        let interfaces = interfaces.iter().map(|&name| name.to_owned()).collect();
        HostRoute {
            destination: destination.parse().unwrap(),
            interfaces,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::*;
    use super::*;

    #[test]
    fn uplinks_are_interfaces_of_default_routes_of_both_families() {
        let network = FixedNetwork {
            interfaces: ["lo", "eth0", "eth1", "eth2", "eth3", "tun0"]
                .map(|name| interface(name, 1500))
                .into(),
            routes: vec![
                route("0.0.0.0/0", &["eth1", "eth2"]),
                route("::/0", &["eth3"]),
                route("::/0", &["lo"]),
                route("0.0.0.0/1", &["tun0"]),
                route("192.0.2.0/24", &["eth0"]),
            ],
        };
        let names: Vec<String> = uplinks(&network)
            .unwrap()
            .into_iter()
            .map(|interface| interface.name)
            .collect();
        assert_eq!(names, ["eth1", "eth2", "eth3"]);
        assert_eq!(uplinks(&FixedNetwork::default()).unwrap(), []);
    }

    #[test]
    fn default_routes_are_judged_by_family() {
        let families = |routes: &[(&str, &[&str])]| {
            let routes: Vec<HostRoute> = routes
                .iter()
                .map(|(destination, names)| route(destination, names))
                .collect();
            families_with_default(&routes)
                .into_iter()
                .map(|family| family.to_string())
                .collect::<String>()
        };
        assert_eq!(
            families(&[("0.0.0.0/0", &["eth0"]), ("fd65::/64", &["eth0"])]),
            "4"
        );
        assert_eq!(
            families(&[("0.0.0.0/0", &["eth0"]), ("::/0", &["eth0", "eth1"])]),
            "46"
        );
        assert_eq!(
            families(&[("0.0.0.0/1", &["tun0"]), ("2000::/3", &["eth0"])]),
            "6"
        );
        assert_eq!(
            families(&[("0.0.0.0/1", &["tun0"]), ("128.0.0.0/1", &["tun0"])]),
            "4"
        );
        assert_eq!(
            families(&[("::/1", &["tun0"]), ("8000::/1", &["tun0"])]),
            "6"
        );
        assert_eq!(families(&[("0.0.0.0/0", &[]), ("::/0", &["lo"])]), "");
    }
}
