//! A changed configuration changes the template of both workloads, so that their pods roll.

use std::collections::BTreeSet;
use std::fs;

use integration_tests::command::run;
use integration_tests::kubernetes::{Kubernetes, on_shared_kubernetes};
use integration_tests::manifests::{compose, hashed_names, kustomizers, parse};
use serde_json::{Value, json};

use super::{COMPONENTS, CONFIG, COPY, DAEMON_SET, DEPLOYMENT, OVERLAYS, can_render, overlay};

/// Renders the overlay kubernetes-v1 with each kustomize, with these changes of the configuration.
fn rendered(data: Option<Value>) -> [String; 2] {
    let directory = tempfile::tempdir().unwrap();
    compose(directory.path(), &[OVERLAYS[0]], &[]).unwrap();
    let file = directory.path().join("kustomization.yaml");
    let mut kustomization: Value =
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    if let Some(data) = data {
        let patch = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "any" }, "data": data,
        });
        let target = json!({ "kind": "ConfigMap", "name": "calico-(cni-)?config" });
        kustomization["patches"] = json!([{ "target": target, "patch": patch.to_string() }]);
    }
    fs::write(&file, kustomization.to_string()).unwrap();
    kustomizers().unwrap().map(|(program, verb)| {
        run(
            &program.display().to_string(),
            &[verb.as_ref(), directory.path().as_os_str()],
        )
        .unwrap()
    })
}

/// Returns the name of the workloads' configuration, which both kustomizes give it.
fn name(data: Option<Value>) -> String {
    let [today, old] = rendered(data).map(|text| hashed_names(&text));
    assert_eq!(today, old);
    let names: Vec<String> = today.into_iter().collect();
    assert_eq!(names.len(), 1, "{names:?}");
    names.into_iter().next().unwrap()
}

#[test]
fn changed_configuration_changes_the_name_that_both_workloads_read() {
    if !can_render() {
        return;
    }
    let names: BTreeSet<String> = [
        None,
        Some(json!({ "veth_mtu": "1400" })),
        Some(json!({ "calico_api_group": "projectcalico.org/v3" })),
        Some(json!({ "cni_network_config": "{}" })),
    ]
    .map(name)
    .into();
    assert_eq!(names.len(), 4, "{names:?}");
    for text in rendered(None) {
        let objects = parse(&text).unwrap();
        for workload in [DAEMON_SET, DEPLOYMENT] {
            let text = objects[workload].to_string();
            assert!(
                text.contains("\"calico-cni-config\"") && !text.contains("\"calico-config\""),
                "{workload}"
            );
        }
    }
}

/// The workloads read the copy, so a component must change it too.
#[test]
fn copy_of_the_configuration_equals_calico_config() {
    if !can_render() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for name in OVERLAYS {
        let objects = overlay(name);
        assert_eq!(objects[COPY]["data"], objects[CONFIG]["data"], "{name}");
        for component in COMPONENTS {
            let objects = compose(directory.path(), &[name], &[component]).unwrap();
            assert_eq!(
                objects[COPY]["data"], objects[CONFIG]["data"],
                "{name} with {component}"
            );
        }
    }
}

/// The API server counts changes of a workload in `generation`.
#[test]
fn applying_a_changed_configuration_rolls_both_workloads_once() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|host, Kubernetes { api, .. }| {
        let file = host.dir("manifests").join("manifest.yaml");
        let apply = |data: Option<Value>| {
            let [text, _] = rendered(data);
            fs::write(&file, text).unwrap();
            api.kubectl(&["apply", "--server-side", "-f", &file.display().to_string()])
                .unwrap();
            let of = |kind: &str, name: &str| {
                let path = "jsonpath={.metadata.generation}";
                api.kubectl(&["get", "-n", "kube-system", kind, name, "-o", path])
                    .unwrap()
            };
            [
                of("daemonset", "calico-cni"),
                of("deployment", "calico-kube-controllers"),
            ]
        };
        assert_eq!(apply(None), ["1", "1"]);
        assert_eq!(apply(None), ["1", "1"], "the same configuration");
        let changed = || Some(json!({ "veth_mtu": "1400" }));
        assert_eq!(apply(changed()), ["2", "2"]);
        assert_eq!(apply(changed()), ["2", "2"], "the same configuration");
        // Pods that are not replaced yet still find the former ConfigMap.
        let maps = api.kubectl(&[
            "get",
            "-n",
            "kube-system",
            "configmap",
            "-l",
            "k8s-app=calico-cni",
            "-o",
            "name",
        ]);
        assert_eq!(maps.unwrap().lines().count(), 2);
    });
}
