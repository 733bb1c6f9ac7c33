//! The workload of one run: events for every controller, which happen while faults are injected.

use integration_tests::controllers::{NAMESPACE, World, handle_of};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

/// Number of nodes that [`happenings`] keeps. They give the controllers much work.
const NODES: usize = 12;
/// Number of policies and of pods.
const MANY: usize = 12;

const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/suite/networkpolicies";
const PODS: &str = "/api/v1/namespaces/suite/pods";
const ENDPOINTS: &str = "/calico/resources/v3/projectcalico.org/workloadendpoints/suite";

pub(crate) fn clear(world: &World<'_>) {
    world.clear();
    world.remove(POLICIES);
    world.remove(PODS);
}

pub(crate) fn beginning(world: &World<'_>) {
    world.merge(
        "/api/v1/namespaces/suite",
        &json!({ "metadata": { "labels": { "team": "a" } } }),
    );
    for n in 1..=NODES {
        world.node(&format!("n{n}"), &format!("10.9.0.{n}"));
    }
    world.node("going", "10.9.0.99");
    world.pool("pool4", "10.65.0.0/16", "Workload");
    world.pool("balancer", "10.80.0.0/26", "LoadBalancer");
    world.service("stays", "10.80.0.8");
    world.service("going", "10.80.0.7");
    for n in 0..MANY {
        policy(world, n, 1);
        pod(world, n, "a");
    }
    match world.group {
        None => (0..MANY).for_each(|n| endpoint(world, n)),
        Some(ApiGroup::V3) => {
            world.put("Tier", "tiers", "going", &json!({ "order": 7 }));
            world.put("Tier", "tiers", "stays", &json!({ "order": 8 }));
            world.pool("going", "10.90.0.0/16", "Workload");
        }
        Some(ApiGroup::CrdV1) => {}
    }
}

pub(crate) fn happenings(world: &World<'_>) {
    world.address_left_behind("n1", "10.65.1.0");
    world.address_left_behind("going", "10.65.2.0");
    world.address_left_behind("never-was", "10.65.3.0");
    world.remove("/api/v1/nodes/going");
    for n in 1..=NODES {
        world.merge(
            &format!("/api/v1/nodes/n{n}"),
            &json!({ "metadata": { "labels": { "zone": format!("z{n}") } } }),
        );
    }
    world.remove("/api/v1/namespaces/suite/services/going");
    world.service("stays", "10.80.0.9");
    world.merge(
        "/api/v1/namespaces/suite",
        &json!({ "metadata": { "labels": { "team": "b" } } }),
    );
    for n in 0..MANY {
        match n % 3 {
            0 => policy(world, n, 2),
            1 => world.remove(&format!("{POLICIES}/p{n}")),
            _ => policy(world, MANY + n, 3),
        }
        match n % 4 {
            0 => world.remove(&format!("{PODS}/pod{n}")),
            _ => pod(world, n, "b"),
        }
    }
    if world.group == Some(ApiGroup::V3) {
        world.put("Tier", "tiers", "new", &json!({ "order": 9 }));
        for (plural, name) in [("tiers", "going"), ("ippools", "going")] {
            world.remove(&world.path(plural, name));
        }
    }
}

/// Returns true if the controllers have completed the work of [`happenings`] that begins after a
/// grace period.
pub(crate) fn is_complete_after_grace(world: &World<'_>) -> bool {
    let endpoints = world
        .all()
        .into_keys()
        .filter(|key| key.contains("workloadendpoints/suite/"))
        .count();
    world.handles_and_blocks().0.len() == 1
        && (world.group.is_some() || endpoints == MANY - MANY / 4)
}

/// Asserts that the controllers have completed the work of [`happenings`].
pub(crate) fn assert_complete(world: &World<'_>) {
    let all = world.all();
    let (handles, blocks) = world.handles_and_blocks();
    assert_eq!(handles.len(), 1, "{handles:?}");
    assert_eq!(blocks, ["10-65-1-0-26", "10-80-0-0-26"], "{all:#?}");
    assert_eq!(world.shown("stays"), ["10.80.0.9"]);
    let count = |part: &str| all.keys().filter(|key| key.contains(part)).count();
    assert_eq!(count("hostendpoints/"), NODES);
    let endpoint = world.calico("hostendpoints", "n3-auto-hep");
    assert_eq!(endpoint["metadata"]["labels"]["zone"], "z3", "{endpoint}");
    match world.group {
        None => {
            assert_eq!(
                (
                    count("networkpolicies/suite/knp.default.p"),
                    count("workloadendpoints/suite/")
                ),
                (MANY, MANY - MANY / 4)
            );
            assert_eq!(count("org/nodes/"), NODES);
            assert_eq!(
                world.calico("profiles", "kns.suite")["spec"]["labelsToApply"]["pcns.team"],
                "b"
            );
            let labels =
                world.calico("workloadendpoints", "suite/n1-k8s-pod1-eth0")["metadata"]["labels"]
                    .clone();
            assert_eq!(labels["app"], "b", "{labels}");
        }
        Some(_) => {
            let names: Vec<&str> = all
                .keys()
                .filter_map(|key| key.strip_prefix("tiers/"))
                .collect();
            assert_eq!(
                names,
                ["default", "kube-admin", "kube-baseline", "new", "stays"]
            );
            assert_eq!(count("ippools/"), 2);
        }
    }
}

