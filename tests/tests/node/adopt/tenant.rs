//! Texts of a tenant, who writes the name, labels and annotations of pods.

use integration_tests::cluster::{Cluster, ControlPlane, NAMESPACE, on, pod_path};
use integration_tests::content::Content;
use serde_json::json;

use crate::adopt::{address, adopt, delete_blocks, report_running, results};

/// The tenant's pod names the address and the container of another pod, and an address that is
/// free. Shows SEC-7.
#[on(kubernetes_v1)]
fn tenant_annotations_adopt_no_address(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    cluster.load(
        &Content::ready()
            .node("node1")
            .pool("pool4", "10.65.0.0/16", 26),
    );
    let conf = cluster.conf("node1", json!({}));
    let (victim, tenant) = (cluster.pod(1), cluster.pod(2));
    let addresses = [&victim, &tenant].map(|pod| {
        let address = address(&cluster.add(pod, &conf));
        report_running(control_plane, pod, &address);
        address
    });
    let before = cluster.accounts();
    delete_blocks(cluster);
    let [of_victim, _] = &addresses;
    let admin = control_plane.servers.api.admin();
    for ips in [
        format!("{of_victim}/32"),
        "10.65.200.1/32".to_owned(),
        format!("{of_victim}/32,10.65.200.1/32"),
    ] {
        let status = json!([{ "name": "net", "ips": [of_victim, "10.65.200.1"] }]).to_string();
        let annotations = json!({
            "cni.projectcalico.org/podIP": ips, "cni.projectcalico.org/podIPs": ips,
            "cni.projectcalico.org/containerID": victim.container_id,
            "k8s.v1.cni.cncf.io/network-status": status,
        });
        let labels = json!({
            "kubevirt.io/migrationJobUID": "x", "projectcalico.org/orchestrator": "k8s",
        });
        let patch = json!({ "metadata": { "annotations": annotations, "labels": labels } });
        let path = pod_path(tenant.object.as_ref().unwrap());
        admin.patch(&path, &patch).unwrap().success();
        let expected = results(cluster, &["--dry-run"]);
        assert!(
            expected
                .iter()
                .all(|(address, _)| addresses.contains(address)),
            "{expected:?}"
        );
    }
    assert_eq!(results(cluster, &[]).len(), 2);
    assert_eq!(cluster.accounts().held, before.held);
}

/// Both pods have the same host interface name: `p723961` and `p6680456` in `team-a`. Shows SEC-7.
#[on(kubernetes_v3)]
fn pod_with_a_colliding_interface_name_adopts_no_address(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    cluster.load(
        &Content::ready()
            .node("node1")
            .pool("pool4", "10.65.0.0/16", 26),
    );
    let api = &control_plane.servers.api;
    api.namespace("team-a").unwrap();
    let conf = cluster.conf("node1", json!({}));
    let pods = "/api/v1/namespaces/team-a/pods";
    for name in ["p723961", "p6680456"] {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "team-a" },
            "spec": { "nodeName": "node1", "containers": [{ "name": "c", "image": "none" }] },
        });
        api.admin().create(pods, &object).unwrap().success();
    }
    let sandbox = cluster.pod(1);
    let args = sandbox
        .args()
        .replace(NAMESPACE, "team-a")
        .replace(sandbox.object.as_ref().unwrap(), "p723961");
    let added = cluster
        .verb("ADD", &sandbox, &conf)
        .env("CNI_ARGS", args)
        .run()
        .success();
    delete_blocks(cluster);
    // The pods report an address each; only the first one has the interface.
    for (name, ip) in [
        ("p723961", address(&added)),
        ("p6680456", "10.65.77.1".into()),
    ] {
        let status =
            json!({ "status": { "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }] } });
        api.admin()
            .patch(&format!("{pods}/{name}/status"), &status)
            .unwrap()
            .success();
    }
    let (report, outcome) = adopt(cluster, &["--runtime-socket", "/nowhere.sock"]);
    assert_eq!(outcome.exit, Some(1), "{outcome:?}");
    let rows = report["addresses"].as_array().unwrap();
    let result = |user: &str| {
        rows.iter()
            .find(|row| row["user"] == user)
            .map(|row| row["result"].clone())
    };
    assert_eq!(
        result("pod team-a/p723961"),
        Some(json!("adopted")),
        "{report}"
    );
    assert_eq!(
        result("pod team-a/p6680456"),
        Some(json!("conflict")),
        "{report}"
    );
}
