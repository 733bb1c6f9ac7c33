//! [`to_v3`]: converts an object of `crd.projectcalico.org/v1` to the object of
//! `projectcalico.org/v3` that a migration stores for it.
//!
//! Most of a `spec` is copied as JSON, so that fields that this build does not model stay (MIG-69).

use std::mem;

use serde_json::Value;

use super::error::Malformed;
use super::json::{Fields, put_object, set_if_missing, take_object, take_text, text};
use super::kind::StoredKind;
use super::resource::{ApiGroup, Location, Resource};
use super::revision::PreservedMetadata;
use super::{affinity, ipam, metadata};
use crate::names::is_dns_name;

/// A kind of object that the API server stores in both groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedKind {
    /// The position in the migration: kinds with a lower position are copied first (MIG-61).
    pub order: u8,
    /// The resource in v1.
    pub v1: Resource,
    /// The resource in v3.
    pub v3: Resource,
    /// True for the kinds of address management.
    pub is_ipam: bool,
}

/// An object to be stored in v3.
#[derive(Debug, Clone, PartialEq)]
pub struct Moved {
    /// The location in v3.
    pub location: Location,
    /// The object in v3, without fields that the API server sets, and without the references in
    /// `owners`.
    pub body: Value,
    /// The object in v1.
    pub source: Source,
    /// The references to owners that may not exist for Kubernetes' garbage collector: those to
    /// Calico's kinds, in their v3 form with the `uid` of the owner's [`Source`], and those to
    /// other kinds that only Calico's annotation has.
    pub owners: Vec<Value>,
}

/// The identity and the state of an object in v1.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// The uid that clients of v1 see: the reverse of the API server's (DS-60). Owner references
    /// contain it.
    pub uid: String,
    /// The resourceVersion.
    pub revision: String,
}

/// The reason why an object cannot be converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unmovable {
    /// The object is not a valid object of its kind.
    #[error("{0}")]
    Malformed(String),
    /// The object is being deleted.
    #[error(
        "the object is being deleted; wait for the end of the deletion, or remove the finalizers \
         of the object"
    )]
    BeingDeleted,
    /// The name in v3 is invalid. The text is the beginning of that name.
    #[error("{0:?} is not a valid name in v3; create the object again under another name")]
    NoName(String),
}

impl From<Malformed> for Unmovable {
    fn from(malformed: Malformed) -> Self {
        Unmovable::Malformed(malformed.0)
    }
}

impl MovedKind {
    /// Returns the kind with this name in v3; `None` if no custom resource stores it.
    pub(crate) fn named(order: u8, kind: &str) -> Option<Self> {
        let stored = StoredKind::named(kind).filter(|stored| !stored.is_kubernetes_object())?;
        let (v1, v3) = (
            stored.resource(ApiGroup::CrdV1),
            stored.resource(ApiGroup::V3),
        );
        let is_ipam = matches!(
            kind,
            "BlockAffinity" | "IPAMBlock" | "IPAMConfiguration" | "IPAMHandle"
        );
        Some(MovedKind {
            order,
            v1,
            v3,
            is_ipam,
        })
    }
}

/// The greatest length of a name, in bytes.
const NAME_LIMIT: usize = 253;

/// The fields of the metadata that the API server sets.
const SET_BY_SERVER: [&str; 7] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "uid",
];

