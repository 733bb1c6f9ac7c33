//! [`required`]: the rights that a migration uses.

use std::fmt;

use kube_controllers::rollout::{DAEMON_SETS, DEPLOYMENTS};
use libcalico::kubernetes::{ApiGroup, PODS, Resource};
use libcalico::migration::{
    DATASTORE_MIGRATIONS, cluster_information, definition_name, moved_kinds,
};
use serde_json::{Value, json};

use super::super::super::api_service;
use super::super::super::report::{self, CONFIG_MAPS};
use super::super::definitions::DEFINITIONS;

/// The kind whose objects in v1 are read one by one. A changed object of any kind is read by a
/// list.
const READ_ALONE: &str = "Tier";
/// The kinds in the namespace of Calico's DaemonSets, and the requests to them.
const BESIDE: [(Resource, &[&str]); 4] = [
    (DAEMON_SETS, &["get"]),
    (DEPLOYMENTS, &["get"]),
    (PODS, &["get", "list"]),
    (CONFIG_MAPS, &["get", "create"]),
];

/// The right to send a kind of request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Right {
    verb: &'static str,
    /// Empty for the core group.
    group: &'static str,
    resource: &'static str,
    /// `status`, or empty.
    subresource: &'static str,
    /// Name of the only object; empty for all objects.
    name: String,
    /// True if the right concerns only the namespace of Calico's DaemonSets.
    in_own_namespace: bool,
}

/// Returns the rights that a migration uses.
pub(super) fn required() -> Vec<Right> {
    let mut rights = Vec::new();
    rights.extend(of(&DATASTORE_MIGRATIONS, &["get", "list", "update"]));
    rights.extend(of(&DATASTORE_MIGRATIONS, &["update"]).map(|right| Right {
        subresource: "status",
        ..right
    }));
    for kind in moved_kinds() {
        rights.extend(of(&kind.v1, &["list"]));
        if kind.v1.kind == READ_ALONE {
            rights.extend(of(&kind.v1, &["get"]));
        }
        rights.extend(of(&kind.v3, &["get", "list", "create", "update", "delete"]));
        rights.extend(named(&DEFINITIONS, &["delete"], &definition_name(&kind.v1)));
    }
    let [v1, v3] = [ApiGroup::CrdV1, ApiGroup::V3].map(|group| cluster_information(group).resource);
    rights.extend(of(&v1, &["get", "update"]));
    rights.extend(of(&v3, &["get", "list", "create", "update", "delete"]));
    rights.extend(named(&DEFINITIONS, &["delete"], &definition_name(&v1)));
    rights.extend(of(&DEFINITIONS, &["list"]));
    let api_service = api_service::location();
    rights.extend(named(
        &api_service.resource,
        &["get", "update", "delete"],
        &api_service.name,
    ));
    rights.extend(of(&api_service.resource, &["create"]));
    let in_own_namespace = |right: Right| Right {
        in_own_namespace: true,
        ..right
    };
    for (resource, verbs) in BESIDE {
        rights.extend(of(&resource, verbs).map(in_own_namespace));
    }
    rights.extend(named(&CONFIG_MAPS, &["update"], report::NAME).map(in_own_namespace));
    rights
}

fn of(resource: &Resource, verbs: &'static [&'static str]) -> impl Iterator<Item = Right> + use<> {
    named(resource, verbs, "")
}

fn named(
    resource: &Resource,
    verbs: &'static [&'static str],
    name: &str,
) -> impl Iterator<Item = Right> + use<> {
    let (group, resource) = (group_of(resource), resource.plural);
    let name = name.to_owned();
    verbs.iter().map(move |&verb| Right {
        verb,
        group,
        resource,
        subresource: "",
        name: name.clone(),
        in_own_namespace: false,
    })
}

fn group_of(resource: &Resource) -> &'static str {
    resource
        .api_version
        .split_once('/')
        .map_or("", |(group, _)| group)
}

