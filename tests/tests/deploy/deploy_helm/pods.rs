//! The nodes and users of pods, and settings of logs, certificates and monitors.

use std::fs;

use integration_tests::manifests::{Objects, changes, containers, template};
use serde_json::{Value, json};

use super::{CONFIG, DAEMON_SET, DEPLOYMENT, can_render, of_configuration};

/// Renders the chart with `values`. Returns the objects, and their differences from the chart
/// without values.
pub(super) fn with(values: &Value) -> (Objects, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("values.yaml");
    fs::write(&file, values.to_string()).unwrap();
    let objects = template(&["--values", &file.display().to_string()]).unwrap();
    let mut changed = changes(&template(&[]).unwrap(), &objects);
    changed.sort();
    (objects, changed)
}

#[test]
fn cni_scheduling_values_change_only_the_daemon_set() {
    if !can_render() {
        return;
    }
    let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
        {
            "matchExpressions": [{
                "key": "type", "operator": "NotIn", "values": ["virtual-kubelet"],
            }]
        },
    ] } } });
    let tolerations = json!([{ "key": "a", "operator": "Exists" }]);
    let (objects, changed) = with(&json!({ "cni": {
        "affinity": affinity, "tolerations": tolerations, "updateStrategy": { "type": "OnDelete" },
    } }));
    let pod = format!("{DAEMON_SET}/spec/template/spec");
    let strategy = format!("{DAEMON_SET}/spec/updateStrategy");
    for change in &changed {
        let places = [
            format!("{pod}/affinity"),
            format!("{pod}/tolerations"),
            strategy.clone(),
        ];
        assert!(
            places.iter().any(|place| change.starts_with(place)),
            "{change}"
        );
    }
    let spec = &objects[DAEMON_SET]["spec"];
    assert_eq!(spec["updateStrategy"], json!({ "type": "OnDelete" }));
    assert_eq!(
        (
            &spec["template"]["spec"]["affinity"],
            &spec["template"]["spec"]["tolerations"]
        ),
        (&affinity, &tolerations)
    );
}

#[test]
fn controllers_scheduling_values_change_only_the_deployment() {
    if !can_render() {
        return;
    }
    let spread = json!([{ "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": { "matchLabels": { "k8s-app": "calico-kube-controllers" } } }]);
    let affinity = json!({ "nodeAffinity": {} });
    let (objects, _) = with(&json!({ "kubeControllers": {
        "nodeSelector": { "role": "infra" }, "affinity": affinity,
        "topologySpreadConstraints": spread, "logLevel": "debug",
    } }));
    let pod = &objects[DEPLOYMENT]["spec"]["template"]["spec"];
    assert_eq!(
        pod["nodeSelector"],
        json!({ "kubernetes.io/os": "linux", "role": "infra" })
    );
    assert_eq!(
        (&pod["affinity"], &pod["topologySpreadConstraints"]),
        (&affinity, &spread)
    );
    let env = pod["containers"][0]["env"].as_array().unwrap();
    assert!(
        env.contains(&json!({ "name": "LOG_LEVEL", "value": "debug" })),
        "{env:?}"
    );
    assert_eq!(
        objects[DAEMON_SET]["spec"]["template"]["spec"]["nodeSelector"],
        json!({ "kubernetes.io/os": "linux" })
    );
}

#[test]
fn security_context_values_are_merged_into_the_containers() {
    if !can_render() {
        return;
    }
    let (objects, _) = with(&json!({
        "cni": { "securityContext": { "seLinuxOptions": { "type": "spc_t" } } },
        "kubeControllers": { "securityContext": { "runAsUser": 1000, "runAsGroup": null } },
    }));
    for container in containers(&objects[DAEMON_SET]) {
        let context = &container["securityContext"];
        assert_eq!(
            (&context["seLinuxOptions"]["type"], &context["runAsUser"]),
            (&json!("spc_t"), &json!(0))
        );
        assert_eq!(
            context["capabilities"],
            json!({ "drop": ["ALL"] }),
            "what is not named stays"
        );
    }
    let context = &containers(&objects[DEPLOYMENT])[0]["securityContext"];
    assert_eq!(
        (
            &context["runAsUser"],
            &context["runAsGroup"],
            &context["runAsNonRoot"]
        ),
        (&json!(1000), &Value::Null, &json!(true))
    );
}

