//! Rules for ClusterInformation, of which there is only one object.

use super::SINGLETON;
use super::metadata::check_metadata;
use crate::api::ClusterInformation;
use crate::validation_error::{FieldError, ValidationError};

/// Checks that the object may be written.
pub fn validate_cluster_information(information: &ClusterInformation) -> Result<(), ValidationError> {
    let mut findings = check_metadata(information);
    let name = &information.metadata.name;
    if name != SINGLETON {
        let reason = "Cannot create a Cluster Information resource with a name other than \"default\"";
        findings.push(FieldError::new("Metadata.Name", name, reason));
    }
    ValidationError::from_findings(findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ClusterInformationSpec;

    #[test]
    fn there_is_only_one() {
        let named = |name| ClusterInformation::new(name, ClusterInformationSpec::default());
        assert_eq!(validate_cluster_information(&named("default")), Ok(()));
        let error = validate_cluster_information(&named("other")).unwrap_err().to_string();
        assert!(error.contains("with a name other than \"default\""), "{error}");
    }
}
