//! A leader that is frozen or killed in the middle of a write. The request of a frozen leader
//! arrives only after the other replica has become the leader and done the same write.

use integration_tests::controllers::{NAMESPACE, World, handle_of};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use crate::replica::{Held, Pair, hold, on_pair};

fn node_and_service(world: &World<'_>) {
    world.node("n1", "10.9.0.1");
    world.pool("pool4", "10.65.0.0/16", "Workload");
    world.pool("balancer", "10.80.0.0/26", "LoadBalancer");
    world.service("web", "10.80.0.7");
}

fn is_served(pair: &Pair<'_>) {
    let world = &pair.world;
    world.until(&pair.one.controllers, "all is as it should be", || {
        world.shown("web") == ["10.80.0.7"]
            && !world.calico("hostendpoints", "n1-auto-hep").is_null()
    });
}

fn relabel(world: &World<'_>) {
    world.merge(
        "/api/v1/nodes/n1",
        &json!({ "metadata": { "labels": { "zone": "a" } } }),
    );
}

fn is_relabelled(world: &World<'_>) -> bool {
    world.calico("hostendpoints", "n1-auto-hep")["metadata"]
        .to_string()
        .contains("zone")
}

/// Makes the controller withdraw the Service's address.
fn delete_pool(world: &World<'_>) {
    world.remove(&world.path("ippools", "balancer"));
}

fn holds_nothing(world: &World<'_>) -> bool {
    world.handles_and_blocks().0.is_empty()
}

#[test]
fn late_first_writes_of_a_frozen_or_killed_leader_change_nothing() {
    const HELD: [Held; 3] = [
        ("PUT", "/ipamblocks/10-65-1-0-26"),
        ("PUT", "/services/web/status"),
        ("PUT", "/hostendpoints/n1-auto-hep"),
    ];
    on_pair(Some(ApiGroup::CrdV1), node_and_service, |pair| {
        is_served(&pair);
        hold(&pair.one, &HELD);
        pair.world.address_left_behind("n1", "10.65.1.0");
        delete_pool(&pair.world);
        relabel(&pair.world);
        pair.freeze_in_the_middle(&HELD, |world| {
            holds_nothing(world) && world.shown("web").is_empty() && is_relabelled(world)
        });

        hold(&pair.two, &[("DELETE", "/ipamblocks/10-65-2-0-26")]);
        pair.world.address_left_behind("n2", "10.65.2.0");
        pair.kill_in_the_middle(|world| {
            let content = world.all();
            !content.keys().any(|key| key.contains("10-65-2-0-26"))
        });
    });
}

#[test]
fn late_second_writes_of_a_frozen_leader_change_nothing() {
    const HELD: [Held; 4] = [
        ("DELETE", "/ipamhandles/k8s-pod-network.n1"),
        ("PUT", "/ipamblocks/10-80-0-0-26"),
        ("POST", "/hostendpoints"),
        ("PATCH", "/tiers/going"),
    ];
    on_pair(Some(ApiGroup::V3), node_and_service, |pair| {
        is_served(&pair);
        hold(&pair.one, &HELD);
        pair.world.address_left_behind("n1", "10.65.1.0");
        assert_eq!(HELD[0].1, format!("/ipamhandles/{}", handle_of("n1")));
        delete_pool(&pair.world);
        pair.world.node("n3", "10.9.0.3");
        pair.world
            .put("Tier", "tiers", "going", &json!({ "order": 7 }));
        pair.freeze_in_the_middle(&HELD, |world| {
            let tier = world.calico("tiers", "going");
            holds_nothing(world)
                && world.shown("web").is_empty()
                && world.calico("ippools", "balancer").is_null()
                && !world.calico("hostendpoints", "n3-auto-hep").is_null()
                && !tier["metadata"]["finalizers"].is_null()
        });
    });
}

/// The cleanup of a deleted node writes the affinity, then the block, then the affinity again.
#[test]
fn late_block_deletion_of_a_frozen_leader_is_harmless() {
    const HELD: [Held; 1] = [("DELETE", "/ipamblocks/10-65-2-0-26")];
    on_pair(Some(ApiGroup::CrdV1), node_and_service, |pair| {
        is_served(&pair);
        hold(&pair.one, &HELD);
        pair.world.address_left_behind("n2", "10.65.2.0");
        pair.freeze_in_the_middle(&HELD, |world| {
            let content = world.all();
            !content.keys().any(|key| key.contains("10-65-2-0-26"))
        });
    });
}

fn policy(world: &World<'_>, port: u16) {
    world.apply(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "a", "namespace": NAMESPACE },
        "spec": { "podSelector": {}, "ingress": [{ "ports": [{ "port": port }] }] },
    }));
}

fn port(world: &World<'_>) -> Value {
    world.calico(
        "networkpolicies", "suite/knp.default.a",
    )["spec"]["ingress"][0]["destination"]["ports"][0].clone()
}

fn pod(world: &World<'_>, app: &str) {
    world.apply(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "web", "namespace": NAMESPACE, "labels": { "app": app } },
        "spec": {
            "nodeName": "n1", "containers": [{ "name": "c", "image": "i" }],
            "automountServiceAccountToken": false,
        },
    }));
}

fn objects_of_etcd(world: &World<'_>) {
    node_and_service(world);
    world.node("n2", "10.9.0.2");
    policy(world, 1);
    pod(world, "a");
    let status = json!({
        "status": { "phase": "Running", "podIP": "10.65.0.7", "podIPs": [{ "ip": "10.65.0.7" }] }
    });
    world.merge("/api/v1/namespaces/suite/pods/web/status", &status);
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
    world
        .etcd
        .put(key, endpoint.to_string().as_bytes())
        .unwrap();
}

fn app(world: &World<'_>) -> Value {
    world.calico("workloadendpoints", "suite/n1-k8s-web-eth0")["metadata"]["labels"]["app"].clone()
}

fn zone(world: &World<'_>) -> Value {
    world.calico("nodes", "n1")["metadata"]["labels"]["zone"].clone()
}

#[test]
fn late_etcd_writes_of_a_frozen_leader_change_nothing() {
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
    on_pair(None, objects_of_etcd, |pair| {
        is_served(&pair);
        let world = &pair.world;
        world.until(&pair.one.controllers, "all is mirrored", || {
            port(world) == 1
        });
        hold(&pair.one, &HELD);
        world.address_left_behind("n1", "10.65.1.0");
        policy(world, 2);
        pod(world, "b");
        relabel(world);
        world.remove("/api/v1/nodes/n2");
        pair.freeze_in_the_middle(&HELD, |world| {
            let is_collected =
                world.handles_and_blocks().0.len() == 1 && world.calico("nodes", "n2").is_null();
            is_collected && port(world) == 2 && app(world) == "b" && zone(world) == "a"
        });
    });
}