#[test]
fn log_file_values_set_or_remove_the_plugins_log_file() {
    if !can_render() {
        return;
    }
    let plugin = |objects: &Objects| -> Value {
        let text = objects[CONFIG]["data"]["cni_network_config"]
            .as_str()
            .unwrap()
            .replace("__CNI_MTU__", "0");
        serde_json::from_str::<Value>(&text).unwrap()["plugins"][0].clone()
    };
    for datastore in ["kubernetes", "etcd"] {
        let (objects, _) = with(&json!({ "datastore": datastore,
            "cni": { "logFile": { "path": "/var/log/cni.log", "maxSize": 5, "maxAge": 6, "maxCount": 7 } } }));
        let plugin = plugin(&objects);
        let said = ["path", "max_size", "max_age", "max_count"]
            .map(|key| plugin[format!("log_file_{key}")].clone());
        assert_eq!(
            said,
            [json!("/var/log/cni.log"), json!(5), json!(6), json!(7)],
            "{datastore}"
        );
    }
    let (objects, changed) = with(&json!({ "cni": { "logFile": { "path": "", "maxSize": 5 } } }));
    assert_eq!(changed, of_configuration(&["cni_network_config"]));
    let none = plugin(&objects);
    assert!(
        none.as_object()
            .unwrap()
            .keys()
            .all(|key| !key.starts_with("log_file")),
        "{none}"
    );
}

#[test]
fn certificate_values_create_a_secret_only_if_complete() {
    if !can_render() {
        return;
    }
    let certificates = json!({
        "ca": "-----BEGIN CA-----", "cert": "-----BEGIN CERT-----", "key": "-----BEGIN KEY-----",
    });
    let (objects, _) = with(&json!({
        "datastore": "etcd", "etcd": { "secretName": "mine", "certificates": certificates },
    }));
    let data = json!({ "etcd-ca": "LS0tLS1CRUdJTiBDQS0tLS0t",
            "etcd-cert": "LS0tLS1CRUdJTiBDRVJULS0tLS0=",
        "etcd-key": "LS0tLS1CRUdJTiBLRVktLS0tLQ==" });
    assert_eq!(objects["Secret kube-system/mine"]["data"], data);
    for workload in [DAEMON_SET, DEPLOYMENT] {
        let volumes = objects[workload]["spec"]["template"]["spec"]["volumes"]
            .as_array()
            .unwrap();
        let certs = volumes
            .iter()
            .find(|volume| volume["name"] == "etcd-certs")
            .unwrap();
        assert_eq!(certs["secret"]["secretName"], "mine", "{workload}");
    }
    let without = |values: &[&str]| {
        template(values)
            .unwrap()
            .keys()
            .all(|name| !name.starts_with("Secret"))
    };
    assert!(
        without(&["--set", "datastore=etcd"]) && without(&[]),
        "by itself the chart makes none"
    );
    let half = [
        "--set",
        "datastore=etcd",
        "--set",
        "etcd.certificates.ca=-----BEGIN CERTIFICATE-----",
    ];
    assert!(
        template(&half)
            .unwrap_err()
            .to_string()
            .contains("etcd.certificates.cert is missing")
    );
}

#[test]
fn monitors_have_the_configured_labels_and_interval() {
    if !can_render() {
        return;
    }
    let (objects, _) = with(&json!({ "metrics": {
        "serviceMonitor": true, "podMonitor": true, "prometheusRule": true,
        "serviceMonitorLabels": { "release": "prometheus" }, "interval": "1m",
    } }));
    for (kind, endpoints) in [
        ("ServiceMonitor", "endpoints"),
        ("PodMonitor", "podMetricsEndpoints"),
        ("PrometheusRule", ""),
    ] {
        let (_, monitor) = objects
            .iter()
            .find(|(name, _)| name.starts_with(kind))
            .unwrap();
        assert_eq!(
            monitor["metadata"]["labels"]["release"], "prometheus",
            "{kind}"
        );
        assert!(
            monitor["metadata"]["labels"]["k8s-app"].is_string(),
            "{kind}"
        );
        if !endpoints.is_empty() {
            assert_eq!(monitor["spec"][endpoints][0]["interval"], "1m", "{kind}");
        }
    }
}

/// Only the node itself can reach an agent that listens on the loopback address.
#[test]
fn pod_monitor_uses_the_agents_port_and_refuses_loopback() {
    if !can_render() {
        return;
    }
    let (objects, _) =
        with(&json!({ "metrics": { "podMonitor": true }, "agent": { "listen": "[::]:9197" } }));
    let agent = containers(&objects[DAEMON_SET])[1];
    assert_eq!(
        agent["ports"],
        json!([{ "name": "metrics", "containerPort": 9197 }])
    );
    let said: Vec<&Value> = agent["env"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["name"] == "CNI_AGENT_LISTEN")
        .collect();
    assert_eq!(
        said,
        [&json!({ "name": "CNI_AGENT_LISTEN", "value": "[::]:9197" })]
    );
    for listen in ["127.0.0.1:9097", "[::1]:9097"] {
        let error = template(&[
            "--set",
            "metrics.podMonitor=true",
            "--set",
            &format!("agent.listen={listen}"),
        ]);
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("nobody but the node reaches"),
            "{listen}"
        );
    }
}
