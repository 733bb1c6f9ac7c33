//! The profile that endpoints of a network get when no policy type is configured (CNI-140).

use crate::api::{Profile, ProfileSpec, Rule, RuleEntity};

/// Whom the default profile lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileReach {
    /// Endpoints of the same network: plain containers.
    SameNetwork,
    /// Everyone: Kubernetes.
    Anyone,
}

/// The profile named after `network`: everything out, `reach` in, and the label that members of the network carry.
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
