//! The profiles of namespaces, service accounts and networks (CNI-140).

use std::collections::BTreeMap;

use crate::api::{Profile, ProfileSpec, Rule, RuleEntity};

/// The prefix of the names of namespace profiles.
pub const NAMESPACE_PROFILE_PREFIX: &str = "kns.";
/// The prefix of the names of service account profiles.
pub const SERVICE_ACCOUNT_PROFILE_PREFIX: &str = "ksa.";

/// The label with the name of the namespace or service account, which replaces a label of the object.
const NAME_LABEL: &str = "projectcalico.org/name";

/// Returns the profile of a namespace. It allows all traffic of endpoints that no policy selects (KC-241).
pub fn namespace_profile(name: &str, labels: &BTreeMap<String, String>) -> ProfileSpec {
    let (ingress, egress) = (vec![Rule::allow()], vec![Rule::allow()]);
    ProfileSpec { ingress, egress, labels_to_apply: inherited_labels("pcns.", name, labels), ..ProfileSpec::default() }
}

/// Returns the profile of a service account, which passes the labels on and has no rules.
pub fn service_account_profile(name: &str, labels: &BTreeMap<String, String>) -> ProfileSpec {
    ProfileSpec { labels_to_apply: inherited_labels("pcsa.", name, labels), ..ProfileSpec::default() }
}

fn inherited_labels(prefix: &str, name: &str, labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut inherited: BTreeMap<_, _> = labels.iter().map(|(k, v)| (format!("{prefix}{k}"), v.clone())).collect();
    inherited.insert(format!("{prefix}{NAME_LABEL}"), name.into());
    inherited
}

/// The sources from which the default profile allows traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileReach {
    /// Endpoints of the same network; used for plain containers.
    SameNetwork,
    /// Any source; used for Kubernetes.
    Anyone,
}

/// Returns the profile of a network, whose endpoints get an empty label with the key `network`.
pub fn default_profile(network: &str, reach: ProfileReach) -> Profile {
    let selector = match reach {
        ProfileReach::SameNetwork => format!("has({network})"),
        ProfileReach::Anyone => String::new(),
    };
    let source = RuleEntity { selector, ..RuleEntity::default() };
    let spec = ProfileSpec {
        ingress: vec![Rule { source, ..Rule::allow() }],
        egress: vec![Rule::allow()],
        labels_to_apply: [(network.to_owned(), String::new())].into(),
        ..ProfileSpec::default()
    };
    Profile::new(network, spec)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn profile_labels_are_copied_with_a_prefix_and_the_name_label_wins() {
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

    #[test]
    fn default_profile_allows_the_same_network_or_all_sources() {
        let spec = |reach| serde_json::to_value(default_profile("net1", reach).spec).unwrap();
        assert_eq!(
            spec(ProfileReach::SameNetwork),
            json!({
                "ingress": [{"action": "Allow", "source": {"selector": "has(net1)"}}],
                "egress": [{"action": "Allow"}],
                "labelsToApply": {"net1": ""},
            })
        );
        assert_eq!(
            spec(ProfileReach::Anyone),
            json!({
                "ingress": [{"action": "Allow"}],
                "egress": [{"action": "Allow"}],
                "labelsToApply": {"net1": ""},
            })
        );
    }
}
