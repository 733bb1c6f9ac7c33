//! [`Codec`]: translates the store's reads and writes to requests, and the API server's objects to
//! stored pairs.

use serde_json::Value;

use super::error::{CodecError, Malformed};
use super::json::{Fields, take_object, text};
use super::kind::StoredKind;
use super::kubevirt::{VirtualMachine, VirtualMachineInstance};
use super::pod::{Pod, PodOnNode, PodOnNodeKey};
use super::query::{self, Query};
use super::request::{self, Request};
use super::resource::{ApiGroup, Resource};
use super::revision::{ObjectRevision, PreservedMetadata};
use super::service::Service;
use super::workload_endpoint::endpoint_of_pod;
use super::{affinity, ipam, metadata, node, pod_patch, profile};
use crate::api::{API_VERSION, ObjectKey, WorkloadEndpoint};
use crate::ipam::{BlockAffinity, Handle, IpamConfig, IpamConfigKey};
use crate::names::DEFAULT_INTERFACE_PREFIX;
use crate::store::{Kind, Range, RawEntry, Revision, StoredValue, Write, WriteOp};

/// The translation between the store's pairs of a path and a value, and the objects of one API
/// group.
#[derive(Debug, Clone)]
pub struct Codec {
    group: ApiGroup,
    interface_prefix: String,
}

/// An object of the API server, converted to the store's pair of a path and a value.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodedObject {
    /// The pair. For an unreadable object, the value does not decode, and the decoder's error
    /// contains the reason.
    pub entry: RawEntry,
    /// True if the `spec` marks the object as deleted; false without a `spec`. A read of this
    /// object alone must then finish the deletion at the entry's revision and treat the object as
    /// missing (DS-72, IPAM-91).
    pub is_tombstone: bool,
}

struct StoredObject {
    path: String,
    value: StoredValue,
    preserved: PreservedMetadata,
}

impl StoredObject {
    fn new(path: String, fields: Fields, preserved: PreservedMetadata) -> Self {
        StoredObject {
            path,
            value: StoredValue::Json(Value::Object(fields)),
            preserved,
        }
    }
}

impl Codec {
    /// Creates a codec for objects of `group`.
    pub fn new(group: ApiGroup) -> Self {
        Codec {
            group,
            interface_prefix: DEFAULT_INTERFACE_PREFIX.into(),
        }
    }

    /// Sets the prefix of host interfaces (CNI-88).
    pub fn with_interface_prefix(self, prefix: impl Into<String>) -> Self {
        Codec {
            interface_prefix: prefix.into(),
            ..self
        }
    }

    /// Returns the API group.
    pub fn group(&self) -> ApiGroup {
        self.group
    }

    /// Returns the resource of a kind of stored objects, if the API server can store the kind.
    pub fn resource(&self, kind: &str) -> Option<Resource> {
        StoredKind::named(kind).map(|kind| kind.resource(self.group))
    }

    /// Returns the request that reads `range`. Equal queries may share a request.
    pub fn query(&self, range: &Range) -> Result<Query, CodecError> {
        query::query(self.group, self.kind("Get", range.kind)?, range)
    }

    /// Returns the pair of an object in the API server's answer to `range`; `None` if the pair is
    /// not in the range, or its path cannot be determined. The caller must keep the API server's
    /// order of objects (IPAM-94, IPAM-112).
    pub fn decode(&self, range: &Range, object: Value) -> Option<DecodedObject> {
        let kind = StoredKind::named(range.kind)?;
        let Value::Object(object) = object else {
            return None;
        };
        let meta = object.get("metadata").and_then(Value::as_object);
        let name = meta
            .and_then(|metadata| text(metadata, "name"))
            .unwrap_or_default()
            .to_owned();
        let namespace = meta
            .and_then(|metadata| text(metadata, "namespace"))
            .map(str::to_owned);
        let mut revision = meta
            .map(|meta| ObjectRevision::of(meta, PreservedMetadata::default()))
            .unwrap_or_default();

        let path_of_name = || query::path_of_name(kind, namespace.as_deref(), &name);
        let entry = |path, value, revision: &ObjectRevision| RawEntry {
            path,
            value,
            revision: revision.revision(),
        };
        if range.keys_only && !object.contains_key("spec") {
            let path = path_of_name().filter(|path| is_in_range(range, path))?;
            return Some(DecodedObject {
                entry: entry(path, Vec::new().into(), &revision),
                is_tombstone: false,
            });
        }
        let (path, value) = match self
            .stored(kind, object)
            .and_then(|stored| at_path(kind, range, stored))
        {
            Ok(None) => return None,
            Ok(Some(stored)) => {
                revision.preserved = stored.preserved;
                (stored.path, stored.value)
            }
            Err(reason) if range.is_prefix => (path_of_name()?, reason.into()),
            Err(reason) => (range.path.clone(), reason.into()),
        };
        let is_tombstone = kind.has_tombstones() && is_deleted(&value);
        // Lists of affinities omit objects marked as deleted (DS-72).
        let is_hidden = is_tombstone && range.is_prefix && kind == StoredKind::Affinity;
        (is_in_range(range, &path) && !is_hidden).then(|| DecodedObject {
            entry: entry(path, value, &revision),
            is_tombstone,
        })
    }

