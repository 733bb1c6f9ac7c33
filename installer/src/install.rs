//! Runs one installation from beginning to end, in upstream's order (INST-6).
//!
//! The template and the directories are checked before the first write, and each file is replaced
//! atomically.
//!
//! Read `installation`, then `reconcile`, which repeats it for the agent.

mod chain_versions;
mod installation;
mod reconcile;

use crate::binaries::BinariesError;
use crate::cluster::ClusterError;
use crate::conflist::ConflistError;
use crate::directory_access::UnwritableDirectory;
use crate::kubeconfig::KubeconfigError;
use crate::service_account::ServiceAccountError;
use crate::state::StateError;
pub use chain_versions::UnsupportedVersion;
pub use installation::Installation;
use os::atomic_file::AtomicFileError;
pub use reconcile::InstallReconciler;

/// Reasons for a failed installation.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum InstallError {
    /// The pod's account is unusable.
    Account(#[from] ServiceAccountError),
    /// A directory of the node is writable only with a capability that this process lacks.
    Directory(#[from] UnwritableDirectory),
    /// The settings yield no valid configuration.
    Conflist(#[from] ConflistError),
    /// A program that our entries name does not support the `cniVersion` of the configuration.
    Version(#[from] UnsupportedVersion),
    /// The programs cannot be installed.
    Binaries(#[from] BinariesError),
    /// No valid token can be requested for the plugins' kubeconfig, or the kubeconfig cannot be
    /// written.
    Credentials(#[from] KubeconfigError),
    /// etcd, in which this run is to create cluster objects, is unreachable.
    Cluster(#[from] ClusterError),
    /// A file cannot be read or written.
    File(#[from] AtomicFileError),
    /// The TLS files for etcd cannot be read or copied.
    Tls(AtomicFileError),
    /// The records of earlier installations cannot be read.
    State(#[from] StateError),
}

impl InstallError {
    /// Returns true if another program rewrote a file again and again while it was written.
    fn is_contested(&self) -> bool {
        matches!(self, InstallError::File(error) if error.is_contested())
    }
}
