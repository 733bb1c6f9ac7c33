//! The roles of optional controllers.

use std::fs;

use integration_tests::manifests::{changes, deploy, parse};
use kube_controllers::settings::{ControllerName, Environment, Mode, default_configuration, merge};
use libcalico::kubernetes::ApiGroup;
use libcalico::variables::Variables;

use super::can_render;
use super::options::set;

const ROLES: [(&str, &str); 3] = [
    ("load-balancer", "rbac.loadBalancer"),
    ("policy-names", "rbac.policyNames"),
    ("host-endpoints", "rbac.hostEndpoints"),
];

/// Returns true for each of [`ROLES`] that the chart renders with its binding.
fn granted(values: &[&str]) -> [bool; 3] {
    let objects = set(values);
    ROLES.map(|(role, _)| {
        let [role, binding] = ["ClusterRole", "ClusterRoleBinding"].map(|kind| {
            objects.contains_key(&format!(
                "{kind}.rbac.authorization.k8s.io calico-kube-controllers-{role}"
            ))
        });
        assert_eq!(role, binding);
        role
    })
}

#[test]
fn roles_of_optional_controllers_agree_with_the_default_configuration() {
    if !can_render() {
        return;
    }
    let environment = Environment::read(Variables::NONE).unwrap();
    let settings = merge(
        &environment,
        &default_configuration(),
        Mode::Kubernetes(ApiGroup::CrdV1),
    )
    .settings;
    let enabled = [
        settings.enabled.contains(&ControllerName::LoadBalancer),
        settings.policy_name_migrator,
        settings.host_endpoints.enabled,
    ];
    assert_eq!(granted(&[]), enabled);
}

#[test]
fn role_of_an_optional_controller_is_granted_only_if_its_value_is_true() {
    if !can_render() {
        return;
    }
    for datastore in ["datastore=kubernetes", "datastore=etcd"] {
        for (index, (role, value)) in ROLES.into_iter().enumerate() {
            // Host endpoints in etcd need no right of Kubernetes.
            let has_role = role != "host-endpoints" || datastore == "datastore=kubernetes";
            for is_on in [true, false] {
                let mut expected = granted(&[datastore]);
                expected[index] = is_on && has_role;
                assert_eq!(
                    granted(&[datastore, &format!("{value}={is_on}")]),
                    expected,
                    "{datastore} {value}"
                );
            }
        }
    }
}

#[test]
fn minimal_value_leaves_out_the_roles_of_users_and_of_optional_controllers() {
    if !can_render() {
        return;
    }
    let changed = |values: &[&str]| {
        let mut changed = changes(
            &set(values),
            &set(&[values, &["rbac.minimal=true"][..]].concat()),
        );
        changed.sort();
        changed
    };
    let users = fs::read_to_string(deploy("rbac/users/calico-user-roles.yaml")).unwrap();
    let mut expected: Vec<String> = parse(&users).unwrap().into_keys().collect();
    assert!(!expected.is_empty());
    for (role, _) in ROLES {
        for kind in ["ClusterRole", "ClusterRoleBinding"] {
            expected.push(format!(
                "{kind}.rbac.authorization.k8s.io calico-kube-controllers-{role}"
            ));
        }
    }
    expected.sort();
    assert_eq!(
        changed(&["apiGroup=projectcalico.org/v3", "rbac.hostEndpoints=true"]),
        expected
    );
    // With etcd, automatic host endpoints need no role, and users no rights to Calico's objects.
    expected.retain(|name| name.ends_with("-load-balancer") || name.ends_with("-policy-names"));
    assert_eq!(changed(&["datastore=etcd"]), expected);
}