/// Converts an object of v1. Objects of two names may have the same location in v3 (KC-282).
///
/// # Errors
/// If v3 cannot have the object.
pub fn to_v3(kind: &MovedKind, v1: Value) -> Result<Moved, Unmovable> {
    let Value::Object(mut object) = v1 else {
        return Err(Malformed("not a JSON object".into()).into());
    };
    let resource = take_object(&mut object, "metadata");
    if resource
        .get("deletionTimestamp")
        .is_some_and(|time| !time.is_null())
    {
        return Err(Unmovable::BeingDeleted);
    }
    let revision = text(&resource, "resourceVersion")
        .unwrap_or_default()
        .to_owned();
    let namespace = text(&resource, "namespace")
        .filter(|_| kind.v3.namespaced)
        .map(str::to_owned);
    if kind.v3.namespaced && namespace.is_none() {
        return Err(Malformed("metadata.namespace is missing".into()).into());
    }
    let on_resource = resource
        .get("ownerReferences")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let (mut metadata, name) = read_metadata(kind, resource, &mut object)?;
    let uid = take_text(&mut metadata, "uid").unwrap_or_default();
    if name.len() > NAME_LIMIT || !is_dns_name(&name) {
        return Err(Unmovable::NoName(name.chars().take(NAME_LIMIT).collect()));
    }
    for key in SET_BY_SERVER {
        metadata.remove(key);
    }
    metadata.retain(|_, value| !value.is_null());
    metadata.insert("name".into(), name.as_str().into());
    let owners = take_unresolved_owners(&mut metadata, &on_resource)?;
    object.insert("apiVersion".into(), kind.v3.api_version.into());
    object.insert("kind".into(), kind.v3.kind.into());
    object.insert("metadata".into(), Value::Object(metadata));
    let location = Location {
        resource: kind.v3,
        namespace,
        name,
    };
    Ok(Moved {
        location,
        body: Value::Object(object),
        source: Source { uid, revision },
        owners,
    })
}

/// Returns the metadata and the name in v3, and converts the `spec` in `object`.
fn read_metadata(
    kind: &MovedKind,
    resource: Fields,
    object: &mut Fields,
) -> Result<(Fields, String), Malformed> {
    let stored = StoredKind::named(kind.v3.kind);
    let is_policy = matches!(stored, Some(StoredKind::Object(object)) if object.is_policy);
    let is_named_by_resource =
        is_policy && metadata::is_policy_named_by_resource(ApiGroup::CrdV1, &resource);
    let (mut metadata, of_others) = metadata::read(ApiGroup::CrdV1, resource)?;
    add_lists_of_others(&mut metadata, of_others);
    if is_policy {
        metadata::annotate_policy_name(&mut metadata, is_named_by_resource, object.get("spec"));
        let name = metadata::take_policy_name(&mut metadata);
        set_if_missing(object, "spec", Fields::new());
        return Ok((metadata, name));
    }
    let name = text(&metadata, "name").unwrap_or_default().to_owned();
    if !kind.is_ipam {
        // Only v3 requires a spec (DS-54).
        set_if_missing(object, "spec", Fields::new());
        return Ok((metadata, name));
    }
    let spec = take_object(object, "spec");
    let (name, spec) = match stored {
        Some(StoredKind::Block) => {
            let name = ipam::block_name_of_path(&ipam::block_path_of_spec(&spec)?);
            (
                name.unwrap_or_default(),
                ipam::block_to_spec(ipam::block_from_spec(spec)),
            )
        }
        Some(StoredKind::Affinity) => {
            let (key, stored) = affinity::from_spec(ApiGroup::CrdV1, spec)?;
            let mut labels = take_object(&mut metadata, "labels");
            labels.extend(
                affinity::labels(&key).map(|(label, value)| (label.to_owned(), Value::from(value))),
            );
            put_object(&mut metadata, "labels", labels);
            (
                affinity::affinity_name(&key),
                affinity::to_spec(ApiGroup::V3, &key, stored),
            )
        }
        Some(StoredKind::Handle) => {
            let (id, stored) = ipam::handle_from_spec(spec)?;
            // Upstream uses the ID as it is, which the API server refuses if it has a capital
            // letter (MB-1).
            (ipam::handle_name(&id), ipam::handle_to_spec(&id, stored))
        }
        _ => (name, settings(spec)),
    };
    object.insert("spec".into(), Value::Object(spec));
    Ok((metadata, name))
}

