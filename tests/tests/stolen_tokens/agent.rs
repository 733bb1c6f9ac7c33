//! The token in the pod `calico-cni` of one node.

use integration_tests::controllers::{NAMESPACE, PATIENCE, World, await_that};
use integration_tests::kubernetes::{Identity, token_in, token_path, token_request, with_kubernetes};
use integration_tests::manifests::deploy;
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

use crate::thief::{SYSTEM, Thief, assert_refused, done};

const ACCOUNT: &str = "calico-cni";

#[test]
fn stolen_agent_token_makes_tokens_of_the_plugins_for_a_year_and_any_audience() {
    with_kubernetes(|_, servers| {
        let world = World::new(&servers, Some(ApiGroup::CrdV1));
        let manifest = deploy("rbac/calico-cni-plugin.yaml");
        world.api.account_of(SYSTEM, "calico-cni-plugin", &[manifest]).unwrap();
        let thief = Thief::of(world, &[deploy("rbac/calico-cni.yaml")], ACCOUNT);
        let plugins = token_path(SYSTEM, "calico-cni-plugin");
        // `Thief::of` waits for the ClusterRole only, and the Role may take effect later.
        let year = token_request(json!({ "audiences": ["vault"], "expirationSeconds": 31_536_000 }));
        await_that(PATIENCE, || Ok(thief.client.create(&plugins, &year)?.code == 201)).unwrap();
        let made = done(thief.client.create(&plugins, &year));
        assert_eq!(
            (&made["spec"]["audiences"], &made["spec"]["expirationSeconds"]),
            (&json!(["vault"]), &json!(31_536_000))
        );
        // With a token for the API server the thief has all rights of the plugins.
        let made = done(thief.client.create(&plugins, &token_request(json!({}))));
        let client = world.api.client(&Identity::Token(token_in(&made).unwrap())).unwrap();
        done(client.get(&world.collection("ipamblocks")));
    });
}

/// While the ClusterInformation is missing, every ADD fails.
#[test]
fn stolen_agent_token_locks_a_datastore_only_if_nobody_has_opened_it() {
    with_kubernetes(|_, servers| {
        let world = World::new(&servers, Some(ApiGroup::CrdV1));
        let thief = Thief::of(world, &[deploy("rbac/calico-cni.yaml")], ACCOUNT);
        let collection = world.collection("clusterinformations");
        let locked = json!({
            "apiVersion": ApiGroup::CrdV1.api_version(), "kind": "ClusterInformation",
            "metadata": { "name": "default" }, "spec": { "datastoreReady": false },
        });
        thief.creates(&collection, &locked);
        thief.reads(&collection, "default");
        thief.assert_every_right_used();
        world.change("clusterinformations", "default", &json!({ "spec": { "datastoreReady": true } }));
        let path = world.path("clusterinformations", "default");
        let existing = thief.client.create(&collection, &locked).unwrap();
        assert_eq!(existing.code, 409, "{existing:?}");
        assert_refused([
            ("replace the object", thief.client.replace(&path, &world.get(&path))),
            ("patch the object", thief.client.patch(&path, &json!({ "spec": { "datastoreReady": false } }))),
            ("delete the object", thief.client.delete(&path)),
        ]);
    });
}

#[test]
fn stolen_agent_token_is_refused_everything_else() {
    with_kubernetes(|_, servers| {
        let world = World::new(&servers, Some(ApiGroup::CrdV1));
        world.node("node2", "10.0.0.2");
        let thief = Thief::of(world, &[deploy("rbac/calico-cni.yaml")], ACCOUNT);
        let client = &thief.client;
        let labels = json!({ "metadata": { "labels": { "a": "b" } } });
        let own = token_request(json!({}));
        assert_refused([
            ("make itself a token", client.create(&token_path(SYSTEM, ACCOUNT), &own)),
            ("make kube-controllers a token", client.create(&token_path(SYSTEM, "calico-kube-controllers"), &own)),
            ("read pods", client.get("/api/v1/pods")),
            ("read a node", client.get("/api/v1/nodes/node2")),
            ("patch a node", client.patch("/api/v1/nodes/node2/status", &labels)),
            ("read Secrets", client.get("/api/v1/secrets")),
            ("read ConfigMaps", client.get(&format!("/api/v1/namespaces/{SYSTEM}/configmaps"))),
            ("create a pod", client.create(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), &json!({}))),
            ("read pools", client.get(&world.collection("ippools"))),
            ("create a pool", client.create(&world.collection("ippools"), &json!({}))),
            ("read blocks", client.get(&world.collection("ipamblocks"))),
            ("read affinities", client.get(&world.collection("blockaffinities"))),
            ("create a role", client.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", &json!({}))),
        ]);
    });
}
