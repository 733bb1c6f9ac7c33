//! [`InstallError`]: reasons for a failed installation.

use crate::atomic_file::AtomicFileError;
use crate::binaries::BinariesError;
use crate::cluster::ClusterError;
use crate::conflist::ConflistError;
use crate::kubeconfig::KubeconfigError;
use crate::service_account::ServiceAccountError;
use crate::state::StateError;

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
    /// The plugins have no token.
    #[error(transparent)]
    Credentials(#[from] KubeconfigError),
    /// A cluster object is missing that only this run creates.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] AtomicFileError),
    /// The records of earlier installations cannot be read.
    #[error(transparent)]
    State(#[from] StateError),
}

impl InstallError {
    /// Returns true if another program rewrote a file again and again while it was written.
    pub(super) fn is_contested(&self) -> bool {
        matches!(self, InstallError::File(error) if error.is_contested())
    }
}
