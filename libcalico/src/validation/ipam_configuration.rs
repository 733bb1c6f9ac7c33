//! Rules for the IPAM settings: the v3 object, and the record that allocation uses.

use super::metadata::check_singleton;
use crate::api::IpamConfiguration;
use crate::ipam::IpamConfig;
use crate::validation_error::{FieldError, ValidationError};

/// The longest cooldown of a released address, in seconds.
const MAX_COOLDOWN: i64 = 1200;

/// Completes the settings with the defaults of the v3 schema (DS-46), and checks them.
pub fn admit_ipam_configuration(
    mut settings: IpamConfiguration,
) -> Result<IpamConfiguration, ValidationError> {
    settings.spec.auto_allocate_blocks.get_or_insert(true);
    let mut findings = check_singleton(&settings, "an IPAMConfiguration");
    let spec = &settings.spec;
    let persistence = spec.kube_virt_vm_address_persistence.as_deref();
    check_ranges(
        spec.max_blocks_per_host,
        spec.ip_cooldown_seconds,
        persistence,
        &mut findings,
    );
    ValidationError::from_findings(findings).map(|()| settings)
}

/// Checks that the record for allocation may be written. Clients of the v3 API can store a
/// violation of its rules, and allocation uses stored values as they are (IPAM-78).
pub fn validate_ipam_config(config: &IpamConfig) -> Result<(), ValidationError> {
    let mut findings = Vec::new();
    if !config.strict_affinity && !config.auto_allocate_blocks {
        let reason = "must be true while strictAffinity is false";
        findings.push(FieldError::new(
            "AutoAllocateBlocks",
            config.auto_allocate_blocks,
            reason,
        ));
    }
    if config.max_blocks_per_host > 0 && !config.strict_affinity {
        let reason = "can only be set together with strictAffinity";
        findings.push(FieldError::new(
            "MaxBlocksPerHost",
            config.max_blocks_per_host,
            reason,
        ));
    }
    let persistence = config.kube_virt_vm_address_persistence.as_deref();
    check_ranges(
        config.max_blocks_per_host,
        config.ip_cooldown_seconds,
        persistence,
        &mut findings,
    );
    ValidationError::from_findings(findings)
}

fn check_ranges(
    max_blocks: i64,
    cooldown: i64,
    persistence: Option<&str>,
    findings: &mut Vec<FieldError>,
) {
    if max_blocks < 0 {
        findings.push(FieldError::new(
            "spec.maxBlocksPerHost",
            max_blocks,
            "should be greater than or equal to 0",
        ));
    }
    if !(0..=MAX_COOLDOWN).contains(&cooldown) {
        let reason = format!("should be from 0 to {MAX_COOLDOWN}");
        findings.push(FieldError::new("spec.ipCooldownSeconds", cooldown, reason));
    }
    if let Some(persistence) = persistence.filter(|text| !matches!(*text, "Enabled" | "Disabled")) {
        let reason = "supported values: \"Enabled\", \"Disabled\"";
        findings.push(FieldError::new(
            "spec.kubeVirtVMAddressPersistence",
            persistence,
            reason,
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::IpamConfigurationSpec;

    fn settings() -> IpamConfiguration {
        IpamConfiguration::new("default", IpamConfigurationSpec::default())
    }

    #[test]
    fn auto_allocate_blocks_defaults_to_true() {
        let admitted = admit_ipam_configuration(settings()).unwrap();
        assert_eq!(admitted.spec.auto_allocate_blocks, Some(true));
        let mut no = settings();
        no.spec.auto_allocate_blocks = Some(false);
        assert_eq!(admit_ipam_configuration(no.clone()).unwrap(), no);
    }

    #[test]
    fn ipam_configuration_name_and_ranges_are_validated() {
        let mut wrong = settings();
        wrong.metadata.name = "other".into();
        wrong.spec.max_blocks_per_host = -1;
        wrong.spec.ip_cooldown_seconds = 1201;
        wrong.spec.kube_virt_vm_address_persistence = Some("yes".into());
        let error = admit_ipam_configuration(wrong).unwrap_err();
        let fields: Vec<&str> = error.fields().map(|f| f.name.as_str()).collect();
        let expected = [
            "Metadata.Name",
            "spec.maxBlocksPerHost",
            "spec.ipCooldownSeconds",
            "spec.kubeVirtVMAddressPersistence",
        ];
        assert_eq!(fields, expected);
        let mut limits = settings();
        limits.spec.ip_cooldown_seconds = 1200;
        limits.spec.max_blocks_per_host = 5;
        assert!(
            admit_ipam_configuration(limits).is_ok(),
            "a limit without strict affinity is accepted here"
        );
    }

    #[test]
    fn ipam_config_rejects_inconsistent_field_combinations() {
        assert_eq!(validate_ipam_config(&IpamConfig::absent()), Ok(()));
        assert!(validate_ipam_config(&IpamConfig::default()).is_err());
        let strict = IpamConfig {
            strict_affinity: true,
            max_blocks_per_host: 1,
            ..IpamConfig::default()
        };
        assert_eq!(validate_ipam_config(&strict), Ok(()));
        assert!(
            validate_ipam_config(&IpamConfig {
                max_blocks_per_host: 1,
                ..IpamConfig::absent()
            })
            .is_err()
        );
    }
}
