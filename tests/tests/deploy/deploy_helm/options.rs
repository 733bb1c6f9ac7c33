//! Values without a corresponding kustomize component.

use integration_tests::manifests::{Objects, changes, containers, template};
use serde_json::{Value, json};

use super::{CONFIG, DAEMON_SET, DEPLOYMENT, can_render, of_configuration};

/// Renders the chart with `values`.
pub(super) fn set(values: &[&str]) -> Objects {
    let options: Vec<&str> = values.iter().flat_map(|value| ["--set", value]).collect();
    template(&options).unwrap()
}

/// Renders the chart with `values`. Returns the objects, and their differences from the chart
/// without values.
pub(super) fn with(values: &[&str]) -> (Objects, Vec<String>) {
    let objects = set(values);
    let mut changed = changes(&template(&[]).unwrap(), &objects);
    changed.sort();
    (objects, changed)
}

pub(super) fn network(objects: &Objects) -> Value {
    let text = objects[CONFIG]["data"]["cni_network_config"]
        .as_str()
        .unwrap();
    serde_json::from_str(&text.replace("__CNI_MTU__", "0")).unwrap()
}

#[test]
fn image_values_set_registry_tag_and_digest() {
    if !can_render() {
        return;
    }
    let digest = format!("sha256:{}", "ab".repeat(32));
    let objects = set(&[
        "image.registry=localhost:5000",
        "image.tag=v9",
        "image.pullPolicy=Always",
        "image.pullSecrets={one,two}",
        &format!("image.digest.kubeControllers={digest}"),
    ]);
    for (workload, image) in [
        (DAEMON_SET, "localhost:5000/calico/cni:v9".to_owned()),
        (
            DEPLOYMENT,
            format!("localhost:5000/calico/kube-controllers@{digest}"),
        ),
    ] {
        for container in containers(&objects[workload]) {
            assert_eq!(
                (&container["image"], &container["imagePullPolicy"]),
                (&json!(image), &json!("Always"))
            );
        }
        let secrets = &objects[workload]["spec"]["template"]["spec"]["imagePullSecrets"];
        assert_eq!(*secrets, json!([{ "name": "one" }, { "name": "two" }]));
    }
    let objects = set(&["image.registry=", "image.cni=mine/cni"]);
    assert_eq!(
        containers(&objects[DAEMON_SET])[0]["image"],
        format!("mine/cni:v{}", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn cni_values_change_the_network_configuration() {
    if !can_render() {
        return;
    }
    let (objects, changed) = with(&["cni.bandwidth=true", "cni.logLevel=debug", "cni.mtu=1440"]);
    assert_eq!(
        changed,
        of_configuration(&["cni_network_config", "veth_mtu"])
    );
    let filled = network(&objects);
    assert_eq!(
        filled["plugins"][2],
        json!({ "type": "bandwidth", "capabilities": { "bandwidth": true } })
    );
    assert_eq!(filled["plugins"][0]["log_level"], "debug");
    assert_eq!(objects[CONFIG]["data"]["veth_mtu"], "1440");
    let (objects, changed) = with(&[r"cni.networkConfig=\{}"]);
    assert_eq!(changed, of_configuration(&["cni_network_config"]));
    assert_eq!(objects[CONFIG]["data"]["cni_network_config"], "{}");
}

#[test]
fn agent_values_change_only_the_agent_container() {
    if !can_render() {
        return;
    }
    let (objects, changed) = with(&[
        "agent.enabled=false",
        "agent.tokenRefreshInterval=6h",
        "agent.listen=0.0.0.0:9097",
        "agent.resources.limits.memory=1Gi",
    ]);
    let agent = format!("{DAEMON_SET}/spec/template/spec/containers/0");
    assert_eq!(
        changed,
        [
            format!("{agent}/env"),
            format!("{agent}/resources/limits/memory")
        ]
    );
    let env = containers(&objects[DAEMON_SET])[1]["env"]
        .as_array()
        .unwrap();
    let said = [
        ("CALICO_MANAGE_CNI", "false"),
        ("CNI_TOKEN_REFRESH_INTERVAL", "6h"),
        ("CNI_AGENT_LISTEN", "0.0.0.0:9097"),
    ];
    for (name, value) in said {
        assert!(
            env.contains(&json!({ "name": name, "value": value })),
            "{name}"
        );
    }
}

/// The patch of the component replaces the list of capabilities.
#[test]
fn removal_of_dead_interfaces_keeps_the_right_to_directories_of_others() {
    if !can_render() {
        return;
    }
    let own = json!(["NET_ADMIN", "SYS_PTRACE"]);
    let both = json!(["DAC_OVERRIDE", "NET_ADMIN", "SYS_PTRACE"]);
    for (values, expected) in [
        (&["cni.removeDeadInterfaces=true"][..], &own),
        (
            &["cni.removeDeadInterfaces=true", "cni.dacOverride=true"],
            &both,
        ),
        (
            &["cni.removeDeadInterfaces=true", "platform=kubespray"],
            &both,
        ),
    ] {
        let objects = set(values);
        let pod = &objects[DAEMON_SET]["spec"]["template"]["spec"];
        assert_eq!(
            pod["containers"][0]["securityContext"]["capabilities"]["add"], *expected,
            "{values:?}"
        );
    }
    let crio = [
        "cni.removeDeadInterfaces=true",
        "cni.patch.spec.template.spec.volumes[0].name=container-runtime",
        "cni.patch.spec.template.spec.volumes[0].hostPath.path=/run/crio",
    ];
    let objects = set(&crio);
    let volumes = objects[DAEMON_SET]["spec"]["template"]["spec"]["volumes"]
        .as_array()
        .unwrap();
    let of_runtime = volumes
        .iter()
        .find(|volume| volume["name"] == "container-runtime")
        .unwrap();
    assert_eq!(of_runtime["hostPath"], json!({ "path": "/run/crio" }));
}

#[test]
fn probes_use_the_listen_address_of_the_agent() {
    if !can_render() {
        return;
    }
    for (listen, host, port) in [
        ("127.0.0.1:9197", "127.0.0.1", 9197),
        ("0.0.0.0:9197", "127.0.0.1", 9197),
        ("[::]:9097", "127.0.0.1", 9097),
        ("[::1]:9197", "::1", 9197),
        ("127.0.0.2:9097", "127.0.0.2", 9097),
    ] {
        let (objects, changed) = with(&[&format!("agent.listen={listen}")]);
        let agent = format!("{DAEMON_SET}/spec/template/spec/containers/0");
        for change in &changed {
            let places = ["env", "livenessProbe/httpGet", "readinessProbe/httpGet"];
            assert!(
                places
                    .iter()
                    .any(|place| change.starts_with(&format!("{agent}/{place}"))),
                "{change}"
            );
        }
        let agent = containers(&objects[DAEMON_SET])[1];
        for probe in ["livenessProbe", "readinessProbe"] {
            let asked = &agent[probe]["httpGet"];
            assert_eq!(
                (&asked["host"], &asked["port"]),
                (&json!(host), &json!(port)),
                "{listen}"
            );
        }
        assert!(
            agent["env"]
                .as_array()
                .unwrap()
                .contains(&json!({ "name": "CNI_AGENT_LISTEN", "value": listen }))
        );
    }
}

#[test]
fn pod_values_apply_to_all_workloads() {
    if !can_render() {
        return;
    }
    let objects = set(&[
        "nodeSelector.pool=a",
        "podLabels.team=net",
        "podAnnotations.note=x",
        "priorityClassName.cni=mine",
        "kubernetesServiceEndpoint.host=api.example.com",
        "kubeControllers.tolerations[0].operator=Exists",
        "kubeControllers.enabledControllers=node",
        "cni.installPlugins=calico-only",
        "cni.confName=05-calico.conflist",
    ]);
    for workload in [DAEMON_SET, DEPLOYMENT] {
        let template = &objects[workload]["spec"]["template"];
        assert_eq!(
            template["spec"]["nodeSelector"],
            json!({ "kubernetes.io/os": "linux", "pool": "a" })
        );
        assert_eq!(template["metadata"]["labels"]["team"], "net");
        assert_eq!(template["metadata"]["annotations"]["note"], "x");
        assert_eq!(
            objects[workload]["spec"]["selector"]["matchLabels"]
                .as_object()
                .unwrap()
                .len(),
            1
        );
    }
    assert_eq!(
        objects[DAEMON_SET]["spec"]["template"]["spec"]["priorityClassName"],
        "mine"
    );
    let controllers = &objects[DEPLOYMENT]["spec"]["template"]["spec"];
    assert_eq!(
        controllers["tolerations"]
            .as_array()
            .unwrap()
            .last()
            .unwrap(),
        &json!({ "operator": "Exists" })
    );
    let env = controllers["containers"][0]["env"].as_array().unwrap();
    assert!(env.contains(&json!({ "name": "ENABLED_CONTROLLERS", "value": "node" })));
    for container in containers(&objects[DAEMON_SET]) {
        let env = container["env"].as_array().unwrap();
        for (name, value) in [
            ("CNI_INSTALL_PLUGINS", "calico-only"),
            ("CNI_CONF_NAME", "05-calico.conflist"),
        ] {
            let named: Vec<_> = env
                .iter()
                .filter(|variable| variable["name"] == name)
                .collect();
            assert_eq!(named, [&json!({ "name": name, "value": value })]);
        }
    }
    let endpoint = &objects["ConfigMap kube-system/kubernetes-services-endpoint"]["data"];
    let expected =
        json!({ "KUBERNETES_SERVICE_HOST": "api.example.com", "KUBERNETES_SERVICE_PORT": "6443" });
    assert_eq!(*endpoint, expected);
}

#[test]
fn cni_directory_values_change_host_paths_only() {
    if !can_render() {
        return;
    }
    let objects = set(&[
        "cni.binDir=/var/lib/cni/bin",
        "cni.confDir=/var/run/multus/cni/net.d",
    ]);
    let volumes = &objects[DAEMON_SET]["spec"]["template"]["spec"]["volumes"];
    let path = |name: &str| {
        volumes
            .as_array()
            .unwrap()
            .iter()
            .find(|volume| volume["name"] == name)
            .unwrap()["hostPath"]["path"]
            .clone()
    };
    assert_eq!(
        (path("cni-bin-dir"), path("cni-net-dir")),
        (
            json!("/var/lib/cni/bin"),
            json!("/var/run/multus/cni/net.d")
        )
    );
    for container in containers(&objects[DAEMON_SET]) {
        let env = container["env"].as_array().unwrap();
        let net_dir = env
            .iter()
            .find(|variable| variable["name"] == "CNI_NET_DIR")
            .unwrap();
        assert_eq!(net_dir["value"], "/var/run/multus/cni/net.d");
        assert_eq!(
            container["volumeMounts"][1]["mountPath"],
            "/host/etc/cni/net.d"
        );
    }
}

#[test]
fn etcd_without_tls_has_no_certificates() {
    if !can_render() {
        return;
    }
    let objects = set(&[
        "datastore=etcd",
        "etcd.tls=false",
        "etcd.endpoints=http://10.0.0.1:2379",
    ]);
    let data = &objects[CONFIG]["data"];
    assert_eq!(data["etcd_endpoints"], "http://10.0.0.1:2379");
    assert_eq!(
        [&data["etcd_ca"], &data["etcd_cert"], &data["etcd_key"]],
        ["", "", ""]
    );
}

#[test]
fn patches_of_the_chart_are_merged_as_in_kustomize() {
    if !can_render() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("values.yaml");
    let values = json!({
        "cni": { "patch": { "spec": { "template": { "spec": {
            "nodeSelector": { "pool": "a" },
            "terminationGracePeriodSeconds": 3,
            "containers": [
                {
                    "name": "cni-agent",
                    "env": [
                        { "name": "SLEEP", "$patch": "delete" }, { "name": "NEW", "value": "1" },
                    ],
                },
            ],
        } } } } },
        "kubeControllers": { "replicas": 1, "extraEnv": [{ "name": "LOG_LEVEL", "value": "debug" }],
            "resources": { "limits": { "memory": "1Gi" } } },
    });
    std::fs::write(&file, values.to_string()).unwrap();
    let before = template(&[]).unwrap();
    let objects = template(&["--values", &file.display().to_string()]).unwrap();
    let pod = &objects[DAEMON_SET]["spec"]["template"]["spec"];
    assert_eq!(
        pod["nodeSelector"],
        json!({ "kubernetes.io/os": "linux", "pool": "a" })
    );
    assert_eq!(pod["terminationGracePeriodSeconds"], 3);
    let names = |objects: &Objects, container: usize| -> Vec<String> {
        let env = containers(&objects[DAEMON_SET])[container]["env"]
            .as_array()
            .unwrap();
        env.iter()
            .map(|variable| variable["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let mut expected = names(&before, 1);
    expected.retain(|name| name != "SLEEP");
    expected.insert(0, "NEW".to_owned());
    assert_eq!(names(&objects, 1), expected);
    assert_eq!(names(&objects, 0), names(&before, 0));
    let controllers = &objects[DEPLOYMENT]["spec"];
    assert_eq!(controllers["replicas"], 1);
    let container = &controllers["template"]["spec"]["containers"][0];
    assert_eq!(
        container["resources"],
        json!({ "limits": { "memory": "1Gi" }, "requests": { "cpu": "25m", "memory": "32Mi" } })
    );
    assert_eq!(
        container["env"][0],
        json!({ "name": "LOG_LEVEL", "value": "debug" })
    );
}

#[test]
fn parts_of_the_chart_can_be_disabled() {
    if !can_render() {
        return;
    }
    let objects = set(&["crds.install=false"]);
    assert!(
        !objects
            .keys()
            .any(|name| name.starts_with("CustomResourceDefinition"))
    );
    let objects = set(&["crds.keep=false", "rbac.keep=false"]);
    assert!(
        objects
            .values()
            .all(|object| object["metadata"].get("annotations").is_none())
    );
    let objects = set(&[
        "metrics.service=false",
        "kubeControllers.podDisruptionBudget=false",
    ]);
    assert!(
        !objects
            .keys()
            .any(|name| name.starts_with("Service ") || name.starts_with("PodDisruptionBudget"))
    );
    let objects = set(&["apiGroup=projectcalico.org/v3", "rbac.userRoles=false"]);
    assert!(!objects.keys().any(|name| name.ends_with(" calico-edit")));
    let objects = set(&["kubeControllers.enabled=false"]);
    let left: Vec<&String> = objects
        .keys()
        .filter(|name| name.contains("kube-controllers"))
        .collect();
    assert_eq!(left, Vec::<&String>::new());
    let objects = set(&["metrics.dashboard=true"]);
    let dashboard = &objects["ConfigMap kube-system/calico-kube-controllers-dashboard"]["data"]["kube-controllers.json"];
    let dashboard: Value = serde_json::from_str(dashboard.as_str().unwrap()).unwrap();
    assert!(dashboard["panels"].is_array());
}
