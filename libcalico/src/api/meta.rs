//! Object metadata.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Fields this version does not know, kept for the next write.
pub type Unknown = Map<String, Value>;

/// `metadata` of a v3 object (DS-31, DS-32).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// The object's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Prefix the name was generated from.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub generate_name: String,
    /// Namespace, for namespaced kinds.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Random UUIDv4 given at creation.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The revision that was read. Lives in the store, never in the stored bytes (DS-31).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// RFC 3339, whole seconds, UTC. `None` is written as `null`, as Go does.
    pub creation_timestamp: Option<String>,
    /// Set while the object is being deleted (Kubernetes only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}
