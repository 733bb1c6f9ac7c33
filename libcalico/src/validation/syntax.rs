//! The syntax of field values, and [`FieldRule`], with the tag that upstream's errors contain
//! (DS-93).

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::names::is_dns_name;
use crate::net::{Cidr, IpVersion};
use crate::validation_error::FieldError;

/// A rule for a single text.
pub(super) struct FieldRule {
    tag: &'static str,
    accept: fn(&str) -> bool,
}

pub(super) const NAME: FieldRule = FieldRule {
    tag: "name",
    accept: is_dns_name,
};
pub(super) const CONTAINER_ID: FieldRule = FieldRule {
    tag: "containerID",
    accept: is_container_id,
};
pub(super) const INTERFACE: FieldRule = FieldRule {
    tag: "interface",
    accept: is_interface,
};
pub(super) const PORT_NAME: FieldRule = FieldRule {
    tag: "portName",
    accept: is_port_name,
};
pub(super) const MAC: FieldRule = FieldRule {
    tag: "mac",
    accept: is_mac,
};
pub(super) const NET: FieldRule = FieldRule {
    tag: "net",
    accept: is_network,
};
pub(super) const CIDR: FieldRule = FieldRule {
    tag: "cidr",
    accept: |text| network(text).is_some(),
};
pub(super) const CIDR_V4: FieldRule = FieldRule {
    tag: "cidrv4",
    accept: |text| is_cidr(text, IpVersion::V4),
};
pub(super) const CIDR_V6: FieldRule = FieldRule {
    tag: "cidrv6",
    accept: |text| is_cidr(text, IpVersion::V6),
};
pub(super) const IP: FieldRule = FieldRule {
    tag: "ip",
    accept: |text| text.parse::<IpAddr>().is_ok(),
};
pub(super) const IPV4: FieldRule = FieldRule {
    tag: "ipv4",
    accept: |text| is_address(text, IpVersion::V4),
};
pub(super) const IPV6: FieldRule = FieldRule {
    tag: "ipv6",
    accept: |text| is_address(text, IpVersion::V6),
};

impl FieldRule {
    /// Adds a finding if the field, which may be empty, violates the rule.
    pub(super) fn check(&self, field: &str, value: &str, findings: &mut Vec<FieldError>) {
        if !(self.accept)(value) {
            findings.push(FieldError::tag(field, value, self.tag));
        }
    }

    /// Adds a finding if the field is not empty and violates the rule.
    pub(super) fn check_if_set(&self, field: &str, value: &str, findings: &mut Vec<FieldError>) {
        if !value.is_empty() {
            self.check(field, value, findings);
        }
    }

    /// Adds a finding for each element that violates the rule.
    pub(super) fn check_each(
        &self,
        field: &str,
        values: &[String],
        findings: &mut Vec<FieldError>,
    ) {
        for (i, value) in values.iter().enumerate() {
            self.check(&format!("{field}[{i}]"), value, findings);
        }
    }
}

fn is_address(text: &str, version: IpVersion) -> bool {
    text.parse()
        .is_ok_and(|ip: IpAddr| IpVersion::of(ip) == version)
}

fn is_cidr(text: &str, version: IpVersion) -> bool {
    network(text).is_some_and(|network| network.version() == version)
}

/// The longest value of a Kubernetes label, and the longest part after the `/` of its key, in
/// bytes.
const MAX_LABEL: usize = 63;
/// The longest name of an object, and the longest part before the `/` of a label's key, in bytes.
pub(super) const MAX_NAME: usize = 253;

pub(super) fn is_container_id(text: &str) -> bool {
    framed_by(text, |b| b.is_ascii_alphanumeric(), |b| b == b'-')
}