/// Adds the finalizers and owners that are on the resource, beside Calico's annotation. Calico's
/// clients of v1 do not see them (DS-59), but the API server and the garbage collector heed no
/// others.
fn add_lists_of_others(metadata: &mut Fields, mut of_others: PreservedMetadata) {
    for key in ["finalizers", "ownerReferences"] {
        let Some(Value::Array(others)) = of_others.metadata.remove(key) else {
            continue;
        };
        match metadata.get_mut(key) {
            Some(Value::Array(all)) => {
                for other in others {
                    if !all.iter().any(|known| is_same(known, &other)) {
                        all.push(other);
                    }
                }
            }
            _ => _ = metadata.insert(key.into(), Value::Array(others)),
        }
    }
}

/// Returns true for two equal finalizers, or for two references to the same owner. Kubernetes'
/// garbage collector finds an owner by these four fields.
fn is_same(left: &Value, right: &Value) -> bool {
    let fields = ["apiVersion", "kind", "name", "uid"];
    left == right
        || left.get("uid").is_some()
            && fields
                .iter()
                .all(|field| left.get(field) == right.get(field))
}

/// Converts the IPAM settings. A missing field would get the default of v3, which may differ from
/// the meaning of a missing field in v1 (DS-46).
fn settings(spec: Fields) -> Fields {
    let mut spec = ipam::config_to_spec(ipam::config_from_spec(spec));
    set_if_missing(&mut spec, "maxBlocksPerHost", 0);
    spec
}

/// Removes the references of [`Moved::owners`], and returns them. `on_resource` are the references
/// beside Calico's annotation.
///
/// Kubernetes' garbage collector deletes an object whose owners it does not find. It sees the
/// references on the resource, but those in the annotation only through an aggregated API server of
/// v3. Calico's clients of v1 store them there without any check (DS-56).
fn take_unresolved_owners(
    metadata: &mut Fields,
    on_resource: &[Value],
) -> Result<Vec<Value>, Malformed> {
    let Some(references) = metadata
        .get_mut("ownerReferences")
        .and_then(Value::as_array_mut)
    else {
        return Ok(Vec::new());
    };
    let is_unresolved = |owner: &Value| {
        calico_group(owner).is_some() || !on_resource.iter().any(|seen| is_same(seen, owner))
    };
    let (owners, others): (Vec<Value>, Vec<Value>) =
        mem::take(references).into_iter().partition(is_unresolved);
    if others.is_empty() {
        metadata.remove("ownerReferences");
    } else {
        *references = others;
    }
    let mut converted = Vec::new();
    for owner in owners {
        let owner = owner_in_v3(owner)?;
        // The annotation and the resource may contain the same reference, with different versions
        // and forms of the uid.
        if !converted.contains(&owner) {
            converted.push(owner);
        }
    }
    Ok(converted)
}

/// Returns Calico's group that a reference names, with any version; `None` for another group.
fn calico_group(owner: &Value) -> Option<ApiGroup> {
    let (group, _) = owner.get("apiVersion")?.as_str()?.split_once('/')?;
    [ApiGroup::CrdV1, ApiGroup::V3]
        .into_iter()
        .find(|known| known.name() == group)
}

/// Converts a reference to an owner of Calico's kinds. Those in Calico's annotation are in their v3
/// form already.
fn owner_in_v3(mut owner: Value) -> Result<Value, Malformed> {
    let Some(group) = calico_group(&owner) else {
        return Ok(owner);
    };
    let Some(fields) = owner.as_object_mut() else {
        return Ok(owner);
    };
    if group == ApiGroup::CrdV1
        && let Some(uid) = take_text(fields, "uid")
    {
        fields.insert("uid".into(), metadata::reversed_uid(&uid)?.into());
    }
    fields.insert("apiVersion".into(), ApiGroup::V3.api_version().into());
    if fields.get("kind").is_some_and(|kind| kind == "IPAMConfig") {
        fields.insert("kind".into(), "IPAMConfiguration".into());
    }
    Ok(owner)
}

#[cfg(test)]
mod tests;
