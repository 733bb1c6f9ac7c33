//! The name of a policy in the stored bytes. An annotation contains it, because Calico before 3.32 put the tier before
//! the name in the key (DS-33).

use serde::Deserialize;
use serde_json::json;

use super::ObjectMeta;

/// The tier of policies that do not name a tier.
pub const DEFAULT_TIER: &str = "default";

/// The annotation with the name. Readers of the v3 API never see it.
pub(crate) const NAME_ANNOTATION: &str = "projectcalico.org/metadata";

#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    name: String,
}

/// Adds the annotation with the name, before the policy is stored.
pub(super) fn note(metadata: &mut ObjectMeta) {
    metadata.annotations.insert(NAME_ANNOTATION.into(), json!({ "name": metadata.name }).to_string());
}

/// Sets the name from the stored annotation and removes the annotation.
pub(super) fn restore(metadata: &mut ObjectMeta, tier: &str) -> Result<(), serde_json::Error> {
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

/// Returns the name of a policy of the default tier, without the tier prefix of Calico before 3.32.
pub(crate) fn without_tier(name: &str) -> &str {
    name.strip_prefix("default.").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::{NetworkPolicy, ObjectKey};
    use crate::store::Kind;

    fn decoded(metadata: Value, tier: &str) -> NetworkPolicy {
        let stored = json!({"metadata": metadata, "spec": {"tier": tier, "serviceAccountSelector": "a == 'b'"}});
        NetworkPolicy::decode(stored.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn the_name_is_in_the_bytes_and_not_in_the_object() {
        let policy = decoded(
            json!({"name": "default.a", "namespace": "ns", "annotations": {"x": "y",
                NAME_ANNOTATION: "{\"name\":\"a\"}"}}),
            "default",
        );
        assert_eq!(policy.key(), ObjectKey::namespaced("ns", "a"));
        assert_eq!(policy.metadata.annotations.keys().collect::<Vec<_>>(), ["x"]);
        let stored: Value = serde_json::from_slice(&policy.encode().unwrap()).unwrap();
        let annotations = json!({"x": "y", NAME_ANNOTATION: "{\"name\":\"a\"}"});
        assert_eq!(stored["metadata"]["annotations"], annotations);
        assert_eq!(stored["spec"]["serviceAccountSelector"], "a == 'b'");
        assert_eq!(stored["kind"], "NetworkPolicy");
    }

    #[test]
    fn names_of_an_older_calico() {
        assert_eq!(decoded(json!({"name": "default.a"}), "").metadata.name, "a");
        assert_eq!(decoded(json!({"name": "default.a"}), "default").metadata.name, "a");
        assert_eq!(decoded(json!({"name": "other.a"}), "other").metadata.name, "other.a");
        assert_eq!(decoded(json!({"name": "knp.default.a"}), "default").metadata.name, "knp.default.a");
        let wrong = json!({"metadata": {"annotations": {NAME_ANNOTATION: "{"}}});
        assert!(NetworkPolicy::decode(wrong.to_string().as_bytes()).is_err());
    }
}
