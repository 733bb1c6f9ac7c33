//! `components/migrate-to-v3`: the configuration with which the plugins follow a migration, the
//! rights and the seal.

use std::collections::BTreeSet;
use std::fs;

use integration_tests::manifests::{NAMESPACE, Objects, compose, containers, deploy, parse};
use libcalico::kubernetes::{ApiGroup, Resource};
use libcalico::migration::{
    PluginGroup, cluster_information, definition_name, moved_kinds, plugin_group,
};
use serde_json::{Value, json};

use super::beside_upstream::{render_swapped, upstreams};
use super::policies::{called_functions, expressions};
use super::references::missing;
use super::{CONFIG, COPY, DAEMON_SET, DEPLOYMENT, can_render, overlay};

const COMPONENT: &str = "components/migrate-to-v3";
const NAME: &str = "calico-kube-controllers-migration";

/// Returns the value of a variable, also if a ConfigMap has it.
fn variable<'o>(objects: &'o Objects, container: &'o Value, name: &str) -> Option<&'o str> {
    let variable = container["env"]
        .as_array()?
        .iter()
        .find(|variable| variable["name"] == name)?;
    let reference = &variable["valueFrom"]["configMapKeyRef"];
    match reference["name"].as_str() {
        Some(map) => objects[&format!("ConfigMap {NAMESPACE}/{map}")]["data"]
            [reference["key"].as_str()?]
        .as_str(),
        None => variable["value"].as_str(),
    }
}

/// Returns the group that the plugins use which each container of a DaemonSet installs.
fn groups(objects: &Objects, daemon_set: &str) -> Vec<PluginGroup> {
    let installers = containers(&objects[daemon_set]).into_iter();
    let installers =
        installers.filter(|one| variable(objects, one, "CNI_NETWORK_CONFIG").is_some());
    let group = |one: &Value| {
        plugin_group(
            variable(objects, one, "CALICO_API_GROUP"),
            variable(objects, one, "CNI_NETWORK_CONFIG"),
        )
    };
    installers.map(group).collect()
}

fn read(file: &str) -> Objects {
    parse(&fs::read_to_string(deploy(COMPONENT).join(file)).unwrap()).unwrap()
}

#[test]
fn plugins_follow_a_migration_with_the_component_and_use_v1_without_it() {
    if !can_render() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let v1 = overlay("overlays/kubernetes-v1");
    assert_eq!(groups(&v1, DAEMON_SET), [PluginGroup::V1, PluginGroup::V1]);
    let v3 = overlay("overlays/kubernetes-v3");
    assert_eq!(groups(&v3, DAEMON_SET), [PluginGroup::V3, PluginGroup::V3]);
    let with = compose(directory.path(), &["overlays/kubernetes-v1"], &[COMPONENT]).unwrap();
    assert_eq!(
        groups(&with, DAEMON_SET),
        [PluginGroup::Follows, PluginGroup::Follows]
    );
    let controllers = containers(&with[DEPLOYMENT])[0];
    assert_eq!(variable(&with, controllers, "CALICO_API_GROUP"), Some(""));
    let pod = &with[DEPLOYMENT]["spec"]["template"]["spec"];
    assert_eq!(
        (&pod["hostNetwork"], &pod["dnsPolicy"]),
        (&json!(true), &json!("Default"))
    );
}

#[test]
fn component_migrate_to_v3_changes_only_the_group_and_the_network_of_kube_controllers() {
    if !can_render() {
        return;
    }
    let rbac = "rbac.authorization.k8s.io";
    let admission = "admissionregistration.k8s.io";
    let definition = "CustomResourceDefinition.apiextensions.k8s.io \
                      datastoremigrations.migration.projectcalico.org";
    let mut expected = vec![
        format!("ClusterRole.{rbac} {NAME}"),
        format!("ClusterRoleBinding.{rbac} {NAME}"),
        definition.to_owned(),
        format!("Role.{rbac} {NAMESPACE}/{NAME}"),
        format!("RoleBinding.{rbac} {NAMESPACE}/{NAME}"),
        format!("ValidatingAdmissionPolicy.{admission} calico-v1-sealed"),
        format!("ValidatingAdmissionPolicyBinding.{admission} calico-v1-sealed"),
        format!("{CONFIG}/data/calico_api_group"),
        format!("{COPY}/data/calico_api_group"),
        format!("{DEPLOYMENT}/spec/template/spec/dnsPolicy"),
        format!("{DEPLOYMENT}/spec/template/spec/hostNetwork"),
    ];
    expected.sort();
    for base in ["overlays/kubernetes-v1", "overlays/kubernetes-v3"] {
        let (_, changed) = super::components::with(COMPONENT, base);
        assert_eq!(changed, expected, "{base}");
    }
}