    /// Returns the answer to `range`, given its decoded objects, and the writes that complete the
    /// deletions which other processes began (DS-72). A list contains such objects.
    pub fn answer(range: &Range, decoded: Vec<DecodedObject>) -> (Vec<RawEntry>, Vec<Write>) {
        let (mut entries, mut completions) = (Vec::new(), Vec::new());
        for DecodedObject {
            entry,
            is_tombstone,
        } in decoded
        {
            if is_tombstone && !range.is_prefix {
                completions.push(Write {
                    kind: range.kind,
                    path: entry.path.clone(),
                    key: entry.path,
                    op: WriteOp::Delete(Some(entry.revision)),
                });
            } else {
                entries.push(entry);
            }
        }
        (entries, completions)
    }

    /// Returns the request that performs `write`.
    pub fn request(&self, write: &Write) -> Result<Request, CodecError> {
        request::request(self.group, self.kind("Create", write.kind)?, write)
    }

    /// Returns the revision of an object of `kind` that the API server sent in reply to a write.
    pub fn revision(&self, kind: &str, reply: &Value) -> Revision {
        let metadata = reply
            .get("metadata")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        // An admission webhook may have made the annotation invalid. An error would report a write
        // that succeeded as failed.
        let preserved = StoredKind::named(kind).map(|kind| self.preserved(kind, metadata.clone()));
        ObjectRevision::of(
            &metadata,
            preserved.and_then(Result::ok).unwrap_or_default(),
        )
        .revision()
    }

    fn kind(&self, operation: &'static str, name: &str) -> Result<StoredKind, CodecError> {
        let reason = "the Kubernetes datastore does not store this kind";
        StoredKind::named(name).ok_or_else(|| CodecError::Unsupported {
            operation,
            object: name.into(),
            reason,
        })
    }

    fn preserved(
        &self,
        kind: StoredKind,
        metadata: Fields,
    ) -> Result<PreservedMetadata, Malformed> {
        let group = self.group;
        match kind {
            StoredKind::Affinity => metadata::read_ipam(group, metadata, &affinity::LABELS),
            StoredKind::Block | StoredKind::Handle | StoredKind::Config => {
                metadata::read_ipam(group, metadata, &[])
            }
            StoredKind::Object(_) => {
                metadata::read(group, metadata).map(|(_, preserved)| preserved)
            }
            StoredKind::Endpoint => Ok(pod_patch::preserve_detached(&metadata)),
            _ => Ok(PreservedMetadata::default()),
        }
    }

    fn stored(
        &self,
        kind: StoredKind,
        mut object: Fields,
    ) -> Result<Option<StoredObject>, Malformed> {
        if kind.is_kubernetes_object() {
            return self.kubernetes_object(kind, object);
        }
        let metadata = take_object(&mut object, "metadata");
        if let StoredKind::Object(v3) = kind {
            let name = text(&metadata, "name").unwrap_or_default().to_owned();
            let namespace = text(&metadata, "namespace").map(str::to_owned);
            let is_named_by_resource =
                v3.is_policy && metadata::is_policy_named_by_resource(self.group, &metadata);
            let (mut metadata, preserved) = metadata::read(self.group, metadata)?;
            if v3.is_policy {
                metadata::annotate_policy_name(
                    &mut metadata,
                    is_named_by_resource,
                    object.get("spec"),
                );
            }
            object.insert("metadata".into(), Value::Object(metadata));
            let path = query::path_of_name(kind, namespace.as_deref(), &name).unwrap_or_default();
            let value = with_type(object, v3.kind);
            return Ok(Some(StoredObject::new(path, value, preserved)));
        }
        let spec = take_object(&mut object, "spec");
        let (path, value) = match kind {
            StoredKind::Block => (
                ipam::block_path_of_spec(&spec)?,
                ipam::block_from_spec(spec),
            ),
            StoredKind::Affinity => {
                let (key, value) = affinity::from_spec(self.group, spec)?;
                (BlockAffinity::path(&key), value)
            }
            StoredKind::Handle => {
                ipam::handle_from_spec(spec).map(|(id, value)| (Handle::path(&id), value))?
            }
            _ => (
                IpamConfig::path(&IpamConfigKey),
                ipam::config_from_spec(spec),
            ),
        };
        let preserved = self.preserved(kind, metadata)?;
        Ok(Some(StoredObject::new(path, value, preserved)))
    }