impl Right {
    /// Returns true if one of an account's rules includes the right.
    pub(super) fn is_granted_by(&self, rule: &Value) -> bool {
        let has = |field: &str, value: &str| {
            let mut values = rule[field]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str);
            values.any(|present| present == "*" || present == value)
        };
        let names = rule["resourceNames"]
            .as_array()
            .filter(|names| !names.is_empty());
        let is_named = names.is_none_or(|names| {
            !self.name.is_empty() && names.iter().any(|name| *name == self.name)
        });
        is_named
            && has("verbs", self.verb)
            && has("apiGroups", self.group)
            && has("resources", &self.full_resource())
    }

    /// Returns the attributes of a review.
    pub(super) fn attributes(&self, own_namespace: &str) -> Value {
        let mut attributes =
            json!({ "verb": self.verb, "group": self.group, "resource": self.resource });
        let namespace = if self.in_own_namespace {
            own_namespace
        } else {
            ""
        };
        for (field, value) in [
            ("subresource", self.subresource),
            ("name", self.name.as_str()),
            ("namespace", namespace),
        ] {
            if !value.is_empty() {
                attributes[field] = value.into();
            }
        }
        attributes
    }

    fn full_resource(&self) -> String {
        match self.subresource {
            "" => self.resource.to_owned(),
            subresource => format!("{}/{subresource}", self.resource),
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.full_resource())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(text: &str, name: &str) -> Right {
        required()
            .into_iter()
            .find(|right| right.to_string() == text && right.name == name)
            .unwrap()
    }

    fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
        json!({ "apiGroups": groups, "resources": resources, "verbs": verbs })
    }

    #[test]
    fn rule_grants_a_right_by_group_resource_verb_and_name() {
        let update = right("update configmaps", "calico-migration-v1-to-v3");
        let status = right("update datastoremigrations/status", "");
        let group = "migration.projectcalico.org";
        for (right, rule, expected) in [
            (
                &update,
                rule(&[""], &["secrets", "configmaps"], &["get", "update"]),
                true,
            ),
            (&update, rule(&["*"], &["*"], &["*"]), true),
            (&update, rule(&[""], &["configmaps"], &["get"]), false),
            (
                &update,
                rule(&["apps"], &["configmaps"], &["update"]),
                false,
            ),
            (
                &status,
                rule(&[group], &["datastoremigrations/status"], &["update"]),
                true,
            ),
            (
                &status,
                rule(&[group], &["datastoremigrations"], &["update"]),
                false,
            ),
        ] {
            assert_eq!(right.is_granted_by(&rule), expected, "{right} {rule}");
        }
        let mut named = rule(&[""], &["configmaps"], &["create", "update"]);
        named["resourceNames"] = json!(["calico-migration-v1-to-v3"]);
        assert!(update.is_granted_by(&named));
        assert!(!right("create configmaps", "").is_granted_by(&named));
        named["resourceNames"] = json!(["another"]);
        assert!(!update.is_granted_by(&named));
    }

    #[test]
    fn review_names_the_namespace_only_for_objects_beside_this_process() {
        let expected = json!({ "verb": "get", "group": "", "resource": "pods", "namespace": "ns" });
        assert_eq!(right("get pods", "").attributes("ns"), expected);
        let definition = "tiers.crd.projectcalico.org";
        let expected = json!({
            "verb": "delete", "group": "apiextensions.k8s.io",
            "resource": "customresourcedefinitions",
            "name": definition,
        });
        assert_eq!(
            right("delete customresourcedefinitions", definition).attributes("ns"),
            expected
        );
        let attributes = right("update datastoremigrations/status", "").attributes("ns");
        assert_eq!(
            (&attributes["resource"], &attributes["subresource"]),
            (&json!("datastoremigrations"), &json!("status"))
        );
    }

    #[test]
    fn each_moved_kind_may_be_read_in_v1_and_written_in_v3() {
        let rights = required();
        let count = |verb: &str, group: &str| {
            rights
                .iter()
                .filter(|right| right.verb == verb && right.group == group)
                .count()
        };
        assert_eq!(
            (
                count("list", "crd.projectcalico.org"),
                count("create", "projectcalico.org")
            ),
            (21, 22)
        );
        assert_eq!(count("delete", "apiextensions.k8s.io"), 22);
        assert_eq!(
            (
                count("update", "crd.projectcalico.org"),
                count("delete", "crd.projectcalico.org")
            ),
            (1, 0)
        );
    }
}
