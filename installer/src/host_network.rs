//! The node's network, as far as the commands here look at it. The plugin speaks with the kernel, and it depends on this
//! crate: so it is asked through [`HostNetwork`].

use std::net::IpAddr;

use libcalico::net::Cidr;

/// An interface of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Whether it is, by its kind and its address, the host's end of a pod's interface.
    pub is_pods: bool,
}

/// A route of the main table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Where to.
    pub destination: Cidr,
    /// The interfaces that it leaves by; none for one that refuses.
    pub interfaces: Vec<String>,
}

/// What the kernel says and does. Errors are the kernel's words.
pub trait HostNetwork: std::fmt::Debug + Sync {
    /// All interfaces.
    fn interfaces(&self) -> Result<Vec<Interface>, String>;

    /// All routes of the main table, of both families.
    fn routes(&self) -> Result<Vec<Route>, String>;

    /// Removes the host's end of a pod's interface, and with it the pod's end and all routes through it. An interface that is
    /// none of Calico's, by its kind and its address, is left alone. Says whether there was one.
    fn remove_pod_interface(&self, name: &str) -> Result<bool, String>;
}

/// The addresses that routes through an interface lead to, one by one: those of the pod behind it.
pub fn addresses_behind(interface: &str, routes: &[Route]) -> Vec<IpAddr> {
    let through = routes.iter().filter(|route| route.interfaces.iter().any(|name| name == interface));
    through.filter(|route| route.destination.size() == 1).map(|route| route.destination.network()).collect()
}

/// The interfaces with a default route of either family: what a pod's packet leaves the node by.
///
/// # Errors
/// The kernel does not say.
pub fn uplinks(network: &dyn HostNetwork) -> Result<Vec<Interface>, String> {
    let routes = network.routes()?;
    let default = routes.iter().filter(|route| route.destination.prefix() == 0);
    let names: Vec<&String> = default.flat_map(|route| &route.interfaces).collect();
    let mut interfaces = network.interfaces()?;
    // The kernel's own IPv6 route, which refuses, is on lo.
    interfaces.retain(|interface| interface.name != "lo" && names.contains(&&interface.name));
    Ok(interfaces)
}

/// A network that a test makes up.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// What it says.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct Known {
        pub(crate) interfaces: Vec<Interface>,
        pub(crate) routes: Vec<Route>,
    }

    impl HostNetwork for Known {
        fn interfaces(&self) -> Result<Vec<Interface>, String> {
            Ok(self.interfaces.clone())
        }

        fn routes(&self) -> Result<Vec<Route>, String> {
            Ok(self.routes.clone())
        }

        fn remove_pod_interface(&self, _: &str) -> Result<bool, String> {
            Err("nothing is changed here".into())
        }
    }

    pub(crate) fn interface(name: &str, mtu: u32) -> Interface {
        Interface { name: name.into(), mtu, is_pods: false }
    }

    pub(crate) fn route(destination: &str, interfaces: &[&str]) -> Route {
        let interfaces = interfaces.iter().map(|&name| name.to_owned()).collect();
        Route { destination: destination.parse().unwrap(), interfaces }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::*;
    use super::*;

    #[test]
    fn uplinks_have_a_default_route_of_either_family_or_a_part_of_one() {
        let network = Known {
            interfaces: ["lo", "eth0", "eth1", "eth2", "eth3", "tun0"].map(|name| interface(name, 1500)).into(),
            routes: vec![
                route("0.0.0.0/0", &["eth1", "eth2"]),
                route("::/0", &["eth3"]),
                route("::/0", &["lo"]),
                route("0.0.0.0/1", &["tun0"]),
                route("192.0.2.0/24", &["eth0"]),
            ],
        };
        let names: Vec<String> = uplinks(&network).unwrap().into_iter().map(|interface| interface.name).collect();
        assert_eq!(names, ["eth1", "eth2", "eth3"]);
        assert_eq!(uplinks(&Known::default()).unwrap(), []);
    }
}