    fn kubernetes_object(
        &self,
        kind: StoredKind,
        object: Fields,
    ) -> Result<Option<StoredObject>, Malformed> {
        let stored = |path, value| {
            let preserved = PreservedMetadata::default();
            Ok(Some(StoredObject::new(path, value, preserved)))
        };
        let name_of = |value: &Fields| {
            let name = value
                .get("metadata")
                .and_then(|metadata| metadata["name"].as_str())
                .unwrap_or_default();
            name.to_owned()
        };
        match kind {
            StoredKind::Node => {
                let value = with_type(node::from_kubernetes(object), "Node");
                stored(
                    query::path_of_name(kind, None, &name_of(&value)).unwrap_or_default(),
                    value,
                )
            }
            StoredKind::Profile => {
                let value = with_type(profile::from_kubernetes(object)?, "Profile");
                stored(
                    crate::api::Profile::path(&ObjectKey::global(name_of(&value))),
                    value,
                )
            }
            StoredKind::Endpoint => {
                let preserved = object
                    .get("metadata")
                    .and_then(Value::as_object)
                    .map(pod_patch::preserve_detached);
                let pod: Pod = serde_json::from_value(Value::Object(object))?;
                let Some(found) = endpoint_of_pod(&pod, &self.interface_prefix) else {
                    return Ok(None);
                };
                Ok(Some(StoredObject {
                    path: WorkloadEndpoint::path(&found.endpoint.key()),
                    value: found.endpoint.encode()?.into(),
                    preserved: preserved.unwrap_or_default(),
                }))
            }
            StoredKind::Namespace => stored(
                super::Namespace::path(&ObjectKey::global(name_of(&object))),
                object,
            ),
            _ => {
                let namespace = object
                    .get("metadata")
                    .and_then(|metadata| metadata["namespace"].as_str());
                let node = object
                    .get("spec")
                    .and_then(|spec| spec["nodeName"].as_str())
                    .unwrap_or_default();
                let key = ObjectKey::namespaced(namespace.unwrap_or_default(), name_of(&object));
                let path = match kind {
                    StoredKind::Service => Service::path(&key),
                    StoredKind::VirtualMachine => VirtualMachine::path(&key),
                    StoredKind::VirtualMachineInstance => VirtualMachineInstance::path(&key),
                    StoredKind::PodOnNode => {
                        let namespace = namespace.unwrap_or_default().to_owned();
                        PodOnNode::path(&PodOnNodeKey {
                            node: node.to_owned(),
                            namespace,
                            name: key.name,
                        })
                    }
                    _ => Pod::path(&key),
                };
                stored(path, object)
            }
        }
    }
}

fn is_deleted(value: &StoredValue) -> bool {
    matches!(value, StoredValue::Json(value) if value["deleted"] == true)
}

fn with_type(mut object: Fields, kind: &str) -> Fields {
    object.insert("apiVersion".into(), API_VERSION.into());
    object.insert("kind".into(), kind.into());
    object
}

fn is_in_range(range: &Range, path: &str) -> bool {
    let is_below = path.starts_with(&range.path) || affinity::is_of_any_owner(&range.path);
    if range.is_prefix {
        is_below
    } else {
        path == range.path
    }
}

/// Returns an error, or `None` for an endpoint, if a single object is not the requested one:
/// different keys may share a name.
fn at_path(
    kind: StoredKind,
    range: &Range,
    stored: Option<StoredObject>,
) -> Result<Option<StoredObject>, Malformed> {
    let Some(stored) = stored else {
        return Ok(None);
    };
    if range.is_prefix || stored.path == range.path {
        return Ok(Some(stored));
    }
    // The pod has an endpoint of another name, for example on another node.
    if kind == StoredKind::Endpoint {
        return Ok(None);
    }
    Err(Malformed(format!(
        "the object of this name belongs to another path: {}",
        stored.path
    )))
}

#[cfg(test)]
mod tests;
