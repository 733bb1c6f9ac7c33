//! Compares the conversion with upstream's recorded output, and tests its properties.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// The recorded policies that upstream converts differently, and the difference.
const DIFFERENCES: [(&str, &str); 2] = [
    (
        "C19 bad-cidr",
        "the CIDR means what the API server takes it for; upstream allows every address",
    ),
    (
        "C20 bad-except",
        "all exceptions are kept; upstream drops an exception that it cannot parse, and all after \
         it",
    ),
];

fn converted(spec: Value) -> ConvertedPolicy {
    network_policy(&serde_json::from_value(spec).unwrap())
}

fn goldens() -> Vec<Value> {
    serde_norway::from_str(include_str!("../../../testdata/network-policies.yaml")).unwrap()
}

#[test]
fn converted_policies_match_upstreams_golden_output() {
    let goldens = goldens();
    assert_eq!(goldens.len(), 28);
    for golden in &goldens {
        let name = golden["name"].as_str().unwrap();
        let ConvertedPolicy {
            spec,
            rejected_rules,
        } = converted(golden["in"].clone());
        let same = serde_json::to_value(&spec).unwrap() == golden["out"];
        let wanted = DIFFERENCES.iter().any(|(wanted, _)| *wanted == name);
        assert_eq!(
            same,
            !wanted,
            "{name}: {}",
            serde_json::to_string_pretty(&spec).unwrap()
        );
        let errors: Vec<String> = rejected_rules
            .iter()
            .map(|rule| rule.problem.to_string())
            .collect();
        assert_eq!(
            errors,
            golden["error"].as_str().into_iter().collect::<Vec<_>>(),
            "{name}"
        );
        assert!(
            serde_json::from_value::<NetworkPolicySpec>(golden["in"].clone()).is_ok(),
            "{name}"
        );
    }
}

