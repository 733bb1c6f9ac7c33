//! `calico-ipam usage` on real servers.

use std::time::Duration;

use integration_tests::Place;
use integration_tests::cluster::{Cluster, ControlPlane, NAMESPACE, on};
use integration_tests::content::Content;
use integration_tests::controllers::garbage_collector::{GarbageCollector, settings};
use integration_tests::kubernetes::Objects;
use integration_tests::plugin::Outcome;
use integration_tests::store::Store;
use kube_controllers::settings::Settings;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

fn run(cluster: &Cluster<'_>) -> (Value, Outcome) {
    let outcome = cluster
        .store
        .calico_ipam(&cluster.plugins, &["usage", "-o", "json"])
        .unwrap();
    assert_eq!(outcome.exit, Some(0), "{outcome:?}");
    (serde_json::from_str(&outcome.stdout).unwrap(), outcome)
}

/// The pool has four blocks of 16. Three pods are on node1 and one is on node2.
#[on(etcd, local)]
fn usage_counts_addresses_of_two_nodes_and_their_room(cluster: &Cluster<'_>) {
    cluster.load(
        &Content::ready()
            .node("node1")
            .node("node2")
            .pool("pods", "10.65.0.0/26", 28),
    );
    for number in 1..=4 {
        let node = if number < 4 { "node1" } else { "node2" };
        cluster.add(
            &cluster.pod_on(node, number),
            &cluster.conf(node, json!({})),
        );
    }
    let (usage, _) = run(cluster);
    let of_pool = ["capacity", "used", "blocks", "unclaimedBlocks", "free"]
        .map(|key| usage["pools"][0][key].clone());
    assert_eq!(of_pool, [64, 4, 2, 2, 60].map(Value::from), "{usage:#}");
    let nodes: Vec<_> = usage["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| (&node["node"], &node["used"]))
        .collect();
    assert_eq!(
        nodes,
        [(&json!("node1"), &json!(3)), (&json!("node2"), &json!(1))]
    );
    for node in usage["nodes"].as_array().unwrap() {
        assert_eq!(
            node["fits"], 60,
            "own addresses, two blocks and those of the other node: {usage:#}"
        );
    }
    assert_eq!(
        usage["fits"],
        json!([{ "ipVersion": 4, "pods": 60, "onRequest": 0 }])
    );
    let used: Vec<_> = usage["namespaces"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["ipv4"].clone())
        .collect();
    assert_eq!(used, [json!(4)]);
    assert_eq!(usage["borrowed"]["addresses"], json!([]));
}

#[on(kubernetes_v1, kubernetes_v3)]
fn usage_on_an_api_server_counts_pods_by_namespace(cluster: &Cluster<'_>) {
    usage_counts_addresses_of_two_nodes_and_their_room(cluster);
    let (usage, _) = run(cluster);
    assert_eq!(
        usage["namespaces"],
        json!([{ "namespace": NAMESPACE, "ipv4": 4, "ipv6": 0 }])
    );
}

/// Three addresses of node1 and one of node2 are in use.
#[on(kubernetes_v1)]
fn usage_prints_what_the_metrics_say(cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>) {
    usage_counts_addresses_of_two_nodes_and_their_room(cluster);
    let pool = run(cluster).0["pools"][0].take();
    let numbers = (&pool["free"], &pool["fullestNode"], &pool["sparseBlocks"]);
    let fullest = json!({ "node": "node1", "addresses": 13 + 2 * 16 });
    assert_eq!(numbers, (&json!(60), &fullest, &json!(2)), "{pool:#}");
    let api = &control_plane.servers.api;
    let kubeconfig = api
        .kubeconfig("collector", &control_plane.account.identity)
        .unwrap();
    let never = Some(Duration::from_secs(1_000_000));
    let group = Some(ApiGroup::CrdV1);
    let settings = Settings {
        leak_grace_period: never,
        ..settings(group)
    };
    let collector = GarbageCollector::start(group, kubeconfig, settings);
    for (metric, number) in [
        ("free_addresses", &pool["free"]),
        ("fullest_node_addresses", &pool["fullestNode"]["addresses"]),
        ("sparse_blocks", &pool["sparseBlocks"]),
    ] {
        collector.await_metric(&format!(
            "kube_controllers_ippool_{metric}{{ippool=\"pods\"}} {number}"
        ));
    }
}

/// The role of the plugins permits to read single nodes only.
#[test]
fn usage_without_the_right_to_list_nodes_says_so() {
    on(Place::KubernetesV1, usage_with_the_role_of_the_plugins);
}

fn usage_with_the_role_of_the_plugins(cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>) {
    let user = control_plane.servers.api.cni_user().unwrap();
    let objects = Objects::new(cluster.objects().client(), ApiGroup::CrdV1, user.kubeconfig);
    let cluster = Cluster {
        host: cluster.host,
        plugins: cluster.plugins.clone(),
        store: Store::Kubernetes(objects),
    };
    cluster.load(&Content::dual_stack());
    let pod = cluster.pod(1);
    cluster.add(&pod, &cluster.conf("node1", json!({})));
    let (usage, outcome) = run(&cluster);
    assert_eq!(usage["nodeSelectorsConsidered"], false);
    assert!(
        outcome
            .stderr
            .contains("note: node selectors are not considered: "),
        "{outcome:?}"
    );
    let node = &usage["nodes"][0];
    assert_eq!(
        (&node["node"], &node["used"]),
        (&json!("node1"), &json!(1)),
        "{usage:#}"
    );
    assert!(node["fits"].is_number(), "{usage:#}");
}
