//! [`Facts`]: what was seen on the node and in the cluster. Nothing here says whether it is good.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use netconf::conf::DatastoreType;

use crate::host_network::Interface;
use crate::template::Finding as ConfFinding;
use crate::token::claims::Claims;

use super::role::Permission;

/// Whether packets go from one interface to another.
pub(super) const FORWARD: &str = "net.ipv4.ip_forward";
/// The same for IPv6.
pub(super) const FORWARD_IPV6: &str = "net.ipv6.conf.all.forwarding";
/// Whether a packet must come from where answers to it would go.
pub(super) const REVERSE_PATH: &str = "net.ipv4.conf.all.rp_filter";
/// The kernel settings that matter.
pub(super) const SETTINGS: [&str; 3] = [FORWARD, FORWARD_IPV6, REVERSE_PATH];

/// Everything that was seen. What could not be seen is the reason why.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The calendar, in seconds since 1970.
    pub now: i64,
    /// The configuration directory, as this process sees it.
    pub net_dir: PathBuf,
    /// Names of the files there that a runtime reads, in its order; the first is the one (INST-160).
    pub candidates: Result<Vec<String>, String>,
    /// The first of them.
    pub chosen: Option<Chosen>,
    /// The programs that it names, and `loopback`.
    pub programs: Vec<Program>,
    /// Its kubeconfig; `None` where it names none.
    pub token: Option<TokenFile>,
    /// The name of this node; `None` where no configuration says where to look.
    pub node: Option<NodeName>,
    /// What the datastore and the API server say; `None` where the configuration leads to none.
    pub cluster: Option<Cluster>,
    /// MTU of the configuration, 0 where it does not say; `None` without one.
    pub configured_mtu: Option<u32>,
    /// Content of Felix' MTU file.
    pub mtu_file: Option<String>,
    /// Whether ADD fails without that file.
    pub mtu_file_required: bool,
    /// The interfaces with a default route, or why the kernel does not tell them.
    pub uplinks: Result<Vec<Interface>, String>,
    /// Kernel settings that matter.
    pub settings: Vec<Setting>,
    /// How many DELs still owe the datastore something.
    pub journal: usize,
    /// The locks by which processes of this node take turns.
    pub locks: Vec<Lock>,
    /// What libcni keeps of containers; `None` where it keeps nothing, or nothing that is seen from here.
    pub cache: Result<Option<Cache>, String>,
}

/// The configuration that a runtime picks.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// Its name.
    pub name: String,
    /// What it holds, or why nobody can read it.
    pub content: Result<Content, String>,
}

/// What a configuration holds.
#[derive(Debug, Clone, Default)]
pub struct Content {
    /// Name of the network.
    pub network: String,
    /// The types of its plugins, in order.
    pub plugins: Vec<String>,
    /// The version of the specification.
    pub cni_version: String,
    /// What is odd about it.
    pub findings: Vec<ConfFinding>,
    /// Configurations that libcni would append to the list (INST-164).
    pub appended: Vec<String>,
}

/// A plugin's program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// How it is.
    pub state: ProgramState,
}

/// How a program is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramState {
    /// In none of the directories.
    Missing,
    /// There, without permission to execute it.
    NotExecutable(PathBuf),
    /// It answers VERSION with these.
    Speaks(PathBuf, Vec<String>),
    /// It answers VERSION with something else, or not at all.
    Broken(PathBuf, String),
}

/// A kubeconfig and the token in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFile {
    /// On the node.
    pub path: PathBuf,
    /// Who may read it, or why it cannot be read.
    pub file: Result<File, String>,
}

/// A file that could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its mode.
    pub mode: u32,
    /// What the token says; `None` where there is no token, or none that says anything.
    pub claims: Option<Claims>,
}

/// The name of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName {
    /// As the plugins find it, or why they do not.
    pub name: Result<String, String>,
    /// `nodename` of the configuration; may be empty.
    pub configured: String,
    /// Where calico-node, or our installer, writes it.
    pub path: PathBuf,
    /// What is written there.
    pub written: Option<String>,
    /// Whether the file may be missing.
    pub optional: bool,
}

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
}

impl Cluster {
    /// One that did not answer.
    pub(super) fn unreached(kind: DatastoreKind, place: String, reason: String) -> Self {
        Cluster {
            kind,
            place,
            silent: Vec::new(),
            tls: Vec::new(),
            granted: Vec::new(),
            granted_by_etcd: Vec::new(),
            api_beside: None,
            ready: Err(reason.clone()),
            pools: Err(reason.clone()),
            blocks: Err(reason.clone()),
            node_exists: None,
            interfaces: Err(reason.clone()),
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

/// The host's end of a pod's interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodInterface {
    /// Its name.
    pub name: String,
    /// The addresses that routes through it lead to.
    pub addresses: Vec<IpAddr>,
    /// The addresses of its endpoint; `None` where there is no endpoint.
    pub endpoint: Option<Vec<IpAddr>>,
}

impl PodInterface {
    /// Addresses that routes lead to and the endpoint does not have.
    pub fn stray_addresses(&self) -> impl Iterator<Item = &IpAddr> {
        let known = self.endpoint.as_deref().unwrap_or_default();
        self.addresses.iter().filter(|address| !known.contains(address))
    }

    /// Whether it has an endpoint with all its addresses.
    pub fn is_in_order(&self) -> bool {
        self.endpoint.is_some() && self.stray_addresses().next().is_none()
    }
}

/// A lock of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// What for.
    pub name: &'static str,
    /// Its file.
    pub path: PathBuf,
    /// Who has had it as long as it was looked at; `None`: it was free at some time.
    pub holder: Option<Holder>,
}

/// The process that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its id; `None` for one that is not seen from here.
    pub process: Option<u32>,
    /// How it was started.
    pub command: String,
}

/// What libcni keeps of containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// Where.
    pub directory: PathBuf,
    /// Results with an interface of Calico's.
    pub results: usize,
    /// Names of those whose interface is gone.
    pub stale: Vec<String>,
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
    /// Whether pods get addresses from it.
    pub serves_pods: bool,
    /// Bytes that its encapsulation takes from each packet.
    pub overhead: u32,
}

/// Blocks by how far their claim has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockCount {
    /// This node's.
    pub confirmed: usize,
    /// Claimed or given up half.
    pub pending: usize,
}

/// A kernel setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// As sysctl(8) calls it.
    pub name: &'static str,
    /// Its value; `None` where the kernel has none.
    pub value: Option<String>,
}

/// Nothing was seen.
impl Default for Facts {
    fn default() -> Self {
        Facts {
            now: 0,
            net_dir: PathBuf::new(),
            candidates: Ok(Vec::new()),
            chosen: None,
            programs: Vec::new(),
            token: None,
            node: None,
            cluster: None,
            configured_mtu: None,
            mtu_file: None,
            mtu_file_required: false,
            uplinks: Ok(Vec::new()),
            settings: Vec::new(),
            journal: 0,
            locks: Vec::new(),
            cache: Ok(None),
        }
    }
}
