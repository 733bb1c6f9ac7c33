//! [`DataplaneError`]: everything that can go wrong in the kernel's half of an operation.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipam_plugin::lock::LockError;

use super::mac::MacAddr;
use super::netlink::NetlinkError;
use super::netns::NetnsError;
use super::ownership::Holder;
use super::plan::PlanError;
use super::sysctl::SysctlError;

/// Why the dataplane could not do, undo or inspect an endpoint's network.
#[derive(Debug, thiserror::Error)]
pub enum DataplaneError {
    /// The plan asks for something impossible; nothing was touched.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The pod's namespace cannot be used.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The kernel refused a request; the message names the step.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A kernel setting could not be read or written.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// The pod already has an interface of that name, made by someone else. It was left alone.
    #[error("interface {ifname} already exists in {}; delete it, or call with another CNI_IFNAME", .netns.display())]
    ContainerInterfaceExists {
        /// CNI_IFNAME.
        ifname: String,
        /// The pod's namespace.
        netns: PathBuf,
    },
    /// The host has an interface of that name, which is not ours to replace.
    #[error("{0}")]
    HostInterfaceTaken(Box<Holder>),
    /// Other ADDs kept the interface from being replaced for too long.
    #[error("cannot replace host interface {ifname} while other ADDs make theirs: {source}")]
    Making {
        /// The interface.
        ifname: String,
        /// What became of the lock.
        source: LockError,
    },
    /// `/proc` does not tell which network namespaces have processes.
    #[error("cannot read the processes in /proc: {source}")]
    Processes {
        /// The system's reason.
        source: io::Error,
    },
    /// The host route to one of the addresses exists, and is not ours to replace.
    #[error(transparent)]
    BusyRoute(#[from] BusyRoute),
    /// The set-up failed, and the kernel did not delete the pair that was made for it.
    #[error("{failure}; interface {ifname} could not be removed: {left}")]
    LeftBehind {
        /// The host interface.
        ifname: String,
        /// Why the set-up failed.
        failure: Box<DataplaneError>,
        /// Why the pair is still there.
        left: NetlinkError,
    },
    /// The kernel, or a program that renames and readdresses new interfaces, does not keep the host end's MAC address.
    #[error("host interface {ifname} does not keep MAC address {expected}: it has {found}")]
    HostMac {
        /// The host interface.
        ifname: String,
        /// What was set.
        expected: MacAddr,
        /// What the interface has.
        found: String,
    },
    /// The pod's end has no Ethernet address, so no endpoint can be described by it.
    #[error("interface {0} in the pod has no MAC address")]
    NoMac(String),
    /// The host end has no IPv6 link-local address, which is the pod's gateway.
    #[error("host interface {ifname} got no IPv6 link-local address within {} ms ({hint})", .waited.as_millis())]
    NoLinkLocal {
        /// The host interface.
        ifname: String,
        /// How long it was waited for.
        waited: Duration,
        /// The likely cause.
        hint: &'static str,
    },
    /// The kernel did not finish deleting the interface in time. It may still do so.
    #[error("deleting interface {ifname} took longer than {} s", .waited.as_secs())]
    DeletionTimeout {
        /// The interface.
        ifname: String,
        /// The deadline.
        waited: Duration,
    },
    /// The thread that deletes ended without a word.
    #[error("the thread deleting interface {ifname} ended without a result")]
    DeletionPanicked {
        /// The interface.
        ifname: String,
    },
    /// No thread for a deletion.
    #[error("start a thread to delete interface {ifname}: {source}")]
    Thread {
        /// The interface.
        ifname: String,
        /// The system's reason.
        source: io::Error,
    },
}

/// A host route that keeps an address from being a pod's. The route stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("host route to {address} for {ifname} conflicts with the one {route}: another endpoint uses this address")]
pub struct BusyRoute {
    /// The pod's address.
    pub address: IpAddr,
    /// The route found: `through interface cali9 (protocol Static)`, `that is the host's own, on interface eth0`.
    pub route: String,
    /// The interface of that route; `None` for a route that drops packets or has several next hops.
    pub interface: Option<String>,
    /// The host interface that was to have the route.
    pub ifname: String,
}
