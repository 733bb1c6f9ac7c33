//! Converts the peers of a rule, and the label selectors of Kubernetes to Calico's selector
//! language.

use std::net::Ipv4Addr;

use crate::api::RuleEntity;
use crate::kubernetes::{IpBlock, LabelExpression, LabelSelector, PolicyPeer};
use crate::net::{Cidr, CidrParseError};
use crate::workload::ORCHESTRATOR_LABEL;

const IPV4_MAPPED_PREFIX: u8 = 96;

pub(super) fn peers(given: &[PolicyPeer]) -> Result<Vec<RuleEntity>, CidrParseError> {
    if given.is_empty() {
        Ok(vec![RuleEntity::default()])
    } else {
        given.iter().map(peer).collect()
    }
}

fn peer(given: &PolicyPeer) -> Result<RuleEntity, CidrParseError> {
    if let Some(IpBlock { cidr, except }) = &given.ip_block {
        let nets = vec![network(cidr)?];
        let not_nets = except
            .iter()
            .map(|excluded| network(excluded))
            .collect::<Result<_, _>>()?;
        return Ok(RuleEntity {
            nets,
            not_nets,
            ..RuleEntity::default()
        });
    }
    Ok(RuleEntity {
        selector: selector(given.pod_selector.as_ref(), SelectorTarget::Pods),
        namespace_selector: selector(
            given.namespace_selector.as_ref(),
            SelectorTarget::Namespaces,
        ),
        ..RuleEntity::default()
    })
}

/// Returns a network in canonical form.
fn network(text: &str) -> Result<String, CidrParseError> {
    let cidr = text
        .parse::<Cidr>()
        .or_else(|error| parse_with_leading_zeros(text).ok_or(error))?;
    let address = cidr.network().to_canonical();
    let is_mapped = address != cidr.network();
    let prefix = cidr
        .prefix()
        .checked_sub(IPV4_MAPPED_PREFIX)
        .filter(|_| is_mapped);
    let mapped = prefix.and_then(|prefix| Cidr::new(address, prefix));
    Ok(mapped.unwrap_or(cidr).to_string())
}

/// Parses `010.0.0.0/8` as 10.0.0.0/8, like the API server; other programs read it as octal or
/// reject it.
fn parse_with_leading_zeros(text: &str) -> Option<Cidr> {
    let (address, prefix) = text.split_once('/')?;
    let octets = address
        .split('.')
        .map(decimal)
        .collect::<Option<Vec<u8>>>()?;
    let octets: [u8; 4] = octets.try_into().ok()?;
    Cidr::new(Ipv4Addr::from(octets).into(), decimal(prefix)?)
}

fn decimal(text: &str) -> Option<u8> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SelectorTarget {
    /// Pods, but neither host endpoints nor endpoints of other orchestrators.
    Pods,
    /// Namespaces.
    Namespaces,
}

/// Returns the text of a selector. A missing selector of namespaces gives an empty text, an empty
/// one gives `all()` (KC-305). No value is escaped, because labels cannot contain quotes.
pub(super) fn selector(given: Option<&LabelSelector>, target: SelectorTarget) -> String {
    let mut terms = Vec::new();
    if target == SelectorTarget::Pods {
        terms.push(format!("{ORCHESTRATOR_LABEL} == 'k8s'"));
    }
    let Some(given) = given else {
        return terms.join(" && ");
    };
    terms.extend(
        given
            .match_labels
            .iter()
            .map(|(key, value)| format!("{key} == '{value}'")),
    );
    terms.extend(given.match_expressions.iter().filter_map(expression));
    let is_empty = given.match_labels.is_empty() && given.match_expressions.is_empty();
    if target == SelectorTarget::Namespaces && is_empty {
        "all()".into()
    } else {
        terms.join(" && ")
    }
}

/// Returns the term of an expression. Upstream, too, skips an unknown operator.
fn expression(given: &LabelExpression) -> Option<String> {
    let key = &given.key;
    let values = || given.values.join("', '");
    match given.operator.as_str() {
        "In" => Some(format!("{key} in {{ '{}' }}", values())),
        "NotIn" => Some(format!("{key} not in {{ '{}' }}", values())),
        "Exists" => Some(format!("has({key})")),
        "DoesNotExist" => Some(format!("! has({key})")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_networks_are_masked_and_normalized() {
        for (text, expected) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("010.001.000.7/016", "10.1.0.0/16"),
            ("2001:DB8::5/32", "2001:db8::/32"),
            ("::ffff:10.1.0.0/112", "10.1.0.0/16"),
            ("::ffff:0:0/95", "::fffe:0:0/95"),
            ("0.0.0.0/0", "0.0.0.0/0"),
        ] {
            assert_eq!(network(text).unwrap(), expected, "{text}");
        }
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0/8",
            "10.0.0.256/8",
            "10.0.0.0/+8",
            "0x0a.0.0.0/8",
            "x/8",
        ] {
            assert!(network(text).is_err(), "{text}");
        }
    }
}
