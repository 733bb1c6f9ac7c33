//! The metadata of custom resources. In `crd.projectcalico.org/v1` the annotation
//! `projectcalico.org/metadata` contains the v3 metadata as JSON (DS-56, DS-57).
//!
//! Upstream moves or drops labels and annotations that others put on a v1 resource (DS-59,
//! IPAM-86). We leave them on the resource, unless the annotation has the same keys: see
//! [`PreservedMetadata`].

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::error::Malformed;
use super::json::{Fields, put_object, take_object, take_text, text};
use super::resource::{ApiGroup, Location};
use super::revision::{ObjectRevision, PreservedMetadata, reverse_uid};
use crate::api::{DEFAULT_TIER, NAME_ANNOTATION as ANNOTATION, without_tier};

/// Labels and annotations whose key contains one of these texts are on the v1 resource as well as
/// in the annotation.
const SHARED_KEY_PARTS: [&str; 2] = ["projectcalico.org/", "operator.tigera.io/"];

/// Fields that the API server maintains.
const SERVER_MANAGED_FIELDS: [&str; 3] = ["generation", "managedFields", "selfLink"];

/// The fields that identify an object or its state.
const IDENTITY_FIELDS: [&str; 7] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

/// Upstream's order of the fields in the annotation.
const ORDER: [&str; 11] = [
    "name",
    "generateName",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
];

// === v3 kinds: the canonical value has metadata ===

/// Returns the v3 metadata of a resource, and the metadata that other programs put on a v1
/// resource.
pub(super) fn read(
    group: ApiGroup,
    mut metadata: Fields,
) -> Result<(Fields, PreservedMetadata), Malformed> {
    remove_keys(&mut metadata, &SERVER_MANAGED_FIELDS);
    metadata.remove("resourceVersion");
    match group {
        ApiGroup::V3 => Ok((metadata, PreservedMetadata::default())),
        ApiGroup::CrdV1 => read_v1(metadata),
    }
}

fn read_v1(mut resource: Fields) -> Result<(Fields, PreservedMetadata), Malformed> {
    if let Some(uid) = take_text(&mut resource, "uid").filter(|uid| !uid.is_empty()) {
        resource.insert("uid".into(), reversed_uid(&uid)?.into());
    }
    let Some(mut inner) = take_annotation(&mut resource)? else {
        // Calico always writes the annotation, so another client, such as kubectl, wrote this
        // resource.
        let preserved = metadata_of_others(&resource, &Fields::new());
        return Ok((resource, preserved));
    };
    let preserved = metadata_of_others(&resource, &inner);
    for key in ["labels", "annotations"] {
        let mut merged = take_object(&mut resource, key);
        merged.append(&mut take_object(&mut inner, key));
        put_object(&mut inner, key, merged);
    }
    let is_calico = |version: &str| {
        [ApiGroup::CrdV1, ApiGroup::V3]
            .iter()
            .any(|group| group.api_version() == version)
    };
    rewrite_owners(&mut inner, |version| {
        is_calico(version).then(|| ApiGroup::V3.api_version())
    })?;
    for key in ["namespace", "uid"] {
        inner.remove(key);
        inner.extend(resource.remove_entry(key));
    }
    for key in ["name", "creationTimestamp"] {
        if inner
            .get(key)
            .is_none_or(|value| value.is_null() || value == "")
        {
            inner.extend(resource.remove_entry(key));
        }
    }
    Ok((inner, preserved))
}

/// Returns the metadata that other programs put on a v1 resource. `inner` is the JSON of Calico's
/// annotation.
fn metadata_of_others(resource: &Fields, inner: &Fields) -> PreservedMetadata {
    let mut others = resource.clone();
    remove_keys(&mut others, &IDENTITY_FIELDS);
    for key in ["labels", "annotations"] {
        let mut pairs = take_object(&mut others, key);
        let repeated = |name: &String| {
            inner
                .get(key)
                .is_some_and(|inner| inner.get(name).is_some())
        };
        pairs.retain(|name, _| !is_on_resource_too(name) && !repeated(name));
        put_object(&mut others, key, pairs);
    }
    PreservedMetadata {
        metadata: others,
        ..PreservedMetadata::default()
    }
}

