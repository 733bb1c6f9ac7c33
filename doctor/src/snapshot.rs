//! [`NodeSnapshot`]: the observations on the node and in the cluster, without any judgment.

mod cluster;
mod configuration;
mod pod_interface;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::IpAddr;
use std::path::PathBuf;

use libcalico::net::IpVersion;

use super::network_managers::NetworkManager;
pub(super) use cluster::{
    ApiServer, BlockCount, Cluster, DatastoreAnswers, PermissionCheck, Pool, Readiness, TlsFile,
};
pub(super) use configuration::{
    Content, KubeconfigFile, ProgramOrigin, ProgramState, RequiredProgram, SelectedConfig,
    TokenFile,
};
use dataplane::host_network::Interface;
use installation::directory_access::UnwritableDirectory;
pub(super) use pod_interface::{PodInterface, Unrouted};

/// All observations. An `Err` in a field is the reason for a missing observation.
#[derive(Debug, Clone)]
pub struct NodeSnapshot {
    /// The time, in seconds since 1970.
    pub now: i64,
    /// The configuration directory, as a path in this process's file system.
    pub net_dir: PathBuf,
    /// The directories of the installation that root may not write without a capability. In a
    /// container, only those that this process may not write.
    pub unwritable: Vec<UnwritableDirectory>,
    /// The names of the files in `net_dir` that a runtime reads, in its order. The doctor assumes
    /// that the runtime uses the first (INST-160).
    pub candidates: Observed<Vec<String>>,
    /// The first of `candidates`; `None` if there is none.
    pub selected: Option<SelectedConfig>,
    /// Calico's file among the other candidates, if `selected` delegates to other networks.
    pub delegate: Option<SelectedConfig>,
    /// The programs that `selected` and `delegate` name, and `loopback`.
    pub programs: Vec<RequiredProgram>,
    /// The version of this program.
    pub version: String,
    /// The error if the installer's records cannot be read. Missing records are no error.
    pub records: Observed<()>,
    /// The files that remain in directories of earlier installations, as paths on the node; in a
    /// container all recorded ones.
    pub former: Vec<PathBuf>,
    /// The kubeconfig of Calico's configuration.
    pub token: Option<TokenFile>,
    /// The name of this node; `None` without a readable configuration.
    pub node: Option<NodeName>,
    /// The state of the datastore and the API server; `None` without a readable configuration.
    pub cluster: Option<Cluster>,
    /// The MTU in the configuration, 0 if unset; `None` without a readable configuration.
    pub configured_mtu: Option<u32>,
    /// The content of the MTU file; `None` if the file is missing.
    pub mtu_file: Observed<Option<String>>,
    /// True if ADD fails without the MTU file.
    pub mtu_file_required: bool,
    /// The interfaces with a default route.
    pub uplinks: Observed<Vec<Interface>>,
    /// The families with a default route.
    pub default_routes: Observed<DefaultRoutes>,
    /// The programs that manage the node's network, other than Calico.
    pub managers: Vec<NetworkManager>,
    /// The relevant kernel settings, by their names in sysctl(8); `None` if the setting cannot be
    /// read.
    pub settings: Vec<(&'static str, Option<String>)>,
    /// Descriptions of the deferred DELs in the journal, and of its unreadable entries.
    pub journal: Observed<Vec<String>>,
    /// The locks that the processes of this node share.
    pub locks: Vec<Lock>,
    /// libcni's cached results; `None` if the cache is missing.
    pub cache: Observed<Option<Cache>>,
    /// Addresses that ADDs could not use in the last minute, with a description of the route.
    pub recent_busy: BusyAddresses,
    /// The proxies that the environments of this node's processes name.
    pub proxies: Vec<ProxySettings>,
}

impl NodeSnapshot {
    /// Returns the file names and contents of `selected` and `delegate`, as far as they can be
    /// read.
    pub(super) fn contents(&self) -> impl Iterator<Item = (&str, &Content)> {
        let counting = self.selected.iter().chain(&self.delegate);
        counting.filter_map(|SelectedConfig { name, content }| {
            Some((name.as_str(), content.as_ref().ok()?))
        })
    }
}

/// Setting for forwarding IPv4 packets between interfaces.
pub(super) const FORWARD: &str = "net.ipv4.ip_forward";
/// Setting for forwarding IPv6 packets.
pub(super) const FORWARD_IPV6: &str = "net.ipv6.conf.all.forwarding";
/// Setting for dropping packets whose source address is not routed to the interface on which they
/// arrived.
pub(super) const REVERSE_PATH: &str = "net.ipv4.conf.all.rp_filter";
pub(super) const SETTINGS: [&str; 3] = [FORWARD, FORWARD_IPV6, REVERSE_PATH];

/// The name of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName {
    /// The name that the plugins use, or their error.
    pub name: Observed<String>,
    /// `nodename` in the configuration; may be empty.
    pub configured: String,
    /// The file in which calico-node or the installer writes the name.
    pub path: PathBuf,
    /// The content of that file; `None` if the file is missing.
    pub written: Observed<Option<String>>,
    /// True if the file may be missing.
    pub optional: bool,
}

/// The families in which routes lead to every public address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DefaultRoutes {
    /// The families with such routes in the main table.
    pub main: BTreeSet<IpVersion>,
    /// The families with such routes in any table, which rules may use.
    pub any: BTreeSet<IpVersion>,
}

/// Addresses that are free in IPAM although the kernel has a host route to them, with a description
/// of the route.
pub(super) type BusyAddresses = BTreeMap<IpAddr, String>;

/// A lock of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// The name of the lock, for people.
    pub name: &'static str,
    /// The lock file.
    pub path: PathBuf,
    /// The process that held the lock in all observations.
    pub holder: Observed<Option<LockHolder>>,
}

/// A process that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHolder {
    /// The process ID; `None` if it cannot be determined, for example from another PID namespace.
    pub process: Option<u32>,
    /// The command line.
    pub command: String,
}

/// The proxy variables of a process. The URLs of the proxies may contain passwords, so they are not
/// stored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProxySettings {
    /// The name of the process.
    pub process: &'static str,
    /// The names of the variables that name a proxy, at least one.
    pub variables: Vec<&'static str>,
    /// The value of `NO_PROXY` or `no_proxy`; empty if neither is set.
    pub excluded: String,
}

/// libcni's cached results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// The directory of the cache.
    pub directory: PathBuf,
    /// Number of results with an interface of Calico's.
    pub results: usize,
    /// Names of the results whose interface no longer exists.
    pub stale: Vec<String>,
}

/// An observation, or the reason why it is missing.
pub(super) type Observed<T> = Result<T, Unobserved>;

/// The reason for a missing observation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unobserved(String);

impl Unobserved {
    /// Takes the text of an error as the reason.
    pub fn new(reason: impl Display) -> Self {
        Unobserved(reason.to_string())
    }
}

impl From<&str> for Unobserved {
    fn from(reason: &str) -> Self {
        Unobserved(reason.to_owned())
    }
}

impl From<Unobserved> for String {
    fn from(Unobserved(reason): Unobserved) -> Self {
        reason
    }
}
