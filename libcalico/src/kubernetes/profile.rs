//! Profile: a namespace or a service account, in its v3 form. Read only.

use serde_json::{Value, json};

use super::error::Malformed;
use super::json::{Fields, put_object, take_object, take_text, text};
use super::metadata::reversed_uid;
use super::resource::{Location, NAMESPACES, SERVICE_ACCOUNTS};

const NAMESPACE_PREFIX: &str = "kns.";
const SERVICE_ACCOUNT_PREFIX: &str = "ksa.";

/// Returns the location of the namespace or service account of the profile `name`.
pub(super) fn locate(name: &str) -> Option<Location> {
    if let Some(namespace) = name.strip_prefix(NAMESPACE_PREFIX) {
        return (!namespace.is_empty()).then(|| Location::global(NAMESPACES, namespace));
    }
    // The name of a service account may contain a dot; that of a namespace does not.
    let (namespace, account) = name.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once('.')?;
    let is_complete = !namespace.is_empty() && !account.is_empty();
    is_complete.then(|| Location::namespaced(SERVICE_ACCOUNTS, namespace, account))
}

pub(super) fn from_kubernetes(mut object: Fields) -> Result<Fields, Malformed> {
    let mut given = take_object(&mut object, "metadata");
    let labels = take_object(&mut given, "labels");
    let owner = text(&given, "name").unwrap_or_default();
    let (name, prefix, has_rules) = match text(&given, "namespace") {
        None => (format!("{NAMESPACE_PREFIX}{owner}"), "pcns.", true),
        Some(namespace) => (
            format!("{SERVICE_ACCOUNT_PREFIX}{namespace}.{owner}"),
            "pcsa.",
            false,
        ),
    };
    let mut to_apply: Fields = labels
        .into_iter()
        .map(|(key, value)| (format!("{prefix}{key}"), value))
        .collect();
    to_apply.insert(format!("{prefix}projectcalico.org/name"), owner.into());

    let mut metadata = Fields::new();
    metadata.insert("name".into(), name.into());
    metadata.extend(given.remove_entry("creationTimestamp"));
    if let Some(uid) = take_text(&mut given, "uid") {
        metadata.insert("uid".into(), reversed_uid(&uid)?.into());
    }
    let mut spec = Fields::new();
    if has_rules {
        spec.insert("ingress".into(), json!([{"action": "Allow"}]));
        spec.insert("egress".into(), json!([{"action": "Allow"}]));
    }
    put_object(&mut spec, "labelsToApply", to_apply);
    let mut profile = Fields::new();
    profile.insert("metadata".into(), Value::Object(metadata));
    profile.insert("spec".into(), Value::Object(spec));
    Ok(profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7";

    fn profile(metadata: Value) -> Value {
        let object = json!({"metadata": metadata}).as_object().unwrap().clone();
        Value::Object(from_kubernetes(object).unwrap())
    }

    #[test]
    fn profile_derivation_matches_upstreams_vectors() {
        assert_eq!(
            profile(
                json!({"name": "default", "uid": UID, "creationTimestamp": "2026-08-22T06:33:20Z",
                "labels": {"kubernetes.io/metadata.name": "default", "team": "a"}})
            ),
            json!({
                "metadata": {"name": "kns.default", "uid": "fe392417-dc50-4cba-9ef8-45cd23ab67ef",
                    "creationTimestamp": "2026-08-22T06:33:20Z"},
                "spec": {
                    "egress": [{"action": "Allow"}], "ingress": [{"action": "Allow"}],
                    "labelsToApply": {"pcns.kubernetes.io/metadata.name": "default",
                        "pcns.projectcalico.org/name": "default", "pcns.team": "a"},
                },
            })
        );
        assert_eq!(
            profile(
                json!({"name": "web", "namespace": "default", "uid": UID, "labels": {"role": "fe"}})
            ),
            json!({
                "metadata": {
                    "name": "ksa.default.web", "uid": "fe392417-dc50-4cba-9ef8-45cd23ab67ef",
                },
                "spec": {
                    "labelsToApply": {"pcsa.projectcalico.org/name": "web", "pcsa.role": "fe"}
                },
            })
        );
    }

    #[test]
    fn profile_names_map_to_their_namespace_or_service_account() {
        assert_eq!(
            locate("kns.default"),
            Some(Location::global(NAMESPACES, "default"))
        );
        assert_eq!(
            locate("ksa.ns.a.b"),
            Some(Location::namespaced(SERVICE_ACCOUNTS, "ns", "a.b"))
        );
        for none in ["net1", "kns.", "ksa.ns", "ksa..a"] {
            assert_eq!(locate(none), None, "{none}");
        }
    }
}
