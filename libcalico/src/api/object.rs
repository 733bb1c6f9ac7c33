//! [`Object`]: the envelope that all v3 kinds share, and its path in the store.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::meta::{ObjectMeta, Unknown, note_policy_name, restore_policy_name};
use crate::store::{Kind, Revision};

/// The API version of every v3 object.
pub const API_VERSION: &str = "projectcalico.org/v3";
/// The beginning of the paths of v3 objects.
pub(crate) const OBJECT_ROOT: &str = "/calico/resources/v3/projectcalico.org/";

/// The `spec` of a v3 kind.
pub trait Spec:
    Serialize + DeserializeOwned + Clone + Default + fmt::Debug + PartialEq + Send + Sync + 'static
{
    /// The name of the kind, such as `IPPool`.
    const KIND: &'static str;
    /// The lower-case plural in paths and URLs, such as `ippools`.
    const PLURAL: &'static str;
    /// True if objects of the kind are namespaced.
    const NAMESPACED: bool = false;

    /// Returns the tier of a policy; `None` for kinds that are not policies.
    fn tier(&self) -> Option<&str> {
        None
    }
}

/// A v3 object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", bound = "S: Spec")]
pub struct Object<S: Spec> {
    /// The kind. [`Kind::encode`] sets it to [`Spec::KIND`].
    #[serde(default)]
    pub kind: String,
    /// The API version. [`Kind::encode`] sets it to [`API_VERSION`].
    #[serde(default)]
    pub api_version: String,
    /// The metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The kind's own fields.
    #[serde(default)]
    pub spec: S,
    /// The status, as stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Value>,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl<S: Spec> Object<S> {
    /// Creates an object with this name and no other metadata.
    pub fn new(name: impl Into<String>, spec: S) -> Self {
        Object {
            kind: S::KIND.into(),
            api_version: API_VERSION.into(),
            metadata: ObjectMeta {
                name: name.into(),
                ..ObjectMeta::default()
            },
            spec,
            status: None,
            unknown: Unknown::new(),
        }
    }

    /// Returns the object of this stored form, in which the name of a policy is an annotation.
    fn restored(mut self) -> Result<Self, serde_json::Error> {
        if let Some(tier) = self.spec.tier() {
            restore_policy_name(&mut self.metadata, tier)?;
        }
        Ok(self)
    }

    /// Returns the name of this object, with its namespace. A policy may be stored under another
    /// key (DS-33).
    pub fn key(&self) -> ObjectKey {
        let namespace = S::NAMESPACED.then(|| self.metadata.namespace.clone());
        ObjectKey {
            namespace,
            name: self.metadata.name.clone(),
        }
    }
}

/// The name of a v3 object, with its namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// The namespace, for namespaced kinds.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

impl ObjectKey {
    /// Returns a cluster-scoped name.
    pub fn global(name: impl Into<String>) -> Self {
        ObjectKey {
            namespace: None,
            name: name.into(),
        }
    }

    /// Returns a namespaced name.
    pub fn namespaced(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        ObjectKey {
            namespace: Some(namespace.into()),
            name: name.into(),
        }
    }

    /// Parses `<namespace>/<name>`; the namespace ends at the first `/`. Returns `None` if the `/`,
    /// the namespace or the name is missing.
    pub(crate) fn parse_namespaced(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        (!namespace.is_empty() && !name.is_empty()).then(|| Self::namespaced(namespace, name))
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// A selection of objects of a v3 kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectSelect {
    /// The namespace; `None` selects all.
    pub namespace: Option<String>,
    /// The prefix of the names; empty selects all. A prefix of names of a namespaced kind requires
    /// a namespace (DS-42).
    pub name_prefix: String,
}

impl<S: Spec> Kind for Object<S> {
    const KIND: &'static str = S::KIND;
    type Key = ObjectKey;
    type Select = ObjectSelect;

    fn path(key: &ObjectKey) -> String {
        format!("{OBJECT_ROOT}{}/{key}", S::PLURAL)
    }

    fn parse_path(path: &str) -> Option<ObjectKey> {
        let rest = path
            .strip_prefix(OBJECT_ROOT)?
            .strip_prefix(S::PLURAL)?
            .strip_prefix('/')?;
        let is_name = !rest.is_empty() && !rest.contains('/');
        if S::NAMESPACED {
            ObjectKey::parse_namespaced(rest)
        } else {
            is_name.then(|| ObjectKey::global(rest))
        }
    }

    fn prefix(select: &ObjectSelect) -> String {
        match &select.namespace {
            Some(namespace) => format!(
                "{OBJECT_ROOT}{}/{namespace}/{}",
                S::PLURAL,
                select.name_prefix
            ),
            None => format!("{OBJECT_ROOT}{}/{}", S::PLURAL, select.name_prefix),
        }
    }

    fn set_revision(&mut self, revision: &Revision) {
        self.metadata.resource_version = revision.resource_version().to_owned();
    }

    fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut stored = self.clone();
        stored.kind = S::KIND.into();
        stored.api_version = API_VERSION.into();
        stored.metadata.resource_version.clear();
        stored.metadata.unknown.remove("selfLink");
        if stored.spec.tier().is_some() {
            note_policy_name(&mut stored.metadata);
        }
        serde_json::to_vec(&stored)
    }

    fn decode(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes).and_then(Self::restored)
    }

    fn from_json(value: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(value).and_then(Self::restored)
    }
}
