//! Labels and deletion of nodes (etcd), with the cases of upstream's node_controller_fv_test.

use libcalico::api::{
    BgpPeerSpec, FelixConfigurationSpec, HostEndpointSpec, NodeSpec, WorkloadEndpoint,
    WorkloadEndpointSpec,
};
use serde_json::{Value, json};

use crate::controllers_nodes::controlled_cluster::{ControlledCluster, becomes, on, stays};

fn labels(cluster: &ControlledCluster<'_>, name: &str) -> Option<Vec<String>> {
    let node = cluster.get::<NodeSpec>(name)?.value;
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

fn calico(cluster: &ControlledCluster<'_>, name: &str, orch_refs: Value) {
    cluster.put::<NodeSpec>(
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
fn labels_of_a_calico_node_follow_the_kubernetes_node(cluster: &ControlledCluster<'_>) {
    cluster.kubernetes_node("k-1", json!({"a": "1"}), json!({}));
    calico(cluster, "c-1", of_kubernetes("k-1"));
    cluster.put::<NodeSpec>(
        "c-0",
        json!({"annotations": {"projectcalico.org/kube-labels": "{"}}),
        json!({"orchRefs": of_kubernetes("k-1")}),
    );
    let running = cluster.start(|_| ());
    becomes(texts(&["a=1", "own=1"]), || labels(cluster, "c-1"));
    cluster.kubernetes_node("k-1", json!({"a": "2", "b": "1"}), json!({}));
    becomes(texts(&["a=2", "b=1", "own=1"]), || labels(cluster, "c-1"));
    drop(running);
    cluster.kubernetes_node("k-1", json!({"b": "1"}), json!({}));
    let _running = cluster.start(|_| ());
    becomes(texts(&["b=1", "own=1"]), || labels(cluster, "c-1"));
    let revision = || cluster.get::<NodeSpec>("c-1").map(|entry| entry.revision);
    stays(revision(), revision);
    assert_eq!(labels(cluster, "c-0"), texts(&[]));
}

/// Upstream deletes the node with its addresses at once (KC-472). Here a kubelet that registers
/// again finds the addresses of the pods unchanged.
#[on(etcd)]
fn calico_node_of_a_deleted_kubernetes_node_stays_while_pods_exist(
    cluster: &ControlledCluster<'_>,
) {
    let nodes = || cluster.names::<NodeSpec>();
    let there = || vec!["c-1".to_owned()];
    cluster.kubernetes_node("k-1", json!({}), json!({}));
    calico(cluster, "c-1", of_kubernetes("k-1"));
    for (name, host_network) in [("web", false), ("agent", true)] {
        let spec = json!({
            "nodeName": "k-1", "hostNetwork": host_network,
            "containers": [{"name": "c", "image": "i"}],
        });
        let metadata = json!({"name": name, "namespace": "default"});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        cluster.servers.apply(pod);
    }
    let _running = cluster.start(|_| ());
    cluster.delete_kubernetes_node("k-1");
    stays(there(), nodes);
    cluster
        .servers
        .remove("/api/v1/namespaces/default/pods/web?gracePeriodSeconds=0");
    becomes(vec![], nodes);
}

/// Covers upstream's three cases of node names, and "should clean up weps, IPAM allocations, etc.
/// when deleting a node".
#[on(etcd)]
fn calico_nodes_are_deleted_with_their_kubernetes_node(cluster: &ControlledCluster<'_>) {
    for name in ["k-1", "k-2", "k-4"] {
        cluster.kubernetes_node(name, json!({}), json!({}));
    }
    calico(cluster, "c-1", of_kubernetes("k-1"));
    calico(cluster, "c-2", of_kubernetes("k-2"));
    calico(
        cluster,
        "other",
        json!([{"nodeName": "k-1", "orchestrator": "other"}]),
    );
    calico(cluster, "none", json!([]));
    calico(cluster, "c-4", of_kubernetes("k-4"));
    let running = cluster.start(|_| ());
    let nodes = || cluster.names::<NodeSpec>();
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
    cluster.objects.create(&endpoint.key(), &endpoint);
    cluster.put::<BgpPeerSpec>("peer", json!({}), json!({"node": "c-1"}));
    cluster.put::<FelixConfigurationSpec>("node.c-1", json!({}), json!({}));
    cluster.put::<HostEndpointSpec>(
        "eth0",
        json!({}),
        json!({"node": "c-1", "interfaceName": "eth0"}),
    );
    cluster.delete_kubernetes_node("k-1");
    becomes(named(&["c-2", "c-4", "none", "other"]), nodes);
    assert!(
        cluster
            .objects
            .list::<WorkloadEndpoint>(&Default::default())
            .is_empty()
    );
    assert_eq!(cluster.names::<BgpPeerSpec>(), named(&[]));
    assert_eq!(cluster.names::<FelixConfigurationSpec>(), named(&[]));
    assert_eq!(cluster.names::<HostEndpointSpec>(), named(&[]));

    // A Calico Node without a reference to a Kubernetes Node stays.
    drop(running);
    cluster.delete_kubernetes_node("k-2");
    let _running = cluster.start(|_| ());
    becomes(named(&["c-4", "none", "other"]), nodes);
    calico(cluster, "c-5", of_kubernetes("k-5"));
    becomes(named(&["c-4", "none", "other"]), nodes);
}
