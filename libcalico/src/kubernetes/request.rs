//! [`Request`]: the request that performs a write.

use serde_json::{Value, json};

use super::error::{CodecError, Malformed};
use super::json::{Fields, take_object};
use super::kind::StoredKind;
use super::query::locate;
use super::resource::{ApiGroup, Location};
use super::revision::ObjectRevision;
use super::workload_endpoint::written_fields;
use super::{affinity, ipam, metadata, node, pod_patch};
use crate::ipam::{BlockAffinity, Handle};
use crate::store::{Kind, Revision, Write, WriteOp};

/// A write request to the API server.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// A POST to the location's collection.
    Create {
        /// The location of the new object.
        location: Location,
        /// The object.
        body: Value,
    },
    /// A PUT, with the resourceVersion that the object must still have.
    Replace {
        /// The location of the object.
        location: Location,
        /// The object.
        body: Value,
    },
    /// A PUT of the location's `status`. The API server changes only the status of the object.
    ReplaceStatus {
        /// The location of the object.
        location: Location,
        /// The object.
        body: Value,
    },
    /// A DELETE.
    Delete {
        /// The location of the object.
        location: Location,
        /// The conditions for the deletion.
        preconditions: Preconditions,
    },
    /// A PATCH of the location's `status`, of the type [`super::STRATEGIC_MERGE_PATCH`].
    PatchStatus {
        /// The location of the object.
        location: Location,
        /// The patch.
        body: Value,
    },
    /// No request, because the object was already in the desired state at this revision.
    Nothing(Revision),
}

/// The conditions of a DELETE. Upstream sends three requests for a compare-and-delete (IPAM-214).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// The uid that the object must have.
    pub uid: Option<String>,
    /// The resourceVersion that the object must have.
    pub resource_version: Option<String>,
}

impl Preconditions {
    fn of(revision: Option<&Revision>) -> Self {
        let Some(ObjectRevision {
            resource_version,
            uid,
            ..
        }) = revision.map(ObjectRevision::parse)
        else {
            return Self::default();
        };
        Preconditions {
            uid,
            resource_version: Some(resource_version).filter(|version| !version.is_empty()),
        }
    }

    /// Returns the body of the DELETE; `None` without conditions.
    pub fn body(&self) -> Option<Value> {
        let mut preconditions = Fields::new();
        preconditions.extend(
            self.uid
                .as_ref()
                .map(|uid| ("uid".into(), uid.as_str().into())),
        );
        let version = self.resource_version.as_ref();
        preconditions
            .extend(version.map(|version| ("resourceVersion".into(), version.as_str().into())));
        let options =
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions});
        (*self != Preconditions::default()).then_some(options)
    }
}

pub(super) fn request(
    group: ApiGroup,
    kind: StoredKind,
    write: &Write,
) -> Result<Request, CodecError> {
    let location = locate(group, kind, &write.path).ok_or_else(|| no_location(kind, write))?;
    if kind == StoredKind::Endpoint {
        return patch(location, write);
    }
    if matches!(write.op, WriteOp::UpdateStatus(..)) && !matches!(kind, StoredKind::Object(_)) {
        return Err(unsupported(
            write,
            "this kind has no status in the Kubernetes datastore",
        ));
    }
    if let (StoredKind::Node, WriteOp::Update(bytes, revision)) = (kind, &write.op) {
        let node: Value =
            serde_json::from_slice(bytes).map_err(|error| invalid_value(write, error.into()))?;
        let body = node::update_patch(&node, &ObjectRevision::parse(revision));
        return Ok(Request::PatchStatus { location, body });
    }
    if kind.is_kubernetes_object() {
        return Err(unsupported(
            write,
            "Calico does not write this kind of Kubernetes object; use kubectl",
        ));
    }
    let body = |bytes: &[u8], revision: Option<&Revision>| {
        let revision = revision.map(ObjectRevision::parse);
        let object = resource(
            group,
            kind,
            &location,
            &write.path,
            bytes,
            revision.as_ref(),
        );
        let mut object = object.map_err(|malformed| invalid_value(write, malformed))?;
        object.insert("apiVersion".into(), location.resource.api_version.into());
        object.insert("kind".into(), location.resource.kind.into());
        Ok::<_, CodecError>(Value::Object(object))
    };
    Ok(match &write.op {
        WriteOp::Create(bytes) => Request::Create {
            body: body(bytes, None)?,
            location,
        },
        WriteOp::Update(bytes, at) => Request::Replace {
            body: body(bytes, Some(at))?,
            location,
        },
        WriteOp::UpdateStatus(bytes, at) => Request::ReplaceStatus {
            body: body(bytes, Some(at))?,
            location,
        },
        WriteOp::Delete(revision) => Request::Delete {
            preconditions: Preconditions::of(revision.as_ref()),
            location,
        },
    })
}

