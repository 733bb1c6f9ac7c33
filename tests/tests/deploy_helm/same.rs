//! Renderings of the chart and of kustomize are equal.

use integration_tests::command::run;
use integration_tests::manifests::{Objects, changes, compose, deploy, helm, kustomize, template};
use serde_json::Value;

use super::can_render;

/// Removes the annotation that only the chart adds to each definition: with it, helm keeps the definition, and with the
/// definition all addresses, when the release is deleted.
fn without_keep(mut objects: Objects) -> Objects {
    for (name, object) in objects.iter_mut().filter(|(name, _)| name.starts_with("CustomResourceDefinition")) {
        let annotations = object["metadata"].as_object_mut().unwrap().remove("annotations");
        assert_eq!(annotations, Some(serde_json::json!({ "helm.sh/resource-policy": "keep" })), "{name}");
    }
    objects
}

#[track_caller]
fn assert_equal(kustomized: &Objects, values: &[&str]) {
    let templated = without_keep(template(values).unwrap());
    assert_eq!(changes(kustomized, &templated), Vec::<String>::new(), "{values:?}");
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
        assert_equal(&kustomize(&deploy("overlays/etcd")).unwrap(), &["--set", "datastore=etcd"]);
    }
}

#[test]
fn chart_values_reproduce_each_kustomize_component() {
    if !can_render() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let overlay = "overlays/kubernetes-v1";
    let options = [
        ("components/cni-1.1", "cni.specVersion=1.1.0"),
        ("components/default-pool", "ipam.pools[0].cidr=192.168.0.0/16"),
        ("components/flow-control", "cni.flowControl=true"),
        ("components/host-network-controllers", "kubeControllers.hostNetwork=true"),
        ("components/privileged", "cni.privileged=true"),
        ("components/service-monitor", "metrics.serviceMonitor=true"),
        ("components/agent-metrics", "metrics.podMonitor=true"),
        ("components/prometheus-rule", "metrics.prometheusRule=true"),
        ("components/upgrade-ipam", "cni.upgradeIpam=true"),
    ];
    for (component, value) in options {
        assert_equal(&compose(directory.path(), &[overlay], &[component]).unwrap(), &["--set", value]);
    }
    let all = compose(directory.path(), &[overlay], &options.map(|(component, _)| component)).unwrap();
    assert_equal(&all, &["--set", &options.map(|(_, value)| value).join(",")]);
    for (component, value) in [options[1], options[2], options[4]] {
        let with_etcd = compose(directory.path(), &["overlays/etcd"], &[component]).unwrap();
        assert_equal(&with_etcd, &["--set", "datastore=etcd", "--set", value]);
    }
}

/// The release's namespace replaces the default one in every `namespace` field.
#[test]
fn namespace_of_the_release_replaces_kube_system_everywhere() {
    if !can_render() {
        return;
    }
    let text = |objects: &Objects| serde_json::to_string(&objects.values().collect::<Vec<&Value>>()).unwrap();
    let usual = text(&template(&[]).unwrap());
    let other = text(&template(&["--namespace", "calico-system"]).unwrap());
    let places = |text: &str, name: &str| text.matches(&format!(r#""namespace":"{name}""#)).count();
    assert_eq!(places(&other, "kube-system"), 0);
    assert_eq!(places(&other, "calico-system"), places(&usual, "kube-system"));
    assert!(places(&usual, "kube-system") > 10);
}

/// Helm's own checks of the chart report nothing.
#[test]
fn helm_lint_reports_no_problem() {
    if !can_render() {
        return;
    }
    let chart = deploy("helm/calico-cni").display().to_string();
    let said = run(&helm().unwrap().display().to_string(), &["lint", "--strict", &chart]).unwrap();
    assert!(said.contains("1 chart(s) linted, 0 chart(s) failed"), "{said}");
    assert!(!said.contains("[WARNING]") && !said.contains("[ERROR]"), "{said}");
}
