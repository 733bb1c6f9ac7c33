//! The permissions of a ClusterRole, one by one.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use super::audit::Request;
use super::service_account::Access;
use crate::manifests::deploy;

/// A verb on a resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// API group, empty for the core.
    pub group: String,
    /// The plural, or `<plural>/<subresource>`.
    pub resource: String,
    /// `get`, `patch` …
    pub verb: String,
}

/// The permissions of a role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Role(pub BTreeSet<Permission>);

/// A rule of a ClusterRole. Other fields are rejected, because they would change the granted
/// permissions.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    api_groups: Vec<String>,
    resources: Vec<String>,
    verbs: Vec<String>,
}

impl Role {
    /// Reads the ClusterRoles of a manifest.
    pub fn of_manifest(path: &Path) -> Result<Role> {
        let name = || path.display().to_string();
        fs::read_to_string(path)
            .with_context(name)
            .and_then(|text| Role::parse(&text).with_context(name))
    }

    /// Reads the ClusterRoles of all of these manifests.
    pub fn of_manifests(paths: &[PathBuf]) -> Result<Role> {
        let roles = paths
            .iter()
            .map(|path| Role::of_manifest(path))
            .collect::<Result<Vec<_>>>()?;
        Ok(Role(roles.into_iter().flat_map(|role| role.0).collect()))
    }

    /// Returns the manifests with the rights of kube-controllers, for Calico's objects in the API
    /// server and for host endpoints.
    pub fn manifests_of_controllers() -> [PathBuf; 2] {
        [
            "rbac/kubernetes/calico-kube-controllers.yaml",
            "components/host-endpoints/rbac.yaml",
        ]
        .map(deploy)
    }

    /// Reads the rules of a role.
    pub fn of_rules(rules: &Value) -> Result<Role> {
        let rules: Vec<Rule> = serde_json::from_value(rules.clone())?;
        Ok(Role(rules.iter().flat_map(Rule::permissions).collect()))
    }

    fn parse(manifest: &str) -> Result<Role> {
        let documents: Result<Vec<Value>, _> = serde_norway::Deserializer::from_str(manifest)
            .map(Value::deserialize)
            .collect();
        let mut permissions = BTreeSet::new();
        for role in documents?
            .into_iter()
            .filter(|object| object["kind"] == "ClusterRole")
        {
            permissions.extend(Role::of_rules(&role["rules"])?.0);
        }
        ensure!(!permissions.is_empty(), "no ClusterRole");
        Ok(Role(permissions))
    }

    /// Returns the permissions that these requests needed.
    pub fn used_by(requests: &[Request]) -> Role {
        // The paths of discovery, which are not resources, are open to every authenticated user.
        let about_resources = requests
            .iter()
            .filter(|request| !request.resource.starts_with('/'));
        Role(about_resources.map(Permission::of).collect())
    }

    /// Returns the role without one permission.
    #[must_use]
    pub fn without(&self, permission: &Permission) -> Role {
        Role(
            self.0
                .iter()
                .filter(|other| *other != permission)
                .cloned()
                .collect(),
        )
    }

    /// Returns the permissions on the API groups in `keep`.
    #[must_use]
    pub fn of_groups(&self, keep: &[&str]) -> Role {
        Role(
            self.0
                .iter()
                .filter(|permission| keep.contains(&permission.group.as_str()))
                .cloned()
                .collect(),
        )
    }

    /// Returns the rules of a ClusterRole with these permissions.
    pub fn rules(&self) -> Value {
        let rule = |p: &Permission| {
            json!({
                "apiGroups": [p.group], "resources": [p.resource], "verbs": [p.verb],
            })
        };
        self.0.iter().map(rule).collect()
    }
}

impl Rule {
    fn permissions(&self) -> Vec<Permission> {
        let mut permissions = Vec::new();
        for group in &self.api_groups {
            for resource in &self.resources {
                let granted = |verb: &String| Permission {
                    group: group.clone(),
                    resource: resource.clone(),
                    verb: verb.clone(),
                };
                permissions.extend(self.verbs.iter().map(granted));
            }
        }
        permissions
    }
}

impl Permission {
    fn of(request: &Request) -> Permission {
        let Request {
            group,
            resource,
            verb,
            ..
        } = request.clone();
        Permission {
            group,
            resource,
            verb,
        }
    }

    /// Returns the permission as a question to the authorizer.
    pub fn access(&self) -> Access<'_> {
        Access {
            verb: &self.verb,
            group: &self.group,
            resource: &self.resource,
        }
    }
}

/// Formats a permission, such as `get pods` or `list ippools.crd.projectcalico.org`.
impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if self.group.is_empty() {
            Ok(())
        } else {
            write!(f, ".{}", self.group)
        }
    }
}

/// Formats a role as one permission per line.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|permission| writeln!(f, "{permission}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: &str = "{ kind: ServiceAccount }\n---\nkind: ClusterRole\nrules:\n\
                        - { apiGroups: ['', apps], resources: [pods, pods/status], verbs: [get, \
                        list] }\n\
                        - { apiGroups: [''], resources: [pods], verbs: [get] }\n";

    #[test]
    fn rule_grants_each_verb_on_each_resource_of_each_group() {
        let role = Role::parse(ROLE).unwrap();
        assert_eq!(role.0.len(), 8);
        assert!(
            role.to_string().contains("list pods/status.apps\n"),
            "{role}"
        );
        let core = role.of_groups(&[""]);
        assert_eq!(
            core.to_string(),
            "get pods\nlist pods\nget pods/status\nlist pods/status\n"
        );
        assert_eq!(core.without(core.0.first().unwrap()).0.len(), 3);
    }

    #[test]
    fn role_with_unsupported_fields_is_rejected() {
        for (from, to) in [
            ("verbs: [get] }", "verbs: [get], resourceNames: [a] }"),
            ("ClusterRole", "Role"),
        ] {
            Role::parse(&ROLE.replace(from, to)).unwrap_err();
        }
    }
}
