//! The workload of one run: objects for every controller, and their changes, which happen while
//! faults are injected.

use integration_tests::controllers::{ControllersCluster, NAMESPACE, handle_of};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

/// Number of nodes that [`change_objects`] keeps. They give the controllers much work.
const NODES: usize = 12;
/// Number of policies and of pods.
const MANY: usize = 12;

const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/suite/networkpolicies";
const PODS: &str = "/api/v1/namespaces/suite/pods";
const ENDPOINTS: &str = "/calico/resources/v3/projectcalico.org/workloadendpoints/suite";

pub(crate) fn clear(cluster: &ControllersCluster<'_>) {
    cluster.clear();
    cluster.remove(POLICIES);
    cluster.remove(PODS);
}

pub(crate) fn create_objects(cluster: &ControllersCluster<'_>) {
    cluster.merge(
        "/api/v1/namespaces/suite",
        &json!({ "metadata": { "labels": { "team": "a" } } }),
    );
    for n in 1..=NODES {
        cluster.node(&format!("n{n}"), &format!("10.9.0.{n}"));
    }
    cluster.node("going", "10.9.0.99");
    cluster.pool("pool4", "10.65.0.0/16", "Workload");
    cluster.pool("balancer", "10.80.0.0/26", "LoadBalancer");
    cluster.service("stays", "10.80.0.8");
    cluster.service("going", "10.80.0.7");
    for n in 0..MANY {
        policy(cluster, n, 1);
        pod(cluster, n, "a");
    }
    match cluster.group {
        None => (0..MANY).for_each(|n| endpoint(cluster, n)),
        Some(ApiGroup::V3) => {
            cluster.put("Tier", "tiers", "going", &json!({ "order": 7 }));
            cluster.put("Tier", "tiers", "stays", &json!({ "order": 8 }));
            cluster.pool("going", "10.90.0.0/16", "Workload");
        }
        Some(ApiGroup::CrdV1) => {}
    }
}

pub(crate) fn change_objects(cluster: &ControllersCluster<'_>) {
    cluster.address_left_behind("n1", "10.65.1.0");
    cluster.address_left_behind("going", "10.65.2.0");
    cluster.address_left_behind("never-was", "10.65.3.0");
    cluster.remove("/api/v1/nodes/going");
    for n in 1..=NODES {
        cluster.merge(
            &format!("/api/v1/nodes/n{n}"),
            &json!({ "metadata": { "labels": { "zone": format!("z{n}") } } }),
        );
    }
    cluster.remove("/api/v1/namespaces/suite/services/going");
    cluster.service("stays", "10.80.0.9");
    cluster.merge(
        "/api/v1/namespaces/suite",
        &json!({ "metadata": { "labels": { "team": "b" } } }),
    );
    for n in 0..MANY {
        match n % 3 {
            0 => policy(cluster, n, 2),
            1 => cluster.remove(&format!("{POLICIES}/p{n}")),
            _ => policy(cluster, MANY + n, 3),
        }
        match n % 4 {
            0 => cluster.remove(&format!("{PODS}/pod{n}")),
            _ => pod(cluster, n, "b"),
        }
    }
    if cluster.group == Some(ApiGroup::V3) {
        cluster.put("Tier", "tiers", "new", &json!({ "order": 9 }));
        for (plural, name) in [("tiers", "going"), ("ippools", "going")] {
            cluster.remove(&cluster.path(plural, name));
        }
    }
}

/// Returns true if the controllers have completed the work of [`change_objects`] that begins after
/// a grace period.
pub(crate) fn is_complete_after_grace(cluster: &ControllersCluster<'_>) -> bool {
    let endpoints = cluster
        .all()
        .into_keys()
        .filter(|key| key.contains("workloadendpoints/suite/"))
        .count();
    cluster.handles_and_blocks().0.len() == 1
        && (cluster.group.is_some() || endpoints == MANY - MANY / 4)
}

