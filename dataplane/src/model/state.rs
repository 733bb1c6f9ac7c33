//! The state of the modeled kernel, for invariants of simulations and tests.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use libcalico::names::InterfaceAlias;
use libcalico::net::Cidr;

use super::KernelModel;
use super::tables::{HOST, NetnsId, Tables};
use crate::MacAddr;

/// The state of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkState {
    /// The index, which no other interface of the namespace gets until the node restarts.
    pub index: u32,
    /// The name.
    pub name: String,
    /// The MAC address.
    pub mac: MacAddr,
    /// The alias that an ADD of this plugin set.
    pub alias: Option<InterfaceAlias>,
    /// The MTU in bytes.
    pub mtu: u32,
    /// True if the interface is up.
    pub is_up: bool,
    /// True if the interface can carry packets.
    pub has_carrier: bool,
    /// The addresses, which an ADD gives to the pod's end.
    pub addresses: Vec<IpAddr>,
}

/// The state of a host interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLinkState {
    /// The interface itself.
    pub link: LinkState,
    /// The destinations of the host routes through the interface.
    pub destinations: Vec<Cidr>,
    /// The other end; `None` if the interface is not one end of a pair.
    pub peer: Option<PeerState>,
}

/// The state of the other end of a host interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerState {
    /// The path of the other end's namespace; `None` for the host's own namespace, and for one
    /// whose path is removed.
    pub netns: Option<PathBuf>,
    /// The interface itself.
    pub link: LinkState,
}

impl KernelModel {
    /// Returns the host interfaces, in the order of their indexes.
    pub fn host_links(&self) -> Vec<HostLinkState> {
        let tables = self.tables();
        let indexes = tables.indexes(HOST).into_iter();
        indexes
            .filter_map(|index| host_link(&tables, index))
            .collect()
    }

    /// Returns the host interface of that name.
    pub fn host_link(&self, name: &str) -> Option<HostLinkState> {
        let tables = self.tables();
        host_link(&tables, tables.index_of(HOST, name)?)
    }

    /// Returns the single addresses with a host route, and the host interface of each route.
    pub fn routed_addresses(&self) -> Vec<(IpAddr, HostLinkState)> {
        let tables = self.tables();
        let single = tables.routes().filter(|(to, _)| to.size() == 1);
        single
            .filter_map(|(to, index)| Some((to.network(), host_link(&tables, index)?)))
            .collect()
    }

    /// Returns the interfaces in the namespace at a path; `None` if the path does not exist.
    pub fn pod_links(&self, path: &Path) -> Option<Vec<LinkState>> {
        let tables = self.tables();
        Some(links_in(&tables, tables.netns_at(path)?))
    }

    /// Returns the paths of all namespaces, with their interfaces.
    pub fn pods(&self) -> BTreeMap<PathBuf, Vec<LinkState>> {
        let tables = self.tables();
        let links = |(path, netns): (&PathBuf, &NetnsId)| (path.clone(), links_in(&tables, *netns));
        tables.paths().map(links).collect()
    }

    /// Returns the PIDs of the processes in the namespace at a path; none if the path does not
    /// exist.
    pub fn processes_in(&self, path: &Path) -> Vec<u32> {
        let tables = self.tables();
        let Some(netns) = tables.netns_at(path) else {
            return Vec::new();
        };
        let inside = tables.processes().filter(|(_, id)| *id == netns);
        inside.map(|(process, _)| process).collect()
    }
}

fn host_link(tables: &Tables, index: u32) -> Option<HostLinkState> {
    let through = tables.routes().filter(|(_, through)| *through == index);
    let peer = |(netns, index)| {
        Some(PeerState {
            netns: tables.path_of(netns).map(Path::to_owned),
            link: link_state(tables, netns, index)?,
        })
    };
    Some(HostLinkState {
        link: link_state(tables, HOST, index)?,
        destinations: through.map(|(to, _)| to).collect(),
        peer: tables.link(HOST, index)?.peer.and_then(peer),
    })
}

fn links_in(tables: &Tables, netns: NetnsId) -> Vec<LinkState> {
    let indexes = tables.indexes(netns).into_iter();
    indexes
        .filter_map(|index| link_state(tables, netns, index))
        .collect()
}

fn link_state(tables: &Tables, netns: NetnsId, index: u32) -> Option<LinkState> {
    let link = tables.link(netns, index)?;
    Some(LinkState {
        index,
        name: link.name.clone(),
        mac: link.mac,
        alias: link.alias.clone(),
        mtu: link.mtu,
        is_up: link.is_up,
        has_carrier: tables.has_carrier(link),
        addresses: link.addresses.clone(),
    })
}
