//! Observations about the datastore and the API server.

use std::path::PathBuf;
use std::time::Duration;

use netconf::conf::DatastoreType;

use super::{BusyAddresses, Observed, PodInterface};
use crate::role::Permission;

/// The state of the datastore and the API server.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// The kind of datastore.
    pub kind: DatastoreType,
    /// The address of the datastore, for messages.
    pub address: String,
    /// The TLS files for etcd.
    pub tls: Vec<TlsFile>,
    /// The API server, as the datastore or beside it; `None` if none is used or the configuration
    /// is invalid.
    pub api: Option<ApiServer>,
    /// The answers of the datastore, or the reason if there are none.
    pub reached: Observed<DatastoreAnswers>,
}

impl Cluster {
    /// Returns the answers of a datastore that responds.
    pub fn answers(&self) -> Option<&DatastoreAnswers> {
        self.reached.as_ref().ok()
    }

    /// Returns the pools, if they can be read.
    pub fn pools(&self) -> Option<&Vec<Pool>> {
        self.answers()?.pools.as_ref().ok()
    }
}

/// The API server.
#[derive(Debug, Clone)]
pub struct ApiServer {
    /// The address of the API server, for messages.
    pub address: String,
    /// The reason if the API server did not respond.
    pub reached: Observed<()>,
    /// The API server's error if it rejects the plugins' credentials.
    pub rejection: Option<String>,
    /// The required permissions, and whether the account has them.
    pub permissions: Vec<PermissionCheck>,
}

/// The answers of a datastore.
#[derive(Debug, Clone)]
pub struct DatastoreAnswers {
    /// The duration of the first request.
    pub latency: Duration,
    /// The members of etcd that do not respond, with the reason.
    pub silent_members: Vec<(String, String)>,
    /// The required permissions in etcd, and whether the user has them.
    pub etcd_permissions: Vec<PermissionCheck>,
    /// The readiness of the datastore, after a migration that of `projectcalico.org/v3`.
    pub ready: Observed<Readiness>,
    /// The pools.
    pub pools: Observed<Vec<Pool>>,
    /// The numbers of this node's blocks.
    pub blocks: Observed<BlockCount>,
    /// True if the Node of this name exists; `None` if the name is unknown.
    pub node_exists: Option<Observed<bool>>,
    /// The kernel's interfaces of pods.
    pub interfaces: Observed<Vec<PodInterface>>,
    /// Addresses that are free in IPAM although the kernel has a host route to them, other than
    /// through an interface of a pod.
    pub busy: Observed<BusyAddresses>,
}

/// The readiness of a datastore for the plugins of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// ADD and DEL may change objects.
    Ready,
    /// `datastoreReady` of ClusterInformation is false or not set.
    Locked,
    /// The ClusterInformation is missing.
    Missing,
    /// A migration has moved the objects to another API group than the configured one.
    Moved,
}

/// A TLS file for etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFile {
    /// The configuration key that names the file.
    pub setting: &'static str,
    /// The path of the file.
    pub path: PathBuf,
    /// The mode of the file, or the reason why it is unusable.
    pub mode: Observed<u32>,
}

/// A required permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionCheck {
    /// The permission.
    pub permission: Permission,
    /// True if the account has the permission, or the reason for a missing answer.
    pub is_allowed: Observed<bool>,
}

/// An IP pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The name of the pool.
    pub name: String,
    /// The range of the pool.
    pub cidr: String,
    /// True if the pool is enabled for pods.
    pub serves_pods: bool,
    /// True if the pool selects this node, or the reason for a missing answer.
    pub selects_node: Observed<bool>,
    /// Bytes that the pool's encapsulation adds to each packet.
    pub overhead: u32,
}

impl Pool {
    /// Returns true if pods of this node may get addresses from the pool. An unknown selection
    /// counts as true.
    pub fn is_of_node(&self) -> bool {
        self.serves_pods && self.selects_node != Ok(false)
    }
}

/// Numbers of blocks by the state of their affinity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockCount {
    /// Blocks with a confirmed affinity.
    pub confirmed: usize,
    /// Blocks with an unfinished affinity: their claim or release did not finish, or is in
    /// progress.
    pub pending: usize,
}
