//! The profile that a network's endpoints get if the configuration has no policy type (CNI-140).

use crate::api::{Profile, ProfileSpec, Rule, RuleEntity};

/// The sources from which the default profile allows traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileReach {
    /// Endpoints of the same network; used for plain containers.
    SameNetwork,
    /// Any source; used for Kubernetes.
    Anyone,
}

/// Returns the profile named after `network`: it allows all egress, ingress from `reach`, and adds the label of the
/// network's members.
pub fn default_profile(network: &str, reach: ProfileReach) -> Profile {
    let selector = match reach {
        ProfileReach::SameNetwork => format!("has({network})"),
        ProfileReach::Anyone => String::new(),
    };
    let source = RuleEntity { selector, ..RuleEntity::default() };
    Profile::new(
        network,
        ProfileSpec {
            ingress: vec![Rule { source, ..Rule::allow() }],
            egress: vec![Rule::allow()],
            labels_to_apply: [(network.to_owned(), String::new())].into(),
            ..ProfileSpec::default()
        },
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_two_variants() {
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
