//! The tables of the modeled kernel, and their changes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use libcalico::names::InterfaceAlias;
use libcalico::net::{Cidr, IpVersion};
use nix::errno::Errno;

use crate::MacAddr;
use crate::netlink::Link;

/// The ID of a namespace, which no later namespace gets.
pub(super) type NetnsId = u32;

/// The ID of the host's namespace.
pub(super) const HOST: NetnsId = 0;

/// The index of `lo`, the first interface of each namespace.
const LOOPBACK: u32 = 1;

#[derive(Debug, Default)]
pub(super) struct Tables {
    paths: BTreeMap<PathBuf, NetnsId>,
    /// The namespaces of pods that exist.
    namespaces: BTreeMap<NetnsId, Namespace>,
    host: Namespace,
    /// The namespaces of processes, by PID.
    processes: BTreeMap<u32, NetnsId>,
    /// True for the exclusive lock, by the token of the lock.
    locks: BTreeMap<u64, bool>,
    /// The number of namespaces, processes, locks and MAC addresses so far.
    issued: u32,
}

#[derive(Debug, Default)]
struct Namespace {
    links: BTreeMap<u32, StoredLink>,
    /// The index of the interface of each route.
    routes: BTreeMap<Cidr, u32>,
    /// The number of indexes so far, without that of `lo`.
    issued: u32,
    /// The number of open files of the namespace.
    open: usize,
}

/// An interface of a namespace.
#[derive(Debug, Clone)]
pub(super) struct StoredLink {
    pub(super) name: String,
    pub(super) mac: MacAddr,
    pub(super) alias: Option<InterfaceAlias>,
    pub(super) mtu: u32,
    pub(super) is_up: bool,
    /// Namespace and index of the other end; `None` if the interface is not one end of a pair.
    pub(super) peer: Option<(NetnsId, u32)>,
    pub(super) addresses: Vec<IpAddr>,
}

/// The name and the MAC address of an interface to create.
pub(super) struct NewEnd<'a> {
    pub(super) netns: NetnsId,
    pub(super) name: &'a str,
    pub(super) mac: Option<MacAddr>,
}

impl Tables {
    pub(super) fn netns_at(&self, path: &Path) -> Option<NetnsId> {
        self.paths.get(path).copied()
    }

    /// Returns the namespaces by path.
    pub(super) fn paths(&self) -> impl Iterator<Item = (&PathBuf, &NetnsId)> {
        self.paths.iter()
    }

    /// Returns a path of the namespace.
    pub(super) fn path_of(&self, netns: NetnsId) -> Option<&Path> {
        let mut paths = self.paths.iter();
        let (path, _) = paths.find(|(_, id)| **id == netns)?;
        Some(path)
    }

    /// Creates a namespace; returns false if the path exists.
    pub(super) fn create_netns(&mut self, path: &Path) -> bool {
        if self.paths.contains_key(path) {
            return false;
        }
        let id = self.issue();
        self.paths.insert(path.to_owned(), id);
        self.namespaces.insert(id, Namespace::default());
        true
    }

    /// Removes a path; returns false if it is missing. The namespace remains while a process or an
    /// open file uses it.
    pub(super) fn remove_path(&mut self, path: &Path) -> bool {
        let removed = self.paths.remove(path);
        removed.map(|id| self.end_if_unused(id)).is_some()
    }

    pub(super) fn open(&mut self, path: &Path) -> Option<NetnsId> {
        let id = self.netns_at(path)?;
        self.namespaces.get_mut(&id)?.open += 1;
        Some(id)
    }

    pub(super) fn close(&mut self, id: NetnsId) {
        if let Some(namespace) = self.namespaces.get_mut(&id) {
            namespace.open -= 1;
            self.end_if_unused(id);
        }
    }

    /// Starts a process in the namespace at the path; returns its PID.
    pub(super) fn start_process(&mut self, path: &Path) -> Option<u32> {
        let netns = self.netns_at(path)?;
        let process = self.issue();
        self.processes.insert(process, netns);
        Some(process)
    }

    /// Ends a process; returns false if it is missing.
    pub(super) fn stop_process(&mut self, process: u32) -> bool {
        let ended = self.processes.remove(&process);
        ended.map(|netns| self.end_if_unused(netns)).is_some()
    }

