//! The known identities of the datastores in the node's configurations: one small file per datastore name, in the
//! journal's directory.
//!
//! A DEL that cannot reach its datastore takes the identity from here, so that its entry can still be replayed after
//! endpoints or paths in the configuration were corrected.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Creditor, JournalError};

/// The extension of these files. Entries have others.
const SUFFIX: &str = "datastore";

/// The content of a file.
#[derive(Serialize, Deserialize)]
struct Learned {
    datastore: String,
    identity: String,
}

/// Returns the identity of the datastore that the configuration names `name`; empty if the node does not know it.
pub(super) fn recall(directory: &Path, name: &str) -> String {
    let Ok(text) = fs::read(file_of(directory, name)) else { return String::new() };
    let learned: Option<Learned> = serde_json::from_slice(&text).ok();
    learned.filter(|learned| learned.datastore == name).map(|learned| learned.identity).unwrap_or_default()
}

/// Stores the identity of `creditor`. The file is written only if its contents change.
pub(super) fn keep(directory: &Path, creditor: &Creditor) -> Result<(), JournalError> {
    let Creditor { name, identity } = creditor.clone();
    super::write(&file_of(directory, &name), &Learned { datastore: name, identity })
}

/// Removes all stored identities, for a journal that is to be removed.
///
/// # Errors
/// Returns an error if a file cannot be removed.
pub(super) fn forget_all(directory: &Path) -> std::io::Result<()> {
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
            keep(directory, &Creditor { name: name.into(), identity: identity.into() }).unwrap();
        };
        assert_eq!(recall(directory, "etcd a"), "");
        learn("etcd a", "etcd 1");
        learn("etcd b", "etcd 2");
        assert_eq!([recall(directory, "etcd a"), recall(directory, "etcd b")], ["etcd 1", "etcd 2"]);
        learn("etcd a", "etcd 3");
        assert_eq!([recall(directory, "etcd a"), recall(directory, "etcd b")], ["etcd 3", "etcd 2"]);
        fs::write(file_of(directory, "etcd b"), "{").unwrap();
        assert_eq!(recall(directory, "etcd b"), "", "a damaged file tells nothing");
        fs::write(directory.join("x.json"), "").unwrap();
        forget_all(directory).unwrap();
        assert_eq!(fs::read_dir(directory).unwrap().count(), 1);
    }
}
