//! The known identities of the datastores in the node's configurations: one small file per datastore name, in the
//! journal's directory.
//!
//! A DEL that cannot reach its datastore takes the identity from here, so that its entry can still be replayed after
//! endpoints or paths in the configuration were corrected.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::files::{JournalError, write};
use super::pending_del::DatastoreIdentity;

/// The extension of these files. Entries have others.
const SUFFIX: &str = "datastore";

/// The content of a file.
#[derive(Serialize, Deserialize)]
struct RecordedIdentity {
    datastore: String,
    identity: String,
}

/// Returns the identity of the datastore that the configuration names `name`; empty if the node does not know it.
pub(super) fn find(directory: &Path, name: &str) -> String {
    let Ok(text) = fs::read(file_of(directory, name)) else { return String::new() };
    let recorded: Option<RecordedIdentity> = serde_json::from_slice(&text).ok();
    recorded.filter(|recorded| recorded.datastore == name).map(|recorded| recorded.identity).unwrap_or_default()
}

/// Stores the identity of `target`. The file is written only if its contents change.
pub(super) fn record(directory: &Path, target: &DatastoreIdentity) -> Result<(), JournalError> {
    let DatastoreIdentity { name, identity } = target.clone();
    write(&file_of(directory, &name), &RecordedIdentity { datastore: name, identity })
}

/// Removes all stored identities, for a journal that is to be removed.
///
/// # Errors
/// Returns an error if a file cannot be removed.
pub(super) fn remove_all(directory: &Path) -> std::io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == SUFFIX) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

fn file_of(directory: &Path, name: &str) -> PathBuf {
    // Names of datastores contain slashes, and may be longer than a file name.
    let id = uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_URL, name.as_bytes());
    directory.join(format!("{id}.{SUFFIX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_kept_for_its_spelling_and_replaced_when_another_is_learned() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let learn = |name: &str, identity: &str| {
            record(directory, &DatastoreIdentity { name: name.into(), identity: identity.into() }).unwrap();
        };
        assert_eq!(find(directory, "etcd a"), "");
        learn("etcd a", "etcd 1");
        learn("etcd b", "etcd 2");
        assert_eq!([find(directory, "etcd a"), find(directory, "etcd b")], ["etcd 1", "etcd 2"]);
        learn("etcd a", "etcd 3");
        assert_eq!([find(directory, "etcd a"), find(directory, "etcd b")], ["etcd 3", "etcd 2"]);
        fs::write(file_of(directory, "etcd b"), "{").unwrap();
        assert_eq!(find(directory, "etcd b"), "", "a damaged file tells nothing");
        fs::write(directory.join("x.json"), "").unwrap();
        remove_all(directory).unwrap();
        assert_eq!(fs::read_dir(directory).unwrap().count(), 1);
    }
}