    /// Returns the PIDs and the namespaces of processes, in the order of the PIDs.
    pub(super) fn processes(&self) -> impl Iterator<Item = (u32, NetnsId)> {
        self.processes.iter().map(|(process, id)| (*process, *id))
    }

    fn end_if_unused(&mut self, id: NetnsId) {
        let is_used = self.path_of(id).is_some()
            || self.processes().any(|(_, netns)| netns == id)
            || self.namespaces.get(&id).is_none_or(|netns| netns.open > 0);
        if is_used {
            return;
        }
        for index in self.indexes(id) {
            let _ = self.delete(id, index);
        }
        self.namespaces.remove(&id);
    }

    /// Takes a lock; returns `None` if another one excludes it.
    pub(super) fn lock(&mut self, is_exclusive: bool) -> Option<u64> {
        let excludes = |other: &bool| is_exclusive || *other;
        if self.locks.values().any(excludes) {
            return None;
        }
        let token = u64::from(self.issue());
        self.locks.insert(token, is_exclusive);
        Some(token)
    }

    pub(super) fn unlock(&mut self, token: u64) {
        self.locks.remove(&token);
    }

    /// Ends all processes and deletes all interfaces, routes and namespaces.
    pub(super) fn reboot(&mut self) {
        *self = Tables {
            issued: self.issued,
            ..Tables::default()
        };
    }

    fn issue(&mut self) -> u32 {
        self.issued += 1;
        self.issued
    }

    fn namespace(&self, id: NetnsId) -> Option<&Namespace> {
        match id {
            HOST => Some(&self.host),
            id => self.namespaces.get(&id),
        }
    }

    fn namespace_mut(&mut self, id: NetnsId) -> Option<&mut Namespace> {
        match id {
            HOST => Some(&mut self.host),
            id => self.namespaces.get_mut(&id),
        }
    }

    pub(super) fn indexes(&self, netns: NetnsId) -> Vec<u32> {
        let links = self.namespace(netns).map(|netns| netns.links.keys());
        links.into_iter().flatten().copied().collect()
    }

    pub(super) fn index_of(&self, netns: NetnsId, name: &str) -> Option<u32> {
        let mut links = self.namespace(netns)?.links.iter();
        let (index, _) = links.find(|(_, link)| link.name == name)?;
        Some(*index)
    }

    pub(super) fn link(&self, netns: NetnsId, index: u32) -> Option<&StoredLink> {
        self.namespace(netns)?.links.get(&index)
    }

    pub(super) fn link_mut(
        &mut self,
        netns: NetnsId,
        index: u32,
    ) -> Result<&mut StoredLink, Errno> {
        let namespace = self.namespace_mut(netns).ok_or(Errno::ENODEV)?;
        namespace.links.get_mut(&index).ok_or(Errno::ENODEV)
    }

    /// Returns the link as the kernel reports it in its namespace.
    pub(super) fn reported(&self, netns: NetnsId, index: u32) -> Option<Link> {
        let link = self.link(netns, index)?.clone();
        let other_netns = link
            .peer
            .map(|(peer, _)| peer)
            .filter(|peer| *peer != netns);
        Some(Link {
            index,
            has_carrier: self.has_carrier(&link),
            is_paired: link.peer.is_some(),
            peer_index: link.peer.map(|(_, index)| index),
            peer_netns_id: other_netns.map(|id| id as i32),
            name: link.name,
            mac: Some(link.mac),
            mtu: link.mtu,
            is_up: link.is_up,
            addr_gen_mode: None,
            alias: link.alias,
        })
    }

    pub(super) fn has_carrier(&self, link: &StoredLink) -> bool {
        let peer = |(netns, index)| self.link(netns, index);
        link.is_up && link.peer.and_then(peer).is_none_or(|peer| peer.is_up)
    }

    /// Creates a bridge, which has carrier until it gets its first port; returns its index.
    pub(super) fn create_bridge(&mut self, end: &NewEnd<'_>) -> Result<u32, Errno> {
        self.ensure_free(end)?;
        self.insert(end, crate::plan::KERNEL_DEFAULT_MTU)
    }

