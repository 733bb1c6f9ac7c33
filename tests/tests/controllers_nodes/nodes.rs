//! Labels and deletion of nodes (etcd), with the cases of upstream's node_controller_fv_test.

use libcalico::api::{
    BgpPeerSpec, FelixConfigurationSpec, HostEndpointSpec, NodeSpec, WorkloadEndpoint,
    WorkloadEndpointSpec,
};
use libcalico::store::Store;
use serde_json::{Value, json};

use crate::scene::{Scene, becomes, stays};

fn labels(scene: &Scene, name: &str) -> Option<Vec<String>> {
    let node = scene.get::<NodeSpec>(name)?.value;
    Some(
        node.metadata
            .labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect(),
    )
}

fn texts(texts: &[&str]) -> Option<Vec<String>> {
    Some(texts.iter().map(|text| (*text).to_owned()).collect())
}

fn calico(scene: &Scene, name: &str, orch_refs: Value) {
    scene.put::<NodeSpec>(
        name,
        json!({"labels": {"own": "1"}}),
        json!({ "orchRefs": orch_refs }),
    );
}

fn of_kubernetes(name: &str) -> Value {
    json!([{"nodeName": name, "orchestrator": "k8s"}])
}

/// Covers upstream's case "should sync labels from k8s -> calico".
#[on(etcd)]
fn labels_of_a_calico_node_follow_the_kubernetes_node(scene: &Scene) {
    scene.kubernetes_node("k-1", json!({"a": "1"}), json!({}));
    calico(scene, "c-1", of_kubernetes("k-1"));
    scene.put::<NodeSpec>(
        "c-0",
        json!({"annotations": {"projectcalico.org/kube-labels": "{"}}),
        json!({"orchRefs": of_kubernetes("k-1")}),
    );
    let running = scene.start(|_| ());
    becomes(texts(&["a=1", "own=1"]), || labels(scene, "c-1"));
    scene.kubernetes_node("k-1", json!({"a": "2", "b": "1"}), json!({}));
    becomes(texts(&["a=2", "b=1", "own=1"]), || labels(scene, "c-1"));
    drop(running);
    scene.kubernetes_node("k-1", json!({"b": "1"}), json!({}));
    let _running = scene.start(|_| ());
    becomes(texts(&["b=1", "own=1"]), || labels(scene, "c-1"));
    let revision = || scene.get::<NodeSpec>("c-1").map(|entry| entry.revision);
    stays(revision(), revision);
    assert_eq!(labels(scene, "c-0"), texts(&[]));
}

/// Upstream deletes the node with its addresses at once (KC-472). Here a kubelet that registers
/// again finds the addresses of the pods unchanged.
#[on(etcd)]
fn calico_node_of_a_deleted_kubernetes_node_stays_while_pods_exist(scene: &Scene) {
    let nodes = || scene.names::<NodeSpec>();
    let there = || vec!["c-1".to_owned()];
    scene.kubernetes_node("k-1", json!({}), json!({}));
    calico(scene, "c-1", of_kubernetes("k-1"));
    for (name, host_network) in [("web", false), ("agent", true)] {
        let spec = json!({
            "nodeName": "k-1", "hostNetwork": host_network,
            "containers": [{"name": "c", "image": "i"}],
        });
        let metadata = json!({"name": name, "namespace": "default"});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        scene.admin.apply_object(&pod).unwrap();
    }
    let _running = scene.start(|_| ());
    scene.delete_kubernetes_node("k-1");
    stays(there(), nodes);
    scene
        .admin
        .delete("/api/v1/namespaces/default/pods/web?gracePeriodSeconds=0")
        .unwrap()
        .success()
        .unwrap();
    becomes(vec![], nodes);
}

/// Covers upstream's three cases of node names, and "should clean up weps, IPAM allocations, etc.
/// when deleting a node".
#[on(etcd)]
fn calico_nodes_are_deleted_with_their_kubernetes_node(scene: &Scene) {
    for name in ["k-1", "k-2", "k-4"] {
        scene.kubernetes_node(name, json!({}), json!({}));
    }
    calico(scene, "c-1", of_kubernetes("k-1"));
    calico(scene, "c-2", of_kubernetes("k-2"));
    calico(
        scene,
        "other",
        json!([{"nodeName": "k-1", "orchestrator": "other"}]),
    );
    calico(scene, "none", json!([]));
    calico(scene, "c-4", of_kubernetes("k-4"));
    let running = scene.start(|_| ());
    let nodes = || scene.names::<NodeSpec>();
    let named = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    stays(named(&["c-1", "c-2", "c-4", "none", "other"]), nodes);

    let spec = WorkloadEndpointSpec {
        node: "c-1".into(),
        interface_name: "cali0".into(),
        ip_networks: vec!["10.0.0.1/32".into()],
        ..WorkloadEndpointSpec::default()
    };
    let mut endpoint = WorkloadEndpoint::new("c--1-k8s-web-eth0", spec);
    endpoint.metadata.namespace = "default".into();
    scene
        .wait_on(scene.store.create(&endpoint.key(), &endpoint))
        .unwrap();
    scene.put::<BgpPeerSpec>("peer", json!({}), json!({"node": "c-1"}));
    scene.put::<FelixConfigurationSpec>("node.c-1", json!({}), json!({}));
    scene.put::<HostEndpointSpec>(
        "eth0",
        json!({}),
        json!({"node": "c-1", "interfaceName": "eth0"}),
    );
    scene.delete_kubernetes_node("k-1");
    becomes(named(&["c-2", "c-4", "none", "other"]), nodes);
    assert!(
        scene
            .wait_on(scene.store.list::<WorkloadEndpoint>(&Default::default()))
            .unwrap()
            .is_empty()
    );
    assert_eq!(scene.names::<BgpPeerSpec>(), named(&[]));
    assert_eq!(scene.names::<FelixConfigurationSpec>(), named(&[]));
    assert_eq!(scene.names::<HostEndpointSpec>(), named(&[]));

    // A Calico Node without a reference to a Kubernetes Node stays.
    drop(running);
    scene.delete_kubernetes_node("k-2");
    let _running = scene.start(|_| ());
    becomes(named(&["c-4", "none", "other"]), nodes);
    calico(scene, "c-5", of_kubernetes("k-5"));
    becomes(named(&["c-4", "none", "other"]), nodes);
}
