//! Affinities in an incomplete state, of deleted nodes, and without labels, as older versions of
//! Calico wrote them.

use std::collections::BTreeMap;
use std::time::Duration;

use libcalico::ipam::AffinityState::{Confirmed, Pending, PendingDeletion};
use serde_json::json;

use crate::controllers_gc::collected_cluster::{
    COLLECTOR, CollectedCluster, GRACE, SOON, on, to_pod, within,
};

/// The minimum time for which an affinity must be unchanged before it is repaired.
const FIVE_MINUTES: Duration = Duration::from_secs(300);

#[on(etcd, kubernetes_v1)]
fn incomplete_affinities_of_nodes_and_services_are_confirmed_or_deleted(
    cluster: &CollectedCluster<'_>,
) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.node("node-a");
    cluster.node("node-b");
    let used = cluster.block("10.0.0.0/26", Some("node-a"), &[to_pod("node-a", "pod")]);
    cluster.pod("pod", "node-a", &used);
    cluster.set_claim("node-a", "10.0.0.0/26", Pending);
    cluster.claim("node-a", "10.0.0.64/26", Pending);
    cluster.block("10.0.0.128/26", Some("node-a"), &[]);
    cluster.set_claim("node-a", "10.0.0.128/26", PendingDeletion);
    cluster.claim("node-a", "10.0.0.192/26", Confirmed);
    cluster.block("10.0.1.0/26", Some("node-b"), &[]);
    cluster.claim_for_services("10.0.1.64/26", Pending);
    let before = (cluster.claims(), cluster.blocks());
    let collector = cluster.collect_after(GRACE);
    collector.await_first_pass();
    assert_eq!(
        (cluster.claims(), cluster.blocks()),
        before,
        "nothing within five minutes"
    );
    let expected = BTreeMap::from([
        ("10.0.0.0/26".to_owned(), Confirmed),
        ("10.0.1.0/26".to_owned(), Confirmed),
    ]);
    collector.advance_until(FIVE_MINUTES, "claims in order", || {
        cluster.claims() == expected
    });
    assert_eq!(cluster.held().len(), 1);
    let owners: Vec<String> = cluster
        .blocks()
        .into_iter()
        .map(|(block, owner)| format!("{block} {owner:?}"))
        .collect();
    assert_eq!(
        owners,
        [
            "10.0.0.0/26 Some(\"host:node-a\")",
            "10.0.1.0/26 Some(\"host:node-b\")"
        ]
    );
}

/// A list of one node's affinities does not find affinities without labels.
#[on(kubernetes_v1, kubernetes_v3)]
fn affinities_without_labels_of_a_deleted_node_are_released(cluster: &CollectedCluster<'_>) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.node("node-a");
    cluster.block("10.0.0.0/26", Some("gone"), &[]);
    cluster.claim("gone", "10.0.0.64/26", Confirmed);
    cluster.block("10.0.0.128/26", Some("node-a"), &[]);
    let audit = cluster.servers.api.audit().unwrap();
    for name in [
        "gone-10-0-0-0-26",
        "gone-10-0-0-64-26",
        "node-a-10-0-0-128-26",
    ] {
        let path = cluster.servers.path("blockaffinities", name);
        cluster
            .servers
            .merge(&path, &json!({ "metadata": { "labels": null } }));
    }
    let _collector = cluster.collect_after(GRACE);
    within(SOON, "what the node had is gone", || {
        cluster.affinities() == [("node-a".to_owned(), "10.0.0.128/26".to_owned())]
            && cluster.blocks().len() == 1
    });
    let written = audit.of(COLLECTOR).unwrap();
    let mut written = written
        .iter()
        .filter(|request| !matches!(request.verb.as_str(), "get" | "list" | "watch"));
    assert!(
        !written.any(|request| request.to_string().contains("node-a")),
        "node-a is there"
    );
}