pub(super) fn is_interface(text: &str) -> bool {
    text == "*"
        || (1..=15).contains(&text.len())
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

/// Returns true for a service name by IANA's rules.
pub(super) fn is_port_name(text: &str) -> bool {
    text.len() <= 15
        && framed_by(text, is_lower_alphanumeric, |b| b == b'-')
        && text.bytes().any(|b| b.is_ascii_lowercase())
        && !text.contains("--")
}

/// Returns true for an address, or a CIDR without host bits.
pub(super) fn is_network(text: &str) -> bool {
    match Cidr::parse_with_address(text) {
        Ok((cidr, address)) => cidr.network() == address,
        Err(_) => text.parse::<IpAddr>().is_ok(),
    }
}

pub(super) fn network(text: &str) -> Option<Cidr> {
    text.parse()
        .ok()
        .or_else(|| text.parse().ok().map(Cidr::host))
}

/// Returns true for 6, 8 or 20 bytes in pairs of digits, or in groups of four with dots between
/// them.
pub(super) fn is_mac(text: &str) -> bool {
    let (separator, digits) = match text.bytes().find(|b| !b.is_ascii_hexdigit()) {
        Some(separator @ (b':' | b'-')) => (separator, 2),
        Some(b'.') => (b'.', 4),
        _ => return false,
    };
    let groups: Vec<&str> = text.split(char::from(separator)).collect();
    matches!(groups.len() * digits, 12 | 16 | 40)
        && groups
            .iter()
            .all(|group| group.len() == digits && group.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Returns the reason why a Kubernetes label key is invalid.
pub(super) fn label_key_problem(key: &str) -> Option<&'static str> {
    let (prefix, name) = key
        .split_once('/')
        .map_or((None, key), |(prefix, name)| (Some(prefix), name));
    if prefix.is_some_and(|p| p.is_empty()) {
        return Some("prefix part must be non-empty");
    }
    if prefix.is_some_and(|p| p.len() > MAX_NAME || !is_dns_name(p)) {
        return Some("prefix part must be a DNS name in lower case of no more than 253 characters");
    }
    if name.is_empty() {
        return Some("name part must be non-empty");
    }
    if name.len() > MAX_LABEL {
        return Some("name part must be no more than 63 characters");
    }
    let problem = "name part must consist of alphanumeric characters, '-', '_' or '.', and must \
                   start and end with an alphanumeric character";
    (!is_label_text(name)).then_some(problem)
}

/// Returns the reason why a Kubernetes label value is invalid.
pub(super) fn label_value_problem(value: &str) -> Option<&'static str> {
    if value.len() > MAX_LABEL {
        return Some("must be no more than 63 characters");
    }
    let problem = "a valid label must be an empty string or consist of alphanumeric characters, \
                   '-', '_' or '.', and must start and end with an alphanumeric character";
    (!value.is_empty() && !is_label_text(value)).then_some(problem)
}

/// Returns the reason why a Kubernetes label is invalid.
pub(crate) fn label_problem(key: &str, value: &str) -> Option<&'static str> {
    label_key_problem(key).or_else(|| label_value_problem(value))
}

/// Formats a map as Go does, because upstream's error texts contain such values.
pub(super) fn go_map(map: &BTreeMap<String, String>) -> String {
    let pairs: Vec<String> = map
        .iter()
        .map(|(key, value)| format!("{key}:{value}"))
        .collect();
    format!("map[{}]", pairs.join(" "))
}

pub(super) fn go_list<T: std::fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("[{}]", items.join(" "))
}

fn is_label_text(text: &str) -> bool {
    framed_by(
        text,
        |b| b.is_ascii_alphanumeric(),
        |b| matches!(b, b'-' | b'_' | b'.'),
    )
}

