//! Rules for Calico's policies, as far as every reader requires them.

use super::metadata::check_metadata;
use super::syntax::network;
use crate::api::{DEFAULT_TIER, Object, PolicyKind, PolicySpec, Port, Rule};
use crate::names::is_dns_name;
use crate::selector::Selector;
use crate::validation_error::{FieldError, ValidationError};

/// The label with the tier of a policy, for clients that list by label.
const TIER_LABEL: &str = "projectcalico.org/tier";

/// The prefixes of the names of policies that are converted from those of other systems (KC-225).
const FOREIGN_PREFIXES: [&str; 2] = ["knp.default.", "ossg.default."];

type Policy<K> = Object<PolicySpec<K>>;

/// Completes a policy, checks it, and returns the policy to store.
pub fn admit_policy<K: PolicyKind>(mut policy: Policy<K>) -> Result<Policy<K>, ValidationError> {
    complete(&mut policy);
    let mut findings = check_metadata(&policy);
    check_name::<K>(&policy.metadata.name, &mut findings);
    let spec = &policy.spec;
    check_selector("Selector", &spec.selector, &mut findings);
    for direction in spec
        .types
        .iter()
        .filter(|direction| !matches!(direction.as_str(), "Ingress" | "Egress"))
    {
        findings.push(FieldError::tag("Types", direction, "policyType"));
    }
    spec.ingress
        .iter()
        .chain(&spec.egress)
        .for_each(|rule| check_rule(rule, &mut findings));
    ValidationError::from_findings(findings).map(|()| policy)
}

fn complete<K: PolicyKind>(policy: &mut Policy<K>) {
    let spec = &mut policy.spec;
    if spec.tier.is_empty() {
        spec.tier = DEFAULT_TIER.into();
    }
    if spec.types.is_empty() {
        let directions = [
            (
                "Ingress",
                spec.egress.is_empty() || !spec.ingress.is_empty(),
            ),
            ("Egress", !spec.egress.is_empty()),
        ];
        spec.types = directions
            .into_iter()
            .filter(|(_, is_for)| *is_for)
            .map(|(name, _)| name.into())
            .collect();
    }
    policy
        .metadata
        .labels
        .insert(TIER_LABEL.into(), policy.spec.tier.clone());
}

/// Checks that the name is a DNS label, with or without a tier before it, or the name of a
/// converted policy.
fn check_name<K: PolicyKind>(name: &str, findings: &mut Vec<FieldError>) {
    let is_foreign = K::NAMESPACED
        && FOREIGN_PREFIXES
            .iter()
            .any(|prefix| name.strip_prefix(prefix).is_some_and(is_dns_name));
    let is_own = is_dns_name(name) && name.split('.').count() <= 2;
    if !is_own && !is_foreign {
        let reason = "name must be a DNS label, optionally after the name of the tier and a dot";
        findings.push(FieldError::new("Metadata.Name", name, reason));
    }
}

fn check_rule(rule: &Rule, findings: &mut Vec<FieldError>) {
    check_action(rule, findings);
    let has_ports = rule
        .protocol
        .as_ref()
        .is_some_and(|protocol| protocol.has_ports());
    for side in [&rule.source, &rule.destination] {
        check_selector("Selector", &side.selector, findings);
        check_selector("NamespaceSelector", &side.namespace_selector, findings);
        let numeric = side
            .ports
            .iter()
            .find(|port| matches!(port, Port::Numbers(..)));
        if let Some(port) = numeric.filter(|_| !has_ports) {
            let reason = "rules that specify ports must set protocol to TCP or UDP or SCTP";
            findings.push(FieldError::new("EntityRule.Ports", port, reason));
        }
    }
    check_networks(rule, findings);
}

/// Checks that all networks of a rule are valid and of the same family, and that no exception is
/// the whole address space.
fn check_networks(rule: &Rule, findings: &mut Vec<FieldError>) {
    let sides = [&rule.source, &rule.destination];
    let mut family = None;
    for (field, text) in sides.into_iter().flat_map(|side| {
        let nets = side.nets.iter().map(|text| ("Nets", text));
        nets.chain(side.not_nets.iter().map(|text| ("NotNets", text)))
    }) {
        let Some(network) = network(text) else {
            findings.push(FieldError::tag(field, text, "net"));
            continue;
        };
        if field == "NotNets" && network.prefix() == 0 {
            findings.push(FieldError::new(
                field,
                text,
                "cannot exclude the whole address space",
            ));
        }
        if *family.get_or_insert(network.version()) != network.version() {
            findings.push(FieldError::new(
                field,
                text,
                "rule contains both IPv4 and IPv6 CIDRs",
            ));
        }
    }
}