/// Upstream's template names no group, and the variable of its installer is not set.
#[test]
fn component_beside_upstream_keeps_the_plugins_free_to_follow() {
    if !can_render() {
        return;
    }
    for (name, text) in upstreams() {
        let line = format!("components: [../../{COMPONENT}]\n");
        let objects = render_swapped("beside-upstream", &text, &line).unwrap();
        let node = objects
            .keys()
            .find(|name| name.starts_with("DaemonSet"))
            .unwrap();
        assert_eq!(groups(&objects, node), [PluginGroup::Follows], "{name}");
        let pod = &objects[DEPLOYMENT]["spec"]["template"]["spec"];
        assert_eq!(pod["hostNetwork"], true, "{name}");
        let gaps = missing(&objects);
        assert!(
            gaps.iter().all(|gap| !gap.contains(NAME)),
            "{name}: {gaps:?}"
        );
    }
}

/// Returns the sorted resources, or names, of the rules about a group with a verb.
fn granted<'o>(rules: &'o Value, group: &str, verb: &str, field: &str) -> BTreeSet<&'o str> {
    let has = |rule: &Value, list: &str, text: &str| {
        rule[list].as_array().unwrap().contains(&json!(text))
    };
    let rules = rules.as_array().unwrap().iter();
    let of_group = rules.filter(|rule| has(rule, "apiGroups", group) && has(rule, "verbs", verb));
    of_group
        .flat_map(|rule| rule[field].as_array().into_iter().flatten())
        .filter_map(Value::as_str)
        .collect()
}

#[test]
fn role_of_the_migration_names_each_kind_and_each_definition_of_v1() {
    let objects = read("rbac.yaml");
    let rules = &objects[&format!("ClusterRole.rbac.authorization.k8s.io {NAME}")]["rules"];
    let mut kinds: Vec<[Resource; 2]> = moved_kinds()
        .into_iter()
        .map(|moved| [moved.v1, moved.v3])
        .collect();
    kinds.push([ApiGroup::CrdV1, ApiGroup::V3].map(|group| cluster_information(group).resource));
    let plurals = |index: usize| {
        kinds
            .iter()
            .map(|groups| groups[index].plural)
            .collect::<BTreeSet<&str>>()
    };
    let mut sources = granted(rules, "crd.projectcalico.org", "list", "resources");
    sources.extend(granted(
        rules,
        "crd.projectcalico.org",
        "update",
        "resources",
    ));
    assert_eq!(sources, plurals(0));
    for verb in ["get", "list", "create", "update", "delete"] {
        let mut resources = granted(rules, "projectcalico.org", verb, "resources");
        resources.retain(|resource| !resource.starts_with("tier."));
        assert_eq!(resources, plurals(1), "{verb}");
    }
    let definitions: BTreeSet<String> = kinds
        .iter()
        .map(|groups| definition_name(&groups[0]))
        .collect();
    let deleted = granted(rules, "apiextensions.k8s.io", "delete", "resourceNames");
    assert_eq!(deleted, definitions.iter().map(String::as_str).collect());
    // A rule without names would be about all definitions.
    for rule in rules.as_array().unwrap() {
        let deletes = rule["verbs"].as_array().unwrap().contains(&json!("delete"));
        let is_of_calico = rule["apiGroups"] == json!(["projectcalico.org"]);
        assert!(
            !deletes || is_of_calico || rule["resourceNames"].is_array(),
            "{rule}"
        );
    }
}

#[test]
fn seal_refuses_nothing_that_it_cannot_evaluate() {
    let objects = read("seal.yaml");
    let of_kind = |kind: &str| {
        &objects[&format!("{kind}.admissionregistration.k8s.io calico-v1-sealed")]["spec"]
    };
    let (policy, binding) = (
        of_kind("ValidatingAdmissionPolicy"),
        of_kind("ValidatingAdmissionPolicyBinding"),
    );
    assert_eq!(policy["failurePolicy"], "Ignore");
    let at = cluster_information(ApiGroup::CrdV1);
    let parameter = json!({ "apiVersion": at.resource.api_version, "kind": at.resource.kind });
    assert_eq!(policy["paramKind"], parameter);
    let reference = json!({ "name": at.name, "parameterNotFoundAction": "Allow" });
    let expected = json!({
        "policyName": "calico-v1-sealed", "paramRef": reference, "validationActions": ["Deny"],
    });
    assert_eq!(*binding, expected);
    let found = expressions(policy);
    assert!(
        found[0].contains(libcalico::migration::V1_LOCKED_BY),
        "{found:?}"
    );
    assert_eq!(called_functions(&found), ["orValue"].into());
}
