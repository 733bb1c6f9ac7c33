//! Rules for IPReservations.

use std::collections::BTreeSet;

use super::metadata::check_metadata;
use super::syntax::{go_list, network};
use crate::api::IpReservation;
use crate::net::Cidr;
use crate::validation_error::{FieldError, ValidationError};

/// Checks that the reservation may be written. Readers also accept addresses without a prefix
/// length (DS-96).
pub fn validate_ip_reservation(reservation: &IpReservation) -> Result<(), ValidationError> {
    let mut findings = check_metadata(reservation);
    let cidrs = &reservation.spec.reserved_cidrs;
    if cidrs.iter().any(|text| network(text).is_none()) {
        findings.push(FieldError::tag("ReservedCIDRs", go_list(cidrs), "cidrs"));
    }
    let mut seen = BTreeSet::new();
    for (i, text) in cidrs.iter().enumerate() {
        let field = format!("spec.reservedCIDRs[{i}]");
        if network(text).is_some() && text.parse::<Cidr>().is_err() {
            findings.push(FieldError::new(
                &field,
                text,
                "must be a CIDR; write a single address with /32 or /128",
            ));
        }
        if !seen.insert(text) {
            findings.push(FieldError::new(&field, text, "Duplicate value"));
        }
    }
    ValidationError::from_findings(findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::IpReservationSpec;

    fn check(cidrs: &[&str]) -> Result<(), String> {
        let reserved_cidrs = cidrs.iter().map(|c| (*c).to_owned()).collect();
        let reservation = IpReservation::new(
            "r",
            IpReservationSpec {
                reserved_cidrs,
                ..IpReservationSpec::default()
            },
        );
        validate_ip_reservation(&reservation).map_err(|e| e.to_string())
    }

    #[test]
    fn reserved_cidrs_must_be_valid_and_unique() {
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&["10.0.0.0/30", "10.0.0.1/30", "fd00::/64"]), Ok(()));
        let error = check(&["10.0.0.0/30", "x"]).unwrap_err();
        assert!(
            error.starts_with("error with field ReservedCIDRs = '[10.0.0.0/30 x]' (Reason: "),
            "{error}"
        );
        assert!(
            check(&["10.0.0.1"])
                .unwrap_err()
                .contains("write a single address with /32")
        );
        assert!(
            check(&["10.0.0.0/30", "10.0.0.0/30"])
                .unwrap_err()
                .contains("[1] = '10.0.0.0/30' (Duplicate value)")
        );
    }
}
