//! The lock of an import's target: its ClusterInformation is not ready and has a mark, until the
//! import is complete.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use libcalico::migration::IMPORTING;
use libcalico::store::{RawEntry, Revision, Store, StoreError, WriteOp};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::write;
use crate::datastore::Datastore;

/// The path of the ClusterInformation.
pub(super) const PATH: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";

/// Returns the mark of the import of these pairs. Another export has another mark. Every build
/// returns the same one, because another version of the program may continue the import.
pub(super) fn mark(pairs: &BTreeMap<String, Vec<u8>>) -> String {
    let mut hasher = Sha256::new();
    for part in pairs
        .iter()
        .flat_map(|(path, value)| [path.as_bytes(), value])
    {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    format!("export-{}", HEXLOWER.encode(&hasher.finalize()))
}

/// Returns the ClusterInformation with the lock and the mark, or `None` if the value is no such
/// object.
pub(super) fn locked(information: &[u8], mark: &str) -> Option<Vec<u8>> {
    let mut object: Value = serde_json::from_slice(information).ok()?;
    object
        .get_mut("spec")?
        .as_object_mut()?
        .insert("datastoreReady".into(), false.into());
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    let annotations = metadata.entry("annotations").or_insert(Value::Null);
    if annotations.is_null() {
        *annotations = Map::new().into();
    }
    annotations
        .as_object_mut()?
        .insert(IMPORTING.into(), mark.into());
    serde_json::to_vec(&object).ok()
}

/// Writes the locked ClusterInformation in the place of that of the target, and returns its
/// revision.
pub(super) async fn write_locked(
    store: &Datastore,
    target: Option<&RawEntry>,
    locked: Vec<u8>,
) -> Result<Revision, StoreError> {
    let op = match target {
        None => WriteOp::Create(locked),
        Some(found) => WriteOp::Update(locked, found.revision.clone()),
    };
    let revisions = store
        .write(&[write(PATH.to_owned(), op)])
        .await
        .map_err(|error| error.cause)?;
    Ok(revisions
        .into_iter()
        .next()
        .unwrap_or_else(|| Revision(String::new())))
}

/// Returns the mark of an incomplete import, if the datastore is still locked. After another
/// program has unlocked it, pods have addresses that the import does not know.
pub(super) fn mark_of(information: &[u8]) -> Option<String> {
    let object: Value = serde_json::from_slice(information).ok()?;
    let is_locked = object["spec"]["datastoreReady"] == false;
    object["metadata"]["annotations"][IMPORTING]
        .as_str()
        .filter(|_| is_locked)
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::format::parse;

    #[test]
    fn mark_of_an_import_is_the_same_in_every_build() {
        let pairs = |value: &[u8]| {
            BTreeMap::from([
                ("/calico/a".to_owned(), b"1".to_vec()),
                ("/calico/b".to_owned(), value.to_vec()),
            ])
        };
        let digest = "d5c43a06467dd41a66ed27429ead40ae87d1f3e84c78601e8fc3cd597554432f";
        assert_eq!(mark(&pairs(b"\xff")), format!("export-{digest}"));
        assert_ne!(mark(&pairs(b"\xff")), mark(&pairs(b"\xfe")));
    }

    #[test]
    fn locked_cluster_information_keeps_its_other_fields() {
        let information = br#"{"kind":"ClusterInformation","metadata":{"name":"default"},"spec":{"clusterGUID":"g"}}"#;
        let locked = locked(information, "m").unwrap();
        assert_eq!(mark_of(&locked).as_deref(), Some("m"));
        assert_eq!(mark_of(information), None);
        let unlocked = String::from_utf8(locked.clone())
            .unwrap()
            .replace("false", "true");
        assert_eq!(
            mark_of(unlocked.as_bytes()),
            None,
            "another program has unlocked the datastore"
        );
        let object: Value = serde_json::from_slice(&locked).unwrap();
        assert_eq!(
            object["spec"],
            serde_json::json!({"clusterGUID": "g", "datastoreReady": false})
        );
        assert_eq!(super::locked(b"7", "m"), None);
    }

    /// Another version may continue an interrupted import.
    #[test]
    fn import_lock_of_0_1_0_is_recognized_and_written_unchanged() {
        let export = include_str!("../../../tests/formats/0.1.0/export/calico.jsonl");
        let stored = include_str!("../../../tests/formats/0.1.0/export/locked-target.json");
        let pairs = parse(export.as_bytes()).unwrap();
        let mark = mark(&pairs);
        assert_eq!(mark_of(stored.as_bytes()).as_deref(), Some(&*mark));
        let written = locked(&pairs[PATH], &mark).unwrap();
        assert_eq!(str::from_utf8(&written).unwrap(), stored);
    }
}
