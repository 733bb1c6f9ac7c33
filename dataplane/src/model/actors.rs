//! The changes that other programs make on the modeled kernel: runtimes, pods, operators and
//! upstream's plugin. No hook is called for them.

use std::net::IpAddr;
use std::path::Path;

use libcalico::names::InterfaceAlias;
use libcalico::net::Cidr;

use super::tables::{HOST, NetnsId, NewEnd, Tables};
use super::{Errno, KernelModel};
use crate::MacAddr;
use crate::plan::KERNEL_DEFAULT_MTU;

/// A pair that another program creates. Both ends are up.
#[derive(Debug, Clone, Copy)]
pub struct ForeignPair<'a> {
    /// Name of the host end.
    pub host_ifname: &'a str,
    /// The MAC address of the host end; `None` lets the kernel choose.
    pub host_mac: Option<MacAddr>,
    /// The alias of the host end.
    pub alias: Option<&'a InterfaceAlias>,
    /// The path of the other end's namespace; `None` for the host's.
    pub netns: Option<&'a Path>,
    /// Name of the other end.
    pub container_ifname: &'a str,
    /// The addresses of the other end.
    pub addresses: &'a [IpAddr],
    /// Whether to add a host route to each of the addresses.
    pub has_routes: bool,
}

impl<'a> ForeignPair<'a> {
    /// Returns the pair that upstream's plugin creates: without an alias.
    pub fn of_upstream(
        host_ifname: &'a str,
        netns: &'a Path,
        container_ifname: &'a str,
        addresses: &'a [IpAddr],
    ) -> Self {
        ForeignPair {
            host_ifname,
            host_mac: Some(MacAddr::HOST_SIDE),
            alias: None,
            netns: Some(netns),
            container_ifname,
            addresses,
            has_routes: true,
        }
    }
}

impl KernelModel {
    /// Creates a network namespace at a path. Returns false if the path exists.
    pub fn create_netns(&self, path: &Path) -> bool {
        self.tables().create_netns(path)
    }

    /// Removes the path of a network namespace. Returns false if the path does not exist. The
    /// kernel deletes the namespace, with the pairs that have an end in it, when no process and no
    /// open file uses it.
    pub fn remove_netns(&self, path: &Path) -> bool {
        self.tables().remove_path(path)
    }

    /// Starts a process in the namespace at a path, and returns its PID. Returns `None` if the path
    /// does not exist.
    pub fn start_process(&self, path: &Path) -> Option<u32> {
        self.tables().start_process(path)
    }

    /// Ends a process. Returns false if there is no such process.
    pub fn stop_process(&self, process: u32) -> bool {
        self.tables().stop_process(process)
    }

    /// Renames an interface in the namespace at a path.
    pub fn rename_in_pod(&self, path: &Path, from: &str, to: &str) -> Result<(), Errno> {
        let mut tables = self.tables();
        let netns = of_pod(&tables, path)?;
        tables.rename(netns, from, to)
    }

    /// Sets an interface in the namespace at a path up or down.
    pub fn set_up_in_pod(&self, path: &Path, ifname: &str, is_up: bool) -> Result<(), Errno> {
        let mut tables = self.tables();
        let netns = of_pod(&tables, path)?;
        set_state(&mut tables, netns, ifname, is_up)
    }

    /// Deletes an interface in the namespace at a path, and its other end.
    pub fn delete_in_pod(&self, path: &Path, ifname: &str) -> Result<(), Errno> {
        let mut tables = self.tables();
        let netns = of_pod(&tables, path)?;
        let index = tables.index_of(netns, ifname).ok_or(Errno::ENODEV)?;
        tables.delete(netns, index)
    }

    /// Creates a bridge, which is no end of a pair, in the namespace at a path, or on the host.
    pub fn add_bridge(&self, netns: Option<&Path>, name: &str) -> Result<(), Errno> {
        let mut tables = self.tables();
        let netns = netns.map_or(Ok(HOST), |path| of_pod(&tables, path))?;
        let end = NewEnd {
            netns,
            name,
            mac: None,
        };
        let index = tables.create_bridge(&end)?;
        tables.set_up(netns, index)
    }

    /// Creates the pair of another program, and returns the index of its host end.
    pub fn add_pair(&self, pair: &ForeignPair<'_>) -> Result<u32, Errno> {
        let mut tables = self.tables();
        let netns = pair.netns.map_or(Ok(HOST), |path| of_pod(&tables, path))?;
        let host_end = NewEnd {
            netns: HOST,
            name: pair.host_ifname,
            mac: pair.host_mac,
        };
        let container_end = NewEnd {
            netns,
            name: pair.container_ifname,
            mac: None,
        };
        let index = tables.create_pair(&[host_end, container_end], KERNEL_DEFAULT_MTU)?;
        let host = tables.link_mut(HOST, index)?;
        (host.is_up, host.alias) = (true, pair.alias.cloned());
        let (_, peer) = host.peer.ok_or(Errno::ENODEV)?;
        let container = tables.link_mut(netns, peer)?;
        (container.is_up, container.addresses) = (true, pair.addresses.to_vec());
        if pair.has_routes {
            for address in pair.addresses {
                tables.add_route(HOST, Cidr::host(*address), index)?;
            }
        }
        Ok(index)
    }

    /// Sets or removes the alias of a host interface.
    pub fn set_alias(&self, ifname: &str, alias: Option<InterfaceAlias>) -> Result<(), Errno> {
        let mut tables = self.tables();
        let index = tables.index_of(HOST, ifname).ok_or(Errno::ENODEV)?;
        tables.link_mut(HOST, index)?.alias = alias;
        Ok(())
    }

    /// Sets a host interface up or down.
    pub fn set_host_link_up(&self, ifname: &str, is_up: bool) -> Result<(), Errno> {
        set_state(&mut self.tables(), HOST, ifname, is_up)
    }

    /// Deletes a host interface, and its other end.
    pub fn delete_host_link(&self, ifname: &str) -> Result<(), Errno> {
        let mut tables = self.tables();
        let index = tables.index_of(HOST, ifname).ok_or(Errno::ENODEV)?;
        tables.delete(HOST, index)
    }

    /// Adds a host route through an interface.
    pub fn add_host_route(&self, destination: Cidr, ifname: &str) -> Result<(), Errno> {
        let mut tables = self.tables();
        let index = tables.index_of(HOST, ifname).ok_or(Errno::ENODEV)?;
        tables.add_route(HOST, destination, index)
    }

    /// Deletes a host route through an interface.
    pub fn delete_host_route(&self, destination: Cidr, ifname: &str) -> Result<(), Errno> {
        let mut tables = self.tables();
        let index = tables.index_of(HOST, ifname).ok_or(Errno::ENODEV)?;
        tables.delete_route(destination, index)
    }

    /// Restarts the node. All interfaces, routes, namespaces, paths, processes and locks disappear,
    /// and the indexes of interfaces begin again.
    pub fn reboot(&self) {
        self.tables().reboot();
    }
}

fn of_pod(tables: &Tables, path: &Path) -> Result<NetnsId, Errno> {
    tables.netns_at(path).ok_or(Errno::ENOENT)
}

fn set_state(tables: &mut Tables, netns: NetnsId, ifname: &str, is_up: bool) -> Result<(), Errno> {
    let index = tables.index_of(netns, ifname).ok_or(Errno::ENODEV)?;
    if is_up {
        tables.set_up(netns, index)
    } else {
        tables.set_down(netns, index)
    }
}
