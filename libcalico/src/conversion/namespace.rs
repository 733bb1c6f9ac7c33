//! The profiles of namespaces and service accounts: what endpoints inherit from them (KC-241, KC-251).

use std::collections::BTreeMap;

use crate::api::{ProfileSpec, Rule};

/// What the names of namespaces' profiles begin with.
pub const NAMESPACE_PROFILE_PREFIX: &str = "kns.";
/// What the names of service accounts' profiles begin with.
pub const SERVICE_ACCOUNT_PROFILE_PREFIX: &str = "ksa.";

/// The label that says which one it is; it wins over one of that key that the object has itself.
const NAME_LABEL: &str = "projectcalico.org/name";

/// The profile of a namespace: it lets everything through, for where policies say nothing else, and hands on the labels.
pub fn namespace_profile(name: &str, labels: &BTreeMap<String, String>) -> ProfileSpec {
    let rules = || vec![Rule::allow()];
    ProfileSpec {
        ingress: rules(),
        egress: rules(),
        labels_to_apply: inherited("pcns.", name, labels),
        ..ProfileSpec::default()
    }
}

/// The profile of a service account: its labels alone.
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
