//! The content of each overlay.

use std::collections::BTreeSet;
use std::fs;

use integration_tests::manifests::{changes, containers, deploy, parse};
use serde_json::{Value, json};

use super::{BUDGET, CONFIG, COPY, DAEMON_SET, DEPLOYMENT, OVERLAYS, can_render, overlay};

#[test]
fn install_yaml_equals_the_overlay_kubernetes_v1() {
    if can_render() {
        let rendered = parse(&fs::read_to_string(deploy("install.yaml")).unwrap()).unwrap();
        assert_eq!(
            changes(&overlay("overlays/kubernetes-v1"), &rendered),
            Vec::<String>::new(),
            "make generate"
        );
    }
}

/// An upstream calico-node may run in the same cluster, and its account and role must not change.
#[test]
fn object_names_equal_upstreams_except_those_of_calico_node() {
    if !can_render() {
        return;
    }
    let objects = overlay("overlays/kubernetes-v1");
    let rbac = "rbac.authorization.k8s.io";
    let others: BTreeSet<String> = objects
        .keys()
        .filter(|name| !name.starts_with("CustomResourceDefinition"))
        .cloned()
        .collect();
    let expected = [
        CONFIG.to_owned(),
        COPY.to_owned(),
        DAEMON_SET.to_owned(),
        DEPLOYMENT.to_owned(),
        BUDGET.to_owned(),
        "Service kube-system/calico-kube-controllers-metrics".to_owned(),
        "ServiceAccount kube-system/calico-cni".to_owned(),
        "ServiceAccount kube-system/calico-cni-plugin".to_owned(),
        "ServiceAccount kube-system/calico-kube-controllers".to_owned(),
        format!("ClusterRole.{rbac} calico-cni"),
        format!("ClusterRole.{rbac} calico-cni-plugin"),
        format!("ClusterRole.{rbac} calico-kube-controllers"),
        format!("ClusterRole.{rbac} calico-kube-controllers-load-balancer"),
        format!("ClusterRole.{rbac} calico-kube-controllers-policy-names"),
        format!("ClusterRoleBinding.{rbac} calico-cni"),
        format!("ClusterRoleBinding.{rbac} calico-cni-plugin"),
        format!("ClusterRoleBinding.{rbac} calico-kube-controllers"),
        format!("ClusterRoleBinding.{rbac} calico-kube-controllers-load-balancer"),
        format!("ClusterRoleBinding.{rbac} calico-kube-controllers-policy-names"),
        format!("Role.{rbac} kube-system/calico-cni"),
        format!("Role.{rbac} kube-system/calico-kube-controllers"),
        format!("RoleBinding.{rbac} kube-system/calico-cni"),
        format!("RoleBinding.{rbac} kube-system/calico-kube-controllers"),
    ];
    assert_eq!(others, expected.into());
    assert_eq!(
        objects.len() - others.len(),
        14,
        "definitions of Calico's kinds"
    );
    let keys: BTreeSet<&str> = objects[CONFIG]["data"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    for key in [
        "typha_service_name",
        "calico_backend",
        "veth_mtu",
        "cni_network_config",
    ] {
        assert!(keys.contains(key), "{key}");
    }
}

#[test]
fn overlays_of_both_api_groups_differ_in_few_objects() {
    if !can_render() {
        return;
    }
    let calicos = |change: &String| change.starts_with("CustomResourceDefinition");
    let mut changed = changes(
        &overlay("overlays/kubernetes-v1"),
        &overlay("overlays/kubernetes-v3"),
    );
    assert_eq!(changed.iter().filter(|change| calicos(change)).count(), 28);
    changed.retain(|change| !calicos(change));
    changed.sort();
    let roles = ["calico-admin", "calico-edit", "calico-view"];
    let mut expected: Vec<String> = roles
        .map(|role| format!("ClusterRole.rbac.authorization.k8s.io {role}"))
        .into();
    expected.extend([COPY, CONFIG].map(|map| format!("{map}/data/calico_api_group")));
    assert_eq!(changed, expected);
}

#[test]
fn overlay_etcd_has_no_calico_objects_in_kubernetes() {
    if !can_render() {
        return;
    }
    let objects = overlay("overlays/etcd");
    assert!(
        !objects
            .keys()
            .any(|name| name.starts_with("CustomResourceDefinition"))
    );
    for (name, object) in objects
        .iter()
        .filter(|(name, _)| name.starts_with("ClusterRole."))
    {
        let groups = object["rules"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|rule| rule["apiGroups"].as_array().unwrap());
        let calicos: Vec<_> = groups
            .filter(|group| group.as_str().unwrap().contains("projectcalico"))
            .collect();
        assert!(calicos.is_empty(), "{name}: {calicos:?}");
    }
    let plugin = objects["ClusterRole.rbac.authorization.k8s.io calico-cni-plugin"]["rules"]
        .as_array()
        .unwrap();
    let resources: Vec<&Value> = plugin.iter().map(|rule| &rule["resources"]).collect();
    let pods = json!(["pods", "namespaces", "nodes"]);
    assert_eq!(
        resources,
        [
            &pods,
            &json!(["virtualmachineinstances", "virtualmachines"])
        ]
    );
    for workload in [DAEMON_SET, DEPLOYMENT] {
        for container in containers(&objects[workload]) {
            let env = container["env"].as_array().unwrap();
            let named = |name: &str| env.iter().find(|variable| variable["name"] == name);
            assert_eq!(
                named("DATASTORE_TYPE").unwrap()["value"],
                "etcdv3",
                "{workload}"
            );
            assert_eq!(
                named("ETCD_ENDPOINTS").unwrap()["valueFrom"]["configMapKeyRef"]["key"],
                "etcd_endpoints"
            );
            assert_eq!(named("CALICO_API_GROUP"), None, "{workload}");
        }
    }
}

#[test]
fn configuration_templates_are_json_after_substitution() {
    if !can_render() {
        return;
    }
    for (name, keys) in [
        (
            "overlays/kubernetes-v1",
            vec!["calico_api_group", "kubernetes", "nodename"],
        ),
        (
            "overlays/kubernetes-v3",
            vec!["calico_api_group", "kubernetes", "nodename"],
        ),
        (
            "overlays/etcd",
            vec![
                "etcd_endpoints",
                "etcd_key_file",
                "etcd_cert_file",
                "etcd_ca_cert_file",
                "kubernetes",
            ],
        ),
    ] {
        let template = overlay(name)[CONFIG]["data"]["cni_network_config"]
            .as_str()
            .unwrap()
            .to_owned();
        let filled = template.replace("__CNI_MTU__", "0");
        let filled: Value = serde_json::from_str(&filled).unwrap();
        assert_eq!(
            (&filled["name"], &filled["cniVersion"]),
            (&json!("k8s-pod-network"), &json!("1.0.0"))
        );
        let types: Vec<&Value> = filled["plugins"]
            .as_array()
            .unwrap()
            .iter()
            .map(|plugin| &plugin["type"])
            .collect();
        assert_eq!(types, ["calico", "portmap"]);
        for key in keys {
            assert!(filled["plugins"][0][key] != Value::Null, "{name}: {key}");
        }
        assert!(template.contains(r#""mtu": __CNI_MTU__"#));
    }
}

/// With a moving tag such as `latest`, the version that runs would be random.
#[test]
fn every_image_has_the_version_of_the_programs() {
    if !can_render() {
        return;
    }
    let tag = format!(":v{}", env!("CARGO_PKG_VERSION"));
    for name in OVERLAYS {
        let objects = overlay(name);
        for (workload, image) in [
            (DAEMON_SET, "calico/cni"),
            (DEPLOYMENT, "calico/kube-controllers"),
        ] {
            for container in containers(&objects[workload]) {
                assert_eq!(
                    container["image"],
                    format!("registry.example.com/{image}{tag}"),
                    "{name}"
                );
                assert_eq!(container["imagePullPolicy"], "IfNotPresent");
            }
        }
    }
    for (file, tags) in [
        ("components/upgrade-ipam/patch.yaml", 1),
        ("overlays/beside-upstream/images.yaml", 2),
        ("uninstall/uninstall.yaml", 1),
        ("adopt/adopt.yaml", 1),
    ] {
        let text = fs::read_to_string(deploy(file)).unwrap();
        assert!(!text.contains("latest"), "{file}");
        assert_eq!(text.matches(&tag).count(), tags, "{file}");
    }
    let chart = fs::read_to_string(deploy("helm/calico-cni/Chart.yaml")).unwrap();
    assert!(chart.contains(&format!("\nappVersion: {}\n", env!("CARGO_PKG_VERSION"))));
}

/// The containers on nodes run as root for access to the node's files.
#[test]
fn containers_have_only_the_privileges_they_use() {
    if !can_render() {
        return;
    }
    for name in OVERLAYS {
        let objects = overlay(name);
        for (workload, user) in [(DAEMON_SET, 0), (DEPLOYMENT, 999)] {
            let pod = &objects[workload]["spec"]["template"]["spec"];
            assert_eq!(
                pod["securityContext"]["seccompProfile"]["type"],
                "RuntimeDefault"
            );
            for container in containers(&objects[workload]) {
                let context = &container["securityContext"];
                assert_eq!(
                    context["capabilities"],
                    json!({ "drop": ["ALL"] }),
                    "{workload}"
                );
                assert_eq!(context["allowPrivilegeEscalation"], false);
                assert_eq!(context["readOnlyRootFilesystem"], true);
                assert_eq!(context["runAsUser"], user);
                assert_eq!(context.get("privileged"), None);
                assert!(container["resources"]["requests"]["memory"].is_string());
                assert!(container["resources"]["requests"]["cpu"].is_string());
            }
        }
        assert_eq!(
            containers(&objects[DEPLOYMENT])[0]["securityContext"]["runAsNonRoot"],
            true
        );
    }
}

/// The end of a pod, as in a rollout or a drain, must not change the node's files.
#[test]
fn containers_have_no_lifecycle_hooks() {
    if !can_render() {
        return;
    }
    for container in containers(&overlay("overlays/kubernetes-v1")[DAEMON_SET]) {
        assert_eq!(container.get("lifecycle"), None);
    }
}

/// `kubectl drain` refuses a node with such a pod, unless a person allows the loss of its data.
#[test]
fn kube_controllers_has_no_volume_of_a_node() {
    if !can_render() {
        return;
    }
    for name in OVERLAYS {
        let objects = overlay(name);
        let volumes = objects[DEPLOYMENT]["spec"]["template"]["spec"]["volumes"]
            .as_array()
            .cloned();
        for volume in volumes.unwrap_or_default() {
            assert!(volume["secret"].is_object(), "{name}: {volume}");
        }
        let env = containers(&objects[DEPLOYMENT])[0]["env"]
            .as_array()
            .unwrap()
            .clone();
        let file = json!({ "name": "STATUS_FILE", "value": "/dev/shm/status.json" });
        assert!(env.contains(&file), "{name}: {env:?}");
    }
}

/// The agent compresses log files, and the installation needs none.
#[test]
fn agent_alone_mounts_the_directory_of_logs() {
    if !can_render() {
        return;
    }
    for name in OVERLAYS {
        let objects = overlay(name);
        let mount = json!({ "name": "cni-log-dir", "mountPath": "/var/log/calico/cni" });
        let mounts = |container: &Value| {
            container["volumeMounts"]
                .as_array()
                .unwrap()
                .contains(&mount)
        };
        for container in containers(&objects[DAEMON_SET]) {
            assert_eq!(
                mounts(container),
                container["name"] == "cni-agent",
                "{name}: {container}"
            );
        }
    }
}
