//! Each component changes its own settings and no others.

use integration_tests::manifests::{Objects, changes, components, compose, containers};
use serde_json::{Value, json};

use super::{COMPONENTS, CONFIG, COPY, DAEMON_SET, DEPLOYMENT, OVERLAYS, can_render, overlay};

/// Renders an overlay with a component. Returns the objects, and their differences from the overlay
/// alone.
pub(super) fn with(component: &str, base: &str) -> (Objects, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let objects = compose(directory.path(), &[base], &[component]).unwrap();
    let mut changed = changes(&overlay(base), &objects);
    changed.sort();
    (objects, changed)
}

/// `keep-state` is for upstream's calico-node (beside_upstream.rs), and `platforms` has components
/// of its own.
#[test]
fn list_of_components_has_each_folder() {
    let mut listed = COMPONENTS
        .map(|component| component.trim_start_matches("components/"))
        .to_vec();
    listed.extend(["keep-state", "platforms"]);
    listed.sort_unstable();
    assert_eq!(listed, components().unwrap());
}

#[test]
fn component_cni_1_1_changes_only_the_version() {
    if !can_render() {
        return;
    }
    for base in OVERLAYS {
        let (objects, changed) = with("components/cni-1.1", base);
        assert_eq!(
            changed,
            [COPY, CONFIG].map(|map| format!("{map}/data/cni_network_config")),
            "{base}"
        );
        let text = |objects: &Objects| {
            objects[COPY]["data"]["cni_network_config"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        let before = text(&overlay(base));
        assert_eq!(before.matches(r#""cniVersion": "1.0.0""#).count(), 1);
        assert_eq!(
            text(&objects),
            before.replace(r#""cniVersion": "1.0.0""#, r#""cniVersion": "1.1.0""#)
        );
    }
}

#[test]
fn component_privileged_changes_only_the_containers_on_nodes() {
    if !can_render() {
        return;
    }
    for base in OVERLAYS {
        let (objects, changed) = with("components/privileged", base);
        let pod = format!("{DAEMON_SET}/spec/template/spec");
        let of =
            |container: &str, field: &str| format!("{pod}/{container}/0/securityContext/{field}");
        let fields = ["allowPrivilegeEscalation", "capabilities", "privileged"];
        let expected: Vec<String> = ["containers", "initContainers"]
            .iter()
            .flat_map(|list| fields.map(|field| of(list, field)))
            .collect();
        assert_eq!(changed, expected, "{base}");
        let pod = &objects[DAEMON_SET]["spec"]["template"]["spec"];
        assert_eq!(
            pod["initContainers"][0]["securityContext"]["privileged"],
            true
        );
    }
}

#[test]
fn components_dac_override_and_selinux_add_one_right_each() {
    if !can_render() {
        return;
    }
    let capabilities = json!({ "add": ["DAC_OVERRIDE"], "drop": ["ALL"] });
    for (component, field, value) in [
        ("components/dac-override", "capabilities", capabilities),
        (
            "components/selinux",
            "seLinuxOptions",
            json!({ "type": "spc_t" }),
        ),
    ] {
        let (objects, changed) = with(component, OVERLAYS[0]);
        for container in containers(&objects[DAEMON_SET]) {
            let context = &container["securityContext"];
            assert_eq!(
                (&context[field], &context["allowPrivilegeEscalation"]),
                (&value, &json!(false)),
                "{component}"
            );
            assert_eq!(
                context["capabilities"]["drop"],
                json!(["ALL"]),
                "{component}"
            );
        }
        assert!(
            changed
                .iter()
                .all(|change| change.contains(&format!("/0/securityContext/{field}"))),
            "{changed:?}"
        );
        assert_eq!(changed.len(), 2, "{changed:?}");
    }
}

/// The init container, which runs at each start of the pod, gets no right.
#[test]
fn component_remove_dead_interfaces_gives_rights_to_the_agent_alone() {
    if !can_render() {
        return;
    }
    for base in OVERLAYS {
        let (objects, changed) = with("components/remove-dead-interfaces", base);
        let pod = format!("{DAEMON_SET}/spec/template/spec");
        let agent = format!("{pod}/containers/0");
        let expected = [
            format!("{agent}/env"),
            format!("{agent}/securityContext/appArmorProfile"),
            format!("{agent}/securityContext/capabilities/add"),
            format!("{agent}/volumeMounts"),
            format!("{pod}/hostPID"),
            format!("{pod}/volumes"),
        ];
        let places = |change: &String| expected.iter().any(|place| change.starts_with(place));
        assert!(changed.iter().all(places), "{base}: {changed:?}");
        let pod = &objects[DAEMON_SET]["spec"]["template"]["spec"];
        let context = &pod["containers"][0]["securityContext"];
        assert_eq!(
            context["capabilities"],
            json!({ "add": ["NET_ADMIN", "SYS_PTRACE"], "drop": ["ALL"] }),
            "{base}"
        );
        assert_eq!(
            context["appArmorProfile"],
            json!({ "type": "Unconfined" }),
            "{base}"
        );
        assert_eq!(context["allowPrivilegeEscalation"], false, "{base}");
        assert_eq!(pod["hostPID"], true, "{base}");
        let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
        let socket = mounts
            .iter()
            .find(|mount| mount["name"] == "container-runtime")
            .unwrap();
        assert_eq!(
            socket["mountPropagation"], "HostToContainer",
            "{base}: mounts of ended containers must not stay"
        );
        let env = pod["containers"][0]["env"].as_array().unwrap();
        assert!(
            env.contains(&json!({ "name": "CNI_AGENT_REPAIR", "value": "true" })),
            "{base}"
        );
        let before = overlay(base);
        assert_eq!(
            pod["initContainers"], before[DAEMON_SET]["spec"]["template"]["spec"]["initContainers"],
            "{base}"
        );
    }
}

#[test]
fn component_host_network_changes_only_kube_controllers() {
    if !can_render() {
        return;
    }
    let (_, changed) = with("components/host-network-controllers", OVERLAYS[0]);
    let pod = format!("{DEPLOYMENT}/spec/template/spec");
    assert_eq!(
        changed,
        [format!("{pod}/dnsPolicy"), format!("{pod}/hostNetwork")]
    );
}

/// The component extends the role of the program that creates the pool.
#[test]
fn component_default_pool_sets_the_pool_and_its_permission() {
    if !can_render() {
        return;
    }
    for base in OVERLAYS {
        let (objects, changed) = with("components/default-pool", base);
        let role = "ClusterRole.rbac.authorization.k8s.io calico-cni";
        let pod = format!("{DAEMON_SET}/spec/template/spec");
        let mut expected = vec![
            format!("{pod}/containers/0/env"),
            format!("{pod}/initContainers/0/env"),
        ];
        // A pool in etcd needs no Kubernetes permission.
        if base != "overlays/etcd" {
            expected.insert(0, format!("{role}/rules"));
            let rule = objects[role]["rules"].as_array().unwrap().last().unwrap();
            assert_eq!(
                (&rule["resources"], &rule["verbs"]),
                (&json!(["ippools"]), &json!(["list", "create"]))
            );
        }
        assert_eq!(changed, expected, "{base}");
        for list in ["initContainers", "containers"] {
            let env = objects[DAEMON_SET]["spec"]["template"]["spec"][list][0]["env"]
                .as_array()
                .unwrap();
            assert!(
                env.iter()
                    .any(|variable| variable["name"] == "CALICO_IPV4POOL_CIDR"),
                "{list}"
            );
        }
    }
}

/// The role of the account `calico-cni-plugin-bound` is that of `calico-cni-plugin`; policies limit
/// the account.
#[test]
fn component_node_restriction_changes_only_the_account_of_the_plugins() {
    if !can_render() {
        return;
    }
    for base in OVERLAYS {
        let (objects, changed) = with("components/node-restriction", base);
        let (rbac, admission) = ("rbac.authorization.k8s.io", "admissionregistration.k8s.io");
        let pod = format!("{DAEMON_SET}/spec/template/spec");
        let mut expected = vec![
            format!("ClusterRoleBinding.{rbac} calico-cni-plugin-bound"),
            format!("{pod}/containers/0/env"),
            format!("{pod}/initContainers/0/env"),
            format!("Role.{rbac} kube-system/calico-cni/rules/0/resourceNames/0"),
            "ServiceAccount kube-system/calico-cni-plugin-bound".to_owned(),
        ];
        for policy in ["affinities", "blocks", "pods", "settings", "tokens"] {
            for kind in [
                "ValidatingAdmissionPolicy",
                "ValidatingAdmissionPolicyBinding",
            ] {
                expected.push(format!("{kind}.{admission} calico-cni-{policy}"));
            }
        }
        expected.sort();
        assert_eq!(changed, expected, "{base}");
        let role = &objects["ClusterRoleBinding.rbac.authorization.k8s.io calico-cni-plugin-bound"]
            ["roleRef"]["name"];
        assert_eq!(*role, json!("calico-cni-plugin"));
        for (name, binding) in objects
            .iter()
            .filter(|(name, _)| name.starts_with("ValidatingAdmissionPolicyBinding"))
        {
            assert_eq!(
                binding["spec"]["validationActions"],
                json!(["Deny"]),
                "{name}"
            );
        }
    }
}

/// SELinux may protect the node's files from the migration's container too.
#[test]
fn component_privileged_applies_to_the_migration_too() {
    if !can_render() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let both = ["components/privileged", "components/upgrade-ipam"];
    let objects = compose(directory.path(), &[OVERLAYS[0]], &both).unwrap();
    let contexts: Vec<_> = containers(&objects[DAEMON_SET])
        .iter()
        .map(|one| &one["securityContext"])
        .collect();
    assert_eq!(contexts.len(), 3);
    for context in contexts {
        assert_eq!(
            (&context["privileged"], context.get("capabilities")),
            (&json!(true), None)
        );
    }
}

/// Returns the source of `CNI_NETWORK_CONFIG` in a container.
fn planned(container: &Value) -> &Value {
    let mut variables = container["env"].as_array().unwrap().iter();
    &variables
        .find(|variable| variable["name"] == "CNI_NETWORK_CONFIG")
        .unwrap()["valueFrom"]
}

/// The migration (INST-78) is an init container with its own role.
#[test]
fn component_upgrade_ipam_runs_before_install_cni() {
    if !can_render() {
        return;
    }
    // The component comes after all components that patch install-cni, as docs/options.md says.
    let directory = tempfile::tempdir().unwrap();
    let all = [
        "components/default-pool",
        "components/privileged",
        "components/upgrade-ipam",
    ];
    let together = compose(directory.path(), &[OVERLAYS[0]], &all).unwrap();
    let first = &together[DAEMON_SET]["spec"]["template"]["spec"]["initContainers"][0];
    assert_eq!(first["name"], "upgrade-ipam");
    let (objects, _) = with("components/upgrade-ipam", OVERLAYS[0]);
    let pod = &objects[DAEMON_SET]["spec"]["template"]["spec"];
    let names: Vec<_> = pod["initContainers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["upgrade-ipam", "install-cni"]);
    assert_eq!(
        pod["initContainers"][1],
        overlay(OVERLAYS[0])[DAEMON_SET]["spec"]["template"]["spec"]["initContainers"][0]
    );
    assert_eq!(
        pod["initContainers"][0]["securityContext"],
        pod["initContainers"][1]["securityContext"]
    );
    // The migration refuses the configuration that install-cni writes if it uses host-local.
    let configurations: Vec<_> = pod["initContainers"]
        .as_array()
        .unwrap()
        .iter()
        .map(planned)
        .collect();
    assert_eq!(configurations[0], configurations[1]);
    assert_eq!(
        configurations[0]["configMapKeyRef"]["key"],
        "cni_network_config"
    );
    let subjects =
        &objects["ClusterRoleBinding.rbac.authorization.k8s.io upgrade-ipam"]["subjects"];
    let names: Vec<_> = subjects
        .as_array()
        .unwrap()
        .iter()
        .map(|subject| subject["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["upgrade-ipam", "calico-cni"]);
}
