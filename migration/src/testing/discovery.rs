//! The kinds that the API server in memory serves: some of Kubernetes, and those of the stored
//! definitions.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// A kind in one version of its group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ServedKind {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) plural: String,
    pub(super) kind: String,
    pub(super) namespaced: bool,
    /// True if the status is a subresource.
    pub(super) has_status: bool,
    /// True if a CustomResourceDefinition defines the kind.
    pub(super) is_custom: bool,
}

/// Group, version, plural, kind and scope of Kubernetes' own kinds.
const BUILT_IN: [(&str, &str, &str, &str, bool); 9] = [
    ("", "v1", "configmaps", "ConfigMap", true),
    ("", "v1", "namespaces", "Namespace", false),
    ("", "v1", "pods", "Pod", true),
    (
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        false,
    ),
    (
        "apiregistration.k8s.io",
        "v1",
        "apiservices",
        "APIService",
        false,
    ),
    ("apps", "v1", "daemonsets", "DaemonSet", true),
    ("apps", "v1", "deployments", "Deployment", true),
    (
        "authorization.k8s.io",
        "v1",
        "selfsubjectaccessreviews",
        "SelfSubjectAccessReview",
        false,
    ),
    (
        "authorization.k8s.io",
        "v1",
        "selfsubjectrulesreviews",
        "SelfSubjectRulesReview",
        false,
    ),
];

pub(super) fn built_in() -> impl Iterator<Item = ServedKind> {
    BUILT_IN
        .into_iter()
        .map(|(group, version, plural, kind, namespaced)| ServedKind {
            group: group.into(),
            version: version.into(),
            plural: plural.into(),
            kind: kind.into(),
            namespaced,
            has_status: false,
            is_custom: false,
        })
}

/// Returns the kind in each served version of a CustomResourceDefinition.
pub(super) fn defined_by(definition: &Value) -> Vec<ServedKind> {
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let versions = spec["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|version| version["served"] == true);
    versions
        .map(|version| ServedKind {
            group: text(&spec["group"]),
            version: text(&version["name"]),
            plural: text(&spec["names"]["plural"]),
            kind: text(&spec["names"]["kind"]),
            namespaced: spec["scope"] == "Namespaced",
            has_status: version["subresources"]["status"].is_object(),
            is_custom: true,
        })
        .collect()
}

/// Returns the response to a path of the discovery, or `None` if the path is unknown.
pub(super) fn describe(kinds: &[ServedKind], path: &str) -> Option<Value> {
    let words: Vec<&str> = path.trim_matches('/').split('/').collect();
    match words.as_slice() {
        ["apis"] => {
            let groups: BTreeSet<_> = kinds
                .iter()
                .map(|kind| kind.group.as_str())
                .filter(|g| !g.is_empty())
                .collect();
            let groups: Vec<_> = groups
                .into_iter()
                .filter_map(|group| group_of(kinds, group))
                .collect();
            Some(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups }))
        }
        ["apis", group] => group_of(kinds, group),
        ["apis", group, version] => {
            let served = kinds
                .iter()
                .filter(|kind| kind.group == *group && kind.version == *version);
            let resources: Vec<_> = served
                .map(|kind| json!({ "name": kind.plural, "kind": kind.kind, "namespaced": kind.namespaced }))
                .collect();
            let is_served = !resources.is_empty();
            let group_version = format!("{group}/{version}");
            is_served.then(|| {
                json!({
                    "kind": "APIResourceList", "groupVersion": group_version,
                    "resources": resources,
                })
            })
        }
        _ => None,
    }
}

fn group_of(kinds: &[ServedKind], group: &str) -> Option<Value> {
    let versions: BTreeSet<_> = kinds
        .iter()
        .filter(|kind| kind.group == group)
        .map(|kind| kind.version.as_str())
        .collect();
    let versions: Vec<_> = versions
        .into_iter()
        .map(|version| json!({ "groupVersion": format!("{group}/{version}"), "version": version }))
        .collect();
    let found =
        json!({ "kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": versions });
    (!versions.is_empty()).then_some(found)
}
