//! [`ControllerName`], and the parser of `ENABLED_CONTROLLERS`.

use std::collections::BTreeSet;

use super::parse::SettingsError;

/// The names by which controllers are enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ControllerName {
    /// Garbage collection of addresses and blocks; deletion, labels and host endpoints of nodes.
    Node,
    /// Kubernetes network policies (etcd only).
    Policy,
    /// Profiles of namespaces (etcd only).
    Namespace,
    /// Profiles of service accounts (etcd only).
    ServiceAccount,
    /// Labels of workload endpoints, and deletion of orphaned endpoints (etcd only).
    WorkloadEndpoint,
    /// Addresses of Services.
    LoadBalancer,
}

use ControllerName::{LoadBalancer, Namespace, Node, Policy, ServiceAccount, WorkloadEndpoint};

/// The names in `ENABLED_CONTROLLERS`, with aliases: `profile` is upstream's, while `networkpolicy`
/// and `pod` occur in documents although upstream rejects them (KC-004). `pod` stands for the
/// garbage collection of addresses, which upstream also runs in its node controller (KC-002).
const NAMES: [(ControllerName, &str, &[&str]); 6] = [
    (Node, "node", &["pod"]),
    (Policy, "policy", &["networkpolicy"]),
    (Namespace, "namespace", &["profile"]),
    (ServiceAccount, "serviceaccount", &[]),
    (WorkloadEndpoint, "workloadendpoint", &[]),
    (LoadBalancer, "loadbalancer", &[]),
];

impl ControllerName {
    /// All controllers.
    pub const ALL: [ControllerName; 6] = [
        Node,
        Policy,
        Namespace,
        ServiceAccount,
        WorkloadEndpoint,
        LoadBalancer,
    ];

    /// Returns the name used in `ENABLED_CONTROLLERS`.
    pub fn as_str(self) -> &'static str {
        NAMES
            .iter()
            .find(|(name, ..)| *name == self)
            .map_or("", |(_, text, _)| text)
    }

    /// Returns the name of the controller's section in KubeControllersConfiguration.
    pub(super) fn section(self) -> &'static str {
        match self {
            Node => "node",
            Policy => "policy",
            Namespace => "namespace",
            ServiceAccount => "serviceAccount",
            WorkloadEndpoint => "workloadEndpoint",
            LoadBalancer => "loadBalancer",
        }
    }

    /// Returns true if the controller copies Kubernetes objects into Calico's, which only etcd
    /// needs (KC-020).
    pub fn is_etcd_only(self) -> bool {
        matches!(self, Policy | Namespace | ServiceAccount | WorkloadEndpoint)
    }

    fn from_name(text: &str) -> Option<Self> {
        let lower = text.to_ascii_lowercase();
        let is_called = |(_, name, others): &&(_, &str, &[&str])| {
            *name == lower || others.contains(&lower.as_str())
        };
        NAMES
            .iter()
            .find(is_called)
            .map(|(controller, ..)| *controller)
    }
}

impl std::fmt::Display for ControllerName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Parses a list of controllers. Spaces and empty items are ignored, while upstream rejects them
/// (KC-004).
pub(super) fn parse(list: &str) -> Result<BTreeSet<ControllerName>, SettingsError> {
    let items = list
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty());
    let named = |item: &str| {
        ControllerName::from_name(item).ok_or_else(|| match item {
            "flannelmigration" => SettingsError::FlannelMigration,
            _ => SettingsError::UnknownController {
                name: item.into(),
                valid: valid_names(),
            },
        })
    };
    items.map(named).collect()
}

fn valid_names() -> String {
    let names = NAMES
        .iter()
        .flat_map(|(_, name, others)| std::iter::once(name).chain(*others));
    names.copied().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_and_documented_controller_names_are_accepted() {
        let all = "workloadendpoint,profile,policy,node,serviceaccount,loadbalancer";
        assert_eq!(parse(all).unwrap(), BTreeSet::from(ControllerName::ALL));
        assert_eq!(
            parse("networkpolicy, NAMESPACE ,,pod").unwrap(),
            BTreeSet::from([Policy, Namespace, Node])
        );
        assert_eq!(parse(" , ").unwrap(), BTreeSet::new());
        for name in ControllerName::ALL {
            assert_eq!(parse(name.as_str()).unwrap(), BTreeSet::from([name]));
        }
    }

    #[test]
    fn unknown_controller_name_is_reported_with_the_valid_names() {
        let error = parse("node,nodes").unwrap_err().to_string();
        assert!(
            error.contains("`nodes`") && error.contains("loadbalancer"),
            "{error}"
        );
        assert!(!error.contains("`node`"), "{error}");
        assert_eq!(
            parse("flannelmigration"),
            Err(SettingsError::FlannelMigration)
        );
    }
}
