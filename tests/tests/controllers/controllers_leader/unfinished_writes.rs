//! A leader that is frozen or killed in the middle of a write. The request of a frozen leader
//! arrives only after the other replica has become the leader and done the same write.

use integration_tests::controllers::{ControllersCluster, NAMESPACE, handle_of, on};
use serde_json::{Value, json};

use crate::controllers_leader::pair::{Held, Pair, hold};

fn node_and_service(cluster: &ControllersCluster<'_>) {
    cluster.node("n1", "10.9.0.1");
    cluster.pool("pool4", "10.65.0.0/16", "Workload");
    cluster.pool("balancer", "10.80.0.0/26", "LoadBalancer");
    cluster.service("web", "10.80.0.7");
}

fn await_served(cluster: &ControllersCluster<'_>, pair: &Pair<'_>) {
    cluster.until(
        &pair.one.controllers,
        "the Service and the node are served",
        || {
            cluster.shown("web") == ["10.80.0.7"]
                && !cluster.calico("hostendpoints", "n1-auto-hep").is_null()
        },
    );
}

fn relabel(cluster: &ControllersCluster<'_>) {
    cluster.merge(
        "/api/v1/nodes/n1",
        &json!({ "metadata": { "labels": { "zone": "a" } } }),
    );
}

fn is_relabelled(cluster: &ControllersCluster<'_>) -> bool {
    cluster.calico("hostendpoints", "n1-auto-hep")["metadata"]
        .to_string()
        .contains("zone")
}

/// Makes the controller withdraw the Service's address.
fn delete_pool(cluster: &ControllersCluster<'_>) {
    cluster.remove(&cluster.path("ippools", "balancer"));
}

fn holds_nothing(cluster: &ControllersCluster<'_>) -> bool {
    cluster.handles_and_blocks().0.is_empty()
}

#[on(kubernetes_v1)]
fn late_first_writes_of_a_frozen_or_killed_leader_change_nothing(cluster: &ControllersCluster<'_>) {
    const HELD: [Held; 3] = [
        ("PUT", "/ipamblocks/10-65-1-0-26"),
        ("PUT", "/services/web/status"),
        ("PUT", "/hostendpoints/n1-auto-hep"),
    ];
    node_and_service(cluster);
    let pair = Pair::start(cluster);
    await_served(cluster, &pair);
    hold(&pair.one, &HELD);
    cluster.address_left_behind("n1", "10.65.1.0");
    delete_pool(cluster);
    relabel(cluster);
    pair.freeze_in_the_middle(&HELD, || {
        holds_nothing(cluster) && cluster.shown("web").is_empty() && is_relabelled(cluster)
    });

    hold(&pair.two, &[("DELETE", "/ipamblocks/10-65-2-0-26")]);
    cluster.address_left_behind("n2", "10.65.2.0");
    pair.kill_in_the_middle(|| {
        let content = cluster.all();
        !content.keys().any(|key| key.contains("10-65-2-0-26"))
    });
}

#[on(kubernetes_v3)]
fn late_second_writes_of_a_frozen_leader_change_nothing(cluster: &ControllersCluster<'_>) {
    const HELD: [Held; 4] = [
        ("DELETE", "/ipamhandles/k8s-pod-network.n1"),
        ("PUT", "/ipamblocks/10-80-0-0-26"),
        ("POST", "/hostendpoints"),
        ("PATCH", "/tiers/going"),
    ];
    node_and_service(cluster);
    let pair = Pair::start(cluster);
    await_served(cluster, &pair);
    hold(&pair.one, &HELD);
    cluster.address_left_behind("n1", "10.65.1.0");
    assert_eq!(HELD[0].1, format!("/ipamhandles/{}", handle_of("n1")));
    delete_pool(cluster);
    cluster.node("n3", "10.9.0.3");
    cluster.put("Tier", "tiers", "going", &json!({ "order": 7 }));
    pair.freeze_in_the_middle(&HELD, || {
        let tier = cluster.calico("tiers", "going");
        holds_nothing(cluster)
            && cluster.shown("web").is_empty()
            && cluster.calico("ippools", "balancer").is_null()
            && !cluster.calico("hostendpoints", "n3-auto-hep").is_null()
            && !tier["metadata"]["finalizers"].is_null()
    });
}

