//! The lock of an import's target: its ClusterInformation is not ready and has a mark, until the import is complete.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use libcalico::migration::IMPORTING;
use libcalico::store::{RawEntry, Revision, Store, StoreError, WriteOp};
use serde_json::{Map, Value};

use super::write;
use crate::datastore::Datastore;

/// The path of the ClusterInformation.
pub(super) const PATH: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";

/// Returns the mark of the import of these pairs. Another export has another mark.
pub(super) fn mark(pairs: &BTreeMap<String, Vec<u8>>) -> String {
    let mut hasher = DefaultHasher::new();
    pairs.hash(&mut hasher);
    format!("export-{:016x}", hasher.finish())
}

/// Returns the ClusterInformation with the lock and the mark, or `None` if the value is no such object.
pub(super) fn locked(information: &[u8], mark: &str) -> Option<Vec<u8>> {
    let mut object: Value = serde_json::from_slice(information).ok()?;
    object.get_mut("spec")?.as_object_mut()?.insert("datastoreReady".into(), false.into());
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    let annotations = metadata.entry("annotations").or_insert(Value::Null);
    if annotations.is_null() {
        *annotations = Map::new().into();
    }
    annotations.as_object_mut()?.insert(IMPORTING.into(), mark.into());
    serde_json::to_vec(&object).ok()
}

/// Writes the locked ClusterInformation in the place of that of the target, and returns its revision.
pub(super) async fn write_locked(
    store: &Datastore,
    target: Option<&RawEntry>,
    locked: Vec<u8>,
) -> Result<Revision, StoreError> {
    let op = match target {
        None => WriteOp::Create(locked),
        Some(found) => WriteOp::Update(locked, found.revision.clone()),
    };
    let revisions = store.write(&[write(PATH.to_owned(), op)]).await.map_err(|error| error.cause)?;
    Ok(revisions.into_iter().next().unwrap_or_else(|| Revision(String::new())))
}

/// Returns the mark of an incomplete import, if the datastore is still locked. After another program has unlocked it,
/// pods have addresses that the import does not know.
pub(super) fn mark_of(information: &[u8]) -> Option<String> {
    let object: Value = serde_json::from_slice(information).ok()?;
    let is_locked = object["spec"]["datastoreReady"] == false;
    object["metadata"]["annotations"][IMPORTING].as_str().filter(|_| is_locked).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_cluster_information_keeps_its_other_fields() {
        let information = br#"{"kind":"ClusterInformation","metadata":{"name":"default"},"spec":{"clusterGUID":"g"}}"#;
        let locked = locked(information, "m").unwrap();
        assert_eq!(mark_of(&locked).as_deref(), Some("m"));
        assert_eq!(mark_of(information), None);
        let unlocked = String::from_utf8(locked.clone()).unwrap().replace("false", "true");
        assert_eq!(mark_of(unlocked.as_bytes()), None, "another program has unlocked the datastore");
        let object: Value = serde_json::from_slice(&locked).unwrap();
        assert_eq!(object["spec"], serde_json::json!({"clusterGUID": "g", "datastoreReady": false}));
        assert_eq!(super::locked(b"7", "m"), None);
    }
}
