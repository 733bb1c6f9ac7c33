//! The metadata of objects, the name of a policy in stored metadata, and the form of times.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};
use uuid::Uuid;

/// Fields that this build does not model, kept for the next write.
pub type Unknown = Map<String, Value>;

/// `metadata` of a v3 object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// The object's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The prefix from which the name was generated; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub generate_name: String,
    /// The namespace, for namespaced kinds.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// A random UUIDv4, assigned at creation.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The revision of the object as read. The encoded object does not contain it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// The creation time in RFC 3339, in whole seconds and UTC. `None` is written as `null`, as Go
    /// writes it.
    pub creation_timestamp: Option<String>,
    /// The time at which deletion began, while the object is being deleted (Kubernetes only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl ObjectMeta {
    /// Sets the uid and the creation time if they are not set yet. A datastore without an API
    /// server leaves this to the client that creates an object (DS-32).
    pub fn stamp(&mut self, uid: Uuid, now: OffsetDateTime) {
        if self.uid.is_empty() {
            self.uid = uid.to_string();
        }
        if self.creation_timestamp.is_none() {
            self.creation_timestamp = Some(seconds_in_utc(now));
        }
    }
}

/// Returns true for zero, which is not stored in fields that use this function.
pub(crate) fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Formats a time as in `2026-08-22T01:02:03Z`: RFC 3339, UTC, whole seconds.
pub(crate) fn seconds_in_utc(time: OffsetDateTime) -> String {
    let time = time.checked_to_offset(UtcOffset::UTC).unwrap_or(time);
    let (year, month, day) = time.to_calendar_date();
    let (hour, minute, second) = time.to_hms();
    format!(
        "{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z",
        u8::from(month)
    )
}

/// Parses a time in RFC 3339 with any offset and fraction. Returns `None` for any other text.
pub(crate) fn parse_time(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &Rfc3339).ok()
}

/// The tier of policies that do not name a tier.
pub const DEFAULT_TIER: &str = "default";

/// The annotation of a stored policy that contains the policy's name. A decoded policy does not
/// have it. In the API group v1, the annotation of this key contains the v3 metadata of any kind of
/// custom resource.
pub(crate) const NAME_ANNOTATION: &str = "projectcalico.org/metadata";

#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    name: String,
    // The flattened field makes serde decode the struct from a JSON object only, never from a list.
    #[serde(flatten)]
    _unknown: Map<String, Value>,
}

/// Adds the annotation with the policy's name, before the policy is stored. The name in the key may
/// differ, because Calico before 3.32 put the tier before it (DS-33).
pub(super) fn note_policy_name(metadata: &mut ObjectMeta) {
    metadata.annotations.insert(
        NAME_ANNOTATION.into(),
        json!({ "name": metadata.name }).to_string(),
    );
}

/// Removes the annotation from the metadata of a stored policy and sets the policy's name to the
/// name in the annotation. If the annotation or the name in it is missing, the name in the metadata
/// remains, for a policy of the default tier without the prefix `default.`. Returns an error if the
/// annotation is not a JSON object of that form.
pub(crate) fn restore_policy_name(
    metadata: &mut ObjectMeta,
    tier: &str,
) -> Result<(), serde_json::Error> {
    let noted = match metadata.annotations.remove(NAME_ANNOTATION) {
        Some(text) => serde_json::from_str::<Named>(&text)?.name,
        None => String::new(),
    };
    if !noted.is_empty() {
        metadata.name = noted;
    } else if tier == DEFAULT_TIER {
        metadata.name = without_tier(&metadata.name).to_owned();
    }
    Ok(())
}

/// Returns the name of a policy of the default tier without the prefix `default.` of Calico before
/// 3.32. A name without the prefix is returned unchanged.
pub(crate) fn without_tier(name: &str) -> &str {
    name.strip_prefix("default.").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use time::macros::datetime;

    use super::*;
    use crate::api::{NetworkPolicy, ObjectKey};
    use crate::store::Kind;

    #[test]
    fn stamping_fills_only_empty_metadata_fields() {
        let mut meta = ObjectMeta::default();
        meta.stamp(Uuid::from_u128(1), datetime!(2026-08-22 08:33:20.9 +02:00));
        assert_eq!(meta.uid, "00000000-0000-0000-0000-000000000001");
        assert_eq!(
            meta.creation_timestamp.as_deref(),
            Some("2026-08-22T06:33:20Z")
        );
        let stamped = meta.clone();
        meta.stamp(Uuid::from_u128(2), datetime!(2027-01-01 00:00 UTC));
        assert_eq!(meta, stamped);
    }

    #[test]
    fn stored_times_are_utc_in_full_seconds() {
        assert_eq!(
            seconds_in_utc(datetime!(2026-08-22 03:02:03.999 +2)),
            "2026-08-22T01:02:03Z"
        );
        assert_eq!(
            parse_time("2026-08-22T01:02:03Z"),
            Some(datetime!(2026-08-22 01:02:03 UTC))
        );
        assert_eq!(parse_time("yesterday"), None);
    }

    fn decoded(metadata: Value, tier: &str) -> NetworkPolicy {
        let stored = json!({
            "metadata": metadata, "spec": {"tier": tier, "serviceAccountSelector": "a == 'b'"},
        });
        NetworkPolicy::decode(stored.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn policy_name_is_stored_in_the_annotation_and_hidden_from_the_object() {
        let policy = decoded(
            json!({"name": "default.a", "namespace": "ns", "annotations": {"x": "y",
                NAME_ANNOTATION: "{\"name\":\"a\"}"}}),
            "default",
        );
        assert_eq!(policy.key(), ObjectKey::namespaced("ns", "a"));
        assert_eq!(
            policy.metadata.annotations.keys().collect::<Vec<_>>(),
            ["x"]
        );
        let stored: Value = serde_json::from_slice(&policy.encode().unwrap()).unwrap();
        let annotations = json!({"x": "y", NAME_ANNOTATION: "{\"name\":\"a\"}"});
        assert_eq!(stored["metadata"]["annotations"], annotations);
        assert_eq!(stored["spec"]["serviceAccountSelector"], "a == 'b'");
        assert_eq!(stored["kind"], "NetworkPolicy");
    }

    #[test]
    fn policy_names_of_an_older_calico_lose_the_default_tier_prefix() {
        assert_eq!(decoded(json!({"name": "default.a"}), "").metadata.name, "a");
        assert_eq!(
            decoded(json!({"name": "default.a"}), "default")
                .metadata
                .name,
            "a"
        );
        assert_eq!(
            decoded(json!({"name": "other.a"}), "other").metadata.name,
            "other.a"
        );
        assert_eq!(
            decoded(json!({"name": "knp.default.a"}), "default")
                .metadata
                .name,
            "knp.default.a"
        );
        let wrong = json!({"metadata": {"annotations": {NAME_ANNOTATION: "{"}}});
        assert!(NetworkPolicy::decode(wrong.to_string().as_bytes()).is_err());
    }
}
