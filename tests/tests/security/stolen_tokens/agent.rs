//! The token in the pod `calico-cni` of one node.

use std::fs;
use std::path::{Path, PathBuf};

use integration_tests::Place;
use integration_tests::controllers::{ControllersCluster, NAMESPACE, PATIENCE, await_that};
use integration_tests::kubernetes::{Identity, token_in, token_path, token_request};
use integration_tests::manifests::{deploy, helm, template};
use integration_tests::skip::skipped;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use crate::stolen_tokens::thief::{SYSTEM, Thief, assert_refused, done, on};

const ACCOUNT: &str = "calico-cni";
/// The role of `components/node-condition`.
const CONDITION: &str = "calico-cni-node-condition";
/// The role of `components/upgrade-ipam`.
const MIGRATION: &str = "upgrade-ipam";

/// Shows SEC-100.
#[on(kubernetes_v1)]
fn stolen_agent_token_makes_tokens_of_the_plugins_alone_for_a_year_and_any_audience(
    cluster: &ControllersCluster<'_>,
) {
    let manifest = deploy("rbac/calico-cni-plugin.yaml");
    cluster
        .api
        .account_of(SYSTEM, "calico-cni-plugin", &[manifest])
        .unwrap();
    let thief = Thief::of(cluster, &[deploy("rbac/calico-cni.yaml")], ACCOUNT);
    let plugins = token_path(SYSTEM, "calico-cni-plugin");
    // `Thief::of` waits for the ClusterRole only, and the Role may take effect later.
    let year = token_request(json!({ "audiences": ["vault"], "expirationSeconds": 31_536_000 }));
    await_that(PATIENCE, || {
        Ok(thief.client.create(&plugins, &year)?.code == 201)
    })
    .unwrap();
    let others = ["calico-kube-controllers", ACCOUNT, "default"];
    assert_refused(others.map(|other| {
        let path = token_path(SYSTEM, other);
        (other, thief.client.create(&path, &year))
    }));
    let made = done(thief.client.create(&plugins, &year));
    assert_eq!(
        (
            &made["spec"]["audiences"],
            &made["spec"]["expirationSeconds"]
        ),
        (&json!(["vault"]), &json!(31_536_000))
    );
    // With a token for the API server the thief has all rights of the plugins.
    let made = done(thief.client.create(&plugins, &token_request(json!({}))));
    let client = cluster
        .api
        .client(&Identity::Token(token_in(&made).unwrap()))
        .unwrap();
    done(client.get(&cluster.collection("ipamblocks")));
}

/// Writes the roles that the chart grants the agent with each option that adds one, and returns the
/// file.
fn roles_with_every_option(directory: &Path) -> PathBuf {
    let values = [
        "ipam.pools[0].cidr=10.65.0.0/16",
        "ipam.strictAffinity=true",
        "agent.nodeCondition=true",
        "cni.upgradeIpam=true",
    ];
    let options: Vec<&str> = values.iter().flat_map(|value| ["--set", value]).collect();
    let objects = template(&options).unwrap();
    let of_agent = |identity: &String| {
        let name = identity.rsplit([' ', '/']).next().unwrap_or_default();
        identity.contains("rbac.authorization.k8s.io")
            && [ACCOUNT, MIGRATION, CONDITION].contains(&name)
    };
    let roles = objects
        .iter()
        .filter(|(identity, _)| of_agent(identity))
        .map(|(_, role)| role.to_string());
    let file = directory.join("roles.yaml");
    fs::write(&file, roles.collect::<Vec<_>>().join("\n---\n")).unwrap();
    file
}

