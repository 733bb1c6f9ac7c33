//! Garbage collection for deleted nodes, and for nodes that are not Kubernetes nodes.

use std::thread::sleep;
use std::time::Duration;

use crate::controllers_gc::collected_cluster::{
    CollectedCluster, Given, LONG_GRACE, SOON, on, owned, to_pod, to_tunnel, within,
};

/// A grace period that outlasts every test.
const LONG: Duration = Duration::from_secs(3600);

/// Covers upstream's cases "should clean up IPAM data for missing nodes" and "should handle
/// improperly formatted handle IDs".
#[on(etcd, kubernetes_v1)]
fn gc_releases_everything_of_deleted_nodes_without_grace(cluster: &CollectedCluster<'_>) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    for node in ["node-a", "node-b", "node-c"] {
        cluster.node(node);
    }
    let with_tail = Given {
        handle: "k8s-pod-network.tail\r\r\r".into(),
        ..to_pod("node-b", "tail")
    };
    let stays = cluster.block(
        "10.0.0.0/26",
        Some("node-a"),
        &[
            to_pod("node-a", "stays"),
            to_pod("node-b", "b1"),
            to_pod("node-c", "c1"),
        ],
    );
    cluster.pod("stays", "node-a", &stays[..1]);
    cluster.block(
        "10.0.0.64/26",
        Some("node-b"),
        &[to_tunnel("node-b"), to_pod("node-b", "b2"), with_tail],
    );
    cluster.block(
        "10.0.0.128/26",
        Some("node-c"),
        &[to_pod("node-b", "b3"), to_tunnel("node-c")],
    );
    cluster.block("10.0.0.192/26", Some("node-c"), &[]);
    let collector = cluster.collect_after(LONG);
    collector.await_first_pass();
    assert_eq!((cluster.held().len(), cluster.blocks().len()), (8, 4));
    cluster.delete_node("node-b");
    within(SOON, "what node-b had", || {
        cluster
            .held()
            .values()
            .filter(|handle| !handle.contains("c1"))
            .count()
            == 2
    });
    cluster.delete_node("node-c");
    within(SOON, "what node-c had", || {
        cluster.held().len() == 1
            && cluster.blocks().len() == 1
            && cluster.affinities().len() == 1
            && cluster.handles().len() == 1
    });
    assert_eq!(
        cluster.affinities(),
        [("node-a".to_owned(), "10.0.0.0/26".to_owned())]
    );
    collector.await_metric("ipam_blocks{ippool=\"pool\",node=\"node-a\"} 1");
    // The metrics follow the watches, which may report the last deletions later.
    within(SOON, "no metric of node-b", || {
        !collector.metrics().contains("node-b")
    });
}

/// A NotReady node still exists.
#[on(etcd, kubernetes_v1)]
fn not_ready_node_keeps_addresses_and_blocks(cluster: &CollectedCluster<'_>) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.node("node-a");
    cluster.block(
        "10.0.0.0/26",
        Some("node-a"),
        &[to_tunnel("node-a"), to_pod("node-a", "missing")],
    );
    let condition =
        serde_json::json!({ "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown" });
    let status = serde_json::json!({ "status": { "conditions": [condition] } });
    cluster
        .servers
        .merge("/api/v1/nodes/node-a/status", &status);
    let collector = cluster.collect_after(LONG);
    collector.await_first_pass();
    collector.pass_after(LONG / 4);
    collector.pass_after(LONG / 4);
    assert_eq!((cluster.held().len(), cluster.blocks().len()), (2, 1));
}

/// Covers upstream's case "mismatched Calico/K8s node names".
#[on(etcd)]
fn node_with_another_name_in_kubernetes_keeps_its_addresses(cluster: &CollectedCluster<'_>) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.kubernetes_node("kubernetes-node");
    cluster.calico_node("calico-node", Some("kubernetes-node"));
    let address = cluster.block(
        "10.0.0.0/26",
        Some("calico-node"),
        &[to_pod("calico-node", "pod"), to_tunnel("calico-node")],
    );
    cluster.pod("pod", "kubernetes-node", &address[..1]);
    let collector = cluster.collect_after(LONG_GRACE);
    collector.await_first_pass();
    collector.pass_after(LONG_GRACE * 2);
    collector.pass_after(LONG_GRACE * 2);
    assert_eq!(cluster.held().len(), 2);
    // A pod names its node by the Kubernetes name.
    cluster.delete_pod("pod");
    collector.advance_until(LONG_GRACE, "the pod's address", || {
        cluster.held().len() == 1
    });
    cluster.servers.remove("/api/v1/nodes/kubernetes-node");
    // The tunnel's address remains as long as the Calico Node exists.
    sleep(Duration::from_secs(1));
    assert_eq!(cluster.held().len(), 1);
}

/// Covers upstream's cases "non-Kubernetes Calico node" and "no Calico node".
#[on(etcd)]
fn addresses_of_nodes_outside_kubernetes_are_kept(cluster: &CollectedCluster<'_>) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.calico_node("openstack", None);
    let other = Given {
        handle: "vm".into(),
        attributes: [("node", "openstack")].map(owned).into(),
    };
    cluster.block(
        "10.0.0.0/26",
        Some("openstack"),
        &[to_tunnel("openstack"), other],
    );
    // This node has no Calico Node.
    cluster.block(
        "10.0.0.64/26",
        Some("forgotten"),
        &[to_pod("forgotten", "missing")],
    );
    let collector = cluster.collect_after(LONG_GRACE);
    collector.advance_until(LONG_GRACE, "the forgotten node's block", || {
        cluster.blocks().len() == 1
    });
    collector.pass_after(LONG_GRACE * 2);
    collector.pass_after(LONG_GRACE * 2);
    assert_eq!((cluster.held().len(), cluster.affinities().len()), (2, 1));
}