fn patch(location: Location, write: &Write) -> Result<Request, CodecError> {
    if let WriteOp::Delete(Some(revision)) = &write.op
        && pod_patch::is_detached(revision)
    {
        return Ok(Request::Nothing(revision.clone()));
    }
    let body = match &write.op {
        WriteOp::Create(bytes) => attach(write, bytes, None)?,
        WriteOp::Update(bytes, revision) => {
            attach(write, bytes, ObjectRevision::parse(revision).uid.as_deref())?
        }
        WriteOp::UpdateStatus(bytes, revision) => {
            let (_, networks) = read_written_fields(write, bytes)?;
            pod_patch::address_patch(&networks, Some(&ObjectRevision::parse(revision)))
        }
        WriteOp::Delete(revision) => {
            pod_patch::address_patch(&[], revision.as_ref().map(ObjectRevision::parse).as_ref())
        }
    };
    Ok(Request::PatchStatus { location, body })
}

fn attach(write: &Write, bytes: &[u8], uid: Option<&str>) -> Result<Value, CodecError> {
    let (container, networks) = read_written_fields(write, bytes)?;
    Ok(pod_patch::attach_patch(&container, &networks, uid))
}

fn read_written_fields(write: &Write, bytes: &[u8]) -> Result<(String, Vec<String>), CodecError> {
    let endpoint: Value =
        serde_json::from_slice(bytes).map_err(|error| invalid_value(write, error.into()))?;
    Ok(written_fields(&endpoint))
}

/// Returns the fields of the resource, in which the caller has to set `apiVersion` and `kind`.
fn resource(
    group: ApiGroup,
    kind: StoredKind,
    location: &Location,
    path: &str,
    bytes: &[u8],
    revision: Option<&ObjectRevision>,
) -> Result<Fields, Malformed> {
    let mut stored: Fields = serde_json::from_slice(bytes)?;
    let mut labels = Vec::new();
    let spec = match kind {
        StoredKind::Block => ipam::block_to_spec(stored),
        StoredKind::Affinity => {
            let key = BlockAffinity::parse_path(path)
                .ok_or_else(|| Malformed(format!("invalid path of a block affinity: {path}")))?;
            labels.extend(affinity::labels(&key));
            affinity::to_spec(group, &key, stored)
        }
        StoredKind::Handle => {
            let id = Handle::parse_path(path)
                .ok_or_else(|| Malformed(format!("invalid path of a handle: {path}")))?;
            ipam::handle_to_spec(&id, stored)
        }
        StoredKind::Config => ipam::config_to_spec(stored),
        _ => {
            let mut metadata = take_object(&mut stored, "metadata");
            let is_policy = matches!(kind, StoredKind::Object(object) if object.is_policy);
            let name = is_policy.then(|| metadata::take_policy_name(&mut metadata));
            let mut metadata = metadata::write(group, location, metadata, revision)?;
            if let Some(name) = name.filter(|_| group == ApiGroup::CrdV1) {
                metadata::set_policy_name(&mut metadata, name)?;
            }
            stored.insert("metadata".into(), Value::Object(metadata));
            return Ok(stored);
        }
    };
    let mut metadata = metadata::write_ipam(group, location, &labels, revision)?;
    if kind == StoredKind::Handle {
        // Another handle may have been created under the same ID (DS-71).
        let uid = revision.and_then(|revision| revision.uid.clone());
        metadata.extend(uid.map(|uid| ("uid".to_owned(), Value::from(uid))));
    }
    if kind == StoredKind::Block && revision.is_some() {
        metadata::clear_field_managers(&mut metadata);
    }
    let mut object = Fields::new();
    object.insert("metadata".into(), Value::Object(metadata));
    object.insert("spec".into(), Value::Object(spec));
    Ok(object)
}

fn invalid_value(write: &Write, malformed: Malformed) -> CodecError {
    CodecError::Value {
        object: write.key.clone(),
        reason: malformed.0,
    }
}

fn no_location(kind: StoredKind, write: &Write) -> CodecError {
    match kind {
        StoredKind::Profile => unsupported(
            write,
            "profiles are derived from namespaces and service accounts",
        ),
        StoredKind::Endpoint => unsupported(
            write,
            "the Kubernetes datastore stores only endpoints of pods",
        ),
        _ => CodecError::Path {
            kind: write.kind.into(),
            path: write.path.clone(),
        },
    }
}

fn unsupported(write: &Write, reason: &'static str) -> CodecError {
    let operation = match write.op {
        WriteOp::Create(_) => "Create",
        WriteOp::Update(..) => "Update",
        WriteOp::UpdateStatus(..) => "UpdateStatus",
        WriteOp::Delete(_) => "Delete",
    };
    CodecError::Unsupported {
        operation,
        object: write.key.clone(),
        reason,
    }
}
