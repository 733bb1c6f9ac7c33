//! [`Facts`]: what was seen on the node and in the cluster. Nothing here says whether it is good.

mod cluster;
mod configuration;
mod node;

use std::path::PathBuf;

pub use cluster::{BlockCount, Cluster, DatastoreKind, Granted, Pool, TlsFile};
pub use configuration::{Chosen, Content, File, Origin, Program, ProgramState, TokenFile};
pub use node::{BusyAddress, Cache, Holder, Lock, NodeName, PodInterface, Setting};
pub(super) use node::{FORWARD, FORWARD_IPV6, REVERSE_PATH, SETTINGS};

use crate::host_network::Interface;

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
    /// That of Calico's among the rest, where the first one calls another network by itself.
    pub delegate: Option<Chosen>,
    /// The programs that these name, and `loopback`.
    pub programs: Vec<Program>,
    /// The version of this program.
    pub version: String,
    /// Whether the notes of the installer can be read, or why not; on a node where it left none they can.
    pub notes: Result<(), String>,
    /// Calico's kubeconfig; `None` where its configuration names none.
    pub token: Option<TokenFile>,
    /// The name of this node; `None` where no configuration says where to look.
    pub node: Option<NodeName>,
    /// What the datastore and the API server say; `None` where the configuration leads to none.
    pub cluster: Option<Cluster>,
    /// MTU of the configuration, 0 where it does not say; `None` without one.
    pub configured_mtu: Option<u32>,
    /// Content of Felix' MTU file; `None` where there is none.
    pub mtu_file: Result<Option<String>, String>,
    /// Whether ADD fails without that file.
    pub mtu_file_required: bool,
    /// The interfaces with a default route, or why the kernel does not tell them.
    pub uplinks: Result<Vec<Interface>, String>,
    /// Kernel settings that matter.
    pub settings: Vec<Setting>,
    /// The DELs that still owe the datastore something, each in words, or why the journal cannot be read.
    pub journal: Result<Vec<String>, String>,
    /// The locks by which processes of this node take turns.
    pub locks: Vec<Lock>,
    /// What libcni keeps of containers; `None` where it keeps nothing, or nothing that is seen from here.
    pub cache: Result<Option<Cache>, String>,
    /// Addresses that ADDs of the last minute could not use.
    pub noted: Vec<BusyAddress>,
}

impl Facts {
    /// The configurations that count and can be read.
    pub(super) fn contents(&self) -> impl Iterator<Item = (&str, &Content)> {
        let counting = self.chosen.iter().chain(&self.delegate);
        counting.filter_map(|Chosen { name, content }| Some((name.as_str(), content.as_ref().ok()?)))
    }
}

/// Nothing was seen.
impl Default for Facts {
    fn default() -> Self {
        Facts {
            now: 0,
            net_dir: PathBuf::new(),
            candidates: Ok(Vec::new()),
            chosen: None,
            delegate: None,
            programs: Vec::new(),
            version: String::new(),
            notes: Ok(()),
            token: None,
            node: None,
            cluster: None,
            configured_mtu: None,
            mtu_file: Ok(None),
            mtu_file_required: false,
            uplinks: Ok(Vec::new()),
            settings: Vec::new(),
            journal: Ok(Vec::new()),
            locks: Vec::new(),
            cache: Ok(None),
            noted: Vec::new(),
        }
    }
}
