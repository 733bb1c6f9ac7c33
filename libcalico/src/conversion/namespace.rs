//! The profiles of namespaces and service accounts, which pass their labels on to endpoints.

use std::collections::BTreeMap;

use crate::api::{ProfileSpec, Rule};

/// The prefix of the names of namespace profiles.
pub const NAMESPACE_PROFILE_PREFIX: &str = "kns.";
/// The prefix of the names of service account profiles.
pub const SERVICE_ACCOUNT_PROFILE_PREFIX: &str = "ksa.";

/// The label with the name of the namespace or service account. It replaces a label of the same key on the object.
const NAME_LABEL: &str = "projectcalico.org/name";

/// Returns the profile of a namespace. It passes the labels on and allows all traffic that no policy selects (KC-241).
pub fn namespace_profile(name: &str, labels: &BTreeMap<String, String>) -> ProfileSpec {
    let rules = || vec![Rule::allow()];
    ProfileSpec {
        ingress: rules(),
        egress: rules(),
        labels_to_apply: inherited("pcns.", name, labels),
        ..ProfileSpec::default()
    }
}

/// Returns the profile of a service account, which passes the labels on and has no rules.
pub fn service_account_profile(name: &str, labels: &BTreeMap<String, String>) -> ProfileSpec {
    ProfileSpec { labels_to_apply: inherited("pcsa.", name, labels), ..ProfileSpec::default() }
}

fn inherited(prefix: &str, name: &str, labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut inherited: BTreeMap<_, _> =
        labels.iter().map(|(key, value)| (format!("{prefix}{key}"), value.clone())).collect();
    inherited.insert(format!("{prefix}{NAME_LABEL}"), name.into());
    inherited
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_are_handed_on_and_the_name_wins() {
        let labels = [("team", "a"), ("projectcalico.org/name", "spoofed")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let allow = json!([{"action": "Allow"}]);
        assert_eq!(
            serde_json::to_value(namespace_profile("prod", &labels)).unwrap(),
            json!({"ingress": allow, "egress": allow,
                "labelsToApply": {"pcns.team": "a", "pcns.projectcalico.org/name": "prod"}})
        );
        assert_eq!(
            serde_json::to_value(service_account_profile("ci", &labels)).unwrap(),
            json!({"labelsToApply": {"pcsa.team": "a", "pcsa.projectcalico.org/name": "ci"}})
        );
        assert_eq!(service_account_profile("ci", &BTreeMap::new()).labels_to_apply.len(), 1);
    }
}
