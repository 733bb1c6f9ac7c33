//! Garbage collection for deleted nodes, and for nodes that are not Kubernetes nodes.

use std::thread::sleep;
use std::time::Duration;

use crate::lab::{
    Given, LONG_GRACE, Lab, SOON, owned, to_pod, to_tunnel, with_a_long_grace_period, within,
};

/// A grace period that outlasts every test.
const LONG: Duration = Duration::from_secs(3600);

/// Covers upstream's cases "should clean up IPAM data for missing nodes" and "should handle
/// improperly formatted handle IDs".
#[on(etcd, kubernetes_v1)]
fn gc_releases_everything_of_deleted_nodes_without_grace(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 26);
    for node in ["node-a", "node-b", "node-c"] {
        lab.node(node);
    }
    let with_tail = Given {
        handle: "k8s-pod-network.tail\r\r\r".into(),
        ..to_pod("node-b", "tail")
    };
    let stays = lab.block(
        "10.0.0.0/26",
        Some("node-a"),
        &[
            to_pod("node-a", "stays"),
            to_pod("node-b", "b1"),
            to_pod("node-c", "c1"),
        ],
    );
    lab.pod("stays", "node-a", &stays[..1]);
    lab.block(
        "10.0.0.64/26",
        Some("node-b"),
        &[to_tunnel("node-b"), to_pod("node-b", "b2"), with_tail],
    );
    lab.block(
        "10.0.0.128/26",
        Some("node-c"),
        &[to_pod("node-b", "b3"), to_tunnel("node-c")],
    );
    lab.block("10.0.0.192/26", Some("node-c"), &[]);
    let mut settings = lab.settings();
    settings.leak_grace_period = Some(LONG);
    let collecting = lab.collect(settings);
    collecting.has_looked();
    assert_eq!((lab.held().len(), lab.blocks().len()), (8, 4));
    lab.delete_node("node-b");
    within(SOON, "what node-b had", || {
        lab.held()
            .values()
            .filter(|handle| !handle.contains("c1"))
            .count()
            == 2
    });
    lab.delete_node("node-c");
    within(SOON, "what node-c had", || {
        lab.held().len() == 1
            && lab.blocks().len() == 1
            && lab.affinities().len() == 1
            && lab.handles().len() == 1
    });
    assert_eq!(
        lab.affinities(),
        [("node-a".to_owned(), "10.0.0.0/26".to_owned())]
    );
    collecting.shows("ipam_blocks{ippool=\"pool\",node=\"node-a\"} 1");
    // The metrics follow the watches, which may report the last deletions later.
    within(SOON, "no metric of node-b", || {
        !collecting.metrics().contains("node-b")
    });
}

/// A NotReady node still exists.
#[on(etcd, kubernetes_v1)]
fn not_ready_node_keeps_addresses_and_blocks(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.node("node-a");
    lab.block(
        "10.0.0.0/26",
        Some("node-a"),
        &[to_tunnel("node-a"), to_pod("node-a", "missing")],
    );
    let condition =
        serde_json::json!({ "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown" });
    let status = serde_json::json!({ "status": { "conditions": [condition] } });
    lab.admin()
        .patch("/api/v1/nodes/node-a/status", &status)
        .unwrap()
        .success()
        .unwrap();
    let mut settings = lab.settings();
    settings.leak_grace_period = Some(LONG);
    let collecting = lab.collect(settings);
    collecting.has_looked();
    collecting.pass_after(LONG / 4);
    collecting.pass_after(LONG / 4);
    assert_eq!((lab.held().len(), lab.blocks().len()), (2, 1));
}

/// Covers upstream's case "mismatched Calico/K8s node names".
#[on(etcd)]
fn node_with_another_name_in_kubernetes_keeps_its_addresses(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.kubernetes_node("kubernetes-node");
    lab.calico_node("calico-node", Some("kubernetes-node"));
    let address = lab.block(
        "10.0.0.0/26",
        Some("calico-node"),
        &[to_pod("calico-node", "pod"), to_tunnel("calico-node")],
    );
    lab.pod("pod", "kubernetes-node", &address[..1]);
    let collecting = lab.collect(with_a_long_grace_period(lab));
    collecting.has_looked();
    collecting.pass_after(LONG_GRACE * 2);
    collecting.pass_after(LONG_GRACE * 2);
    assert_eq!(lab.held().len(), 2);
    // A pod names its node by the Kubernetes name.
    lab.delete_pod("pod");
    collecting.as_time_goes_by(LONG_GRACE, "the pod's address", || lab.held().len() == 1);
    lab.admin()
        .delete("/api/v1/nodes/kubernetes-node")
        .unwrap()
        .success()
        .unwrap();
    // The tunnel's address remains as long as the Calico Node exists.
    sleep(Duration::from_secs(1));
    assert_eq!(lab.held().len(), 1);
}

/// Covers upstream's cases "non-Kubernetes Calico node" and "no Calico node".
#[on(etcd)]
fn addresses_of_nodes_outside_kubernetes_are_kept(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.calico_node("openstack", None);
    let other = Given {
        handle: "vm".into(),
        attributes: [("node", "openstack")].map(owned).into(),
    };
    lab.block(
        "10.0.0.0/26",
        Some("openstack"),
        &[to_tunnel("openstack"), other],
    );
    // This node has no Calico Node.
    lab.block(
        "10.0.0.64/26",
        Some("forgotten"),
        &[to_pod("forgotten", "missing")],
    );
    let collecting = lab.collect(with_a_long_grace_period(lab));
    collecting.as_time_goes_by(LONG_GRACE, "the forgotten node's block", || {
        lab.blocks().len() == 1
    });
    collecting.pass_after(LONG_GRACE * 2);
    collecting.pass_after(LONG_GRACE * 2);
    assert_eq!((lab.held().len(), lab.affinities().len()), (2, 1));
}
