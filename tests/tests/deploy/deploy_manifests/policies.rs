//! The oldest supported version of Kubernetes, and the expressions of
//! `components/node-restriction`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use integration_tests::images::in_tree;
use integration_tests::kubernetes::oldest_version;
use integration_tests::manifests::{deploy, parse};
use regex::Regex;
use serde_json::{Value, json};

/// The documents and comments that can name a version of Kubernetes.
const NAMING: [&str; 9] = [
    "README.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "docs",
    "deploy/README.md",
    "deploy/components",
    "deploy/examples",
    "deploy/helm/calico-cni",
    "kube-controllers/README.md",
];

/// The functions of CEL in Kubernetes 1.31 that the policies call.
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
            .flat_map(
                |(name, value)| match value.as_str().filter(|_| name == "expression") {
                    Some(expression) => vec![expression],
                    None => expressions(value),
                },
            )
            .collect(),
        Value::Array(items) => items.iter().flat_map(expressions).collect(),
        _ => Vec::new(),
    }
}

/// Returns the names of the functions that expressions call.
pub(super) fn called_functions<'e>(expressions: &[&'e str]) -> BTreeSet<&'e str> {
    let call = Regex::new(r"\b(\w+)\(").unwrap();
    let calls = expressions.iter().flat_map(|text| {
        call.captures_iter(text)
            .map(|one| one.get(1).unwrap().as_str())
    });
    calls.collect()
}

/// Returns the texts of a file, or of the files below a directory. Links are not followed: the
/// chart links to `deploy`.
fn texts(path: &Path) -> Vec<(PathBuf, String)> {
    if path.is_symlink() {
        return Vec::new();
    }
    match fs::read_dir(path) {
        Ok(entries) => entries
            .flat_map(|entry| texts(&entry.unwrap().path()))
            .collect(),
        Err(_) => vec![(path.to_owned(), fs::read_to_string(path).unwrap())],
    }
}

/// Returns the minor version of the oldest supported Kubernetes. Kubernetes 1.31 refuses the
/// definition of IPPool, ours and upstream's: "estimated rule cost exceeds budget".
fn oldest() -> u32 {
    oldest_version()
        .unwrap()
        .split('.')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn documents_and_chart_name_the_oldest_supported_kubernetes() {
    let oldest = oldest();
    let promise = format!("You need Kubernetes 1.{oldest} or newer");
    for document in ["README.md", "docs/install.md"] {
        assert!(
            fs::read_to_string(in_tree(document))
                .unwrap()
                .contains(&promise),
            "{document}"
        );
    }
    let chart: Value =
        serde_norway::from_str(&fs::read_to_string(deploy("helm/calico-cni/Chart.yaml")).unwrap())
            .unwrap();
    assert_eq!(chart["kubeVersion"], format!(">=1.{oldest}.0-0"));
    // Another sentence about an older version would be a second promise. A removal in an old
    // version is a fact.
    let named = Regex::new(
        r"Kubernetes v?1\.(\d+) (or newer|and newer|has|can)|(needs|before) Kubernetes v?1\.(\d+)",
    )
    .unwrap();
    for (path, text) in NAMING
        .iter()
        .flat_map(|name| texts(Path::new(&in_tree(name))))
    {
        for found in named.captures_iter(&text) {
            let version: u32 = found
                .get(1)
                .or(found.get(4))
                .unwrap()
                .as_str()
                .parse()
                .unwrap();
            assert!(version >= oldest, "{}: {}", path.display(), &found[0]);
        }
    }
}

/// Kubernetes accepts a new expression only if the version before its own knows it, so that a way
/// back is possible. Shows SEC-89.
#[test]
fn policies_call_only_functions_of_the_oldest_supported_kubernetes() {
    let text = fs::read_to_string(deploy("components/node-restriction/policies.yaml")).unwrap();
    let objects = parse(&text).unwrap();
    let found: Vec<&str> = objects.values().flat_map(expressions).collect();
    assert!(found.len() > 20, "{found:?}");
    assert_eq!(called_functions(&found), FUNCTIONS.into());
}

/// `kubectl apply` leaves the objects of a component in the cluster, and then the agents get no
/// token.
#[test]
fn way_back_from_node_restriction_names_every_policy() {
    let page = fs::read_to_string(in_tree("docs/options.md")).unwrap();
    let (_, way_back) = page
        .split_once("### The way back from a component\n")
        .unwrap();
    let item = way_back
        .lines()
        .find(|line| line.starts_with("- **`node-restriction`**"))
        .unwrap();
    let read = |name: &str| {
        fs::read_to_string(deploy(&format!("components/node-restriction/{name}"))).unwrap()
    };
    let texts = ["policies.yaml", "rbac.yaml"].map(read);
    let objects: Vec<_> = texts
        .iter()
        .flat_map(|text| parse(text).unwrap().into_values())
        .collect();
    assert!(objects.len() > 10, "{objects:?}");
    for object in objects {
        let name = object["metadata"]["name"].as_str().unwrap();
        assert!(item.contains(&format!("`{name}`")), "{name}");
    }
    let tokens = &texts[0];
    assert!(
        tokens.contains("the component node-restriction, delete its policies (docs/options.md)")
    );
}

#[test]
fn each_policy_is_bound_and_refuses_what_it_cannot_evaluate() {
    let text = fs::read_to_string(deploy("components/node-restriction/policies.yaml")).unwrap();
    let objects = parse(&text).unwrap();
    let of_kind = |kind: &str| -> Vec<&Value> {
        objects
            .values()
            .filter(|object| object["kind"] == kind)
            .collect()
    };
    let (policies, bindings) = (
        of_kind("ValidatingAdmissionPolicy"),
        of_kind("ValidatingAdmissionPolicyBinding"),
    );
    assert_eq!((policies.len(), bindings.len()), (5, 5));
    for (policy, binding) in policies.into_iter().zip(bindings) {
        assert_eq!(policy["apiVersion"], "admissionregistration.k8s.io/v1");
        assert_eq!(policy["spec"]["failurePolicy"], "Fail");
        assert_eq!(
            binding["spec"],
            json!({ "policyName": policy["metadata"]["name"], "validationActions": ["Deny"] })
        );
    }
}