pub(super) fn check_action(rule: &Rule, findings: &mut Vec<FieldError>) {
    if !matches!(rule.action.as_str(), "Allow" | "Deny" | "Log" | "Pass") {
        findings.push(FieldError::tag("Action", &rule.action, "action"));
    }
}

pub(super) fn check_selector(field: &str, text: &str, findings: &mut Vec<FieldError>) {
    if Selector::parse(text).is_err() {
        findings.push(FieldError::tag(field, text, "selector"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::{GlobalNetworkPolicy, NetworkPolicy};

    fn policy(name: &str, spec: Value) -> NetworkPolicy {
        let metadata = json!({"name": name, "namespace": "ns"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    fn problems(name: &str, spec: Value) -> Vec<String> {
        match admit_policy(policy(name, spec)) {
            Ok(_) => Vec::new(),
            Err(error) => error.fields().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn missing_policy_tier_and_types_get_their_defaults() {
        let admitted = |spec: Value| {
            let admitted = admit_policy(policy("a", spec)).unwrap();
            assert_eq!(admitted.metadata.labels[TIER_LABEL], admitted.spec.tier);
            (admitted.spec.tier, admitted.spec.types.join(" "))
        };
        let expected = |tier: &str, types: &str| (tier.to_owned(), types.to_owned());
        assert_eq!(admitted(json!({})), expected("default", "Ingress"));
        let allow = json!([{"action": "Allow"}]);
        assert_eq!(
            admitted(json!({"egress": allow, "tier": "t"})),
            expected("t", "Egress")
        );
        assert_eq!(
            admitted(json!({"egress": allow, "ingress": allow})),
            expected("default", "Ingress Egress")
        );
        assert_eq!(
            admitted(json!({"types": ["Egress"]})),
            expected("default", "Egress")
        );
    }

    #[test]
    fn policy_names_are_validated() {
        for name in [
            "a",
            "tier.a",
            "knp.default.a",
            "knp.default.a.b.c",
            "ossg.default.a",
        ] {
            assert_eq!(problems(name, json!({})), [""; 0], "{name}");
        }
        for name in ["a.b.c", "knp.other.a", "knp.default.A"] {
            assert!(!problems(name, json!({})).is_empty(), "{name}");
        }
        // As with upstream, a policy with such a long name cannot be stored in etcd (KC-225).
        let long = format!("knp.default.{}", "n".repeat(242));
        assert!(problems(&long, json!({}))[0].contains("name is too long by 1 bytes"));
        let global: GlobalNetworkPolicy =
            serde_json::from_value(json!({"metadata": {"name": "knp.default.a"}})).unwrap();
        assert!(admit_policy(global).is_err());
    }

    #[test]
    fn policy_rules_are_validated() {
        let rule = |rule: Value| problems("a", json!({"selector": "a == 'b'", "ingress": [rule]}));
        assert_eq!(
            rule(json!({"action": "Allow", "protocol": "TCP", "destination": {"ports": [80]}})),
            [""; 0]
        );
        assert_eq!(
            rule(json!({"action": "Allow", "destination": {"ports": ["http"]}})),
            [""; 0]
        );
        for (wrong, field) in [
            (json!({"action": "Maybe"}), "Action = 'Maybe'"),
            (
                json!({"action": "Allow", "destination": {"ports": ["1:2"]}}),
                "EntityRule.Ports = '1:2'",
            ),
            (
                json!({"action": "Allow", "protocol": "foo", "source": {"ports": [1]}}),
                "EntityRule.Ports = '1'",
            ),
            (
                json!({"action": "Allow", "source": {"selector": "a =="}}),
                "Selector = 'a =='",
            ),
            (
                json!({"action": "Allow", "source": {"namespaceSelector": "("}}),
                "NamespaceSelector = '('",
            ),
            (
                json!({"action": "Allow", "source": {"nets": ["x"]}}),
                "Nets = 'x'",
            ),
            (
                json!({"action": "Allow", "source": {"notNets": ["::/0"]}}),
                "NotNets = '::/0'",
            ),
            (
                json!({
                    "action": "Allow", "source": {"nets": ["10.0.0.0/8"]},
                    "destination": {"nets": ["::/8"]},
                }),
                "Nets = '::/8'",
            ),
        ] {
            let problems = rule(wrong);
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].starts_with(field), "{problems:?}");
        }
        assert!(problems("a", json!({"selector": "="}))[0].starts_with("Selector"));
        assert!(problems("a", json!({"types": ["Both"]}))[0].starts_with("Types"));
    }
}
