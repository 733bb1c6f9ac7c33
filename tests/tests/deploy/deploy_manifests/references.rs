//! The references between the objects of a rendering.

use std::collections::BTreeSet;

use integration_tests::manifests::{NAMESPACE, Objects, containers};
use serde_json::Value;

use super::{COMPONENTS, OVERLAYS, can_render, overlay};

/// Returns the references to missing objects.
pub(super) fn missing(objects: &Objects) -> Vec<String> {
    let mut missing = Vec::new();
    let workloads = objects
        .iter()
        .filter(|(name, _)| name.starts_with("DaemonSet") || name.starts_with("Deployment"));
    for (name, workload) in workloads {
        let pod = &workload["spec"]["template"]["spec"];
        let mut lacks = |what: String| missing.push(format!("{name}: {what}"));
        let account = pod["serviceAccountName"].as_str().unwrap_or("default");
        if !objects.contains_key(&format!("ServiceAccount {NAMESPACE}/{account}")) {
            lacks(format!("account {account}"));
        }
        let volumes: BTreeSet<&str> = list(&pod["volumes"])
            .filter_map(|volume| volume["name"].as_str())
            .collect();
        for volume in list(&pod["volumes"]).filter(|volume| volume["secret"]["optional"] == false) {
            lacks(format!("Secret of {volume}"));
        }
        for container in containers(workload) {
            for mount in list(&container["volumeMounts"]).filter_map(|mount| mount["name"].as_str())
            {
                if !volumes.contains(mount) {
                    lacks(format!("volume {mount}"));
                }
            }
            for source in list(&container["envFrom"]).map(|source| &source["configMapRef"]) {
                if source["optional"] != true && config_map(objects, &source["name"]).is_none() {
                    lacks(format!("ConfigMap {source}"));
                }
            }
            for key in
                list(&container["env"]).map(|variable| &variable["valueFrom"]["configMapKeyRef"])
            {
                let found = || config_map(objects, &key["name"])?["data"].get(key["key"].as_str()?);
                if !key.is_null() && found().is_none() {
                    lacks(format!("key {key}"));
                }
            }
        }
    }
    missing.extend(unbound(objects));
    missing
}

/// Returns the bindings of missing roles or accounts.
fn unbound(objects: &Objects) -> Vec<String> {
    let mut missing = Vec::new();
    for (name, binding) in objects
        .iter()
        .filter(|(_, object)| !object["roleRef"].is_null())
    {
        let (kind, role) = (
            binding["roleRef"]["kind"].as_str().unwrap(),
            binding["roleRef"]["name"].as_str().unwrap(),
        );
        let place = if kind == "Role" {
            format!("{NAMESPACE}/")
        } else {
            String::new()
        };
        // Roles with this prefix are those of the platform.
        let is_of_platform = kind == "ClusterRole" && role.starts_with("system:");
        if !is_of_platform
            && !objects.contains_key(&format!("{kind}.rbac.authorization.k8s.io {place}{role}"))
        {
            missing.push(format!("{name}: {kind} {role}"));
        }
        for subject in list(&binding["subjects"]) {
            let (namespace, account) = (
                subject["namespace"].as_str().unwrap(),
                subject["name"].as_str().unwrap(),
            );
            if !objects.contains_key(&format!("ServiceAccount {namespace}/{account}")) {
                missing.push(format!("{name}: account {namespace}/{account}"));
            }
        }
    }
    missing
}

fn config_map<'o>(objects: &'o Objects, name: &Value) -> Option<&'o Value> {
    objects.get(&format!("ConfigMap {NAMESPACE}/{}", name.as_str()?))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[test]
fn every_referenced_object_is_rendered() {
    if !can_render() {
        return;
    }
    for name in OVERLAYS {
        assert_eq!(missing(&overlay(name)), Vec::<String>::new(), "{name}");
    }
    let directory = tempfile::tempdir().unwrap();
    let all = integration_tests::manifests::compose(directory.path(), &[OVERLAYS[0]], &COMPONENTS)
        .unwrap();
    assert_eq!(missing(&all), Vec::<String>::new());
}

#[test]
fn each_missing_referenced_object_is_reported() {
    if !can_render() {
        return;
    }
    let whole = overlay(OVERLAYS[0]);
    for gone in [
        super::COPY,
        "ServiceAccount kube-system/calico-cni",
        "ServiceAccount kube-system/calico-cni-plugin",
        "Role.rbac.authorization.k8s.io kube-system/calico-cni",
        "ClusterRole.rbac.authorization.k8s.io calico-kube-controllers",
    ] {
        let mut objects = whole.clone();
        objects.remove(gone).unwrap();
        assert_ne!(missing(&objects), Vec::<String>::new(), "{gone}");
    }
    let mut objects = whole.clone();
    let pod = &mut objects.get_mut(super::DAEMON_SET).unwrap()["spec"]["template"]["spec"];
    pod["volumes"].as_array_mut().unwrap().pop();
    assert!(
        missing(&objects).iter().all(|gap| gap.contains("volume")) && !missing(&objects).is_empty()
    );
}

#[test]
fn selectors_match_their_pods_and_services() {
    if !can_render() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let monitored = ["components/service-monitor", "components/agent-metrics"];
    let objects =
        integration_tests::manifests::compose(directory.path(), &[OVERLAYS[0]], &monitored)
            .unwrap();
    let template = &objects[super::DEPLOYMENT]["spec"]["template"];
    let name = "kube-system/calico-kube-controllers";
    let service = &objects[&format!("Service {name}-metrics")];
    let monitor = &objects[&format!("ServiceMonitor.monitoring.coreos.com {name}")]["spec"];
    let budget = &objects[super::BUDGET]["spec"];
    assert!(chosen(
        &budget["selector"]["matchLabels"],
        &template["metadata"]["labels"]
    ));
    assert!(chosen(
        &service["spec"]["selector"],
        &template["metadata"]["labels"]
    ));
    assert!(chosen(
        &monitor["selector"]["matchLabels"],
        &service["metadata"]["labels"]
    ));
    let port = &service["spec"]["ports"][0];
    assert_eq!(monitor["endpoints"][0]["port"], port["name"]);
    let mut ports = list(&template["spec"]["containers"][0]["ports"]);
    assert!(
        ports.any(|of_pod| of_pod["name"] == port["targetPort"]
            && of_pod["containerPort"] == port["port"])
    );
    // The agents have no Service: their monitor selects the pods.
    let agents = &objects["PodMonitor.monitoring.coreos.com kube-system/calico-cni"]["spec"];
    let template = &objects[super::DAEMON_SET]["spec"]["template"];
    assert!(chosen(
        &agents["selector"]["matchLabels"],
        &template["metadata"]["labels"]
    ));
    let agent = &template["spec"]["containers"][0];
    let port = list(&agent["ports"])
        .find(|port| port["name"] == agents["podMetricsEndpoints"][0]["port"])
        .unwrap();
    let listen = list(&agent["env"])
        .find(|variable| variable["name"] == "CNI_AGENT_LISTEN")
        .unwrap();
    assert_eq!(
        listen["value"],
        format!("0.0.0.0:{}", port["containerPort"])
    );
    assert_eq!(
        port["containerPort"],
        agent["livenessProbe"]["httpGet"]["port"]
    );
}

/// Returns true if a selector has labels, and `labels` contains all of them.
fn chosen(selector: &Value, labels: &Value) -> bool {
    let wanted = selector.as_object().unwrap();
    !wanted.is_empty() && wanted.iter().all(|(key, value)| labels[key] == *value)
}
