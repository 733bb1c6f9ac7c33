//! The files of the journal: their names, and the errors from reading and writing them.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Serialize;

use super::pending_del::PendingDel;
use crate::atomic_file::{self, AtomicFileError};
use crate::lock::LockError;

/// The extensions of entries: of an attachment's first entry, and of its others. Earlier releases support one entry per
/// attachment and read only files with the first extension.
pub(super) const EXTENSIONS: [&str; 2] = ["json", "debt"];

/// A failure to write or to read an entry.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file or the directory cannot be accessed.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// The attempted action: `create`, `write` …
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A directory or an entry that may contain a deferred DEL of the attachment cannot be read.
    #[error(
        "cannot read {path} of the journal of DELs: {source}; nothing tells what an earlier DEL of this container \
         owes. Make {path} readable; if it is lost, move it away, and `calico-ipam check` finds what its DELs left \
         behind"
    )]
    Unread {
        /// The directory, or the entry.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// An entry cannot be written.
    #[error(transparent)]
    Write(#[from] AtomicFileError),
    /// The lock cannot be taken.
    #[error("the journal of DELs that are not finished: {0}")]
    Lock(#[from] LockError),
}

/// Returns true if a path has the name of an entry.
pub(super) fn is_entry(path: &Path) -> bool {
    path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|own| extension == *own))
}

/// Reads an entry.
pub(super) fn read(path: &Path) -> io::Result<PendingDel> {
    serde_json::from_slice(&fs::read(path)?).map_err(io::Error::from)
}

/// Returns true for the error of a file that was read and is not a valid entry.
pub(super) fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// Writes a file of the journal atomically.
pub(super) fn write(path: &Path, content: &impl Serialize) -> Result<(), JournalError> {
    let text = serde_json::to_vec_pretty(content).map_err(|error| JournalError::File {
        action: "encode",
        path: path.to_owned(),
        source: error.into(),
    })?;
    // Entries name pods and containers; only root may read them.
    atomic_file::replace(path, &text, 0o600)?;
    Ok(())
}