    /// Creates a pair whose ends are down; returns the index of the first end.
    pub(super) fn create_pair(&mut self, ends: &[NewEnd<'_>; 2], mtu: u32) -> Result<u32, Errno> {
        for end in ends {
            self.ensure_free(end)?;
        }
        let [first, second] = ends;
        // The kernel creates the other end first.
        let other = self.insert(second, mtu)?;
        let one = self.insert(first, mtu)?;
        self.link_mut(first.netns, one)?.peer = Some((second.netns, other));
        self.link_mut(second.netns, other)?.peer = Some((first.netns, one));
        Ok(one)
    }

    fn ensure_free(&self, end: &NewEnd<'_>) -> Result<(), Errno> {
        match self.namespace(end.netns) {
            None => Err(Errno::EINVAL),
            Some(_) if self.index_of(end.netns, end.name).is_some() => Err(Errno::EEXIST),
            Some(_) => Ok(()),
        }
    }

    fn insert(&mut self, end: &NewEnd<'_>, mtu: u32) -> Result<u32, Errno> {
        let generated = self.issue().to_be_bytes();
        let [a, b, c, d] = generated;
        let generated = MacAddr::from_slice(&[2, 0, a, b, c, d]);
        let link = StoredLink {
            name: end.name.to_owned(),
            mac: end.mac.or(generated).ok_or(Errno::EINVAL)?,
            alias: None,
            mtu,
            is_up: false,
            peer: None,
            addresses: Vec::new(),
        };
        let namespace = self.namespace_mut(end.netns).ok_or(Errno::EINVAL)?;
        namespace.issued += 1;
        let index = LOOPBACK + namespace.issued;
        namespace.links.insert(index, link);
        Ok(index)
    }

    /// Deletes an interface, its other end and the routes through both.
    pub(super) fn delete(&mut self, netns: NetnsId, index: u32) -> Result<(), Errno> {
        let peer = self.link_mut(netns, index)?.peer;
        for (netns, index) in [Some((netns, index)), peer].into_iter().flatten() {
            if let Some(namespace) = self.namespace_mut(netns) {
                namespace.links.remove(&index);
                namespace.delete_routes_through(index);
            }
        }
        Ok(())
    }

    pub(super) fn set_up(&mut self, netns: NetnsId, index: u32) -> Result<(), Errno> {
        self.link_mut(netns, index)?.is_up = true;
        Ok(())
    }

    /// Sets a link down. The kernel then deletes the routes through the link and the IPv6 addresses
    /// of the link.
    pub(super) fn set_down(&mut self, netns: NetnsId, index: u32) -> Result<(), Errno> {
        let link = self.link_mut(netns, index)?;
        link.is_up = false;
        link.addresses
            .retain(|address| IpVersion::of(*address) == IpVersion::V4);
        if let Some(namespace) = self.namespace_mut(netns) {
            namespace.delete_routes_through(index);
        }
        Ok(())
    }

    /// Renames a link.
    pub(super) fn rename(&mut self, netns: NetnsId, from: &str, to: &str) -> Result<(), Errno> {
        let index = self.index_of(netns, from).ok_or(Errno::ENODEV)?;
        if from != to && self.index_of(netns, to).is_some() {
            return Err(Errno::EEXIST);
        }
        self.link_mut(netns, index)?.name = to.to_owned();
        Ok(())
    }

    /// Returns the destinations and the indexes of the host routes.
    pub(super) fn routes(&self) -> impl Iterator<Item = (Cidr, u32)> {
        self.host.routes.iter().map(|(to, index)| (*to, *index))
    }

    /// Returns the index of the interface of a host route.
    pub(super) fn route_to(&self, destination: Cidr) -> Option<u32> {
        self.host.routes.get(&destination).copied()
    }

    pub(super) fn add_route(
        &mut self,
        netns: NetnsId,
        destination: Cidr,
        index: u32,
    ) -> Result<(), Errno> {
        if !self.link_mut(netns, index)?.is_up {
            return Err(Errno::ENETDOWN);
        }
        let namespace = self.namespace_mut(netns).ok_or(Errno::ENODEV)?;
        if namespace.routes.contains_key(&destination) {
            return Err(Errno::EEXIST);
        }
        namespace.routes.insert(destination, index);
        Ok(())
    }

    /// Deletes a host route through an interface.
    pub(super) fn delete_route(&mut self, destination: Cidr, index: u32) -> Result<(), Errno> {
        if self.host.routes.get(&destination) != Some(&index) {
            return Err(Errno::ESRCH);
        }
        self.host.routes.remove(&destination);
        Ok(())
    }
}

impl Namespace {
    fn delete_routes_through(&mut self, index: u32) {
        self.routes.retain(|_, through| *through != index);
    }
}
