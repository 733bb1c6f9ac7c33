//! Runs one installation from beginning to end, in upstream's order (INST-6).
//!
//! The template and the directories are checked before the first write, and each file is replaced
//! atomically.
//!
//! Read `installation`, then `reconcile`, which repeats it for the agent.

mod chain_versions;
mod installation;
mod reconcile;

use libcalico::failure::Failure;

pub use installation::Installation;
use os::atomic_file::AtomicFileError;
pub use reconcile::InstallReconciler;

/// Reasons for a failed installation.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A file cannot be read or written. Another program may have rewritten it again and again.
    #[error(transparent)]
    File(#[from] AtomicFileError),
    /// Another reason.
    #[error("{0}")]
    Failure(Failure),
}

impl From<Failure> for InstallError {
    fn from(failure: Failure) -> Self {
        InstallError::Failure(failure)
    }
}

impl InstallError {
    /// Returns true if another program rewrote a file again and again while it was written.
    fn is_contested(&self) -> bool {
        matches!(self, InstallError::File(error) if error.is_contested())
    }
}
