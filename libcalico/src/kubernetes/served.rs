//! [`ServedGroups`] and [`has_kind`]: the groups and kinds of an API server, as its discovery
//! endpoints list them.
//!
//! A server answers 404 for a kind that it does not serve, and so may a proxy for any path.
//! Discovery distinguishes the two cases.

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The path of the list of groups.
pub const API_GROUPS_PATH: &str = "/apis";

/// An answer that is not the list that was requested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct DiscoveryError {
    path: String,
    problem: String,
}

/// The groups that an API server serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedGroups(Vec<Group>);

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Group {
    name: String,
    versions: Vec<Version>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    group_version: String,
}

#[derive(Deserialize)]
struct Groups {
    kind: String,
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kinds {
    kind: String,
    group_version: String,
    resources: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

impl ServedGroups {
    /// Parses the server's answer at [`API_GROUPS_PATH`].
    ///
    /// # Errors
    /// If the answer is not a list of groups, or is an empty list.
    pub fn read(json: &str) -> Result<Self, DiscoveryError> {
        let Groups { kind, groups } = parse(API_GROUPS_PATH, json)?;
        if kind != "APIGroupList" || groups.is_empty() {
            let problem = format!(
                "expected an APIGroupList, found a {kind:?} of {} groups",
                groups.len()
            );
            return Err(error(API_GROUPS_PATH, problem));
        }
        Ok(ServedGroups(groups))
    }

    /// Returns the versions of a group, each as `group/version`.
    pub fn versions<'a>(&'a self, group: &'a str) -> impl Iterator<Item = &'a str> {
        let of_group = self.0.iter().filter(move |served| served.name == group);
        of_group
            .flat_map(|served| &served.versions)
            .map(|version| &*version.group_version)
    }
}

/// Returns the path of the list of kinds of a `group/version`.
pub fn kinds_path(group_version: &str) -> String {
    format!("{API_GROUPS_PATH}/{group_version}")
}

/// Parses the server's answer at [`kinds_path`]. Returns true if the answer lists one of the kinds.
///
/// # Errors
/// If the answer is not a list of the kinds of this version.
pub fn has_kind(group_version: &str, json: &str, plurals: &[&str]) -> Result<bool, DiscoveryError> {
    let path = kinds_path(group_version);
    let Kinds {
        kind,
        group_version: found,
        resources,
    } = parse(&path, json)?;
    if kind != "APIResourceList" || found != group_version {
        let problem = format!(
            "expected an APIResourceList of {group_version:?}, found a {kind:?} of {found:?}"
        );
        return Err(error(&path, problem));
    }
    Ok(resources
        .iter()
        .any(|resource| plurals.contains(&&*resource.name)))
}

fn parse<T: DeserializeOwned>(path: &str, json: &str) -> Result<T, DiscoveryError> {
    serde_json::from_str(json).map_err(|cause| error(path, cause.to_string()))
}

fn error(path: &str, problem: String) -> DiscoveryError {
    DiscoveryError {
        path: path.to_owned(),
        problem,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn served_groups_and_kinds_are_read_from_discovery() {
        let groups = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [
            {"name": "apps", "versions": [{"groupVersion": "apps/v1", "version": "v1"}]},
            {
                "name": "kubevirt.io",
                "versions": [
                    {"groupVersion": "kubevirt.io/v1"}, {"groupVersion": "kubevirt.io/v1alpha3"},
                ],
            },
        ]});
        let served = ServedGroups::read(&groups.to_string()).unwrap();
        assert_eq!(
            served.versions("kubevirt.io").collect::<Vec<_>>(),
            ["kubevirt.io/v1", "kubevirt.io/v1alpha3"]
        );
        assert_eq!(served.versions("gone.io").count(), 0);
        let kinds = json!({
            "kind": "APIResourceList", "groupVersion": "apps/v1",
            "resources": [{"name": "deployments"}],
        });
        for (plural, expected) in [("deployments", true), ("daemonsets", false)] {
            assert_eq!(
                has_kind("apps/v1", &kinds.to_string(), &[plural]),
                Ok(expected)
            );
        }
    }

    #[test]
    fn unexpected_discovery_responses_are_an_error() {
        for groups in [
            json!({}),
            json!({"kind": "APIGroupList", "groups": []}),
            json!({"kind": "APIGroupList"}),
            json!({"kind": "Status", "groups": [{"name": "apps", "versions": []}]}),
            json!("404 page not found"),
        ] {
            assert!(ServedGroups::read(&groups.to_string()).is_err(), "{groups}");
        }
        for kinds in [
            json!({"kind": "APIResourceList", "groupVersion": "apps/v1"}),
            json!({"kind": "APIResourceList", "groupVersion": "apps/v2", "resources": []}),
            json!({"kind": "APIGroupList", "groupVersion": "apps/v1", "resources": []}),
        ] {
            assert!(
                has_kind("apps/v1", &kinds.to_string(), &["deployments"]).is_err(),
                "{kinds}"
            );
        }
    }
}