/// Returns the resource's metadata for v3 metadata to be written. Without a revision, the object is
/// new.
pub(super) fn write(
    group: ApiGroup,
    location: &Location,
    mut metadata: Fields,
    revision: Option<&ObjectRevision>,
) -> Result<Fields, Malformed> {
    remove_keys(&mut metadata, &SERVER_MANAGED_FIELDS);
    metadata.retain(|_, value| !value.is_null());
    let uid = take_text(&mut metadata, "uid").filter(|uid| !uid.is_empty());
    remove_keys(&mut metadata, &["name", "namespace", "resourceVersion"]);
    let preserved = revision.map(|revision| &revision.preserved);
    let mut resource = match group {
        ApiGroup::V3 => metadata,
        ApiGroup::CrdV1 => write_v1(metadata, preserved)?,
    };
    set_identity(&mut resource, location, revision);
    if let Some(uid) = uid {
        let uid = if group == ApiGroup::CrdV1 {
            reversed_uid(&uid)?
        } else {
            uid
        };
        resource.insert("uid".into(), uid.into());
    }
    Ok(resource)
}

fn write_v1(mut inner: Fields, preserved: Option<&PreservedMetadata>) -> Result<Fields, Malformed> {
    let mut resource = preserved
        .map(|preserved| preserved.metadata.clone())
        .unwrap_or_default();
    for key in ["labels", "annotations"] {
        let others = take_object(&mut resource, key);
        let (mut on_resource, mut in_annotation) = (Fields::new(), Fields::new());
        for (name, value) in take_object(&mut inner, key) {
            let is_of_others = others.contains_key(&name);
            if is_of_others || is_on_resource_too(&name) {
                on_resource.insert(name.clone(), value.clone());
            }
            if !is_of_others {
                in_annotation.insert(name, value);
            }
        }
        put_object(&mut resource, key, on_resource);
        put_object(&mut inner, key, in_annotation);
    }
    let to_v1 = |version: &str| {
        (version == ApiGroup::V3.api_version()).then(|| ApiGroup::CrdV1.api_version())
    };
    rewrite_owners(&mut inner, to_v1)?;
    put_annotation(&mut resource, &inner)?;
    Ok(resource)
}

// === IPAM kinds: the canonical value has no metadata ===

/// Returns the metadata of an IPAM object to write back, without the labels with these `keys`.
pub(super) fn read_ipam(
    group: ApiGroup,
    mut metadata: Fields,
    keys: &[&str],
) -> Result<PreservedMetadata, Malformed> {
    remove_keys(&mut metadata, &SERVER_MANAGED_FIELDS);
    remove_keys(&mut metadata, &IDENTITY_FIELDS);
    let mut annotation = match group {
        ApiGroup::V3 => Fields::new(),
        ApiGroup::CrdV1 => take_annotation(&mut metadata)?.unwrap_or_default(),
    };
    annotation.retain(|_, value| !value.is_null());
    for fields in [&mut metadata, &mut annotation] {
        let mut others = take_object(fields, "labels");
        remove_keys(&mut others, keys);
        put_object(fields, "labels", others);
    }
    Ok(PreservedMetadata {
        metadata,
        annotation,
    })
}

/// Returns the metadata of an IPAM object to be written. Without a revision, the object is new.
pub(super) fn write_ipam(
    group: ApiGroup,
    location: &Location,
    labels: &[(&str, String)],
    revision: Option<&ObjectRevision>,
) -> Result<Fields, Malformed> {
    let PreservedMetadata {
        mut metadata,
        mut annotation,
    } = revision.map(|r| r.preserved.clone()).unwrap_or_default();
    for fields in [&mut metadata, &mut annotation] {
        let mut all = take_object(fields, "labels");
        all.extend(
            labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), Value::from(value.as_str()))),
        );
        put_object(fields, "labels", all);
    }
    if group == ApiGroup::CrdV1 {
        put_annotation(&mut metadata, &annotation)?;
    }
    set_identity(&mut metadata, location, revision);
    Ok(metadata)
}

/// Makes the API server discard the record of which client wrote which field (`managedFields`).
///
/// Programs that write blocks compare the resourceVersion, so they do not need the record. It makes
/// up about a quarter of a block and a fifth of the time of a write.
pub(super) fn clear_field_managers(resource: &mut Fields) {
    // Without entries the API server keeps the record.
    resource.insert(
        "managedFields".into(),
        Value::Array(vec![Value::Object(Fields::new())]),
    );
}

// === policies: a resource may have another name than its policy ===
//
// A resource may still have the name that an older Calico gave it, with the tier before the
// policy's name (DS-33).

/// Returns true if a v1 annotation exists without a name. The policy then has the resource's name
/// (DS-57).
pub(super) fn is_policy_named_by_resource(group: ApiGroup, resource: &Fields) -> bool {
    let annotation = resource
        .get("annotations")
        .and_then(|annotations| annotations[ANNOTATION].as_str());
    let inner = annotation.and_then(|json| serde_json::from_str::<Value>(json).ok());
    group == ApiGroup::CrdV1
        && inner.is_some_and(|inner| inner["name"].as_str().unwrap_or_default().is_empty())
}

