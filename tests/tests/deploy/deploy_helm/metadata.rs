//! Labels and annotations of all objects, further objects, and the pod of `helm test`.

use integration_tests::command::run;
use integration_tests::manifests::{NAMESPACE, containers, deploy, helm, parse};
use serde_json::{Value, json};

use super::options::set;
use super::{CHART_LABELS, DAEMON_SET, DEPLOYMENT, can_render, pods};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Renders the chart, and returns the pod of `helm test`.
fn test_pod(values: &str) -> Value {
    let chart = deploy("helm/calico-cni").display().to_string();
    let words = [
        "template",
        "calico-cni",
        &chart,
        "--namespace",
        NAMESPACE,
        "--set",
        values,
    ];
    let objects = parse(&run(&helm().unwrap().display().to_string(), &words).unwrap()).unwrap();
    objects["Pod kube-system/calico-cni-test"].clone()
}

#[test]
fn every_object_has_the_labels_and_annotations_of_the_chart() {
    if !can_render() {
        return;
    }
    let objects = set(&[
        "commonLabels.team=net",
        "commonLabels.k8s-app=mine",
        "commonAnnotations.owner=me",
        "metrics.dashboard=true",
        "metrics.prometheusRule=true",
        "kubernetesServiceEndpoint.host=api.example.com",
    ]);
    for (name, object) in &objects {
        let (labels, annotations) = (
            &object["metadata"]["labels"],
            &object["metadata"]["annotations"],
        );
        assert_eq!(
            (&labels["team"], &annotations["owner"]),
            (&json!("net"), &json!("me")),
            "{name}"
        );
        assert!(
            CHART_LABELS.iter().all(|label| labels[label].is_string()),
            "{name}: {labels}"
        );
        assert_eq!(
            labels["helm.sh/chart"],
            format!("calico-cni-{VERSION}"),
            "{name}"
        );
    }
    // The labels by which objects find each other stay, and no pod is replaced because of a label.
    assert_eq!(
        objects[DAEMON_SET]["metadata"]["labels"]["k8s-app"],
        "calico-cni"
    );
    for workload in [DAEMON_SET, DEPLOYMENT] {
        let pod = &objects[workload]["spec"]["template"]["metadata"]["labels"];
        assert_eq!(pod.as_object().unwrap().len(), 1, "{workload}: {pod}");
    }
}

#[test]
fn service_account_annotations_are_set_on_the_named_account_only() {
    if !can_render() {
        return;
    }
    let (_, changed) = pods::with(&json!({
        "serviceAccountAnnotations": { "calico-cni": { "iam.example.com/role": "cni" } },
    }));
    assert_eq!(
        changed,
        ["ServiceAccount kube-system/calico-cni/metadata/annotations/iam.example.com/role"]
    );
}

