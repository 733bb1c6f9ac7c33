//! [`ObjectRevision`]: what the next write of an object must know about what was read.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::store::Revision;

/// The revision of an object in Kubernetes. Callers of the store hold it as an opaque [`Revision`] and hand it back
/// with the next write, which makes it the place for all that the canonical value has no room for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObjectRevision {
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `metadata.uid`, as it is on the object in the API server (that is, not reversed).
    pub uid: Option<String>,
    /// Metadata that others put on the object, to be written back.
    pub foreign: Foreign,
}

/// Metadata of a custom resource that Calico's own has no place for. Upstream drops it with the next write (IPAM-86);
/// we keep it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Foreign {
    /// Fields of the resource's `metadata`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// Fields of the JSON in its `projectcalico.org/metadata` annotation.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub annotation: Map<String, Value>,
}

impl Foreign {
    /// Whether there is none: the usual case.
    pub fn is_empty(&self) -> bool {
        self.metadata.is_empty() && self.annotation.is_empty()
    }
}

impl ObjectRevision {
    /// Reads a revision that [`ObjectRevision::revision`] made, or a bare resourceVersion.
    pub fn parse(revision: &Revision) -> Self {
        let Some((resource_version, rest)) = revision.0.split_once('@') else {
            return ObjectRevision { resource_version: revision.0.clone(), ..Self::default() };
        };
        let (uid, foreign) = rest.split_at(rest.find('{').unwrap_or(rest.len()));
        ObjectRevision {
            resource_version: resource_version.into(),
            uid: (!uid.is_empty()).then(|| uid.into()),
            foreign: serde_json::from_str(foreign).unwrap_or_default(),
        }
    }

    /// `<resourceVersion>@<uid>`, and foreign metadata as JSON where there is any. The part before the `@` is what
    /// [`Revision::resource_version`] shows to people.
    pub fn revision(&self) -> Revision {
        let mut text = format!("{}@{}", self.resource_version, self.uid.as_deref().unwrap_or_default());
        if !self.foreign.is_empty() {
            text.push_str(&serde_json::json!(self.foreign).to_string());
        }
        Revision(text)
    }

    /// The revision of an object as the API server sent it.
    pub(super) fn of(metadata: &Map<String, Value>, foreign: Foreign) -> Self {
        let text = |key| metadata.get(key).and_then(Value::as_str);
        ObjectRevision {
            resource_version: text("resourceVersion").unwrap_or_default().into(),
            uid: text("uid").map(str::to_owned),
            foreign,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn revisions_come_back_from_their_text() {
        let finalizers = json!({"finalizers": ["a@b", "{"]}).as_object().unwrap().clone();
        for foreign in [Foreign::default(), Foreign { metadata: finalizers, ..Foreign::default() }] {
            for uid in [None, Some("7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7".to_owned())] {
                let revision = ObjectRevision { resource_version: "4711".into(), uid, foreign: foreign.clone() };
                assert_eq!(ObjectRevision::parse(&revision.revision()), revision);
                assert_eq!(revision.revision().resource_version(), "4711");
            }
        }
    }

    #[test]
    fn a_bare_resource_version_is_one() {
        let revision = ObjectRevision::parse(&Revision("4711".into()));
        assert_eq!(revision, ObjectRevision { resource_version: "4711".into(), ..ObjectRevision::default() });
    }
}