/// The options are pools and strictAffinity to create, `node-condition`, and `upgrade-ipam` during
/// the migration. Shows SEC-102, SEC-103, SEC-104 and SEC-106.
#[test]
fn stolen_agent_token_uses_the_rights_of_each_option() {
    if let Err(missing) = helm() {
        return skipped(&missing.to_string());
    }
    on(Place::KubernetesV1, |cluster| {
        for node in ["node1", "node2"] {
            cluster.node(node, "10.0.0.2");
        }
        cluster.address_left_behind("node2", "10.65.2.0");
        cluster.put(
            "ClusterInformation",
            "clusterinformations",
            "default",
            &json!({ "datastoreReady": true }),
        );
        let roles = roles_with_every_option(&cluster.host.dir("roles"));
        let thief = Thief::of(cluster, &[roles], ACCOUNT);
        for (collection, name) in [("/api/v1/nodes", "node2"), ("/api/v1/pods", "none")] {
            thief.reads(collection, name);
        }
        for plural in [
            "ippools",
            "ipreservations",
            "ipamconfigs",
            "ipamblocks",
            "blockaffinities",
            "ipamhandles",
        ] {
            thief.reads(&cluster.collection(plural), "none");
        }
        thief.reads(&cluster.collection("clusterinformations"), "default");

        // With the right to the status come labels and annotations of any Node.
        let node = "/api/v1/nodes/node2";
        let patch = json!({ "metadata": { "labels": { "zone": "thief" } },
            "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
        done(thief.client.patch(&format!("{node}/status"), &patch));
        let changed = cluster.get(node);
        assert_eq!(
            (
                &changed["metadata"]["labels"]["zone"],
                &changed["status"]["conditions"][0]["status"]
            ),
            (&json!("thief"), &json!("False"))
        );
        let information = cluster.path("clusterinformations", "default");
        thief.replaces(&information, |object| {
            object["spec"]["datastoreReady"] = json!(false)
        });
        assert_eq!(cluster.get(&information)["spec"]["datastoreReady"], false);
        thief.writes_ipam();
        thief.deletes(&cluster.path("ipamblocks", "10-65-2-0-26"));
        let settings = json!({ "strictAffinity": true, "autoAllocateBlocks": true });
        for (kind, plural, spec) in [
            (
                "ClusterInformation",
                "clusterinformations",
                json!({ "datastoreReady": false }),
            ),
            ("IPPool", "ippools", json!({ "cidr": "10.70.0.0/16" })),
            ("IPAMConfig", "ipamconfigs", settings),
        ] {
            thief.creates_stolen(kind, &cluster.collection(plural), &spec);
        }
        thief.assert_every_right_used();

        let nothing = Value::Object(serde_json::Map::new());
        let client = &thief.client;
        let status = format!("/api/v1/namespaces/{NAMESPACE}/pods/one/status");
        let (pool, settings) = (
            cluster.path("ippools", "stolen"),
            cluster.path("ipamconfigs", "stolen"),
        );
        assert_refused([
            ("list nodes", client.get("/api/v1/nodes")),
            ("patch a node", client.patch(node, &nothing)),
            ("delete a node", client.delete(node)),
            ("patch a pod's status", client.patch(&status, &nothing)),
            ("patch a pool", client.patch(&pool, &nothing)),
            ("delete a pool", client.delete(&pool)),
            (
                "patch the settings of IPAM",
                client.patch(&settings, &nothing),
            ),
            ("delete the settings of IPAM", client.delete(&settings)),
            ("delete the ClusterInformation", client.delete(&information)),
            ("read Secrets", client.get("/api/v1/secrets")),
        ]);
    });
}

/// While the ClusterInformation is missing, every ADD fails. Shows SEC-101.
#[on(kubernetes_v1)]
fn stolen_agent_token_locks_a_datastore_only_if_nobody_has_opened_it(
    cluster: &ControllersCluster<'_>,
) {
    let thief = Thief::of(cluster, &[deploy("rbac/calico-cni.yaml")], ACCOUNT);
    let collection = cluster.collection("clusterinformations");
    let locked = json!({
        "apiVersion": ApiGroup::CrdV1.api_version(), "kind": "ClusterInformation",
        "metadata": { "name": "default" }, "spec": { "datastoreReady": false },
    });
    thief.creates(&collection, &locked);
    thief.reads(&collection, "default");
    thief.assert_every_right_used();
    cluster.change(
        "clusterinformations",
        "default",
        &json!({ "spec": { "datastoreReady": true } }),
    );
    let path = cluster.path("clusterinformations", "default");
    let existing = thief.client.create(&collection, &locked).unwrap();
    assert_eq!(existing.code, 409, "{existing:?}");
    assert_refused([
        (
            "replace the object",
            thief.client.replace(&path, &cluster.get(&path)),
        ),
        (
            "patch the object",
            thief
                .client
                .patch(&path, &json!({ "spec": { "datastoreReady": false } })),
        ),
        ("delete the object", thief.client.delete(&path)),
    ]);
}

/// Shows SEC-88 and SEC-101.
#[on(kubernetes_v1)]
fn stolen_agent_token_is_refused_everything_else(cluster: &ControllersCluster<'_>) {
    cluster.node("node2", "10.0.0.2");
    let thief = Thief::of(cluster, &[deploy("rbac/calico-cni.yaml")], ACCOUNT);
    let client = &thief.client;
    let labels = json!({ "metadata": { "labels": { "a": "b" } } });
    let own = token_request(json!({}));
    assert_refused([
        (
            "make itself a token",
            client.create(&token_path(SYSTEM, ACCOUNT), &own),
        ),
        (
            "make kube-controllers a token",
            client.create(&token_path(SYSTEM, "calico-kube-controllers"), &own),
        ),
        ("read pods", client.get("/api/v1/pods")),
        ("read a node", client.get("/api/v1/nodes/node2")),
        (
            "patch a node",
            client.patch("/api/v1/nodes/node2/status", &labels),
        ),
        ("read Secrets", client.get("/api/v1/secrets")),
        (
            "read ConfigMaps",
            client.get(&format!("/api/v1/namespaces/{SYSTEM}/configmaps")),
        ),
        (
            "create a pod",
            client.create(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), &json!({})),
        ),
        ("read pools", client.get(&cluster.collection("ippools"))),
        (
            "create a pool",
            client.create(&cluster.collection("ippools"), &json!({})),
        ),
        ("read blocks", client.get(&cluster.collection("ipamblocks"))),
        (
            "read affinities",
            client.get(&cluster.collection("blockaffinities")),
        ),
        (
            "create a role",
            client.create(
                "/apis/rbac.authorization.k8s.io/v1/clusterroles",
                &json!({}),
            ),
        ),
    ]);
}
