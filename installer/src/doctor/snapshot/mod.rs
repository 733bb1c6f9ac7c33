//! [`NodeSnapshot`]: the observations on the node and in the cluster, without any judgment.

mod cluster;
mod configuration;
mod node;
mod observation;

use std::path::PathBuf;

pub use cluster::{BlockCount, Cluster, DatastoreKind, Granted, Pool, TlsFile};
pub use configuration::{Content, File, ProgramOrigin, ProgramState, RequiredProgram, SelectedConfig, TokenFile};
pub use node::{BusyAddress, Cache, Holder, Lock, NodeName, PodInterface, Setting};
pub(super) use node::{FORWARD, FORWARD_IPV6, REVERSE_PATH, SETTINGS};
pub use observation::{Observed, Unobserved};

use crate::host_network::Interface;

/// All observations. An `Err` in a field is the reason for a missing observation.
#[derive(Debug, Clone)]
pub struct NodeSnapshot {
    /// The time, in seconds since 1970.
    pub now: i64,
    /// The configuration directory, as a path in this process's file system.
    pub net_dir: PathBuf,
    /// The names of the files there that a runtime reads, in its order. The runtime uses the first one (INST-160).
    pub candidates: Observed<Vec<String>>,
    /// The first of these files.
    pub chosen: Option<SelectedConfig>,
    /// Calico's file among the others, if the first one delegates to another network.
    pub delegate: Option<SelectedConfig>,
    /// The programs that these files name, and `loopback`.
    pub programs: Vec<RequiredProgram>,
    /// The version of this program.
    pub version: String,
    /// The error if the installer's records cannot be read. Missing records are no error.
    pub notes: Observed<()>,
    /// The kubeconfig of Calico's configuration; `None` if the configuration names none.
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
    /// The relevant kernel settings.
    pub settings: Vec<Setting>,
    /// Descriptions of the deferred DELs in the journal.
    pub journal: Observed<Vec<String>>,
    /// The locks that the processes of this node share.
    pub locks: Vec<Lock>,
    /// libcni's cached results; `None` if the cache is missing.
    pub cache: Observed<Option<Cache>>,
    /// Addresses that ADDs could not use within the last minute.
    pub noted: Vec<BusyAddress>,
}

impl NodeSnapshot {
    /// Returns the contents of the relevant configurations that can be read.
    pub(super) fn contents(&self) -> impl Iterator<Item = (&str, &Content)> {
        let counting = self.chosen.iter().chain(&self.delegate);
        counting.filter_map(|SelectedConfig { name, content }| Some((name.as_str(), content.as_ref().ok()?)))
    }
}

/// The snapshot of an empty node.
impl Default for NodeSnapshot {
    fn default() -> Self {
        NodeSnapshot {
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
