//! `calico uninstall`: removes the installed files from a node.
//!
//! ```text
//! state, digests on disk ─ plan (pure) ─▶ 0 blockers are reported, and nothing is changed
//!                                         1 the configuration is renamed, so no new pod uses it
//!                                         2 interfaces, then addresses, if requested
//!                                         3 programs, kubeconfig, TLS files
//!                                         4 the renamed configuration, the state
//!                            report ◀─────┘
//! ```
//!
//! Steps 1 and 2 need files that later steps remove, so a failure of these steps ends the run.
//!
//! An installed file is removed only if it is still the recorded one, or if the installer renews
//! its content, as that of the kubeconfig. Other installed files stay and are reported. Without
//! `--yes` nothing is changed.

mod address_users;
mod addresses;
mod chained_plugins;
mod files;
mod other_files;
mod plan;
mod preconditions;
mod report;
mod run;

pub use plan::Options;
pub use run::run;

use std::path::PathBuf;

use allocation::error::IpamError;
use libcalico::api::ObjectKey;
use libcalico::ipam::HandleId;
use libcalico::net::Cidr;
use libcalico::store::StoreError;
use netconf::CniError;
use os::lock::LockError;

use crate::node_conf::NodeConfError;
use dataplane::host_network::NetworkError;

/// Reasons why the configuration that names the datastore is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum ConfError {
    #[error("the configuration of this installation is missing")]
    Missing,
    #[error("{}: {reason}", .path.display())]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        reason: String,
    },
}

/// Reasons why addresses and blocks are not released.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum ReleaseError {
    Conf(#[from] ConfError),
    NodeConf(#[from] NodeConfError),
    Call(#[from] CniError),
    Network(#[from] NetworkError),
    Store(#[from] StoreError),
    Ipam(#[from] IpamError),
    /// A running ADD may assign an address at the same time.
    #[error(
        "running ADDs may still assign addresses: {0}; end the process that holds the lock, or \
         make the lock file writable, and run the command again"
    )]
    Unlocked(#[from] LockError),
    /// Interfaces of pods remain.
    #[error("pods are still connected with these addresses: {}; delete their interfaces first, \
             which needs CAP_NET_ADMIN (ip link delete)", .0.join(", "))]
    Connected(Vec<String>),
    /// Pods may have addresses that were not behind a deleted interface.
    #[error("pods in the API server use these addresses: {}; delete these pods first, or, if their \
             interfaces are on this node, add --tear-down-pods", .0.join(", "))]
    UsedByPods(Vec<String>),
    #[error("cannot read from the API server whether pods use these addresses: {0}")]
    UnreadablePods(StoreError),
    /// Endpoints list addresses that were not behind a deleted interface.
    #[error("endpoints list these addresses: {}; delete their pods or containers first, or, if \
             their interfaces are on this node, add --tear-down-pods; delete an endpoint without a \
             pod or container with calicoctl delete workloadendpoint", .0.join(", "))]
    UsedByEndpoints(Vec<String>),
    #[error("cannot read the endpoints in the datastore: {0}")]
    UnreadableEndpoints(StoreError),
    #[error(
        "endpoint {key}, which may list these addresses, cannot be read: {source}; correct or \
         delete the endpoint"
    )]
    InvalidEndpoint {
        /// The key of the endpoint.
        key: ObjectKey,
        source: StoreError,
    },
    #[error("cannot delete endpoint {key}, which lists these addresses: {source}")]
    RemainingEndpoint {
        /// The key of the endpoint.
        key: ObjectKey,
        source: StoreError,
    },
    /// The addresses of a container remain.
    #[error("cannot release the addresses of handle {handle}: {source}")]
    RemainingHandle {
        /// The handle of the addresses.
        handle: HandleId,
        source: IpamError,
    },
    #[error("cannot release block {block}: {source}")]
    RemainingBlock {
        /// The range of the block.
        block: Cidr,
        source: IpamError,
    },
}
