//! Rules for Profiles, as far as the default profile needs them.

use super::metadata::check_metadata;
use super::policy::{check_action, check_selector};
use super::syntax::{go_map, label_problem};
use crate::api::Profile;
use crate::validation_error::{FieldError, ValidationError};

/// Checks that the profile may be written.
pub fn validate_profile(profile: &Profile) -> Result<(), ValidationError> {
    let mut findings = check_metadata(profile);
    let spec = &profile.spec;
    for rule in spec.ingress.iter().chain(&spec.egress) {
        check_action(rule, &mut findings);
        check_selector("Selector", &rule.source.selector, &mut findings);
    }
    if spec
        .labels_to_apply
        .iter()
        .any(|(key, value)| label_problem(key, value).is_some())
    {
        findings.push(FieldError::tag(
            "LabelsToApply",
            go_map(&spec.labels_to_apply),
            "labels",
        ));
    }
    ValidationError::from_findings(findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversion::{ProfileReach, default_profile};

    #[test]
    fn default_profiles_are_valid() {
        for reach in [ProfileReach::SameNetwork, ProfileReach::Anyone] {
            assert_eq!(
                validate_profile(&default_profile("k8s-pod-network", reach)),
                Ok(())
            );
        }
    }

    #[test]
    fn profile_of_a_network_name_that_is_no_label_is_rejected_as_in_upstream() {
        let network = "n".repeat(80);
        let error =
            validate_profile(&default_profile(&network, ProfileReach::SameNetwork)).unwrap_err();
        let text = format!(
            "error with field LabelsToApply = 'map[{network}:]' (Reason: failed to validate Field: \
             LabelsToApply because of Tag: labels )"
        );
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn profile_rules_are_validated() {
        let mut profile = default_profile("net", ProfileReach::SameNetwork);
        profile.spec.egress[0].action = "Maybe".into();
        profile.spec.ingress[0].source.selector = "has(".into();
        let error = validate_profile(&profile).unwrap_err();
        assert_eq!(
            error.fields().map(|f| f.name.as_str()).collect::<Vec<_>>(),
            ["Selector", "Action"]
        );
    }
}
