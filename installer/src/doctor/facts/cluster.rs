//! What the datastore and the API server say.

use std::path::PathBuf;
use std::time::Duration;

use netconf::conf::DatastoreType;

use super::{BusyAddress, PodInterface};
use crate::doctor::role::Permission;

/// What the datastore and the API server say. Each answer alone, or why there is none.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// What it is.
    pub kind: DatastoreKind,
    /// Where it is.
    pub place: String,
    /// How long the first answer took, or why there was none.
    pub reached: Result<Duration, String>,
    /// Of several members of an etcd those that do not answer, and why.
    pub silent: Vec<(String, String)>,
    /// The files for TLS with etcd.
    pub tls: Vec<TlsFile>,
    /// What the API server says where it does not take the token, or whatever else the plugins have.
    pub refused: Option<String>,
    /// What the account may at the API server, of what it must; empty where none is asked.
    pub granted: Vec<Granted>,
    /// What the user of an etcd may, of what it must.
    pub granted_by_etcd: Vec<Granted>,
    /// The API server beside another datastore, and whether it answers; `None` where none is asked.
    pub api_beside: Option<(String, Result<(), String>)>,
    /// `datastoreReady` of ClusterInformation; `None` where there is none.
    pub ready: Result<Option<Option<bool>>, String>,
    /// The pools.
    pub pools: Result<Vec<Pool>, String>,
    /// The blocks of this node.
    pub blocks: Result<BlockCount, String>,
    /// Whether there is a Node of this name; `None` without a name.
    pub node_exists: Option<Result<bool, String>>,
    /// The interfaces of pods that the kernel has.
    pub interfaces: Result<Vec<PodInterface>, String>,
    /// Addresses that IPAM has free and the kernel has a route to.
    pub busy: Result<Vec<BusyAddress>, String>,
}

impl Cluster {
    /// One that did not answer.
    pub(in crate::doctor) fn unreached(kind: DatastoreKind, place: String, reason: String) -> Self {
        Cluster {
            kind,
            place,
            silent: Vec::new(),
            tls: Vec::new(),
            refused: None,
            granted: Vec::new(),
            granted_by_etcd: Vec::new(),
            api_beside: None,
            ready: Err(reason.clone()),
            pools: Err(reason.clone()),
            blocks: Err(reason.clone()),
            node_exists: None,
            interfaces: Err(reason.clone()),
            busy: Err(reason.clone()),
            reached: Err(reason),
        }
    }
}

/// What a datastore is, as ways out differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatastoreKind {
    /// The API server of Kubernetes.
    Kubernetes,
    /// An etcd.
    Etcd,
    /// One file on this node.
    Local,
}

impl From<DatastoreType> for DatastoreKind {
    fn from(kind: DatastoreType) -> Self {
        match kind {
            DatastoreType::Kubernetes => DatastoreKind::Kubernetes,
            DatastoreType::Etcdv3 => DatastoreKind::Etcd,
            DatastoreType::Local => DatastoreKind::Local,
        }
    }
}

/// A file for TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFile {
    /// The key of the configuration that names it.
    pub setting: &'static str,
    /// On the node.
    pub path: PathBuf,
    /// Its mode, or why it is of no use.
    pub mode: Result<u32, String>,
}

/// One thing that the account must be allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// What.
    pub permission: Permission,
    /// Whether it is, or why nobody said.
    pub allowed: Result<bool, String>,
}

/// A pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its range.
    pub cidr: String,
    /// Whether pods get addresses from it, where it is selected.
    pub serves_pods: bool,
    /// Whether it selects this node, or why that is not known.
    pub selects_node: Result<bool, String>,
    /// Bytes that its encapsulation takes from each packet.
    pub overhead: u32,
}

impl Pool {
    /// Whether pods of this node get addresses from it, as far as that is known.
    pub fn is_of_node(&self) -> bool {
        self.serves_pods && self.selects_node != Ok(false)
    }
}

/// Blocks by how far their claim has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockCount {
    /// This node's.
    pub confirmed: usize,
    /// Claimed or given up half.
    pub pending: usize,
}
