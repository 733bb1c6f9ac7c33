//! Rules for ClusterInformation, a kind with a single object.

use super::metadata::check_singleton;
use crate::api::ClusterInformation;
use crate::validation_error::ValidationError;

/// Checks that the object may be written.
pub fn validate_cluster_information(
    information: &ClusterInformation,
) -> Result<(), ValidationError> {
    ValidationError::from_findings(check_singleton(information, "a Cluster Information"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ClusterInformationSpec;

    #[test]
    fn cluster_information_must_be_named_default() {
        let named = |name| ClusterInformation::new(name, ClusterInformationSpec::default());
        assert_eq!(validate_cluster_information(&named("default")), Ok(()));
        let error = validate_cluster_information(&named("other"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("with a name other than \"default\""),
            "{error}"
        );
    }
}