fn is_lower_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Returns true for edge bytes at both ends, and edge or inner bytes between them.
fn framed_by(text: &str, edge: fn(u8) -> bool, inner: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.first().copied().is_some_and(edge)
        && bytes.last().copied().is_some_and(edge)
        && bytes.iter().all(|b| edge(*b) || inner(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_name_field_value_and_rule() {
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
    fn address_rules_accept_only_their_family() {
        let accepts = |rule: &FieldRule, text: &str| (rule.accept)(text);
        assert!(
            accepts(&CIDR_V4, "10.0.0.7/8")
                && accepts(&CIDR_V4, "10.0.0.7")
                && !accepts(&CIDR_V4, "fd00::/8")
        );
        assert!(accepts(&CIDR_V6, "fd00::7/8") && !accepts(&CIDR_V6, "10.0.0.7"));
        assert!(
            accepts(&IPV4, "10.0.0.7")
                && !accepts(&IPV4, "10.0.0.7/32")
                && !accepts(&IPV4, "fd00::7")
        );
        assert!(accepts(&IPV6, "fd00::7") && !accepts(&IPV6, "10.0.0.7"));
        assert!(accepts(&CIDR, "fd00::7/8") && !accepts(&CIDR, "x"));
    }

    fn split<'t>(accept: fn(&str) -> bool, texts: &[&'t str]) -> (Vec<&'t str>, Vec<&'t str>) {
        texts.iter().copied().partition(|text| accept(text))
    }

    #[test]
    fn name_syntaxes_accept_valid_and_reject_invalid_names() {
        let (good, bad) = (
            ["a", "node-1.ec2.internal", "0"],
            ["", "A", "-a", "a-", "a..b", ".a", "a_b", "ä", "a\n"],
        );
        assert_eq!(split(is_dns_name, &good).1, [""; 0]);
        assert_eq!(split(is_dns_name, &bad).0, [""; 0]);
        let (good, bad) = (["c0FFee-1"], ["", "a_b", "a.b", "-a", "a-"]);
        assert_eq!(split(is_container_id, &good).1, [""; 0]);
        assert_eq!(split(is_container_id, &bad).0, [""; 0]);
        let (good, bad) = (
            ["*", "cali0123456789a", "eth0.1_x-"],
            ["", "cali0123456789ab", "a b", "a/b"],
        );
        assert_eq!(split(is_interface, &good).1, [""; 0]);
        assert_eq!(split(is_interface, &bad).0, [""; 0]);
        let (good, bad) = (
            ["http", "a-1", "1a"],
            ["", "80", "HTTP", "a--b", "-a", "a-", "abcdefghijklmnop"],
        );
        assert_eq!(split(is_port_name, &good).1, [""; 0]);
        assert_eq!(split(is_port_name, &bad).0, [""; 0]);
    }

    #[test]
    fn address_syntaxes_accept_valid_and_reject_invalid_addresses() {
        let good = ["10.0.0.1", "10.0.0.0/8", "fd00::/8", "fd00::1"];
        let bad = [
            "",
            "10.0.0.1/8",
            "10.0.0.256",
            "fd00::1/64",
            "10.0.0.0/33",
            "x",
        ];
        assert_eq!(split(is_network, &good).1, [""; 0]);
        assert_eq!(split(is_network, &bad).0, [""; 0]);
        assert_eq!(network("10.0.0.7/8").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(network("fd00::1").unwrap().to_string(), "fd00::1/128");
        assert_eq!(network("fd00::x"), None);
        let good = [
            "aa:BB:cc:dd:ee:ff",
            "aa-bb-cc-dd-ee-ff",
            "aabb.ccdd.eeff",
            "00:11:22:33:44:55:66:77",
        ];
        let bad = [
            "",
            "aabbccddeeff",
            "aa:bb:cc:dd:ee",
            "aa:bb:cc:dd:ee-ff",
            "a:b:c:d:e:f",
            "aabb.ccdd",
            "gg:bb:cc:dd:ee:ff",
        ];
        assert_eq!(split(is_mac, &good).1, [""; 0]);
        assert_eq!(split(is_mac, &bad).0, [""; 0]);
        assert!(is_mac(&["00"; 20].join(":")));
    }

    #[test]
    fn label_syntax_problems_are_named() {
        let good = ["a", "A_b.c-9", "example.com/x", &"n".repeat(63)];
        assert!(good.iter().all(|key| label_key_problem(key).is_none()));
        for (key, problem) in [
            ("", "name part must be non-empty"),
            ("a/", "name part must be non-empty"),
            ("/a", "prefix part must be non-empty"),
            ("A/b", "prefix part must be a DNS name"),
            ("a/b/c", "name part must consist of"),
            ("-a", "name part must consist of"),
            (
                &"n".repeat(64),
                "name part must be no more than 63 characters",
            ),
        ] {
            assert!(
                label_key_problem(key).is_some_and(|p| p.starts_with(problem)),
                "{key:?}"
            );
        }
        assert_eq!(label_value_problem(""), None);
        assert_eq!(label_value_problem("A_b.c-9"), None);
        assert!(label_value_problem("a b").is_some());
        assert!(label_value_problem("a/b").is_some());
        assert!(label_value_problem(&"v".repeat(64)).is_some());
    }

    #[test]
    fn values_in_errors_print_as_in_go() {
        assert_eq!(
            go_map(
                &[("b", "2"), ("a", "")]
                    .map(|(k, v)| (k.into(), v.into()))
                    .into()
            ),
            "map[a: b:2]"
        );
        assert_eq!(go_list(["a", "b"]), "[a b]");
    }
}
