//! Affinities of releases that wrote no labels. As in upstream, an ADD with requested addresses
//! labels the affinities of its node (IPAM-152), once (IPAM-47).

use integration_tests::Place;
use integration_tests::cluster::{Cluster, Pod, restricted};
use integration_tests::content::Content;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

const MARKER: &str = "/var/run/calico/cni/ipam_upgraded";

/// Creates the affinity of a node as old releases did, without labels and type. Returns its URL
/// path.
fn write_old(cluster: &Cluster<'_>, node: &str, block: &str) -> String {
    let group = cluster.objects().group();
    let name = format!("{node}-{}", block.replace(['.', '/'], "-"));
    let spec = match group {
        ApiGroup::CrdV1 => {
            json!({ "node": node, "cidr": block, "state": "confirmed", "deleted": "false" })
        }
        ApiGroup::V3 => json!({ "node": node, "cidr": block, "state": "confirmed" }),
    };
    let object = json!({
        "apiVersion": group.api_version(), "kind": "BlockAffinity", "metadata": { "name": name },
        "spec": spec,
    });
    cluster.objects().client().apply_object(&object).unwrap();
    format!("/apis/{}/blockaffinities/{name}", group.api_version())
}

fn labels(cluster: &Cluster<'_>, path: &str) -> Value {
    cluster.objects().client().get(path).unwrap().success()["metadata"]["labels"].clone()
}

fn labels_are_written_once(cluster: &Cluster<'_>) {
    cluster.load(
        &Content::ready()
            .node("node1")
            .pool("pool4", "10.65.0.0/24", 26),
    );
    let own = write_old(cluster, "node1", "10.65.0.64/26");
    let anothers = write_old(cluster, "node2", "10.65.0.0/26");
    let (first, second) = (cluster.pod(1), cluster.pod(2));
    let conf = cluster.conf("node1", json!({}));
    let ask = |pod: &Pod, ip: &str| {
        let args = format!("{};IP={ip}", pod.args());
        let result = cluster
            .verb("ADD", pod, &conf)
            .env("CNI_ARGS", args)
            .run()
            .success();
        assert_eq!(result["ips"][0]["address"], format!("{ip}/32"));
    };
    ask(&first, "10.65.0.70");
    let labelled = labels(cluster, &own);
    assert_eq!(
        labelled["projectcalico.org/affinity-type"], "host",
        "{labelled}"
    );
    assert_eq!(labelled["projectcalico.org/ip-version"], "4", "{labelled}");
    assert!(
        labelled["projectcalico.org/hostname-hash"].is_string(),
        "{labelled}"
    );
    assert_eq!(
        labels(cluster, &anothers),
        Value::Null,
        "each node sees to its own"
    );
    assert!(std::fs::exists(MARKER).unwrap());

    let late = write_old(cluster, "node1", "10.65.0.128/26");
    ask(&second, "10.65.0.71");
    assert_eq!(labels(cluster, &late), Value::Null, "only once");
    [first, second]
        .iter()
        .for_each(|pod| cluster.delete(pod, &conf));
}

#[test]
fn old_affinities_in_v1_get_labels_once() {
    restricted(Place::KubernetesV1, labels_are_written_once);
}

#[test]
fn old_affinities_in_v3_get_labels_once() {
    restricted(Place::KubernetesV3, labels_are_written_once);
}
