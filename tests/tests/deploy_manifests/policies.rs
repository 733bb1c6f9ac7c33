//! The expressions of `components/node-restriction`.

use std::collections::BTreeSet;
use std::fs;

use integration_tests::manifests::{deploy, parse};
use regex::Regex;
use serde_json::{Value, json};

/// The functions of CEL in Kubernetes 1.30 that the policies call.
const FUNCTIONS: [&str; 13] = [
    // Of the language.
    "all",
    "dyn",
    "endsWith",
    "size",
    "startsWith",
    // Of ranges, since 1.30; `string` is also one of the language.
    "cidr",
    "masked",
    "string",
    // Of texts, in the form of 1.29.
    "lowerAscii",
    "replace",
    "substring",
    // Of optional fields, since 1.28.
    "hasValue",
    "orValue",
];

/// Returns all expressions of an object.
pub(super) fn expressions(value: &Value) -> Vec<&str> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| match value.as_str().filter(|_| name == "expression") {
                Some(expression) => vec![expression],
                None => expressions(value),
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(expressions).collect(),
        _ => Vec::new(),
    }
}

/// Returns the names of the functions that expressions call.
pub(super) fn called_functions<'e>(expressions: &[&'e str]) -> BTreeSet<&'e str> {
    let call = Regex::new(r"\b(\w+)\(").unwrap();
    let calls = expressions.iter().flat_map(|text| call.captures_iter(text).map(|one| one.get(1).unwrap().as_str()));
    calls.collect()
}

/// Kubernetes 1.31 accepts a new expression only if 1.30 knows it, so that a way back is possible.
#[test]
fn policies_call_only_functions_of_kubernetes_1_30() {
    let text = fs::read_to_string(deploy("components/node-restriction/policies.yaml")).unwrap();
    let objects = parse(&text).unwrap();
    let found: Vec<&str> = objects.values().flat_map(expressions).collect();
    assert!(found.len() > 20, "{found:?}");
    assert_eq!(called_functions(&found), FUNCTIONS.into());
}

#[test]
fn each_policy_is_bound_and_refuses_what_it_cannot_evaluate() {
    let text = fs::read_to_string(deploy("components/node-restriction/policies.yaml")).unwrap();
    let objects = parse(&text).unwrap();
    let of_kind = |kind: &str| -> Vec<&Value> { objects.values().filter(|object| object["kind"] == kind).collect() };
    let (policies, bindings) = (of_kind("ValidatingAdmissionPolicy"), of_kind("ValidatingAdmissionPolicyBinding"));
    assert_eq!((policies.len(), bindings.len()), (5, 5));
    for (policy, binding) in policies.into_iter().zip(bindings) {
        assert_eq!(policy["apiVersion"], "admissionregistration.k8s.io/v1");
        assert_eq!(policy["spec"]["failurePolicy"], "Fail");
        assert_eq!(binding["spec"], json!({ "policyName": policy["metadata"]["name"], "validationActions": ["Deny"] }));
    }
}
