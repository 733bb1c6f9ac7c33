//! [`Item`]: an object of a file, with the write that creates it on an API server.

use std::collections::BTreeSet;

use libcalico::ipam::{Block, BlockAffinity, Handle, IpamConfig};
use libcalico::kubernetes::{Codec, Request};
use libcalico::migration::calicoctl_file::{CalicoctlFile, ExportedKind, Pair};
use libcalico::store::{Freshness, Kind, Range, StoreError, Write, WriteOp, identifier};
use serde_json::{Map, Value, json};

use crate::cli::error::CliError;

/// An object of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    pub(super) kind: &'static str,
    pub(super) path: String,
    /// The name in messages, such as `IPPool(big)`.
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    /// True if the object belongs to address management.
    pub(super) is_ipam: bool,
    /// The comparable value; for a node the object in the file.
    pub(super) value: Value,
    /// The write that creates the object, with its URL path; `None` for a node, which Kubernetes
    /// creates.
    pub(super) create: Option<(String, Write)>,
}

/// Returns the objects of a file in the order of their writes: tiers before their policies, address
/// management last. `created` is the time of creation to store.
pub(super) fn items(
    file: CalicoctlFile,
    codec: &Codec,
    created: &str,
) -> Result<Vec<Item>, CliError> {
    let mut items = Vec::new();
    for object in file.resources {
        items.extend(resource(object, codec, created)?);
    }
    items.sort_by_key(|item| item.kind != "Tier");
    for pair in file.ipam.affinities {
        items.extend(ipam_object::<BlockAffinity>(pair, codec)?);
    }
    for pair in file.ipam.blocks {
        items.extend(ipam_object::<Block>(pair, codec)?);
    }
    for pair in file.ipam.handles {
        items.extend(ipam_object::<Handle>(pair, codec)?);
    }
    if let Some(pair) = file.ipam.config {
        items.extend(ipam_object::<IpamConfig>(pair, codec)?);
    }
    Ok(items)
}

/// Returns the item of a v3 object, or `None` if the kind is unknown.
pub(super) fn resource(
    mut object: Value,
    codec: &Codec,
    created: &str,
) -> Result<Option<Item>, CliError> {
    let Some(kind) = ExportedKind::of(&object) else {
        return Ok(None);
    };
    let Some(key) = kind.key_of(&object) else {
        return Ok(None);
    };
    let (path, name) = (kind.path(&key), format!("{}({key})", kind.kind));
    let item = |value: Value, create| Item {
        kind: kind.kind,
        path: path.clone(),
        name: name.clone(),
        namespace: key.namespace.clone(),
        is_ipam: false,
        value,
        create,
    };
    check_texts(&object, &name)?;
    if kind.kind == "Node" {
        return Ok(Some(item(object, None)));
    }
    if let Some(fields) = object.as_object_mut() {
        // The controllers of the target write the status.
        fields.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.insert("creationTimestamp".into(), created.into());
        // The uids of etcd's objects name no object of the target, so Kubernetes would delete this
        // one.
        metadata.remove("ownerReferences");
    }
    let write = create(kind.kind, &path, &name, &object);
    let (url, value) = as_stored(codec, &write)?;
    Ok(Some(item(value, Some((url, write)))))
}

/// Checks the labels and annotations. On a Kubernetes node they become one text, and a number in it
/// would make all of them unreadable.
fn check_texts(object: &Value, name: &str) -> Result<(), StoreError> {
    for part in ["labels", "annotations"] {
        let texts = &object["metadata"][part];
        let is_valid = texts.as_object().map_or(texts.is_null(), |texts| {
            texts.values().all(Value::is_string)
        });
        if !is_valid {
            let reason = format!("metadata.{part} has a value that is no text");
            return Err(StoreError::Corrupt {
                key: name.to_owned(),
                reason,
            });
        }
    }
    Ok(())
}

fn ipam_object<K: Kind>(pair: Pair, codec: &Codec) -> Result<Option<Item>, CliError> {
    let Some(key) = K::parse_path(&pair.path) else {
        return Ok(None);
    };
    let name = identifier::<K>(&key);
    // An API server may accept values that the allocators cannot read.
    if let Err(error) = K::from_json(&pair.value) {
        return Err(StoreError::Corrupt {
            key: name,
            reason: error.to_string(),
        }
        .into());
    }
    let write = create(K::KIND, &pair.path, &name, &pair.value);
    let (url, value) = as_stored(codec, &write)?;
    let create = Some((url, write));
    Ok(Some(Item {
        kind: K::KIND,
        path: pair.path,
        name,
        namespace: None,
        is_ipam: true,
        value,
        create,
    }))
}

fn create(kind: &'static str, path: &str, name: &str, value: &Value) -> Write {
    let op = WriteOp::Create(libcalico::kubernetes::json_bytes(value));
    Write {
        kind,
        path: path.to_owned(),
        key: name.to_owned(),
        op,
    }
}

/// Returns the URL path of the object that a write creates, and the object's comparable value.
fn as_stored(codec: &Codec, write: &Write) -> Result<(String, Value), CliError> {
    let request = codec.request(write).map_err(StoreError::from)?;
    let Request::Create { location, body } = request else {
        return Err(
            StoreError::Other(format!("{} cannot be created on an API server", write.key)).into(),
        );
    };
    let range = Range {
        kind: write.kind,
        path: write.path.clone(),
        is_prefix: false,
        keys_only: false,
        freshness: Freshness::Latest,
    };
    let decoded = codec.decode(&range, body);
    let value = decoded.and_then(|found| Some(found.entry.value.json().ok()?.into_owned()));
    match value {
        Some(value @ Value::Object(_)) => Ok((location.url_path(), comparable(value))),
        // The decoder describes an invalid object in a text.
        invalid => {
            let reason = invalid
                .and_then(|value| value.as_str().map(str::to_owned))
                .unwrap_or_default();
            Err(StoreError::Corrupt {
                key: write.key.clone(),
                reason,
            }
            .into())
        }
    }
}

/// Returns the parts of an object that a person writes: labels, annotations, and all fields but the
/// status. A value of address management, which has no metadata, is returned unchanged.
pub(super) fn comparable(value: Value) -> Value {
    let Value::Object(mut fields) = value else {
        return value;
    };
    let Some(metadata) = fields.remove("metadata") else {
        return Value::Object(fields);
    };
    for field in ["apiVersion", "kind", "status"] {
        fields.remove(field);
    }
    let part = |name: &str| {
        metadata
            .get(name)
            .cloned()
            .unwrap_or_else(|| Value::Object(Map::new()))
    };
    fields.insert(
        "metadata".into(),
        json!({ "labels": part("labels"), "annotations": part("annotations") }),
    );
    Value::Object(fields)
}

/// Returns the kinds of the items.
pub(super) fn kinds(items: &[Item]) -> BTreeSet<&'static str> {
    items.iter().map(|item| item.kind).collect()
}
