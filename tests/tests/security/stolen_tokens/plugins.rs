//! The token in `calico-kubeconfig` of one node.

use integration_tests::controllers::{ControllersCluster, NAMESPACE, handle_of};
use integration_tests::kubernetes::{token_path, token_request};
use integration_tests::manifests::deploy;
use serde_json::{Value, json};

use crate::stolen_tokens::thief::{SYSTEM, Thief, assert_refused, done, on};

const ACCOUNT: &str = "calico-cni-plugin";

fn prepare(cluster: &ControllersCluster<'_>) {
    cluster.node("node2", "10.0.0.2");
    cluster.apply(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "victim", "namespace": NAMESPACE, "labels": { "app": "bank" } },
        "spec": { "nodeName": "node2", "containers": [{ "name": "c", "image": "none",
                  "env": [{ "name": "PASSWORD", "value": "secret" }] }] },
    }));
    cluster.address_left_behind("node2", "10.65.2.0");
}

fn victim() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods/victim")
}

/// Shows SEC-93 and SEC-94.
#[on(kubernetes_v1)]
fn stolen_plugins_token_reads_every_pod_by_name_and_changes_its_labels_and_status(
    cluster: &ControllersCluster<'_>,
) {
    prepare(cluster);
    let thief = Thief::of(cluster, &[deploy("rbac/calico-cni-plugin.yaml")], ACCOUNT);
    let read = done(thief.client.get(&victim()));
    assert_eq!(read["spec"]["containers"][0]["env"][0]["value"], "secret");
    for patch in [
        json!({ "metadata": { "labels": { "app": "thief" }, "annotations": { "note": "a" } } }),
        json!({ "metadata": { "finalizers": ["example.com/held"] } }),
        json!({ "status": { "podIP": "10.9.9.9", "podIPs": [{ "ip": "10.9.9.9" }] } }),
        json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } }),
    ] {
        done(thief.client.patch(&format!("{}/status", victim()), &patch));
    }
    let changed = cluster.get(&victim());
    let metadata = &changed["metadata"];
    assert_eq!(
        (&metadata["labels"]["app"], &metadata["annotations"]["note"]),
        (&json!("thief"), &json!("a"))
    );
    assert_eq!(metadata["finalizers"], json!(["example.com/held"]));
    assert_eq!(changed["status"]["podIPs"], json!([{ "ip": "10.9.9.9" }]));
    assert_eq!(changed["status"]["conditions"][0]["status"], "True");
    done(
        cluster
            .api
            .admin()
            .patch(&victim(), &json!({ "metadata": { "finalizers": null } })),
    );
}

/// Shows SEC-93, SEC-96, SEC-97, SEC-98 and SEC-99.
#[on(kubernetes_v1)]
fn stolen_plugins_token_uses_every_right_and_takes_the_addresses_of_another_node(
    cluster: &ControllersCluster<'_>,
) {
    prepare(cluster);
    let thief = Thief::of(cluster, &[deploy("rbac/calico-cni-plugin.yaml")], ACCOUNT);
    thief.reads(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), "victim");
    thief.reads("/api/v1/nodes", "node2");
    thief.reads("/api/v1/namespaces", NAMESPACE);
    for machines in ["virtualmachines", "virtualmachineinstances"] {
        thief.reads(
            &format!("/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/{machines}"),
            "vm",
        );
    }
    for plural in [
        "clusterinformations",
        "ippools",
        "ipreservations",
        "ipamconfigs",
    ] {
        thief.reads(&cluster.collection(plural), "default");
    }
    done(thief.client.patch(
        &format!("{}/status", victim()),
        &json!({ "metadata": { "labels": { "a": "b" } } }),
    ));

    let (block, affinity) = ("10-65-2-0-26", "node2-10-65-2-0-26");
    let handle = handle_of("node2");
    let handle = handle.as_str();
    for (plural, name) in [
        ("ipamblocks", block),
        ("blockaffinities", affinity),
        ("ipamhandles", handle),
    ] {
        thief.reads(&cluster.collection(plural), name);
    }
    // The next pod of the cluster may get the victim's address.
    thief.replaces(&cluster.path("ipamblocks", block), |block| {
        block["spec"]["allocations"] = vec![Value::Null; 64].into();
        block["spec"]["unallocated"] = (0..64).collect();
        block["spec"]["attributes"] = json!([]);
    });
    assert_eq!(
        cluster.calico("ipamblocks", block)["spec"]["allocations"][0],
        Value::Null
    );
    thief.replaces(&cluster.path("ipamblocks", block), |block| {
        block["spec"]["affinity"] = json!("host:node1")
    });
    thief.replaces(&cluster.path("blockaffinities", affinity), |affinity| {
        affinity["spec"]["node"] = json!("node1")
    });
    thief.replaces(&cluster.path("ipamhandles", handle), |handle| {
        handle["spec"]["block"] = json!({})
    });
    for (plural, name) in [
        ("ipamblocks", block),
        ("blockaffinities", affinity),
        ("ipamhandles", handle),
    ] {
        let mut object = cluster.calico(plural, name);
        thief.deletes(&cluster.path(plural, name));
        object["metadata"] = json!({ "name": name });
        thief.creates(&cluster.collection(plural), &object);
    }
    thief.assert_every_right_used();
}

/// Shows SEC-88 and SEC-95.
#[on(kubernetes_v1)]
fn stolen_plugins_token_is_refused_everything_else(cluster: &ControllersCluster<'_>) {
    prepare(cluster);
    cluster.pool("pool4", "10.65.0.0/16", "Workload");
    let thief = Thief::of(cluster, &[deploy("rbac/calico-cni-plugin.yaml")], ACCOUNT);
    let client = &thief.client;
    let calico = |plural: &str| cluster.path(plural, "default");
    let labels = json!({ "metadata": { "labels": { "a": "b" } } });
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": "mine" }, "rules": [] });
    let token = token_request(json!({}));
    assert_refused([
        ("list pods", client.get("/api/v1/pods")),
        ("list nodes", client.get("/api/v1/nodes")),
        ("patch a pod", client.patch(&victim(), &labels)),
        ("delete a pod", client.delete(&victim())),
        (
            "create a pod",
            client.create(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), &json!({})),
        ),
        (
            "replace a pod's status",
            client.replace(&format!("{}/status", victim()), &cluster.get(&victim())),
        ),
        ("patch a node", client.patch("/api/v1/nodes/node2", &labels)),
        (
            "patch a node's status",
            client.patch("/api/v1/nodes/node2/status", &labels),
        ),
        ("read Secrets", client.get("/api/v1/secrets")),
        (
            "list handles",
            client.get(&cluster.collection("ipamhandles")),
        ),
        (
            "patch a pool",
            client.patch(&cluster.path("ippools", "pool4"), &labels),
        ),
        (
            "lock the datastore",
            client.patch(&calico("clusterinformations"), &labels),
        ),
        (
            "delete the configuration",
            client.delete(&calico("ipamconfigs")),
        ),
        (
            "make itself a token",
            client.create(&token_path(SYSTEM, ACCOUNT), &token),
        ),
        (
            "make another a token",
            client.create(&token_path(SYSTEM, "calico-cni"), &token),
        ),
        (
            "create a role",
            client.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role),
        ),
    ]);
}
