//! `calico-ipam adopt`: after the loss of a block, running pods get their addresses back.

mod endpoints;
mod kubernetes;
mod rights;
mod runtime;
mod tenant;

use integration_tests::cluster::{Cluster, ControlPlane, Pod, pod_path};
use integration_tests::plugin::Outcome;
use serde_json::{Value, json};

/// Runs `adopt` for node1, and returns its report and its exit status.
fn adopt(cluster: &Cluster<'_>, more: &[&str]) -> (Value, Outcome) {
    let args = [&["adopt", "--node", "node1", "-o", "json"][..], more].concat();
    let outcome = cluster.store.calico_ipam(&cluster.plugins, &args).unwrap();
    let report = serde_json::from_str(&outcome.stdout)
        .unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
    (report, outcome)
}

/// Runs `adopt` for node1 without conflicts, and returns the results by address.
#[track_caller]
fn results(cluster: &Cluster<'_>, more: &[&str]) -> Vec<(String, String)> {
    let (report, outcome) = adopt(cluster, more);
    assert_eq!(outcome.exit, Some(0), "{outcome:?}");
    let rows = report["addresses"].as_array().unwrap();
    rows.iter()
        .map(|row| (text(&row["address"]), text(&row["result"])))
        .collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns the first address of the result of an ADD, without the prefix length.
fn address(result: &Value) -> String {
    let address = result["ips"][0]["address"].as_str().unwrap();
    address.split('/').next().unwrap().to_owned()
}

/// Writes the status of a running pod, as the kubelet does.
fn report_running(control_plane: &ControlPlane<'_>, pod: &Pod, address: &str) {
    let status = json!({
        "status": { "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }] }
    });
    let path = format!("{}/status", pod_path(pod.object.as_ref().unwrap()));
    control_plane
        .servers
        .api
        .admin()
        .patch(&path, &status)
        .unwrap()
        .success();
}

/// Deletes all blocks.
fn delete_blocks(cluster: &Cluster<'_>) {
    let content = cluster.store.dump().unwrap();
    let blocks = content
        .keys()
        .filter(|key| key.starts_with("ipamblocks/") || key.contains("/ipam/v2/assignment/"));
    let mut deleted = 0;
    for block in blocks {
        cluster.store.delete(block).unwrap();
        deleted += 1;
    }
    assert!(deleted > 0, "{:?}", content.keys());
}
