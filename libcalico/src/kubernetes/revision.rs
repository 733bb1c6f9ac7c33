//! [`ObjectRevision`]: the data of an object as read that the next write of the object needs.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::store::Revision;

/// The revision of an object on an API server. Callers of the store treat it as an opaque
/// [`Revision`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObjectRevision {
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `metadata.uid`, as on the API server (that is, not reversed).
    pub uid: Option<String>,
    /// The metadata that others put on the object, to be written back.
    pub preserved: PreservedMetadata,
}

/// Metadata that other programs put on a custom resource, to be written back. Upstream drops or
/// moves it (DS-59, IPAM-86). For the endpoint of a pod: the two empty annotations that a DEL
/// wrote.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PreservedMetadata {
    /// The fields of the resource's `metadata`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// The fields of the JSON in the annotation `projectcalico.org/metadata`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub annotation: Map<String, Value>,
}

impl PreservedMetadata {
    /// Returns true if there is no such metadata.
    pub fn is_empty(&self) -> bool {
        self.metadata.is_empty() && self.annotation.is_empty()
    }
}

impl ObjectRevision {
    /// Parses a revision from [`ObjectRevision::revision`], or a bare resourceVersion.
    pub fn parse(revision: &Revision) -> Self {
        let Some((resource_version, rest)) = revision.0.split_once('@') else {
            return ObjectRevision {
                resource_version: revision.0.clone(),
                ..Self::default()
            };
        };
        let (uid, preserved) = rest.split_at(rest.find('{').unwrap_or(rest.len()));
        ObjectRevision {
            resource_version: resource_version.into(),
            uid: (!uid.is_empty()).then(|| uid.into()),
            preserved: serde_json::from_str(preserved).unwrap_or_default(),
        }
    }

    /// Returns `<resourceVersion>@<uid>`, followed by the metadata of others as JSON.
    pub fn revision(&self) -> Revision {
        let mut text = format!(
            "{}@{}",
            self.resource_version,
            self.uid.as_deref().unwrap_or_default()
        );
        if !self.preserved.is_empty() {
            text.push_str(&serde_json::json!(self.preserved).to_string());
        }
        Revision(text)
    }

    /// Returns the revision of an object that the API server sent.
    pub(super) fn of(metadata: &Map<String, Value>, preserved: PreservedMetadata) -> Self {
        let text = |key| metadata.get(key).and_then(Value::as_str);
        ObjectRevision {
            resource_version: text("resourceVersion").unwrap_or_default().into(),
            uid: text("uid").map(str::to_owned),
            preserved,
        }
    }
}

/// Converts the uid of a v1 custom resource to the uid that upstream's clients show, or back
/// (DS-60). The bytes with the version and the variant stay, so that the result is a UUID of the
/// same kind.
pub fn reverse_uid(uid: &str) -> Option<String> {
    let given = Uuid::try_parse(uid).ok()?.into_bytes();
    let mut reversed = given.map(u8::reverse_bits);
    reversed[6] = given[6];
    reversed[8] = given[8];
    Some(Uuid::from_bytes(reversed).to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn object_revision_round_trips_through_text() {
        let finalizers = json!({"finalizers": ["a@b", "{"]})
            .as_object()
            .unwrap()
            .clone();
        for preserved in [
            PreservedMetadata::default(),
            PreservedMetadata {
                metadata: finalizers,
                ..PreservedMetadata::default()
            },
        ] {
            for uid in [
                None,
                Some("7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7".to_owned()),
            ] {
                let revision = ObjectRevision {
                    resource_version: "4711".into(),
                    uid,
                    preserved: preserved.clone(),
                };
                assert_eq!(ObjectRevision::parse(&revision.revision()), revision);
                assert_eq!(revision.revision().resource_version(), "4711");
            }
        }
    }

    #[test]
    fn plain_resource_version_parses_as_a_revision() {
        let revision = ObjectRevision::parse(&Revision("4711".into()));
        assert_eq!(
            revision,
            ObjectRevision {
                resource_version: "4711".into(),
                ..ObjectRevision::default()
            }
        );
    }

    #[test]
    fn uid_is_reversed_and_other_text_is_rejected() {
        let (given, reversed) = (
            "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7",
            "fe392417-dc50-4cba-9ef8-45cd23ab67ef",
        );
        assert_eq!(reverse_uid(given).as_deref(), Some(reversed));
        assert_eq!(reverse_uid("no uid"), None);
    }

    proptest! {
        #[test]
        fn reversing_a_uid_twice_returns_the_uid(bytes: [u8; 16]) {
            let uid = Uuid::from_bytes(bytes).to_string();
            prop_assert_eq!(reverse_uid(&reverse_uid(&uid).unwrap()), Some(uid));
        }
    }
}
