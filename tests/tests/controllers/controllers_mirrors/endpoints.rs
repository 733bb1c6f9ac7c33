//! The labels of pods on their endpoints, and the deletion of endpoints without a pod.

use std::thread;
use std::time::{Duration, Instant};

use kube_controllers::settings::GcMode;
use serde_json::{Value, json};

use crate::controllers_mirrors::mirrored_cluster::{
    GRACE, MirroredCluster, becomes, every_second, on, only_at_first, stays,
};

const ENDPOINT: &str = "workloadendpoints/shop/node1-k8s-web-eth0";

impl MirroredCluster<'_> {
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
        self.servers
            .merge("/api/v1/namespaces/shop/pods/web/status", &status);
    }

    fn delete_pod(&self) {
        self.servers.remove("/api/v1/namespaces/shop/pods/web");
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

#[on(etcd)]
fn endpoint_labels_follow_the_pod_and_keep_writes_of_the_cni_plugin(cluster: &MirroredCluster<'_>) {
    cluster.node();
    cluster.pod("a");
    let _running = cluster.start(only_at_first);
    // The controller does not create a missing endpoint.
    cluster.pod_runs();
    cluster.pod("b");
    stays(None, || cluster.get(ENDPOINT));
    cluster.endpoint("c1", "a");
    becomes(json!("b"), || cluster.app());
    for round in 0..20 {
        cluster.pod(&format!("r{round}"));
        let mut endpoint = cluster.get(ENDPOINT).unwrap();
        endpoint["spec"]["containerID"] = json!(format!("c{round}"));
        cluster.put(ENDPOINT, endpoint);
        thread::sleep(Duration::from_millis(30));
    }
    becomes(json!("r19"), || cluster.app());
    assert_eq!(cluster.get(ENDPOINT), Some(endpoint("c19", "r19")));
    let before = cluster.all();
    stays(before, || cluster.all());
}

#[on(etcd)]
fn endpoint_is_deleted_after_its_pod_is_missing_for_the_grace_period(
    cluster: &MirroredCluster<'_>,
) {
    cluster.node();
    cluster.pod("a");
    cluster.pod_runs();
    cluster.endpoint("c1", "a");
    let other = json!({
        "kind": "WorkloadEndpoint",
        "metadata": {"name": "node1-cni-c9-eth0", "namespace": "shop"},
        "spec": {
            "orchestrator": "cni", "node": "node1", "containerID": "c9", "endpoint": "eth0",
        },
    });
    cluster.put("workloadendpoints/shop/node1-cni-c9-eth0", other);
    cluster.put(
        "workloadendpoints/shop/node1-k8s-bad-eth0",
        json!({"spec": 5}),
    );
    let running = cluster.start(every_second);
    stays(json!("a"), || cluster.app());
    let deleted_at = Instant::now();
    cluster.delete_pod();
    thread::sleep(GRACE / 2);
    let exists = cluster.get(ENDPOINT).is_some();
    assert!(exists || deleted_at.elapsed() >= GRACE, "not at once");
    becomes(None, || cluster.get(ENDPOINT));
    assert!(
        cluster
            .get("workloadendpoints/shop/node1-cni-c9-eth0")
            .is_some(),
        "another orchestrator's"
    );

    // The pod is deleted while no controller runs, and created again within the grace period.
    drop(running);
    let in_time = || {
        cluster.endpoint("c2", "a");
        let started_at = Instant::now();
        let running = cluster.start(every_second);
        thread::sleep(GRACE / 2);
        cluster.pod("a");
        if started_at.elapsed() < GRACE {
            return Some(running);
        }
        drop(running);
        cluster.delete_pod();
        None
    };
    // A slow machine may create the pod too late.
    let running = (0..10)
        .find_map(|_| in_time())
        .expect("the machine is fast enough once");
    cluster.pod_runs();
    thread::sleep(GRACE);
    stays(json!("a"), || cluster.app());

    drop(running);
    cluster.delete_pod();
    let running = cluster.start(|settings| settings.gc_mode = GcMode::Report);
    thread::sleep(GRACE);
    stays(json!("a"), || cluster.app());
    drop(running);
    let _running = cluster.start(only_at_first);
    becomes(None, || cluster.get(ENDPOINT));
}

#[on(etcd)]
fn endpoint_of_a_deleted_node_is_deleted_once_the_datastore_is_ready(
    cluster: &MirroredCluster<'_>,
) {
    cluster.node();
    cluster.pod("a");
    cluster.endpoint("c1", "a");
    cluster.put(
        "clusterinformations/default",
        json!({"spec": {"datastoreReady": false}}),
    );
    let _running = cluster.start(every_second);
    cluster.servers.remove("/api/v1/nodes/node1");
    thread::sleep(GRACE);
    stays(json!("a"), || cluster.app());
    cluster.put(
        "clusterinformations/default",
        json!({"spec": {"datastoreReady": true}}),
    );
    becomes(None, || cluster.get(ENDPOINT));
}
