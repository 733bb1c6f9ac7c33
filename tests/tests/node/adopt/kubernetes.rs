//! The addresses of pods on a real API server.

use integration_tests::Place;
use integration_tests::cluster::{Cluster, ControlPlane, NAMESPACE, Pod, on};
use integration_tests::command::ip;
use integration_tests::content::Content;
use serde_json::{Value, json};

use crate::adopt::{address, adopt, delete_blocks, report_running, results, text};

const PODS: usize = 10;

/// Starts running pods, and returns them with their addresses.
fn run_pods(
    cluster: &Cluster<'_>,
    control_plane: &ControlPlane<'_>,
    conf: &Value,
) -> Vec<(Pod, String)> {
    cluster.load(
        &Content::ready()
            .node("node1")
            .node("node2")
            .pool("pool4", "10.65.0.0/16", 26),
    );
    let pods = (1..=PODS).map(|number| {
        let pod = cluster.pod(number);
        let address = address(&cluster.add(&pod, conf));
        report_running(control_plane, &pod, &address);
        (pod, address)
    });
    pods.collect()
}

fn deleted_block_is_adopted(cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>) {
    let conf = cluster.conf("node1", json!({}));
    let mut pods = run_pods(cluster, control_plane, &conf);
    pods.sort_by_key(|(_, address)| address.parse::<std::net::Ipv4Addr>().unwrap());
    let before = cluster.accounts();
    delete_blocks(cluster);
    let all = |result: &str| -> Vec<(String, String)> {
        pods.iter()
            .map(|(_, address)| (address.clone(), result.to_owned()))
            .collect()
    };
    assert_eq!(results(cluster, &["--dry-run"]), all("would be adopted"));
    assert!(
        cluster.accounts().held.is_empty(),
        "the dry run writes nothing"
    );
    assert_eq!(results(cluster, &[]), all("adopted"));
    assert_eq!(cluster.accounts().held, before.held);
    cluster.assert_in_order();
    let audit = control_plane.servers.api.audit().unwrap();
    assert_eq!(results(cluster, &[]), all("held"));
    let requests = audit.of(&control_plane.account.user).unwrap();
    let reads = requests
        .iter()
        .filter(|request| matches!(request.verb.as_str(), "get" | "list"))
        .count();
    assert!(reads > 0 && reads == requests.len(), "{requests:?}");

    let next = cluster.pod(PODS + 1);
    let given = address(&cluster.add(&next, &conf));
    assert!(
        !pods.iter().any(|(_, address)| *address == given),
        "{given}"
    );
    for (pod, _) in &pods {
        cluster.delete(pod, &conf);
    }
    cluster.delete(&next, &conf);
    let after = cluster.accounts();
    assert!(
        after.held.is_empty() && after.counted.is_empty(),
        "{after:#?}"
    );
}

#[test]
fn ten_pods_of_a_deleted_block_are_adopted_in_v1() {
    on(Place::KubernetesV1, deleted_block_is_adopted);
}

#[test]
fn ten_pods_of_a_deleted_block_are_adopted_in_v3() {
    on(Place::KubernetesV3, deleted_block_is_adopted);
}

/// An ADD on another node got the address while its block was missing.
#[on(kubernetes_v1)]
fn address_given_to_another_pod_meanwhile_names_both(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let conf = cluster.conf("node1", json!({}));
    let pods = run_pods(cluster, control_plane, &conf);
    delete_blocks(cluster);
    let other = cluster.pod_on("node2", PODS + 1);
    let (taken, holder) = (pods[3].1.as_str(), other.object.clone().unwrap());
    let (of_node2, args) = (
        cluster.conf("node2", json!({})),
        format!("{};IP={taken}", other.args()),
    );
    // `calico` would refuse the address, because both nodes of this test have one kernel, which
    // has a route to it.
    let add = cluster.plugins.verb(
        "calico-ipam",
        "ADD",
        &other.container_id,
        &other.netns,
        &of_node2,
    );
    add.env("CNI_ARGS", args).run().success();
    let (report, outcome) = adopt(cluster, &[]);
    assert_eq!(outcome.exit, Some(1), "{outcome:?}");
    let rows = report["addresses"].as_array().unwrap();
    let conflict = rows.iter().find(|row| row["result"] == "conflict").unwrap();
    assert_eq!(conflict["address"], taken);
    let reason = text(&conflict["reason"]);
    assert!(
        reason.starts_with("allocated to another owner") && reason.contains(&holder),
        "{reason}"
    );
    assert_eq!(
        rows.iter().filter(|row| row["result"] == "adopted").count(),
        PODS - 1,
        "{report}"
    );

    report_running(control_plane, &other, taken);
    let (report, _) = adopt(cluster, &[]);
    let row = report["addresses"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["address"] == taken)
        .unwrap();
    let reason = text(&row["reason"]);
    assert!(
        reason.starts_with("pod suite/") && reason.contains("uses it too"),
        "{reason}"
    );
}

/// As for pods that upstream's plugin started. Without a runtime, their container is unknown.
#[on(kubernetes_v3)]
fn pod_without_alias_and_runtime_is_a_conflict(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let conf = cluster.conf("node1", json!({}));
    let pods = run_pods(cluster, control_plane, &conf);
    delete_blocks(cluster);
    let link = libcalico::names::pod_interface("cali", "suite", pods[0].0.object.as_ref().unwrap());
    ip(&format!("link set dev {link} alias upstream")).unwrap();
    let (report, outcome) = adopt(cluster, &["--runtime-socket", "/nowhere.sock"]);
    assert_eq!(outcome.exit, Some(1), "{outcome:?}");
    let rows = report["addresses"].as_array().unwrap();
    let conflict: Vec<_> = rows
        .iter()
        .filter(|row| row["result"] == "conflict")
        .collect();
    assert_eq!(conflict.len(), 1, "{report}");
    let reason = text(&conflict[0]["reason"]);
    assert!(
        reason.contains("no alias of this plugin") && reason.contains("/nowhere.sock"),
        "{reason}"
    );
}

/// `endpoints -n` receives no pod of another namespace.
#[on(kubernetes_v3)]
fn endpoints_of_one_namespace_are_requested_from_the_server(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let conf = cluster.conf("node1", json!({}));
    run_pods(cluster, control_plane, &conf);
    let listed = |more: &[&str]| {
        let args = [&["endpoints", "-o", "json"][..], more].concat();
        let outcome = cluster.store.calico_ipam(&cluster.plugins, &args).unwrap();
        let list: Value = serde_json::from_str(&outcome.stdout).unwrap();
        list["items"].as_array().unwrap().len()
    };
    assert_eq!([listed(&[]), listed(&["-A"])], [PODS; 2]);
    let audit = control_plane.servers.api.audit().unwrap();
    assert_eq!(
        [listed(&["-n", NAMESPACE]), listed(&["-n", "kube-system"])],
        [PODS, 0]
    );
    let mut requests = audit.of(&control_plane.account.user).unwrap();
    requests.retain(|request| request.resource == "pods");
    let namespaces: Vec<&str> = requests
        .iter()
        .map(|request| request.namespace.as_str())
        .collect();
    assert_eq!(namespaces, [NAMESPACE, "kube-system"]);
}
