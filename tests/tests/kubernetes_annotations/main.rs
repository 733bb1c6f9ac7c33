//! What the annotations of pods and namespaces ask for, what is refused, a pod's successor of the same name, and the
//! settings that only pods have: on a real API server, in both API groups.

mod addresses;
mod interface;
mod pools;
mod refusals;
mod settings;
mod successor;

use integration_tests::cluster::{Cluster, NAMESPACE, Pod, pod_path};
use integration_tests::kernel;
use integration_tests::kubernetes::Client;
use integration_tests::store::Store;
use serde_json::{Map, Value, json};

/// What the names of Calico's annotations begin with.
const PREFIX: &str = "cni.projectcalico.org/";

/// The API server, past the proxy that the plugins use.
fn api<'c>(cluster: &'c Cluster<'_>) -> &'c Client {
    match &cluster.store {
        Store::Kubernetes(objects) => objects.client(),
        other => panic!("{} is no API server", other.name()),
    }
}

/// Names without a domain are Calico's.
fn named(annotations: &[(&str, &str)]) -> Value {
    let full = |name: &str| if name.contains('/') { name.to_owned() } else { format!("{PREFIX}{name}") };
    annotations.iter().map(|(name, value)| (full(name), json!(value))).collect::<Map<_, _>>().into()
}

/// The n-th pod, with annotations.
fn annotated(cluster: &Cluster<'_>, number: usize, annotations: &[(&str, &str)]) -> Pod {
    create(api(cluster), &format!("pod{number}"), annotations);
    cluster.pod(number)
}

/// A pod object with annotations.
fn create(client: &Client, name: &str, annotations: &[(&str, &str)]) -> Value {
    create_on(client, name, "node1", annotations)
}

/// The same on a node.
fn create_on(client: &Client, name: &str, node: &str, annotations: &[(&str, &str)]) -> Value {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": NAMESPACE, "annotations": named(annotations) },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "none" }] },
    });
    client.create(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), &pod).unwrap().success().unwrap()
}

/// One of Calico's annotations of a pod as it is now.
fn annotation(cluster: &Cluster<'_>, pod: &str, name: &str) -> Value {
    let object = api(cluster).get(&pod_path(pod)).unwrap().success().unwrap();
    object["metadata"]["annotations"][format!("{PREFIX}{name}")].clone()
}

/// Replaces the annotations and labels of the pods' namespace.
fn mark_namespace(cluster: &Cluster<'_>, annotations: &Value, labels: &Value) {
    let path = format!("/api/v1/namespaces/{NAMESPACE}");
    let metadata = json!({ "metadata": { "annotations": annotations, "labels": labels } });
    api(cluster).patch(&path, &metadata).unwrap().success().unwrap();
}

/// The addresses of a result.
fn addresses(result: &Value) -> Vec<&str> {
    result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap()).collect()
}

/// Where the host has routes to, but for the link-local ones.
fn host_routes() -> Vec<String> {
    let host = kernel::host().unwrap();
    let destinations = host["routes"].as_array().unwrap().iter().map(|route| route["dst"].as_str().unwrap());
    destinations.filter(|to| *to != "fe80::/64").map(str::to_owned).collect()
}

/// CHECK finds everything as an ADD left it.
#[track_caller]
fn check(cluster: &Cluster<'_>, pod: &Pod, conf: &Value, result: &Value) {
    let mut conf = conf.clone();
    conf["prevResult"] = result.clone();
    cluster.verb("CHECK", pod, &conf).run().unwrap().success();
}