/// Changes more objects, after the work of [`happenings`].
pub(crate) fn more_happenings(world: &World<'_>) {
    world.address_left_behind("n2", "10.65.4.0");
    world.service("late", "10.80.0.10");
    world.node("late", "10.9.0.98");
    world.remove("/api/v1/nodes/n12");
    world.merge(
        "/api/v1/nodes/n3",
        &json!({ "metadata": { "labels": { "zone": "late" } } }),
    );
    world.merge(
        "/api/v1/namespaces/suite",
        &json!({ "metadata": { "labels": { "team": "c" } } }),
    );
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": "late", "namespace": NAMESPACE },
    });
    world.apply(account);
    policy(world, 99, 9);
    pod(world, 1, "c");
    world.remove(&format!("{PODS}/pod2"));
    if world.group == Some(ApiGroup::V3) {
        world.put("Tier", "tiers", "late", &json!({ "order": 10 }));
        world.remove(&world.path("tiers", "stays"));
    }
}

pub(crate) fn is_complete_after_more(world: &World<'_>) -> bool {
    let all = world.all();
    let there = |key: &str| all.keys().any(|found| found.contains(key));
    let (handles, _) = world.handles_and_blocks();
    let labels =
        |plural: &str, name: &str| world.calico(plural, name)["metadata"]["labels"].clone();
    let nodes = there("hostendpoints/late-auto-hep") && !there("hostendpoints/n12-auto-hep");
    let everywhere = nodes
        && !handles.contains(&handle_of("n2"))
        && world.shown("late") == ["10.80.0.10"]
        && labels("hostendpoints", "n3-auto-hep")["zone"] == "late";
    everywhere
        && match world.group {
            None => {
                there("networkpolicies/suite/knp.default.p99")
                    && there("profiles/ksa.suite.late")
                    && !there("org/nodes/n12")
                    && world.calico("profiles", "kns.suite")["spec"]["labelsToApply"]["pcns.team"]
                        == "c"
                    && labels("workloadendpoints", "suite/n1-k8s-pod1-eth0")["app"] == "c"
                    && !there("workloadendpoints/suite/n1-k8s-pod2-eth0")
            }
            Some(_) => {
                !there("tiers/stays")
                    && !world.calico("tiers", "late")["metadata"]["finalizers"].is_null()
            }
        }
}

fn policy(world: &World<'_>, n: usize, port: u16) {
    world.apply(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": format!("p{n}"), "namespace": NAMESPACE },
        "spec": { "podSelector": {}, "ingress": [{ "ports": [{ "port": port }] }] },
    }));
}

fn pod(world: &World<'_>, n: usize, app: &str) {
    let name = format!("pod{n}");
    world.apply(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": { "app": app } },
        "spec": {
            "nodeName": "n1", "containers": [{ "name": "c", "image": "i" }],
            "automountServiceAccountToken": false,
        },
    }));
    let ip = format!("10.65.0.{n}");
    let status: Value =
        json!({ "status": { "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }] } });
    world.merge(&format!("{PODS}/{name}/status"), &status);
}

fn endpoint(world: &World<'_>, n: usize) {
    let name = format!("n1-k8s-pod{n}-eth0");
    let spec = json!({
        "orchestrator": "k8s", "node": "n1", "pod": format!("pod{n}"), "endpoint": "eth0",
        "containerID": format!("c{n}"),
        "ipNetworks": [format!("10.65.0.{n}/32")], "interfaceName": format!("cali{n}"),
        "profiles": ["kns.suite", "ksa.suite.default"],
    });
    let labels = json!({ "app": "a", "projectcalico.org/namespace": NAMESPACE,
            "projectcalico.org/orchestrator": "k8s",
        "projectcalico.org/serviceaccount": "default" });
    let endpoint = json!({
        "kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3", "spec": spec,
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": labels },
    });
    world
        .etcd
        .put(
            &format!("{ENDPOINTS}/{name}"),
            endpoint.to_string().as_bytes(),
        )
        .unwrap();
}