#[test]
fn rule_with_an_unparsable_network_is_dropped() {
    let rules = |peers: Value| {
        let converted = converted(json!({"ingress": [{"from": peers}, {"ports": [{"port": 80}]}]}));
        let rejected_rules: Vec<String> = converted
            .rejected_rules
            .iter()
            .map(RejectedRule::to_string)
            .collect();
        (
            serde_json::to_value(converted.spec.ingress).unwrap(),
            rejected_rules,
        )
    };
    let second = json!({"action": "Allow", "protocol": "TCP", "destination": {"ports": [80]}});
    let zeros = json!([{
        "ipBlock": {"cidr": "010.0.0.0/8", "except": ["10.1.0.0/16", "010.2.0.0/16", "10.3.0.0/16"]}
    }]);
    let first = json!({"action": "Allow", "source":
        {"nets": ["10.0.0.0/8"], "notNets": ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"]}});
    assert_eq!(rules(zeros), (json!([first, second]), vec![]));
    let text = |cidr: &str| {
        vec![format!(
            "ingress[0]: cannot parse the network of an ipBlock: invalid CIDR address: {cidr}"
        )]
    };
    for (wrong, cidr) in [
        (json!([{"ipBlock": {"cidr": "10.0.0.0"}}]), "10.0.0.0"),
        (
            json!([
                {"podSelector": {}},
                {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "any"]}},
            ]),
            "any",
        ),
        (json!([{"ipBlock": {}}]), ""),
    ] {
        assert_eq!(rules(wrong), (json!([second]), text(cidr)));
    }
}

#[test]
fn empty_rules_allow_all_and_unknown_operators_are_dropped() {
    let spec = converted(json!({
        "podSelector": {
            "matchExpressions": [
                {"key": "a", "operator": "Near", "values": ["b"]},
                {"key": "c", "operator": "Exists"},
            ]
        },
        "ingress": [{"from": [], "ports": []}],
        "policyTypes": ["Sideways"],
    }))
    .spec;
    assert_eq!(
        spec.selector,
        "projectcalico.org/orchestrator == 'k8s' && has(c)"
    );
    assert_eq!(spec.ingress, [Rule::allow()]);
    assert_eq!(spec.types, ["Ingress"]);
    assert_eq!(
        converted(json!({})).spec.selector,
        "projectcalico.org/orchestrator == 'k8s'"
    );
}

fn any_port() -> impl Strategy<Value = Value> {
    let port = prop_oneof![
        (-5i64..70000).prop_map(Value::from),
        "[a-z0-9:]{0,6}".prop_map(Value::from)
    ];
    let protocol = prop_oneof![Just("TCP"), Just("udp"), Just("6"), Just("")];
    (
        proptest::option::of(port),
        proptest::option::of(protocol),
        proptest::option::of(0i64..70000),
    )
        .prop_map(|(port, protocol, end)| {
            let mut entry = json!({});
            if let Some(port) = port {
                entry["port"] = port;
            }
            if let Some(protocol) = protocol {
                entry["protocol"] = protocol.into();
            }
            if let Some(end) = end {
                entry["endPort"] = end.into();
            }
            entry
        })
}

fn any_selector() -> impl Strategy<Value = Value> {
    let labels = proptest::collection::btree_map("[a-c]", "[x-z]{0,2}", 0..3);
    let expression = (
        "[a-c]",
        prop_oneof![Just("In"), Just("NotIn"), Just("Exists"), Just("Odd")],
        "[x-z]",
    )
        .prop_map(
            |(key, operator, value)| json!({"key": key, "operator": operator, "values": [value]}),
        );
    (labels, proptest::collection::vec(expression, 0..3)).prop_map(
        |(labels, expressions)| json!({"matchLabels": labels, "matchExpressions": expressions}),
    )
}

fn any_peer() -> impl Strategy<Value = Value> {
    prop_oneof![
        any_selector().prop_map(|selector| json!({"podSelector": selector})),
        any_selector().prop_map(|selector| json!({"namespaceSelector": selector})),
        "[0-9]{1,3}\\.0\\.0\\.0/[0-9]{1,2}|[0-9a-f:./]{0,9}"
            .prop_map(|cidr| json!({"ipBlock": {"cidr": cidr}})),
        Just(json!({})),
    ]
}

fn any_policy() -> impl Strategy<Value = Value> {
    let rule = |peers: &'static str| {
        (
            proptest::collection::vec(any_peer(), 0..3),
            proptest::collection::vec(any_port(), 0..4),
        )
            .prop_map(move |(listed, ports)| json!({peers: listed, "ports": ports}))
    };
    (
        any_selector(), proptest::collection::vec(rule("from"), 0..4),
        proptest::collection::vec(rule("to"), 0..4),
    )
        .prop_map(|(pods, ingress, egress)| json!({"podSelector": pods, "ingress": ingress, "egress": egress}))
}

proptest! {
    /// Only a rule that has neither ports nor peers becomes a rule for all traffic.
    #[test]
    fn policy_conversion_is_deterministic_and_its_output_parses(policy in any_policy()) {
        let once = converted(policy.clone());
        prop_assert_eq!(&converted(policy.clone()), &once, "the same each time");
        let stored = serde_json::to_value(&once.spec).unwrap();
        prop_assert_eq!(
            &serde_json::from_value::<PolicySpec<InNamespace>>(stored).unwrap(),
            &once.spec,
        );
        let rules = || once.spec.ingress.iter().chain(&once.spec.egress);
        let selectors = rules()
            .flat_map(|rule| [&rule.source, &rule.destination])
            .flat_map(|side| [&side.selector, &side.namespace_selector])
            .chain([&once.spec.selector]);
        for text in selectors {
            prop_assert!(crate::selector::Selector::parse(text).is_ok(), "{}", text);
        }
        let given = policy["ingress"].as_array().unwrap().len()
            + policy["egress"].as_array().unwrap().len();
        let unrestricted = |rule: &&Rule| {
            rule.protocol.is_none() && rule.source.is_anything() && rule.destination.is_anything()
        };
        let anything = ["ingress", "egress"]
            .iter()
            .flat_map(|list| policy[*list].as_array().unwrap())
            .filter(|rule| {
                rule["ports"] == json!([]) && (rule["from"] == json!([]) || rule["to"] == json!([]))
            });
        prop_assert_eq!(
            rules().filter(unrestricted).count(),
            anything.count(),
            "only rules for anything allow anything",
        );
        prop_assert!(once.rejected_rules.len() <= given);
    }
}
