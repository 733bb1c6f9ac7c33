//! Interfaces of pods on Kubernetes.

use std::fs;
use std::path::Path;

use integration_tests::command::{ip, ip_json};
use integration_tests::kubernetes::ApiServer;
use integration_tests::namespaces::NETNS_DIR;
use integration_tests::plugin::Plugins;
use integration_tests::runtime::start_containerd;
use integration_tests::server_process::ServerProcess;
use serde_json::json;

use crate::installer_doctor::NODE;
use crate::installer_doctor::dead_interfaces::{DEADLINE, interfaces, repairs};
use crate::installer_doctor::kubernetes_node::{KubernetesNode, on};
use crate::installer_doctor::report::{Examined, assert_good, assert_reported};

/// Creates a pod on the node.
fn create(api: &ApiServer, name: &str) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "shop" },
        "spec": { "nodeName": NODE, "containers": [{ "name": "c", "image": "none" }] },
    });
    api.admin()
        .create("/api/v1/namespaces/shop/pods", &pod)
        .unwrap()
        .success();
}

fn delete(api: &ApiServer, name: &str) {
    let path = format!("/api/v1/namespaces/shop/pods/{name}");
    api.admin().delete(&path).unwrap().success();
}

/// Creates a pod, and connects its container.
fn add_pod(node: &KubernetesNode<'_>, name: &str) {
    create(node.api, name);
    ip(&format!("netns add {name}")).unwrap();
    call(node, "calico", "ADD", name);
}

/// Calls a plugin for the container of a pod.
fn call(node: &KubernetesNode<'_>, program: &str, verb: &str, name: &str) {
    let conf = json!({
        "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "log_level": "error",
        "datastore_type": "kubernetes", "calico_api_group": "crd.projectcalico.org/v1",
        "kubernetes": { "kubeconfig": node.pod.kubeconfig() }, "nodename": NODE,
        "nodename_file_optional": true,
        "ipam": { "type": "calico-ipam" }, "policy": { "type": "k8s" },
    });
    let call = Plugins::locate().unwrap().verb(
        program,
        verb,
        name,
        &Path::new(NETNS_DIR).join(name),
        &conf,
    );
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}");
    call.env("CNI_ARGS", args).run().success();
}

/// Connects a pod as [`add_pod`] does, and deletes the host route to its address.
fn add_pod_without_a_route(node: &KubernetesNode<'_>, name: &str) {
    let before = interfaces();
    add_pod(node, name);
    let interface = interfaces()
        .into_iter()
        .find(|interface| !before.contains(interface))
        .unwrap();
    let route = ip_json(&format!("route show dev {interface}")).unwrap();
    ip(&format!(
        "route delete {} dev {interface}",
        route[0]["dst"].as_str().unwrap()
    ))
    .unwrap();
}

/// On Kubernetes the endpoint is the pod. The plugins' account may get pods but not list them.
#[on(kubernetes_v1)]
fn doctor_reports_an_interface_of_a_deleted_pod(node: &mut KubernetesNode<'_>) {
    node.api.namespace("shop").unwrap();
    add_pod(node, "web");
    assert_good(node);
    let report = node.doctor();
    assert!(
        report
            .words("interfaces of pods")
            .starts_with("1 interfaces, each"),
        "{report:#?}"
    );
    let words = format!("ip link delete {}", interfaces()[0]);
    assert_reported(
        node,
        &["warn interfaces of pods"],
        ("interfaces of pods", &words),
        || delete(node.api, "web"),
        || create(node.api, "web"),
    );
}

/// The block of the address has the size that the pool had before.
#[on(kubernetes_v1)]
fn doctor_finds_the_pod_of_an_address_in_a_block_of_a_former_size(node: &mut KubernetesNode<'_>) {
    node.api.namespace("shop").unwrap();
    add_pod(node, "web");
    node.patch("ippools/pool", &json!({ "spec": { "blockSize": 29 } }));
    let words = node.doctor().words("interfaces of pods");
    assert!(
        words.starts_with("1 interfaces, each with an endpoint"),
        "{words}"
    );
}

/// Checks a repair while a real containerd lists no sandbox. The address of the deleted pod stays
/// allocated until garbage collection.
pub(crate) fn keeps_interfaces_of_pods(node: &mut KubernetesNode<'_>) {
    let directory = node.pod.container.path("containerd");
    fs::create_dir_all(&directory).unwrap();
    let mut containerd = ServerProcess::default();
    let socket = start_containerd(&mut containerd, &directory)
        .unwrap()
        .display()
        .to_string();
    node.api.namespace("shop").unwrap();
    // Only the handle of its container leads to this pod.
    add_pod_without_a_route(node, "kept");
    // IPAM names no pod for this interface, as for the target of a live migration.
    add_pod_without_a_route(node, "unnamed");
    call(node, "calico-ipam", "DEL", "unnamed");
    delete(node.api, "unnamed");
    let before = interfaces();
    add_pod(node, "gone");
    delete(node.api, "gone");
    let words = [
        "doctor",
        "--repair",
        "-o",
        "json",
        "--runtime-socket",
        socket.as_str(),
    ];
    let (repaired, outcome) = repairs(node.pod.calico(&words).deadline(DEADLINE).run());
    assert_eq!(interfaces(), before, "{outcome:?}");
    let mut results: Vec<_> = repaired
        .iter()
        .map(|repair| {
            (
                repair["container"].as_str().unwrap(),
                &repair["removed"],
                repair["reason"].as_str(),
            )
        })
        .collect();
    results.sort_by_key(|(container, ..)| *container);
    let [gone, kept, ("unnamed", removed, Some(reason))] = results[..] else {
        panic!("{results:?}")
    };
    assert_eq!(gone, ("gone", &json!(true), None));
    assert_eq!(kept, ("kept", &json!(false), Some("an endpoint has it")));
    assert_eq!(removed, &json!(false));
    assert!(reason.contains("IPAM names no pod"), "{reason}");
}
