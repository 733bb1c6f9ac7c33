//! Annotations of pods and namespaces, and settings that only pods have, with
//! `components/node-restriction`. A test runs in both API groups if it reads or writes Calico's
//! objects in another way than the other tests, otherwise in v1.

mod addresses;
mod any_of;
mod interface;
mod pools;
mod refusals;
mod settings;
mod successor;

use integration_tests::cluster::{
    Cluster, ClusterTest, ControlPlane, NAMESPACE, Pod, pod_path, restricted,
};
use integration_tests::kernel;
use integration_tests::kubernetes::Client;
use integration_tests::{Place, on};
use serde_json::{Map, Value, json};

const PREFIX: &str = "cni.projectcalico.org/";

/// Expects that the server refuses no request of the plugins.
fn on<Parameters>(place: Place, test: impl ClusterTest<Parameters>) {
    let unrefused = |cluster: &mut Cluster<'_>, control_plane: &mut ControlPlane<'_>| {
        let audit = control_plane.servers.api.audit().unwrap();
        test.run(cluster, Some(control_plane));
        audit.assert_nothing_refused(&control_plane.account.user);
    };
    restricted(place, unrefused);
}

/// Adds Calico's prefix to names without a domain.
fn named(annotations: &[(&str, &str)]) -> Value {
    let full = |name: &str| {
        if name.contains('/') {
            name.to_owned()
        } else {
            format!("{PREFIX}{name}")
        }
    };
    annotations
        .iter()
        .map(|(name, value)| (full(name), json!(value)))
        .collect::<Map<_, _>>()
        .into()
}

fn annotated(cluster: &Cluster<'_>, number: usize, annotations: &[(&str, &str)]) -> Pod {
    create(
        cluster.objects().client(),
        &format!("pod{number}"),
        annotations,
    );
    cluster.pod(number)
}

fn create(client: &Client, name: &str, annotations: &[(&str, &str)]) -> Value {
    create_on(client, name, "node1", annotations)
}

fn create_on(client: &Client, name: &str, node: &str, annotations: &[(&str, &str)]) -> Value {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": NAMESPACE, "annotations": named(annotations) },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "none" }] },
    });
    client
        .create(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), &pod)
        .unwrap()
        .success()
}

fn annotation(cluster: &Cluster<'_>, pod: &str, name: &str) -> Value {
    let object = cluster
        .objects()
        .client()
        .get(&pod_path(pod))
        .unwrap()
        .success();
    object["metadata"]["annotations"][format!("{PREFIX}{name}")].clone()
}

/// Merges annotations and labels into those of the pods' namespace; null removes one.
fn mark_namespace(cluster: &Cluster<'_>, annotations: &Value, labels: &Value) {
    let path = format!("/api/v1/namespaces/{NAMESPACE}");
    let metadata = json!({ "metadata": { "annotations": annotations, "labels": labels } });
    cluster
        .objects()
        .client()
        .patch(&path, &metadata)
        .unwrap()
        .success();
}

fn addresses(result: &Value) -> Vec<&str> {
    result["ips"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ip| ip["address"].as_str().unwrap())
        .collect()
}

/// Returns the destinations of the host's routes, without link-local ones.
fn host_routes() -> Vec<String> {
    let host = kernel::host().unwrap();
    let destinations = host["routes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|route| route["dst"].as_str().unwrap());
    destinations
        .filter(|to| *to != "fe80::/64")
        .map(str::to_owned)
        .collect()
}

#[track_caller]
fn check(cluster: &Cluster<'_>, pod: &Pod, conf: &Value, result: &Value) {
    let mut conf = conf.clone();
    conf["prevResult"] = result.clone();
    cluster.verb("CHECK", pod, &conf).run().success();
}