/// Asserts that the controllers have completed the work of [`change_objects`].
pub(crate) fn assert_complete(cluster: &ControllersCluster<'_>) {
    let all = cluster.all();
    let (handles, blocks) = cluster.handles_and_blocks();
    assert_eq!(handles.len(), 1, "{handles:?}");
    assert_eq!(blocks, ["10-65-1-0-26", "10-80-0-0-26"], "{all:#?}");
    assert_eq!(cluster.shown("stays"), ["10.80.0.9"]);
    let count = |part: &str| all.keys().filter(|key| key.contains(part)).count();
    assert_eq!(count("hostendpoints/"), NODES);
    let endpoint = cluster.calico("hostendpoints", "n3-auto-hep");
    assert_eq!(endpoint["metadata"]["labels"]["zone"], "z3", "{endpoint}");
    match cluster.group {
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
                cluster.calico("profiles", "kns.suite")["spec"]["labelsToApply"]["pcns.team"],
                "b"
            );
            let labels = cluster.calico("workloadendpoints", "suite/n1-k8s-pod1-eth0")["metadata"]
                ["labels"]
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

/// Changes more objects, after the work of [`change_objects`].
pub(crate) fn change_more_objects(cluster: &ControllersCluster<'_>) {
    cluster.address_left_behind("n2", "10.65.4.0");
    cluster.service("late", "10.80.0.10");
    cluster.node("late", "10.9.0.98");
    cluster.remove("/api/v1/nodes/n12");
    cluster.merge(
        "/api/v1/nodes/n3",
        &json!({ "metadata": { "labels": { "zone": "late" } } }),
    );
    cluster.merge(
        "/api/v1/namespaces/suite",
        &json!({ "metadata": { "labels": { "team": "c" } } }),
    );
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": "late", "namespace": NAMESPACE },
    });
    cluster.apply(account);
    policy(cluster, 99, 9);
    pod(cluster, 1, "c");
    cluster.remove(&format!("{PODS}/pod2"));
    if cluster.group == Some(ApiGroup::V3) {
        cluster.put("Tier", "tiers", "late", &json!({ "order": 10 }));
        cluster.remove(&cluster.path("tiers", "stays"));
    }
}

pub(crate) fn are_more_changes_complete(cluster: &ControllersCluster<'_>) -> bool {
    let all = cluster.all();
    let exists = |key: &str| all.keys().any(|found| found.contains(key));
    let (handles, _) = cluster.handles_and_blocks();
    let labels =
        |plural: &str, name: &str| cluster.calico(plural, name)["metadata"]["labels"].clone();
    let nodes = exists("hostendpoints/late-auto-hep") && !exists("hostendpoints/n12-auto-hep");
    let everywhere = nodes
        && !handles.contains(&handle_of("n2"))
        && cluster.shown("late") == ["10.80.0.10"]
        && labels("hostendpoints", "n3-auto-hep")["zone"] == "late";
    everywhere
        && match cluster.group {
            None => {
                exists("networkpolicies/suite/knp.default.p99")
                    && exists("profiles/ksa.suite.late")
                    && !exists("org/nodes/n12")
                    && cluster.calico("profiles", "kns.suite")["spec"]["labelsToApply"]["pcns.team"]
                        == "c"
                    && labels("workloadendpoints", "suite/n1-k8s-pod1-eth0")["app"] == "c"
                    && !exists("workloadendpoints/suite/n1-k8s-pod2-eth0")
            }
            Some(_) => {
                !exists("tiers/stays")
                    && !cluster.calico("tiers", "late")["metadata"]["finalizers"].is_null()
            }
        }
}

fn policy(cluster: &ControllersCluster<'_>, n: usize, port: u16) {
    cluster.apply(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": format!("p{n}"), "namespace": NAMESPACE },
        "spec": { "podSelector": {}, "ingress": [{ "ports": [{ "port": port }] }] },
    }));
}

fn pod(cluster: &ControllersCluster<'_>, n: usize, app: &str) {
    let name = format!("pod{n}");
    cluster.apply(json!({
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
    cluster.merge(&format!("{PODS}/{name}/status"), &status);
}

fn endpoint(cluster: &ControllersCluster<'_>, n: usize) {
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
    cluster
        .etcd
        .put(
            &format!("{ENDPOINTS}/{name}"),
            endpoint.to_string().as_bytes(),
        )
        .unwrap();
}
