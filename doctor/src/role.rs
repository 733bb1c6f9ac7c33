//! The permissions that the plugins' service account needs, read from the manifest in
//! `deploy/rbac`.

use serde::Deserialize;

/// The manifest that grants the permissions.
pub const MANIFEST: &str = include_str!("../../deploy/rbac/calico-cni-plugin.yaml");

/// The path of the manifest in the repository, for messages.
pub const MANIFEST_PATH: &str = "deploy/rbac/calico-cni-plugin.yaml";

/// A verb on a resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// The API group, empty for the core group.
    pub group: String,
    /// The plural, or `<plural>/<subresource>`.
    pub resource: String,
    /// The verb, such as `get` or `patch`.
    pub verb: String,
}

/// The part of the manifest's rules that applies to a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope<'a> {
    /// Calico's objects are in this API group of the API server.
    Calico(&'a str),
    /// Calico's objects are in another datastore. From the API server the plugins read objects of
    /// Kubernetes, such as pods, and write nothing there.
    Pods,
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    api_groups: Vec<String>,
    resources: Vec<String>,
    verbs: Vec<String>,
}

/// Returns the permissions in the manifest that apply in `scope`.
pub fn permissions(scope: Scope<'_>) -> Vec<Permission> {
    let documents = serde_norway::Deserializer::from_str(MANIFEST)
        .filter_map(|text| Document::deserialize(text).ok());
    let rules = documents
        .filter(|document| document.kind == "ClusterRole")
        .flat_map(|document| document.rules);
    let all = rules.flat_map(|rule| rule.permissions());
    all.filter(|permission| scope.holds(permission)).collect()
}

impl Scope<'_> {
    fn holds(&self, permission: &Permission) -> bool {
        let is_calicos = permission.group.ends_with("projectcalico.org");
        match self {
            Scope::Calico(group) => !is_calicos || permission.group == *group,
            Scope::Pods => !is_calicos && permission.verb == "get",
        }
    }
}

impl Rule {
    fn permissions(&self) -> Vec<Permission> {
        let mut permissions = Vec::new();
        for group in &self.api_groups {
            for resource in &self.resources {
                permissions.extend(self.verbs.iter().map(|verb| {
                    let (group, resource, verb) = (group.clone(), resource.clone(), verb.clone());
                    Permission {
                        group,
                        resource,
                        verb,
                    }
                }));
            }
        }
        permissions
    }
}

/// Formats a permission as `get pods` or `list ippools.crd.projectcalico.org`.
impl std::fmt::Display for Permission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if self.group.is_empty() {
            Ok(())
        } else {
            write!(f, ".{}", self.group)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(scope: Scope<'_>) -> Vec<String> {
        permissions(scope)
            .iter()
            .map(Permission::to_string)
            .collect()
    }

    #[test]
    fn every_rule_of_the_manifest_is_checked() {
        let v1 = texts(Scope::Calico("crd.projectcalico.org"));
        for permission in [
            "get pods",
            "patch pods/status",
            "get clusterinformations.crd.projectcalico.org",
            "get ipamconfigs.crd.projectcalico.org",
            "update ipamblocks.crd.projectcalico.org",
            "get virtualmachines.kubevirt.io",
        ] {
            assert!(
                v1.contains(&permission.to_owned()),
                "{permission} is not in {v1:?}"
            );
        }
        assert!(
            !v1.iter()
                .any(|text| text.ends_with(".projectcalico.org") && !text.contains(".crd.")),
            "{v1:?}"
        );
        let v3 = texts(Scope::Calico("projectcalico.org"));
        assert!(v3.contains(&"get ipamconfigurations.projectcalico.org".to_owned()));
        assert_eq!(v1.len(), v3.len());
    }

    #[test]
    fn pods_scope_requests_pod_permissions_only() {
        let pods = texts(Scope::Pods);
        assert!(
            pods.contains(&"get pods".to_owned())
                && !pods.iter().any(|text| text.contains("projectcalico"))
        );
        assert!(!pods.contains(&"patch pods/status".to_owned()));
    }
}
