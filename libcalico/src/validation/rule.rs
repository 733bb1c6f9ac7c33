//! [`FieldRule`]: a rule for a single text, with the tag that upstream's errors contain (DS-93).

use std::net::IpAddr;

use super::syntax::{is_container_id, is_interface, is_mac, is_network, is_port_name, network};
use crate::names::is_dns_name;
use crate::net::IpVersion;
use crate::validation_error::FieldError;

/// A rule for a single text.
pub(super) struct FieldRule {
    tag: &'static str,
    accept: fn(&str) -> bool,
}

pub(super) const NAME: FieldRule = FieldRule { tag: "name", accept: is_dns_name };
pub(super) const CONTAINER_ID: FieldRule = FieldRule { tag: "containerID", accept: is_container_id };
pub(super) const INTERFACE: FieldRule = FieldRule { tag: "interface", accept: is_interface };
pub(super) const PORT_NAME: FieldRule = FieldRule { tag: "portName", accept: is_port_name };
pub(super) const MAC: FieldRule = FieldRule { tag: "mac", accept: is_mac };
pub(super) const NET: FieldRule = FieldRule { tag: "net", accept: is_network };
pub(super) const CIDR: FieldRule = FieldRule { tag: "cidr", accept: |text| network(text).is_some() };
pub(super) const CIDR_V4: FieldRule = FieldRule { tag: "cidrv4", accept: |text| is_cidr(text, IpVersion::V4) };
pub(super) const CIDR_V6: FieldRule = FieldRule { tag: "cidrv6", accept: |text| is_cidr(text, IpVersion::V6) };
pub(super) const IP: FieldRule = FieldRule { tag: "ip", accept: |text| text.parse::<IpAddr>().is_ok() };
pub(super) const IPV4: FieldRule = FieldRule { tag: "ipv4", accept: |text| is_address(text, IpVersion::V4) };
pub(super) const IPV6: FieldRule = FieldRule { tag: "ipv6", accept: |text| is_address(text, IpVersion::V6) };

impl FieldRule {
    /// Applies the rule to a field that must have a value.
    pub(super) fn check(&self, field: &str, value: &str, findings: &mut Vec<FieldError>) {
        if !(self.accept)(value) {
            findings.push(FieldError::tag(field, value, self.tag));
        }
    }

    /// Applies the rule to a field that may be empty.
    pub(super) fn check_if_set(&self, field: &str, value: &str, findings: &mut Vec<FieldError>) {
        if !value.is_empty() {
            self.check(field, value, findings);
        }
    }

    /// Applies the rule to each element of a field.
    pub(super) fn check_each(&self, field: &str, values: &[String], findings: &mut Vec<FieldError>) {
        for (i, value) in values.iter().enumerate() {
            self.check(&format!("{field}[{i}]"), value, findings);
        }
    }
}

fn is_address(text: &str, version: IpVersion) -> bool {
    text.parse().is_ok_and(|ip: IpAddr| IpVersion::of(ip) == version)
}

fn is_cidr(text: &str, version: IpVersion) -> bool {
    network(text).is_some_and(|network| network.version() == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_say_field_value_and_rule() {
        let mut findings = Vec::new();
        NAME.check_if_set("A", "", &mut findings);
        NAME.check_each("B", &["ok".to_owned(), "Bad".to_owned()], &mut findings);
        INTERFACE.check("C", "", &mut findings);
        let texts: Vec<String> = findings.iter().map(ToString::to_string).collect();
        let expected = [
            "B[1] = 'Bad' (Reason: failed to validate Field: B[1] because of Tag: name )",
            "C = '' (Reason: failed to validate Field: C because of Tag: interface )",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn families() {
        let accepts = |rule: &FieldRule, text: &str| (rule.accept)(text);
        assert!(accepts(&CIDR_V4, "10.0.0.7/8") && accepts(&CIDR_V4, "10.0.0.7") && !accepts(&CIDR_V4, "fd00::/8"));
        assert!(accepts(&CIDR_V6, "fd00::7/8") && !accepts(&CIDR_V6, "10.0.0.7"));
        assert!(accepts(&IPV4, "10.0.0.7") && !accepts(&IPV4, "10.0.0.7/32") && !accepts(&IPV4, "fd00::7"));
        assert!(accepts(&IPV6, "fd00::7") && !accepts(&IPV6, "10.0.0.7"));
        assert!(accepts(&CIDR, "fd00::7/8") && !accepts(&CIDR, "x"));
    }
}
