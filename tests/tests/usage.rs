//! `calico-ipam usage` on real servers.

use integration_tests::cluster::{Cluster, NAMESPACE, on_api_server, on_installation};
use integration_tests::content::Content;
use integration_tests::on_each_datastore;
use integration_tests::plugin::Outcome;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

on_each_datastore!(usage_counts_addresses_of_two_nodes_and_their_room);

fn run(cluster: &Cluster<'_>) -> (Value, Outcome) {
    let outcome = cluster.store.calico_ipam(&cluster.plugins, &["usage", "-o", "json"]).unwrap();
    assert_eq!(outcome.exit, Some(0), "{outcome:?}");
    (serde_json::from_str(&outcome.stdout).unwrap(), outcome)
}

/// The pool has four blocks of 16. Three pods are on node1 and one is on node2.
fn usage_counts_addresses_of_two_nodes_and_their_room(cluster: &Cluster<'_>) {
    cluster.load(&Content::ready().node("node1").node("node2").pool("pods", "10.65.0.0/26", 28));
    for number in 1..=4 {
        let node = if number < 4 { "node1" } else { "node2" };
        cluster.add(&cluster.pod_on(node, number), &cluster.conf(node, json!({})));
    }
    let (usage, _) = run(cluster);
    let of_pool = ["capacity", "used", "blocks", "unclaimedBlocks", "free"].map(|key| usage["pools"][0][key].clone());
    assert_eq!(of_pool, [64, 4, 2, 2, 60].map(Value::from), "{usage:#}");
    let nodes: Vec<_> = usage["nodes"].as_array().unwrap().iter().map(|node| (&node["node"], &node["used"])).collect();
    assert_eq!(nodes, [(&json!("node1"), &json!(3)), (&json!("node2"), &json!(1))]);
    for node in usage["nodes"].as_array().unwrap() {
        assert_eq!(node["fits"], 60, "own addresses, two blocks and those of the other node: {usage:#}");
    }
    assert_eq!(usage["fits"], json!([{ "ipVersion": 4, "pods": 60, "onRequest": 0 }]));
    let used: Vec<_> = usage["namespaces"].as_array().unwrap().iter().map(|row| row["ipv4"].clone()).collect();
    assert_eq!(used, [json!(4)]);
    assert_eq!(usage["borrowed"]["addresses"], json!([]));
}

#[test]
fn usage_on_an_api_server_counts_pods_by_namespace() {
    for group in [ApiGroup::CrdV1, ApiGroup::V3] {
        on_api_server(group, |cluster, _| {
            usage_counts_addresses_of_two_nodes_and_their_room(cluster);
            let (usage, _) = run(cluster);
            assert_eq!(usage["namespaces"], json!([{ "namespace": NAMESPACE, "ipv4": 4, "ipv6": 0 }]));
        });
    }
}

/// The role of the plugins permits to read single nodes only.
#[test]
fn usage_without_the_right_to_list_nodes_says_so() {
    on_installation(
        |_| (),
        |cluster, _, _| {
            let pod = cluster.pod(1);
            cluster.add(&pod, &cluster.conf("node1", json!({})));
            let (usage, outcome) = run(cluster);
            assert_eq!(usage["nodeSelectorsConsidered"], false);
            assert!(outcome.stderr.contains("note: node selectors are not considered: "), "{outcome:?}");
            let node = &usage["nodes"][0];
            assert_eq!((&node["node"], &node["used"]), (&json!("node1"), &json!(1)), "{usage:#}");
            assert!(node["fits"].is_number(), "{usage:#}");
        },
    );
}