/// The cleanup of a deleted node writes the affinity, then the block, then the affinity again.
#[on(kubernetes_v1)]
fn late_block_deletion_of_a_frozen_leader_is_harmless(cluster: &ControllersCluster<'_>) {
    const HELD: [Held; 1] = [("DELETE", "/ipamblocks/10-65-2-0-26")];
    node_and_service(cluster);
    let pair = Pair::start(cluster);
    await_served(cluster, &pair);
    hold(&pair.one, &HELD);
    cluster.address_left_behind("n2", "10.65.2.0");
    pair.freeze_in_the_middle(&HELD, || {
        let content = cluster.all();
        !content.keys().any(|key| key.contains("10-65-2-0-26"))
    });
}

fn policy(cluster: &ControllersCluster<'_>, port: u16) {
    cluster.apply(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "a", "namespace": NAMESPACE },
        "spec": { "podSelector": {}, "ingress": [{ "ports": [{ "port": port }] }] },
    }));
}

fn port(cluster: &ControllersCluster<'_>) -> Value {
    cluster.calico(
        "networkpolicies", "suite/knp.default.a",
    )["spec"]["ingress"][0]["destination"]["ports"][0].clone()
}

fn pod(cluster: &ControllersCluster<'_>, app: &str) {
    cluster.apply(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "web", "namespace": NAMESPACE, "labels": { "app": app } },
        "spec": {
            "nodeName": "n1", "containers": [{ "name": "c", "image": "i" }],
            "automountServiceAccountToken": false,
        },
    }));
}

fn objects_of_etcd(cluster: &ControllersCluster<'_>) {
    node_and_service(cluster);
    cluster.node("n2", "10.9.0.2");
    policy(cluster, 1);
    pod(cluster, "a");
    let status = json!({
        "status": { "phase": "Running", "podIP": "10.65.0.7", "podIPs": [{ "ip": "10.65.0.7" }] }
    });
    cluster.merge("/api/v1/namespaces/suite/pods/web/status", &status);
    let spec = json!({
        "orchestrator": "k8s", "node": "n1", "pod": "web", "endpoint": "eth0", "containerID": "c1",
        "ipNetworks": ["10.65.0.7/32"], "interfaceName": "cali0",
        "profiles": ["kns.suite", "ksa.suite.default"],
    });
    let endpoint = json!({
        "kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3", "spec": spec,
        "metadata": { "name": "n1-k8s-web-eth0", "namespace": NAMESPACE, "labels": {
            "app": "a", "projectcalico.org/namespace": NAMESPACE,
            "projectcalico.org/orchestrator": "k8s",
            "projectcalico.org/serviceaccount": "default",
        } },
    });
    let key = "/calico/resources/v3/projectcalico.org/workloadendpoints/suite/n1-k8s-web-eth0";
    cluster
        .etcd
        .put(key, endpoint.to_string().as_bytes())
        .unwrap();
}

fn app(cluster: &ControllersCluster<'_>) -> Value {
    cluster.calico("workloadendpoints", "suite/n1-k8s-web-eth0")["metadata"]["labels"]["app"]
        .clone()
}

fn zone(cluster: &ControllersCluster<'_>) -> Value {
    cluster.calico("nodes", "n1")["metadata"]["labels"]["zone"].clone()
}

#[on(etcd)]
fn late_etcd_writes_of_a_frozen_leader_change_nothing(cluster: &ControllersCluster<'_>) {
    const HELD: [Held; 5] = [
        (
            "POST",
            "KV/Txn?if=/calico/ipam/v2/assignment/ipv4/block/10.65.1.0-26",
        ),
        (
            "POST",
            "KV/Txn?if=/calico/resources/v3/projectcalico.org/networkpolicies/suite/knp.default.a",
        ),
        (
            "POST",
            "KV/Txn?if=/calico/resources/v3/projectcalico.org/workloadendpoints/suite/n1-k8s-web-eth0",
        ),
        (
            "POST",
            "KV/Txn?if=/calico/resources/v3/projectcalico.org/nodes/n1",
        ),
        (
            "POST",
            "KV/Txn?if=/calico/resources/v3/projectcalico.org/nodes/n2",
        ),
    ];
    objects_of_etcd(cluster);
    let pair = Pair::start(cluster);
    await_served(cluster, &pair);
    cluster.until(&pair.one.controllers, "all is mirrored", || {
        port(cluster) == 1
    });
    hold(&pair.one, &HELD);
    cluster.address_left_behind("n1", "10.65.1.0");
    policy(cluster, 2);
    pod(cluster, "b");
    relabel(cluster);
    cluster.remove("/api/v1/nodes/n2");
    pair.freeze_in_the_middle(&HELD, || {
        let is_collected =
            cluster.handles_and_blocks().0.len() == 1 && cluster.calico("nodes", "n2").is_null();
        is_collected && port(cluster) == 2 && app(cluster) == "b" && zone(cluster) == "a"
    });
}