#[test]
fn extra_objects_are_maps_or_texts_with_templates() {
    if !can_render() {
        return;
    }
    let (objects, changed) = pods::with(&json!({ "extraObjects": [
        { "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "a", "namespace": "{{ .Release.Namespace }}" } },
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: b-{{ .Release.Name }}\n  namespace: \
         other\n",
    ] }));
    assert_eq!(
        changed,
        ["ConfigMap kube-system/a", "ConfigMap other/b-calico-cni"]
    );
    assert_eq!(
        objects["ConfigMap kube-system/a"]["metadata"],
        json!({ "name": "a", "namespace": "kube-system" })
    );
}

#[test]
fn port_and_grace_period_values_change_the_controllers_and_their_service() {
    if !can_render() {
        return;
    }
    let objects = set(&[
        "kubeControllers.healthPort=9441",
        "kubeControllers.metricsPort=9095",
        "kubeControllers.leakGracePeriod=30m",
    ]);
    let container = containers(&objects[DEPLOYMENT])[0];
    assert_eq!(container["args"], json!(["--health-port=9441"]));
    let ports = json!([
        { "name": "metrics", "containerPort": 9095 }, { "name": "health", "containerPort": 9441 },
    ]);
    assert_eq!(container["ports"], ports);
    for probe in ["livenessProbe", "readinessProbe"] {
        assert_eq!(container[probe]["httpGet"]["port"], "health");
    }
    let env = container["env"].as_array().unwrap();
    for (name, value) in [
        ("PROMETHEUS_METRICS_PORT", "9095"),
        ("LEAK_GRACE_PERIOD", "30m"),
    ] {
        assert!(
            env.contains(&json!({ "name": name, "value": value })),
            "{env:?}"
        );
    }
    let service = &objects["Service kube-system/calico-kube-controllers-metrics"]["spec"]["ports"];
    assert_eq!(
        *service,
        json!([{ "name": "metrics", "port": 9095, "targetPort": "metrics" }])
    );
}

#[test]
fn strict_affinity_value_sets_the_variable_and_grants_the_creation() {
    if !can_render() {
        return;
    }
    let objects = set(&["ipam.strictAffinity=true"]);
    for container in containers(&objects[DAEMON_SET]) {
        let env = container["env"].as_array().unwrap();
        assert!(
            env.contains(&json!({ "name": "CALICO_IPAM_STRICT_AFFINITY", "value": "true" })),
            "{env:?}"
        );
    }
    let rules = &objects["ClusterRole.rbac.authorization.k8s.io calico-cni"]["rules"];
    for (group, resource) in [
        ("crd.projectcalico.org", "ipamconfigs"),
        ("projectcalico.org", "ipamconfigurations"),
    ] {
        let rule =
            json!({ "apiGroups": [group], "resources": [resource], "verbs": ["get", "create"] });
        assert!(rules.as_array().unwrap().contains(&rule), "{rules}");
    }
}

/// The pod is on the network that the chart installs, whatever network kube-controllers use.
#[test]
fn test_pod_reads_its_own_address_on_the_pod_network() {
    if !can_render() {
        return;
    }
    for values in [
        "kubeControllers.hostNetwork=true",
        "datastore=etcd",
        "image.pullSecrets={one}",
    ] {
        let pod = test_pod(values);
        let spec = &pod["spec"];
        assert_eq!(
            pod["metadata"]["annotations"]["helm.sh/hook"], "test",
            "{values}"
        );
        assert_eq!(
            (&spec["hostNetwork"], &spec["restartPolicy"]),
            (&Value::Null, &json!("Never")),
            "{values}"
        );
        assert_eq!(
            spec["serviceAccountName"], "calico-kube-controllers",
            "{values}"
        );
        let [container] = &spec["containers"].as_array().unwrap()[..] else {
            panic!("{values}: {spec}")
        };
        assert_eq!(
            container["image"],
            format!("registry.example.com/calico/cni:v{VERSION}"),
            "{values}"
        );
        assert_eq!(
            container["command"],
            json!(["/opt/cni/bin/calico-ipam", "show", "--ip", "$(POD_IP)"])
        );
        assert_eq!(
            (&container["args"], &container["livenessProbe"]),
            (&Value::Null, &Value::Null),
            "{values}"
        );
    }
    for endpoint in [
        "kubernetesServiceEndpoint.host=localhost",
        "platform=k3s,kubernetesServiceEndpoint.ofPlatform=true",
    ] {
        let node_local = test_pod(&format!("{endpoint},kubeControllers.hostNetwork=true"));
        assert_eq!(
            node_local["spec"]["containers"][0]["envFrom"],
            Value::Null,
            "there localhost is the pod"
        );
    }
    let volumes = test_pod("datastore=etcd")["spec"]["volumes"].clone();
    assert!(
        volumes
            .as_array()
            .unwrap()
            .iter()
            .any(|volume| volume["name"] == "etcd-certs"),
        "{volumes}"
    );
}

#[test]
fn chart_readme_is_generated_from_the_values() {
    let made = run(
        &deploy("helm/readme.sh").display().to_string(),
        &[] as &[&str],
    )
    .unwrap();
    let readme = std::fs::read_to_string(deploy("helm/calico-cni/README.md")).unwrap();
    assert!(made == readme, "run make generate");
    for row in [
        "| `cni.logFile.maxSize` | `0` |",
        "| **`agent`** | | The agent",
        "| `ipam.pools` | `[]` | Pools to",
    ] {
        assert!(made.lines().any(|line| line.starts_with(row)), "{row}");
    }
}
