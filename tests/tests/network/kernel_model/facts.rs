//! The state of a node, as far as the model has it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::Result;
use dataplane::host_link::HostLinks;
use dataplane::host_network::HostNetwork;
use dataplane::model::{KernelModel, LinkState};
use dataplane::{KernelNetwork, MacAddr};
use integration_tests::namespaces::{Host, NETNS_DIR};
use libcalico::names::InterfaceAlias;
use libcalico::net::Cidr;
use nix::ifaddrs::getifaddrs;

/// The interfaces of a node and of its pods, by name.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    pub(super) indexes: BTreeMap<String, u32>,
    host: BTreeMap<String, LinkFacts>,
    pods: BTreeMap<String, BTreeMap<String, LinkFacts>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LinkFacts {
    alias: Option<String>,
    has_mac_of_calico: bool,
    mtu: u32,
    is_up: bool,
    has_carrier: bool,
    /// The single addresses with a route through an interface of the host, or the addresses of an
    /// interface in a pod.
    pub(super) addresses: BTreeSet<IpAddr>,
}

impl LinkFacts {
    pub(super) fn alias(&self) -> Option<InterfaceAlias> {
        InterfaceAlias::parse(self.alias.as_ref()?)
    }
}

impl Facts {
    pub(super) fn of_kernel(host: &Host) -> Facts {
        let (indexes, host_links) = interfaces().unwrap();
        let in_pod = |name: String| {
            let links = host.in_pod(&name, links_with_addresses).unwrap();
            (name, links)
        };
        Facts {
            indexes,
            host: host_links,
            pods: host.pods().unwrap().into_iter().map(in_pod).collect(),
        }
    }

    pub(super) fn of_model(model: &KernelModel) -> Facts {
        let (mut indexes, mut host) = (BTreeMap::new(), BTreeMap::new());
        for found in model.host_links() {
            indexes.insert(found.link.name.clone(), found.link.index);
            let addresses = found.destinations.iter().map(Cidr::network).collect();
            host.insert(found.link.name.clone(), of_link(found.link, addresses));
        }
        let mut pods = BTreeMap::new();
        for (path, links) in model.pods() {
            let name = path.strip_prefix(NETNS_DIR).unwrap().display().to_string();
            let named = links.into_iter().map(|link| {
                let addresses = link.addresses.iter().copied().collect();
                (link.name.clone(), of_link(link, addresses))
            });
            pods.insert(name, named.collect());
        }
        Facts {
            indexes,
            host,
            pods,
        }
    }

    pub(super) fn host_link(&self, name: &str) -> Option<&LinkFacts> {
        self.host.get(name)
    }

    pub(super) fn has_pod(&self, name: &str) -> bool {
        self.pods.contains_key(name)
    }

    pub(super) fn without_indexes(&self) -> impl PartialEq + std::fmt::Debug {
        (self.host.clone(), self.pods.clone())
    }
}

fn of_link(link: LinkState, addresses: BTreeSet<IpAddr>) -> LinkFacts {
    LinkFacts {
        alias: link.alias.map(|alias| alias.to_string()),
        has_mac_of_calico: link.mac == MacAddr::HOST_SIDE,
        mtu: link.mtu,
        is_up: link.is_up,
        has_carrier: link.has_carrier,
        addresses,
    }
}

type Interfaces = (BTreeMap<String, u32>, BTreeMap<String, LinkFacts>);

/// Returns the indexes and the interfaces in the namespace of the thread, without `lo`.
fn interfaces() -> Result<Interfaces> {
    let (mut indexes, mut links) = (BTreeMap::new(), BTreeMap::new());
    for interface in KernelNetwork.interfaces()? {
        let Some(link) = KernelNetwork.find(&interface.name)? else {
            continue;
        };
        if link.name == "lo" {
            continue;
        }
        let destinations = link
            .routes
            .iter()
            .map(|route| route.parse::<Cidr>().unwrap());
        let single = destinations.filter(|destination| destination.size() == 1);
        let facts = LinkFacts {
            alias: link.alias.map(|alias| alias.to_string()),
            has_mac_of_calico: link.mac == MacAddr::HOST_SIDE.to_string(),
            mtu: link.mtu,
            is_up: link.up,
            has_carrier: link.carrier,
            addresses: single.map(|destination| destination.network()).collect(),
        };
        indexes.insert(link.name.clone(), link.index);
        links.insert(link.name, facts);
    }
    Ok((indexes, links))
}

fn links_with_addresses() -> Result<BTreeMap<String, LinkFacts>> {
    let (_, mut links) = interfaces()?;
    for link in links.values_mut() {
        link.addresses.clear();
    }
    for entry in getifaddrs()? {
        let Some(address) = entry.address else {
            continue;
        };
        let ipv4 = address.as_sockaddr_in().map(|address| address.ip().into());
        let ipv6 = address
            .as_sockaddr_in6()
            .map(nix::sys::socket::SockaddrIn6::ip)
            .filter(|ip| !ip.is_unicast_link_local());
        let Some(ip) = ipv4.or(ipv6.map(IpAddr::V6)) else {
            continue;
        };
        // The name is the label of the address, to which a renaming adds a colon and a number.
        let name = entry.interface_name.split(':').next();
        if let Some(link) = name.and_then(|name| links.get_mut(name)) {
            link.addresses.insert(ip);
        }
    }
    Ok(links)
}
