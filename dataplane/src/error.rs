use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use libcalico::failure::Failure;
use os::lock::LockError;

use super::{ConflictingInterface, MacAddr, NetlinkError, NetnsError, SysctlError};

/// A failure to create, remove or inspect the network of an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum DataplaneError {
    /// The plan is impossible. Nothing was changed.
    #[error("{0}")]
    Plan(Failure),
    /// The pod's namespace cannot be used.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// An exchange with the kernel failed, or the kernel rejected a request.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A kernel setting could not be read or written.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// The pod already has an interface of that name, which the ADD may not replace. It was left
    /// unchanged.
    #[error(
        "interface {ifname} already exists in {}; delete the interface, or use another CNI_IFNAME",
        .netns.display()
    )]
    ContainerInterfaceExists {
        /// CNI_IFNAME.
        ifname: String,
        /// The pod's namespace.
        netns: PathBuf,
    },
    /// The host has an interface of that name that an ADD may not replace, or that a GC may not
    /// remove.
    #[error("{0}")]
    HostInterfaceConflict(Box<ConflictingInterface>),
    /// Other calls held the lock of the interfaces for too long.
    #[error(
        "cannot replace or delete host interface {ifname} while other calls create or delete \
         interfaces: {source}"
    )]
    LockBusy {
        /// The interface to be replaced or deleted.
        ifname: String,
        /// The failure to take the lock.
        source: LockError,
    },
    /// `/proc` cannot be read, so the network namespaces with processes are unknown.
    #[error("cannot read the processes in /proc: {0}")]
    Processes(#[source] io::Error),
    /// The network namespace or the environment of a process cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    HiddenProcess {
        /// The path in `/proc`.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The host has a route to one of the addresses, and the route may not be replaced.
    #[error(transparent)]
    BusyRoute(#[from] BusyRoute),
    /// The setup failed, and the kernel did not delete the pair created for it.
    #[error("{failure}; interface {ifname} could not be removed: {deletion}")]
    PairNotDeleted {
        /// The host interface.
        ifname: String,
        /// The cause of the failed setup.
        failure: Box<DataplaneError>,
        /// The cause of the failed deletion.
        deletion: NetlinkError,
    },
    /// The kernel, or a program that configures new interfaces, replaced the MAC address of the
    /// host end.
    #[error("host interface {ifname} does not keep MAC address {expected}: found {found}")]
    HostMac {
        /// The host interface.
        ifname: String,
        /// The MAC address that was set.
        expected: MacAddr,
        /// The MAC address found.
        found: String,
    },
    /// The pod's end has no Ethernet address, so its endpoint cannot be described.
    #[error("interface {0} in the pod has no MAC address")]
    NoMac(String),
    /// The host end has no IPv6 link-local address, which would be the pod's gateway.
    #[error(
        "host interface {ifname} got no IPv6 link-local address within {} ms ({hint})",
        .waited.as_millis()
    )]
    NoLinkLocal {
        /// The host interface.
        ifname: String,
        /// The time waited.
        waited: Duration,
        /// The likely cause.
        hint: &'static str,
    },
    /// The kernel did not finish deleting the interface in time. It may still do so.
    #[error("deleting interface {ifname} took longer than {} s", .waited.as_secs())]
    DeletionTimeout {
        /// The interface to be deleted.
        ifname: String,
        /// The time limit.
        waited: Duration,
    },
    /// The thread that deletes the interface ended without a result.
    #[error("the thread deleting interface {0} ended without a result")]
    DeletionPanicked(String),
    /// The thread for a deletion cannot be started.
    #[error("cannot start a thread to delete interface {ifname}: {source}")]
    Thread {
        /// The interface to be deleted.
        ifname: String,
        /// The error of the system.
        source: io::Error,
    },
}

/// A host route that prevents a pod from using an address. The route is left unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "host route to {address} for {ifname} conflicts with the route {}: the address is in use",
    text_for_caller(route, *is_withheld)
)]
pub struct BusyRoute {
    /// The pod's address.
    pub address: IpAddr,
    /// The route found, for logs and files of the node: for example
    /// `through interface cali9 (protocol Static)` or `that is the host's own, on interface eth0`.
    pub route: String,
    /// True if the error withholds the route, because the route leads through another pod's
    /// interface.
    pub is_withheld: bool,
    /// The interface of the route found; `None` for a route that drops packets or has several next
    /// hops.
    pub interface: Option<String>,
    /// The host interface of the pod that was to get the address.
    pub ifname: String,
}

fn text_for_caller(route: &str, is_withheld: bool) -> &str {
    if is_withheld {
        "through the interface of another pod"
    } else {
        route
    }
}
