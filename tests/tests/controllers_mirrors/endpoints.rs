//! The labels of pods on their endpoints, and the deletion of endpoints without a pod.

use std::thread;
use std::time::{Duration, Instant};

use kube_controllers::settings::GcMode;
use serde_json::{Value, json};

use crate::scene::{GRACE, Scene, becomes, every_second, on_scene, only_at_first, stays};

const ENDPOINT: &str = "workloadendpoints/shop/node1-k8s-web-eth0";

impl Scene<'_> {
    fn node(&self) {
        self.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"}}));
    }

    fn pod(&self, app: &str) {
        self.apply(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "shop", "labels": {"app": app}},
            "spec": {"nodeName": "node1", "containers": [{"name": "c", "image": "i"}]},
        }));
    }

    fn pod_runs(&self) {
        let status = json!({
            "status": {"phase": "Running", "podIP": "10.65.0.7", "podIPs": [{"ip": "10.65.0.7"}]}
        });
        self.admin
            .patch("/api/v1/namespaces/shop/pods/web/status", &status)
            .unwrap()
            .success()
            .unwrap();
    }

    fn delete_pod(&self) {
        self.admin
            .delete("/api/v1/namespaces/shop/pods/web")
            .unwrap()
            .success()
            .unwrap();
    }

    fn endpoint(&self, container: &str, app: &str) {
        self.put(ENDPOINT, endpoint(container, app));
    }

    fn app(&self) -> Value {
        self.get(ENDPOINT).unwrap_or_default()["metadata"]["labels"]["app"].clone()
    }
}

fn endpoint(container: &str, app: &str) -> Value {
    json!({
        "kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3",
        "metadata": {
            "name": "node1-k8s-web-eth0", "namespace": "shop",
            "uid": "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7",
            "creationTimestamp": "2026-08-22T06:33:20Z", "labels": labels(app),
        },
        "spec": {
            "orchestrator": "k8s", "node": "node1", "pod": "web", "endpoint": "eth0",
            "containerID": container,
            "serviceAccountName": "default", "ipNetworks": ["10.65.0.7/32"],
            "interfaceName": "cali0",
            "profiles": ["kns.shop", "ksa.shop.default"],
        },
    })
}

fn labels(app: &str) -> Value {
    json!({
        "app": app, "projectcalico.org/namespace": "shop", "projectcalico.org/orchestrator": "k8s",
        "projectcalico.org/serviceaccount": "default",
    })
}

#[test]
fn endpoint_labels_follow_the_pod_and_keep_writes_of_the_cni_plugin() {
    on_scene(|scene| {
        scene.node();
        scene.pod("a");
        let _running = scene.start(only_at_first);
        // The controller does not create a missing endpoint.
        scene.pod_runs();
        scene.pod("b");
        stays(None, || scene.get(ENDPOINT));
        scene.endpoint("c1", "a");
        becomes(json!("b"), || scene.app());
        for round in 0..20 {
            scene.pod(&format!("r{round}"));
            let mut endpoint = scene.get(ENDPOINT).unwrap();
            endpoint["spec"]["containerID"] = json!(format!("c{round}"));
            scene.put(ENDPOINT, endpoint);
            thread::sleep(Duration::from_millis(30));
        }
        becomes(json!("r19"), || scene.app());
        assert_eq!(scene.get(ENDPOINT), Some(endpoint("c19", "r19")));
        let settled = scene.all();
        stays(settled, || scene.all());
    });
}

#[test]
fn endpoint_is_deleted_after_its_pod_is_missing_for_the_grace_period() {
    on_scene(|scene| {
        scene.node();
        scene.pod("a");
        scene.pod_runs();
        scene.endpoint("c1", "a");
        let other = json!({"kind": "WorkloadEndpoint",
                "metadata": {"name": "node1-cni-c9-eth0", "namespace": "shop"},
            "spec": {"orchestrator": "cni", "node": "node1", "containerID": "c9", "endpoint": "eth0"}});
        scene.put("workloadendpoints/shop/node1-cni-c9-eth0", other);
        scene.put(
            "workloadendpoints/shop/node1-k8s-bad-eth0",
            json!({"spec": 5}),
        );
        let running = scene.start(every_second);
        stays(json!("a"), || scene.app());
        let deleted_at = Instant::now();
        scene.delete_pod();
        thread::sleep(GRACE / 2);
        let exists = scene.get(ENDPOINT).is_some();
        assert!(exists || deleted_at.elapsed() >= GRACE, "not at once");
        becomes(None, || scene.get(ENDPOINT));
        assert!(
            scene
                .get("workloadendpoints/shop/node1-cni-c9-eth0")
                .is_some(),
            "another orchestrator's"
        );

        // The pod is deleted while no controller runs, and created again within the grace period.
        drop(running);
        let in_time = || {
            scene.endpoint("c2", "a");
            let started_at = Instant::now();
            let running = scene.start(every_second);
            thread::sleep(GRACE / 2);
            scene.pod("a");
            if started_at.elapsed() < GRACE {
                return Some(running);
            }
            drop(running);
            scene.delete_pod();
            None
        };
        // A slow machine may create the pod too late.
        let running = (0..10)
            .find_map(|_| in_time())
            .expect("the machine is fast enough once");
        scene.pod_runs();
        thread::sleep(GRACE);
        stays(json!("a"), || scene.app());

        drop(running);
        scene.delete_pod();
        let running = scene.start(|settings| settings.gc_mode = GcMode::Report);
        thread::sleep(GRACE);
        stays(json!("a"), || scene.app());
        drop(running);
        let _running = scene.start(only_at_first);
        becomes(None, || scene.get(ENDPOINT));
    });
}

#[test]
fn endpoint_of_a_deleted_node_is_deleted_once_the_datastore_is_ready() {
    on_scene(|scene| {
        scene.node();
        scene.pod("a");
        scene.endpoint("c1", "a");
        scene.put(
            "clusterinformations/default",
            json!({"spec": {"datastoreReady": false}}),
        );
        let _running = scene.start(every_second);
        scene
            .admin
            .delete("/api/v1/nodes/node1")
            .unwrap()
            .success()
            .unwrap();
        thread::sleep(GRACE);
        stays(json!("a"), || scene.app());
        scene.put(
            "clusterinformations/default",
            json!({"spec": {"datastoreReady": true}}),
        );
        becomes(None, || scene.get(ENDPOINT));
    });
}
