//! Changes of pods: the token of a node may write three annotations of that node's pods, and
//! nothing else.

use integration_tests::kubernetes::Client;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use crate::scene::{NAMESPACE, Scene, assert_denied, restricted, status_path};

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
fn seen(scene: &Scene<'_>, pod: &str) -> (Value, Value) {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}");
    let mut stored = scene.api.admin().get(&path).unwrap().success().unwrap();
    let mut metadata = stored["metadata"].take();
    for changing in ["managedFields", "resourceVersion"] {
        metadata.as_object_mut().unwrap().remove(changing);
    }
    (metadata, stored["status"].take())
}

#[track_caller]
fn assert_unchanged_by(scene: &Scene<'_>, thief: &Client, pod: &str, patch: &Value) {
    let before = seen(scene, pod);
    assert_denied(thief.patch(&status_path(pod), patch), POLICY);
    assert_eq!(seen(scene, pod), before, "{patch}");
}

#[test]
fn token_of_a_node_patches_no_pod_of_another_node() {
    restricted(ApiGroup::CrdV1, |scene| {
        let thief = scene.plugins_of("node1");
        scene.pod("node2", "far");
        assert_unchanged_by(scene, &thief, "far", &addresses());
        assert_unchanged_by(
            scene,
            &thief,
            "far",
            &json!({ "status": { "podIP": "10.9.9.9" } }),
        );
        scene
            .plugins_of("node2")
            .patch(&status_path("far"), &addresses())
            .unwrap()
            .success()
            .unwrap();
    });
}

#[test]
fn token_of_a_node_changes_only_three_annotations_of_its_pods() {
    restricted(ApiGroup::CrdV1, |scene| {
        let thief = scene.plugins_of("node1");
        scene.pod("node1", "near");
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
            assert_unchanged_by(scene, &thief, "near", &patch);
        }
        let patched = thief
            .patch(&status_path("near"), &addresses())
            .unwrap()
            .success()
            .unwrap();
        assert_eq!(
            patched["metadata"]["annotations"]["cni.projectcalico.org/podIP"],
            "10.65.0.1/32"
        );
        let emptied =
            json!({ "metadata": { "annotations": { "cni.projectcalico.org/podIP": "" } } });
        thief
            .patch(&status_path("near"), &emptied)
            .unwrap()
            .success()
            .unwrap();
    });
}

/// The policy compares the whole status of the pod before and after the request.
#[test]
fn pod_with_a_reported_status_is_patched() {
    restricted(ApiGroup::CrdV1, |scene| {
        scene.pod("node1", "running");
        let resources = json!({ "requests": { "cpu": "0.1", "memory": "1024Mi" } });
        let container = json!({ "name": "c", "image": "none", "imageID": "", "ready": true,
                "restartCount": 1,
            "allocatedResources": { "cpu": "100m" }, "resources": resources,
            "state": { "running": { "startedAt": "2026-01-02T03:04:05Z" } } });
        let status = json!({ "phase": "Running", "podIP": "10.65.0.1",
                "podIPs": [{ "ip": "10.65.0.1" }],
            "startTime": "2026-01-02T03:04:05Z", "containerStatuses": [container],
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z" }] });
        let reported = scene
            .api
            .admin()
            .patch(&status_path("running"), &json!({ "status": status }))
            .unwrap();
        reported.success().unwrap();
        let plugins = scene.plugins_of("node1");
        plugins
            .patch(&status_path("running"), &addresses())
            .unwrap()
            .success()
            .unwrap();
    });
}
