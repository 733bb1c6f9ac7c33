//! Renderings of the chart and of kustomize are equal.

use integration_tests::command::run;
use integration_tests::manifests::{
    Objects, changes, components, compose, deploy, helm, kustomize, template,
};
use serde_json::{Value, json};

use super::{CHART_LABELS, DAEMON_SET, DEPLOYMENT, can_render};

/// Components, each with the value of the chart that renders the same.
const OPTIONS: [(&str, &str); 16] = [
    ("components/cni-1.1", "cni.specVersion=1.1.0"),
    (
        "components/default-pool",
        "ipam.pools[0].cidr=192.168.0.0/16",
    ),
    ("components/flow-control", "cni.flowControl=true"),
    (
        "components/host-network-controllers",
        "kubeControllers.hostNetwork=true",
    ),
    ("components/dac-override", "cni.dacOverride=true"),
    ("components/selinux", "cni.selinux=true"),
    ("components/privileged", "cni.privileged=true"),
    ("components/service-monitor", "metrics.serviceMonitor=true"),
    ("components/agent-metrics", "metrics.podMonitor=true"),
    ("components/node-condition", "agent.nodeCondition=true"),
    ("components/prometheus-rule", "metrics.prometheusRule=true"),
    (
        "components/former-directories",
        "cni.formerBinDir=/opt/cni/bin",
    ),
    ("components/node-restriction", "rbac.nodeRestriction=true"),
    ("components/host-endpoints", "rbac.hostEndpoints=true"),
    (
        "components/remove-dead-interfaces",
        "cni.removeDeadInterfaces=true",
    ),
    ("components/upgrade-ipam", "cni.upgradeIpam=true"),
];

/// Components that are compared elsewhere, or for which the chart needs no value.
const OTHERS: [&str; 5] = [
    // Renders nothing in kube-system: namespaces.rs.
    "critical-quota",
    // Belongs to upstream's calico-node, which the chart does not contain.
    "keep-state",
    // With the definitions of v3, which the component lacks: migration.rs.
    "migrate-to-v3",
    // Compared without the other options, because kube-controllers on the host's network change it.
    "openshift-scc",
    // Compared one by one: platforms.rs.
    "platforms",
];

/// Removes the additions of the chart. Kustomize has a hash in the configuration's name instead of
/// a checksum.
fn without_additions(mut objects: Objects) -> Objects {
    for (name, object) in &mut objects {
        let metadata = object["metadata"].as_object_mut().unwrap();
        let labels = metadata
            .get_mut("labels")
            .and_then(Value::as_object_mut)
            .unwrap();
        for label in CHART_LABELS {
            assert!(
                labels.remove(label).is_some(),
                "{name} has no label {label}"
            );
        }
        if labels.is_empty() {
            metadata.remove("labels");
        }
        let annotations = metadata.remove("annotations");
        let expected = is_kept(name).then(|| json!({ "helm.sh/resource-policy": "keep" }));
        assert_eq!(annotations, expected, "{name}");
    }
    for workload in [DAEMON_SET, DEPLOYMENT] {
        let pods = objects.get_mut(workload).unwrap()["spec"]["template"]["metadata"]
            .as_object_mut()
            .unwrap();
        let annotations = pods.remove("annotations").unwrap();
        assert!(
            annotations["checksum/configuration"]
                .as_str()
                .is_some_and(|text| text.len() == 64),
            "{annotations}"
        );
    }
    objects
}

/// Returns true if helm keeps an object: a definition, or an account or role that the DELs of
/// running pods need.
pub(super) fn is_kept(name: &str) -> bool {
    let account = name.rsplit([' ', '/']).next();
    let is_of_nodes = matches!(
        account,
        Some("calico-cni" | "calico-cni-plugin" | "calico-cni-plugin-bound")
    );
    let is_access = ["ServiceAccount ", "Role", "ClusterRole"]
        .iter()
        .any(|kind| name.starts_with(kind));
    name.starts_with("CustomResourceDefinition") || (is_of_nodes && is_access)
}

