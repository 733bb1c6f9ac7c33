//! The tokens that the agent may make, and the objects that no token of the plugins may write.

use integration_tests::kubernetes::node_restriction::{PLUGINS, await_denial, bound_to};
use integration_tests::kubernetes::{Identity, token_in, token_path, token_request};
use integration_tests::manifests::NAMESPACE as SYSTEM;
use serde_json::{Value, json};

use crate::node_restriction::restricted_cluster::{RestrictedCluster, assert_denied, on};

const POLICY: &str = "calico-cni-tokens";
const SETTINGS: &str = "calico-cni-settings";

/// Shows SEC-100.
#[on(kubernetes_v1)]
fn agent_makes_tokens_of_its_node_for_the_api_server_and_a_day_only(
    cluster: &RestrictedCluster<'_>,
) {
    let agent = cluster.agent_of("node1");
    let ask = |spec: Value| agent.create(&token_path(SYSTEM, PLUGINS), &token_request(spec));
    let own = bound_to("Node", "node1");
    let right = json!({ "boundObjectRef": own, "expirationSeconds": 86_400, "audiences": [] });
    let made = ask(right.clone()).unwrap().success();
    let plugins = cluster
        .api
        .client(&Identity::Token(token_in(&made).unwrap()))
        .unwrap();
    plugins.get("/api/v1/nodes/node2").unwrap().success();

    for (field, value) in [
        ("boundObjectRef", Value::Null),
        ("boundObjectRef", bound_to("Node", "node2")),
        ("boundObjectRef", bound_to("Pod", "calico-cni-node1")),
        ("expirationSeconds", json!(31_536_000)),
        ("audiences", json!(["vault"])),
        (
            "audiences",
            json!(["https://kubernetes.default.svc", "vault"]),
        ),
    ] {
        let mut wrong = right.clone();
        wrong[field] = value;
        assert_denied(ask(wrong), POLICY);
    }
    // As the agents ask after a manifest without the component.
    let unbound = ask(json!({ "expirationSeconds": 86_400, "audiences": [] })).unwrap();
    let way_back =
        "If you removed the component node-restriction, delete its policies (docs/options.md)";
    assert!(unbound.reason().contains(way_back), "{unbound:?}");
    let unlimited = agent
        .create(
            &token_path(SYSTEM, "calico-cni-plugin"),
            &token_request(right),
        )
        .unwrap();
    assert_eq!(unlimited.code, 403, "{unlimited:?}");
}

/// A token that `kubectl create token` makes without options names no node. Shows SEC-100.
#[on(kubernetes_v1)]
fn tokens_without_a_node_are_refused(cluster: &RestrictedCluster<'_>) {
    let unbound = |account: &str| {
        cluster.api.client(&Identity::Token(
            cluster.api.token(SYSTEM, account).unwrap(),
        ))
    };
    let (agent, plugins) = (unbound("calico-cni").unwrap(), unbound(PLUGINS).unwrap());
    let request = token_request(json!({ "boundObjectRef": bound_to("Node", "node1") }));
    assert_denied(agent.create(&token_path(SYSTEM, PLUGINS), &request), POLICY);
    let block = cluster.block("10.65.1.0/30", "host:node1", &[]);
    assert_denied(
        plugins.create(&cluster.path("ipamblocks"), &block),
        "calico-cni-blocks",
    );
    let affinity = cluster.affinity("node1", "10.65.1.0/30");
    assert_denied(
        plugins.create(&cluster.path("blockaffinities"), &affinity),
        "calico-cni-affinities",
    );
}

/// Upstream's role has the same name as ours and grants these writes. Shows SEC-95.
#[on(kubernetes_v1)]
fn token_of_a_node_writes_no_pools_and_settings_with_upstreams_role(
    cluster: &RestrictedCluster<'_>,
) {
    let rules = json!([{
        "apiGroups": ["crd.projectcalico.org"],
        "verbs": ["get", "list", "create", "update", "delete"],
        "resources": ["clusterinformations", "ippools", "ipreservations", "ipamconfigs"],
    }]);
    cluster
        .api
        .cluster_role("calico-cni-plugin", &rules)
        .unwrap();
    let (admin, plugins) = (cluster.api.admin(), cluster.plugins_of("node1"));
    for (kind, plural, spec) in [
        (
            "ClusterInformation",
            "clusterinformations",
            json!({ "datastoreReady": true }),
        ),
        ("IPPool", "ippools", json!({ "cidr": "10.65.0.0/24" })),
        (
            "IPReservation",
            "ipreservations",
            json!({ "reservedCIDRs": ["10.65.0.0/30"] }),
        ),
        (
            "IPAMConfig",
            "ipamconfigs",
            json!({ "strictAffinity": false, "autoAllocateBlocks": true }),
        ),
    ] {
        let (all, object) = (cluster.path(plural), cluster.calico(kind, "default", spec));
        await_denial(SETTINGS, || {
            plugins.create(&format!("{all}?dryRun=All"), &object)
        })
        .unwrap();
        assert_denied(plugins.create(&all, &object), SETTINGS);
        admin.create(&all, &object).unwrap().success();
        let path = cluster.object_path(plural, "default");
        let annotated = cluster.change(&plugins, &path, |object| {
            object["metadata"]["annotations"] = json!({})
        });
        assert_denied(annotated, SETTINGS);
        assert_denied(plugins.delete(&path), SETTINGS);
    }
}
