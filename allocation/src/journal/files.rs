//! The files of the journal.
//!
//! Besides the entries, the directory has one small file per datastore name, with the known
//! identity of that datastore. An entry with this identity can still be replayed after endpoints or
//! paths in the configuration were corrected.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::pending_del::{DatastoreIdentity, PendingDel};
use os::atomic_file::{self, AtomicFileError, regular_file};
use os::lock::LockError;

/// The extensions of an attachment's first entry and of its others. Earlier releases read only
/// files with the first extension.
pub(super) const EXTENSIONS: [&str; 2] = ["json", "debt"];

/// A failure to read, to write or to lock the journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file or the directory cannot be accessed.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// The attempted action: `create`, `write` …
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A directory or an entry that may contain a deferred DEL of the attachment cannot be read.
    #[error(
        "cannot read {path} of the journal of DELs: {source}; an earlier DEL of this container may \
         be incomplete. Make {path} readable; if it is lost, move it away, and run `calico-ipam \
         check`, which finds the addresses of its DELs"
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
    #[error("cannot lock the journal of deferred DELs: {0}")]
    Lock(#[from] LockError),
}

impl JournalError {
    pub(super) fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| JournalError::File {
            action,
            path: path.to_owned(),
            source,
        }
    }
}

pub(super) fn is_entry(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| EXTENSIONS.iter().any(|own| extension == *own))
}

pub(super) fn read(path: &Path) -> io::Result<PendingDel> {
    serde_json::from_slice(&regular_file::contents(path)?).map_err(io::Error::from)
}

/// Returns true for the error of a file that was read and is not a valid entry.
pub(super) fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
    )
}

pub(super) fn write(path: &Path, content: &impl Serialize) -> Result<(), JournalError> {
    let text = serde_json::to_vec_pretty(content)
        .map_err(io::Error::from)
        .map_err(JournalError::at("encode", path))?;
    // Entries name pods and containers; only root may read them.
    atomic_file::replace(path, &text, 0o600)?;
    Ok(())
}

const SUFFIX: &str = "datastore";

#[derive(Serialize, Deserialize)]
struct RecordedIdentity {
    datastore: String,
    identity: String,
}

/// Returns the identity of the datastore that the configuration names `name`; empty if the node
/// does not know it.
pub(super) fn find_identity(directory: &Path, name: &str) -> String {
    let Ok(text) = regular_file::contents(&identity_file(directory, name)) else {
        return String::new();
    };
    let recorded: Option<RecordedIdentity> = serde_json::from_slice(&text).ok();
    recorded
        .filter(|recorded| recorded.datastore == name)
        .map(|recorded| recorded.identity)
        .unwrap_or_default()
}

pub(super) fn record_identity(
    directory: &Path,
    target: &DatastoreIdentity,
) -> Result<(), JournalError> {
    let DatastoreIdentity { name, identity } = target.clone();
    write(
        &identity_file(directory, &name),
        &RecordedIdentity {
            datastore: name,
            identity,
        },
    )
}

pub(super) fn remove_identities(directory: &Path) -> std::io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == SUFFIX)
        {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

fn identity_file(directory: &Path, name: &str) -> PathBuf {
    // Names of datastores contain slashes, and may be longer than a file name.
    let id = uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_URL, name.as_bytes());
    directory.join(format!("{id}.{SUFFIX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datastore_identity_is_stored_per_name_and_replaced_on_change() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let learn = |name: &str, identity: &str| {
            record_identity(
                directory,
                &DatastoreIdentity {
                    name: name.into(),
                    identity: identity.into(),
                },
            )
            .unwrap();
        };
        assert_eq!(find_identity(directory, "etcd a"), "");
        learn("etcd a", "etcd 1");
        learn("etcd b", "etcd 2");
        assert_eq!(
            [
                find_identity(directory, "etcd a"),
                find_identity(directory, "etcd b")
            ],
            ["etcd 1", "etcd 2"]
        );
        learn("etcd a", "etcd 3");
        assert_eq!(
            [
                find_identity(directory, "etcd a"),
                find_identity(directory, "etcd b")
            ],
            ["etcd 3", "etcd 2"]
        );
        fs::write(identity_file(directory, "etcd b"), "{").unwrap();
        assert_eq!(
            find_identity(directory, "etcd b"),
            "",
            "a damaged file tells nothing"
        );
        fs::write(directory.join("x.json"), "").unwrap();
        remove_identities(directory).unwrap();
        assert_eq!(fs::read_dir(directory).unwrap().count(), 1);
    }
}
