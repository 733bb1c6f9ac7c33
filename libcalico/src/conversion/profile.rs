//! The profiles of namespaces, service accounts and networks (CNI-140).

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use crate::api::{Profile, ProfileSpec, Rule, RuleEntity};
use crate::validation::label_problem;

/// The prefix of the names of namespace profiles.
pub const NAMESPACE_PROFILE_PREFIX: &str = "kns.";
/// The prefix of the names of service account profiles.
pub const SERVICE_ACCOUNT_PROFILE_PREFIX: &str = "ksa.";

/// The label with the name of the namespace or service account, which replaces a label of the
/// object.
const NAME_LABEL: &str = "projectcalico.org/name";

/// The profile of a namespace or service account.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvertedProfile {
    /// The profile without the rejected labels. Upstream writes no profile if one of the labels is
    /// invalid.
    pub spec: ProfileSpec,
    /// The labels that a profile may not have, because they are too long with their prefix.
    pub rejected_labels: Vec<RejectedLabel>,
}

impl ConvertedProfile {
    /// Returns the profile, and a description of each rejected label.
    pub fn into_parts(self) -> (ProfileSpec, Vec<String>) {
        (
            self.spec,
            self.rejected_labels
                .iter()
                .map(ToString::to_string)
                .collect(),
        )
    }
}

/// A label that a profile may not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedLabel {
    /// The key with the profile's prefix.
    pub key: String,
    /// The value.
    pub value: String,
    /// The rule that the label breaks.
    pub problem: &'static str,
}

impl Display for RejectedLabel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let RejectedLabel {
            key,
            value,
            problem,
        } = self;
        write!(
            f,
            "the label {key}={value} is invalid in a profile and is left out, so no policy selects \
             it: {problem}"
        )
    }
}

/// Returns the profile of a namespace. It allows all traffic of endpoints that no policy selects
/// (KC-241).
pub fn namespace_profile(name: &str, labels: &BTreeMap<String, String>) -> ConvertedProfile {
    let (ingress, egress) = (vec![Rule::allow()], vec![Rule::allow()]);
    with_labels(
        ProfileSpec {
            ingress,
            egress,
            ..ProfileSpec::default()
        },
        "pcns.",
        name,
        labels,
    )
}

/// Returns the profile of a service account, which passes the labels on and has no rules.
pub fn service_account_profile(name: &str, labels: &BTreeMap<String, String>) -> ConvertedProfile {
    with_labels(ProfileSpec::default(), "pcsa.", name, labels)
}

/// Adds the valid labels of the object. A name that is too long for a label still replaces the
/// object's own label.
fn with_labels(
    spec: ProfileSpec,
    prefix: &str,
    name: &str,
    labels: &BTreeMap<String, String>,
) -> ConvertedProfile {
    let mut inherited: BTreeMap<_, _> = labels
        .iter()
        .map(|(k, v)| (format!("{prefix}{k}"), v.clone()))
        .collect();
    inherited.insert(format!("{prefix}{NAME_LABEL}"), name.into());
    let mut converted = ConvertedProfile {
        spec,
        rejected_labels: Vec::new(),
    };
    for (key, value) in inherited {
        match label_problem(&key, &value) {
            Some(problem) => converted.rejected_labels.push(RejectedLabel {
                key,
                value,
                problem,
            }),
            None => _ = converted.spec.labels_to_apply.insert(key, value),
        }
    }
    converted
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
    let source = RuleEntity {
        selector,
        ..RuleEntity::default()
    };
    let spec = ProfileSpec {
        ingress: vec![Rule {
            source,
            ..Rule::allow()
        }],
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
    use crate::validation::validate_profile;

    #[test]
    fn profile_labels_are_copied_with_a_prefix_and_the_name_label_wins() {
        let labels = [("team", "a"), ("projectcalico.org/name", "spoofed")];
        let labels = labels
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let allow = json!([{"action": "Allow"}]);
        assert_eq!(
            serde_json::to_value(namespace_profile("prod", &labels).spec).unwrap(),
            json!({"ingress": allow, "egress": allow,
                "labelsToApply": {"pcns.team": "a", "pcns.projectcalico.org/name": "prod"}})
        );
        assert_eq!(
            serde_json::to_value(service_account_profile("ci", &labels).spec).unwrap(),
            json!({"labelsToApply": {"pcsa.team": "a", "pcsa.projectcalico.org/name": "ci"}})
        );
        assert_eq!(
            service_account_profile("ci", &BTreeMap::new())
                .spec
                .labels_to_apply
                .len(),
            1
        );
    }

    #[test]
    fn label_that_is_too_long_with_its_prefix_is_rejected_without_the_others() {
        // Each key, and the value, is the longest that Kubernetes accepts, or the longest that the
        // prefix permits.
        let domain =
            |length: usize| format!("{}.example.com", "d".repeat(length - ".example.com".len()));
        let invalid = [
            "n".repeat(59),
            "n".repeat(63),
            format!("{}/{}", domain(249), "n"),
            format!("{}/n", domain(253)),
        ];
        let valid = [
            "n".repeat(58),
            format!("{}/{}", domain(248), "n".repeat(63)),
        ];
        let value = "v".repeat(63);
        let labels = invalid
            .iter()
            .chain(&valid)
            .map(|key| (key.clone(), value.clone()))
            .collect();
        for (prefix, converted) in [
            ("pcns.", namespace_profile("n", &labels)),
            ("pcsa.", service_account_profile("n", &labels)),
        ] {
            let mut rejected: Vec<_> = converted
                .rejected_labels
                .iter()
                .map(|label| label.key.clone())
                .collect();
            let mut expected = invalid.clone().map(|key| format!("{prefix}{key}"));
            rejected.sort();
            expected.sort();
            assert_eq!(rejected, expected);
            for key in &valid {
                assert_eq!(
                    converted.spec.labels_to_apply[&format!("{prefix}{key}")],
                    value
                );
            }
            assert_eq!(converted.spec.labels_to_apply.len(), valid.len() + 1);
            assert_eq!(
                validate_profile(&Profile::new("kns.n", converted.spec)),
                Ok(())
            );
        }
    }

    /// A tenant chooses the labels of a service account.
    #[test]
    fn label_does_not_replace_a_name_that_is_too_long() {
        let labels = [("projectcalico.org/name".to_owned(), "spoofed".to_owned())].into();
        assert_eq!(
            service_account_profile(&"a".repeat(63), &labels).rejected_labels,
            []
        );
        let converted = service_account_profile(&"a".repeat(64), &labels);
        assert_eq!(converted.spec.labels_to_apply, BTreeMap::new());
        let [rejected] = &converted.rejected_labels[..] else {
            panic!("{converted:?}")
        };
        assert_eq!(rejected.key, "pcsa.projectcalico.org/name");
        assert!(
            rejected.to_string().contains("no more than 63 characters"),
            "{rejected}"
        );
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
