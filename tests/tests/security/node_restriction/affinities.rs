//! Affinities of other nodes.

use integration_tests::Place;
use integration_tests::controllers::deletion_mark;
use serde_json::json;

use crate::node_restriction::restricted_cluster::{RestrictedCluster, assert_denied, on};

const POLICY: &str = "calico-cni-affinities";

fn affinities_are_those_of_the_node(cluster: &RestrictedCluster<'_>) {
    let (admin, plugins) = (cluster.api.admin(), cluster.plugins_of("node1"));
    let all = cluster.path("blockaffinities");
    let path = |name: &str| cluster.object_path("blockaffinities", name);
    let (own, foreign) = (path("node1-10-65-1-0-30"), path("node2-10-65-2-0-30"));
    admin
        .create(&all, &cluster.affinity("node2", "10.65.2.0/30"))
        .unwrap()
        .success();

    assert_denied(
        plugins.create(&all, &cluster.affinity("node2", "10.65.3.0/30")),
        POLICY,
    );
    assert_denied(plugins.delete(&foreign), POLICY);
    for (field, value) in [
        ("state", json!("pendingDeletion")),
        ("node", json!("node1")),
        ("type", json!("virtual")),
    ] {
        let edited = cluster.change(&plugins, &foreign, |affinity| {
            affinity["spec"][field] = value
        });
        assert_denied(edited, POLICY);
    }
    assert_eq!(
        admin.get(&foreign).unwrap().success()["spec"]["state"],
        "confirmed"
    );

    plugins
        .create(&all, &cluster.affinity("node1", "10.65.1.0/30"))
        .unwrap()
        .success();
    for (field, value) in [("node", json!("node2")), ("cidr", json!("10.65.2.0/30"))] {
        assert_denied(
            cluster.change(&plugins, &own, |affinity| affinity["spec"][field] = value),
            POLICY,
        );
    }
    // `node2` would take an affinity of this name for its own.
    let mut misnamed = cluster.affinity("node1", "10.65.3.0/30");
    misnamed["metadata"]["name"] = json!("node2-10-65-3-0-30");
    assert_denied(plugins.create(&all, &misnamed), POLICY);
    let marked = cluster.change(&plugins, &own, |affinity| {
        affinity["spec"]["state"] = json!("pendingDeletion")
    });
    marked.unwrap().success();
    plugins.delete(&own).unwrap().success();

    // Each plugin that reads the affinity may complete a deletion that another program began.
    let mark = deletion_mark(cluster.group, true);
    let begun = cluster.change(admin, &foreign, |affinity| {
        affinity["spec"]["deleted"] = mark
    });
    begun.unwrap().success();
    plugins.delete(&foreign).unwrap().success();
}

/// Shows SEC-98.
#[test]
fn token_of_a_node_writes_only_its_affinities_in_crd_v1() {
    on(Place::KubernetesV1, affinities_are_those_of_the_node);
}

/// Shows SEC-98.
#[test]
fn token_of_a_node_writes_only_its_affinities_in_v3() {
    on(Place::KubernetesV3, affinities_are_those_of_the_node);
}
