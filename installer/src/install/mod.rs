//! Runs one installation from beginning to end, in upstream's order (INST-6).
//!
//! The template, the programs and the directories are checked before the first write, and each file is replaced
//! atomically. So a failed run leaves the previous installation working, and the next run can continue.
//!
//! Read `installation`, then `reconcile`, which repeats it for the agent.

mod installation;
mod reconcile;

use crate::binaries::BinariesError;
use crate::cluster::ClusterError;
use crate::conflist::ConflistError;
use crate::kubeconfig::KubeconfigError;
use crate::service_account::ServiceAccountError;
use crate::state::StateError;
pub use installation::Installation;
use os::atomic_file::AtomicFileError;
pub use reconcile::InstallReconciler;

/// Reasons for a failed installation.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The pod's account is unusable.
    #[error(transparent)]
    Account(#[from] ServiceAccountError),
    /// The configuration is invalid.
    #[error(transparent)]
    Conflist(#[from] ConflistError),
    /// The programs cannot be installed.
    #[error(transparent)]
    Binaries(#[from] BinariesError),
    /// No valid token can be requested for the plugins' kubeconfig, or the kubeconfig cannot be written.
    #[error(transparent)]
    Credentials(#[from] KubeconfigError),
    /// etcd, in which this run is to create cluster objects, is unreachable.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] AtomicFileError),
    /// The TLS files for etcd cannot be read or copied.
    #[error(transparent)]
    Tls(AtomicFileError),
    /// The records of earlier installations cannot be read.
    #[error(transparent)]
    State(#[from] StateError),
}

impl InstallError {
    /// Returns true if another program rewrote a file again and again while it was written.
    fn is_contested(&self) -> bool {
        matches!(self, InstallError::File(error) if error.is_contested())
    }
}