#[track_caller]
pub(super) fn assert_equal(kustomized: &Objects, values: &[&str]) {
    let templated = without_additions(template(values).unwrap());
    assert_eq!(
        changes(kustomized, &templated),
        Vec::<String>::new(),
        "{values:?}"
    );
}

#[test]
fn chart_with_defaults_equals_the_overlay_kubernetes_v1() {
    if can_render() {
        assert_equal(&kustomize(&deploy("overlays/kubernetes-v1")).unwrap(), &[]);
    }
}

#[test]
fn chart_values_reproduce_the_overlays_kubernetes_v3_and_etcd() {
    if can_render() {
        let v3 = ["--set", "apiGroup=projectcalico.org/v3"];
        assert_equal(&kustomize(&deploy("overlays/kubernetes-v3")).unwrap(), &v3);
        assert_equal(
            &kustomize(&deploy("overlays/etcd")).unwrap(),
            &["--set", "datastore=etcd"],
        );
    }
}

#[test]
fn chart_values_reproduce_each_kustomize_component() {
    if !can_render() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let overlay = "overlays/kubernetes-v1";
    for (component, value) in OPTIONS {
        assert_equal(
            &compose(directory.path(), &[overlay], &[component]).unwrap(),
            &["--set", value],
        );
    }
    let all = compose(
        directory.path(),
        &[overlay],
        &OPTIONS.map(|(component, _)| component),
    )
    .unwrap();
    assert_equal(&all, &["--set", &OPTIONS.map(|(_, value)| value).join(",")]);
    // With kube-controllers on the host's network, the chart chooses other constraints.
    let constraints = compose(directory.path(), &[overlay], &["components/openshift-scc"]).unwrap();
    assert_equal(&constraints, &["--set", "namespace.openshift=true"]);
    for (component, value) in [1, 2, 4, 5, 6, 9, 12].map(|number| OPTIONS[number]) {
        let with_etcd = compose(directory.path(), &["overlays/etcd"], &[component]).unwrap();
        assert_equal(&with_etcd, &["--set", "datastore=etcd", "--set", value]);
    }
}

#[test]
fn every_component_is_compared_with_a_value_of_the_chart() {
    let compared = OPTIONS.map(|(component, _)| component.trim_start_matches("components/"));
    let mut listed = [&compared[..], &OTHERS].concat();
    listed.sort_unstable();
    assert_eq!(listed, components().unwrap());
}

#[test]
fn namespace_of_the_release_replaces_kube_system_everywhere() {
    if !can_render() {
        return;
    }
    let text = |objects: &Objects| {
        serde_json::to_string(&objects.values().collect::<Vec<&Value>>()).unwrap()
    };
    let usual = text(&template(&[]).unwrap());
    let mut other = template(&["--namespace", "calico-system"]).unwrap();
    other.retain(|name, _| !name.starts_with("ResourceQuota "));
    let other = text(&other);
    let places = |text: &str, name: &str| text.matches(&format!(r#""namespace":"{name}""#)).count();
    assert_eq!(places(&other, "kube-system"), 0);
    assert_eq!(
        places(&other, "calico-system"),
        places(&usual, "kube-system")
    );
    assert!(places(&usual, "kube-system") > 10);
}

#[test]
fn helm_lint_reports_no_problem() {
    if !can_render() {
        return;
    }
    let chart = deploy("helm/calico-cni").display().to_string();
    let said = run(
        &helm().unwrap().display().to_string(),
        &["lint", "--strict", &chart],
    )
    .unwrap();
    assert!(
        said.contains("1 chart(s) linted, 0 chart(s) failed"),
        "{said}"
    );
    assert!(
        !said.contains("[WARNING]") && !said.contains("[ERROR]"),
        "{said}"
    );
}
