//! Changes of pods: the token of a node may write three annotations of that node's pods, and
//! nothing else.

use integration_tests::kubernetes::Client;
use serde_json::{Value, json};

use crate::node_restriction::restricted_cluster::{
    NAMESPACE, RestrictedCluster, assert_denied, on, status_path,
};

const POLICY: &str = "calico-cni-pods";

fn addresses() -> Value {
    let annotations = json!({
        "cni.projectcalico.org/containerID": "c1",
        "cni.projectcalico.org/podIP": "10.65.0.1/32",
        "cni.projectcalico.org/podIPs": "10.65.0.1/32",
    });
    json!({ "metadata": { "annotations": annotations } })
}

/// Returns the metadata, without the fields that change with each write, and the status of a pod.
fn metadata_and_status(cluster: &RestrictedCluster<'_>, pod: &str) -> (Value, Value) {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}");
    let mut stored = cluster.api.admin().get(&path).unwrap().success();
    let mut metadata = stored["metadata"].take();
    for changing in ["managedFields", "resourceVersion"] {
        metadata.as_object_mut().unwrap().remove(changing);
    }
    (metadata, stored["status"].take())
}

#[track_caller]
fn assert_unchanged_by(cluster: &RestrictedCluster<'_>, thief: &Client, pod: &str, patch: &Value) {
    let before = metadata_and_status(cluster, pod);
    assert_denied(thief.patch(&status_path(pod), patch), POLICY);
    assert_eq!(metadata_and_status(cluster, pod), before, "{patch}");
}

/// Shows SEC-94.
#[on(kubernetes_v1)]
fn token_of_a_node_patches_no_pod_of_another_node(cluster: &RestrictedCluster<'_>) {
    let thief = cluster.plugins_of("node1");
    cluster.pod("node2", "far");
    assert_unchanged_by(cluster, &thief, "far", &addresses());
    assert_unchanged_by(
        cluster,
        &thief,
        "far",
        &json!({ "status": { "podIP": "10.9.9.9" } }),
    );
    cluster
        .plugins_of("node2")
        .patch(&status_path("far"), &addresses())
        .unwrap()
        .success();
}

/// Shows SEC-94.
#[on(kubernetes_v1)]
fn token_of_a_node_changes_only_three_annotations_of_its_pods(cluster: &RestrictedCluster<'_>) {
    let thief = cluster.plugins_of("node1");
    cluster.pod("node1", "near");
    for patch in [
        json!({ "metadata": { "labels": { "app": "other" } } }),
        json!({ "metadata": { "finalizers": ["example.com/held"] } }),
        json!({ "metadata": { "annotations": { "other": "a" } } }),
        json!({ "metadata": { "annotations": { "kept": "b" } } }),
        json!({ "metadata": { "annotations": { "kept": null } } }),
        json!({
            "metadata": {
                "annotations": { "cni.projectcalico.org/ipAddrs": "[\"10.65.0.9\"]" }
            }
        }),
        json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } }),
        json!({ "status": { "phase": "Failed" } }),
        json!({ "status": { "podIP": "10.9.9.9", "podIPs": [{ "ip": "10.9.9.9" }] } }),
    ] {
        assert_unchanged_by(cluster, &thief, "near", &patch);
    }
    let patched = thief
        .patch(&status_path("near"), &addresses())
        .unwrap()
        .success();
    assert_eq!(
        patched["metadata"]["annotations"]["cni.projectcalico.org/podIP"],
        "10.65.0.1/32"
    );
    let emptied = json!({ "metadata": { "annotations": { "cni.projectcalico.org/podIP": "" } } });
    thief
        .patch(&status_path("near"), &emptied)
        .unwrap()
        .success();
}

/// The policy compares the whole status of the pod before and after the request.
#[on(kubernetes_v1)]
fn pod_with_a_reported_status_is_patched(cluster: &RestrictedCluster<'_>) {
    cluster.pod("node1", "running");
    let resources = json!({ "requests": { "cpu": "0.1", "memory": "1024Mi" } });
    let container = json!({ "name": "c", "image": "none", "imageID": "", "ready": true,
                "restartCount": 1,
            "allocatedResources": { "cpu": "100m" }, "resources": resources,
            "state": { "running": { "startedAt": "2026-01-02T03:04:05Z" } } });
    let status = json!({ "phase": "Running", "podIP": "10.65.0.1",
                "podIPs": [{ "ip": "10.65.0.1" }],
            "startTime": "2026-01-02T03:04:05Z", "containerStatuses": [container],
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z" }] });
    let reported = cluster
        .api
        .admin()
        .patch(&status_path("running"), &json!({ "status": status }))
        .unwrap();
    reported.success();
    let plugins = cluster.plugins_of("node1");
    plugins
        .patch(&status_path("running"), &addresses())
        .unwrap()
        .success();
}