/// Stores the policy's name in the v3 metadata: in `name` and the annotation. If
/// `is_named_by_resource` is true, a name in the default tier loses the prefix `default.`.
pub(super) fn annotate_policy_name(
    metadata: &mut Fields,
    is_named_by_resource: bool,
    spec: Option<&Value>,
) {
    let tier = spec
        .and_then(|spec| spec["tier"].as_str())
        .unwrap_or_default();
    let is_default = tier.is_empty() || tier == DEFAULT_TIER;
    let name = text(metadata, "name").unwrap_or_default();
    let name = if is_named_by_resource && is_default {
        without_tier(name)
    } else {
        name
    }
    .to_owned();
    let mut annotations = take_object(metadata, "annotations");
    annotations.insert(
        ANNOTATION.into(),
        json!({ "name": name }).to_string().into(),
    );
    put_object(metadata, "annotations", annotations);
    metadata.insert("name".into(), name.into());
}

/// Removes the annotation from stored metadata and returns the policy's name.
pub(super) fn take_policy_name(metadata: &mut Fields) -> String {
    let mut annotations = take_object(metadata, "annotations");
    annotations.remove(ANNOTATION);
    put_object(metadata, "annotations", annotations);
    text(metadata, "name").unwrap_or_default().to_owned()
}

// === parts ===

fn set_identity(resource: &mut Fields, location: &Location, revision: Option<&ObjectRevision>) {
    resource.insert("name".into(), location.name.as_str().into());
    if let Some(namespace) = &location.namespace {
        resource.insert("namespace".into(), namespace.as_str().into());
    }
    if let Some(revision) = revision {
        resource.insert(
            "resourceVersion".into(),
            revision.resource_version.as_str().into(),
        );
    }
}

fn take_annotation(resource: &mut Fields) -> Result<Option<Fields>, Malformed> {
    let mut annotations = take_object(resource, "annotations");
    let text = take_text(&mut annotations, ANNOTATION);
    put_object(resource, "annotations", annotations);
    let Some(text) = text else { return Ok(None) };
    let inner: Option<Fields> = serde_json::from_str(&text).map_err(|error| {
        Malformed(format!(
            "cannot parse the annotation {ANNOTATION} as JSON of metadata: {error}"
        ))
    })?;
    Ok(Some(inner.unwrap_or_default()))
}

fn put_annotation(resource: &mut Fields, inner: &Fields) -> Result<(), Malformed> {
    let text = serde_json::to_string(&Ordered(inner))?;
    let mut annotations = take_object(resource, "annotations");
    annotations.insert(ANNOTATION.into(), text.into());
    put_object(resource, "annotations", annotations);
    Ok(())
}

/// Stores the policy's name in the annotation of a v1 resource.
pub(super) fn set_policy_name(resource: &mut Fields, name: String) -> Result<(), Malformed> {
    let mut inner = take_annotation(resource)?.unwrap_or_default();
    inner.insert("name".into(), name.into());
    put_annotation(resource, &inner)
}

/// Gives owner references the API version that `rename` returns, if any, and then reverses their
/// uids.
fn rewrite_owners(
    metadata: &mut Fields,
    rename: impl Fn(&str) -> Option<&'static str>,
) -> Result<(), Malformed> {
    let owners = metadata
        .get_mut("ownerReferences")
        .and_then(Value::as_array_mut);
    for owner in owners
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        let Some(version) = owner
            .get("apiVersion")
            .and_then(Value::as_str)
            .and_then(&rename)
        else {
            continue;
        };
        owner.insert("apiVersion".into(), version.into());
        if let Some(uid) = take_text(owner, "uid").filter(|uid| !uid.is_empty()) {
            owner.insert("uid".into(), reversed_uid(&uid)?.into());
        }
    }
    Ok(())
}

/// Converts the uid of a v1 custom resource to its v3 uid, or back.
pub(super) fn reversed_uid(uid: &str) -> Result<String, Malformed> {
    reverse_uid(uid).ok_or_else(|| Malformed(format!("invalid uid {uid:?}: not a UUID")))
}

fn is_on_resource_too(key: &str) -> bool {
    SHARED_KEY_PARTS.iter().any(|part| key.contains(part))
}

fn remove_keys(fields: &mut Fields, keys: &[&str]) {
    for key in keys {
        fields.remove(*key);
    }
}

/// Metadata in upstream's order, so that equal metadata gives equal text.
struct Ordered<'f>(&'f Fields);

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rank = |key: &str| {
            ORDER
                .iter()
                .position(|known| *known == key)
                .unwrap_or(ORDER.len())
        };
        let mut fields: Vec<_> = self.0.iter().collect();
        fields.sort_by_key(|(key, _)| rank(key));
        serializer.collect_map(fields)
    }
}

#[cfg(test)]
mod tests;
