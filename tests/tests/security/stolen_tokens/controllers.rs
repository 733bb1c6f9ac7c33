//! The token in a pod of kube-controllers.

use integration_tests::controllers::{
    ControllersCluster, NAMESPACE, PATIENCE, await_that, service_path,
};
use integration_tests::kubernetes::{Role, token_path, token_request};
use integration_tests::manifests::deploy;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use crate::stolen_tokens::thief::{SYSTEM, Thief, assert_refused, done, on};

const ACCOUNT: &str = "calico-kube-controllers";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn prepare(cluster: &ControllersCluster<'_>) {
    cluster.node("node2", "10.0.0.2");
    cluster.address_left_behind("node2", "10.65.2.0");
    cluster.service("web", "10.80.0.1");
    cluster.pool("pool4", "10.65.0.0/16", "Workload");
    cluster.put(
        "ClusterInformation",
        "clusterinformations",
        "default",
        &json!({ "datastoreReady": true }),
    );
    cluster.put("Tier", "tiers", "mine", &json!({ "order": 7 }));
}

/// Uses the rights on objects of Kubernetes, which the role has with each datastore.
fn attack_kubernetes(thief: &Thief<'_>) {
    let cluster = thief.cluster;
    let all = |plural: &str| format!("/api/v1/{plural}");
    for (collection, name) in [
        (all("nodes"), "node2"),
        (all("pods"), "none"),
        (all("namespaces"), NAMESPACE),
        (all("services"), "none"),
        ("/apis/kubevirt.io/v1/virtualmachines".to_owned(), "none"),
        (
            "/apis/kubevirt.io/v1/virtualmachineinstances".to_owned(),
            "none",
        ),
        (
            format!("/apis/apps/v1/namespaces/{SYSTEM}/daemonsets"),
            "calico-node",
        ),
    ] {
        thief.reads(&collection, name);
    }

    // Clients then connect to the thief's address.
    thief.replaces(&format!("{}/status", service_path("web")), |service| {
        service["status"]["loadBalancer"] = json!({ "ingress": [{ "ip": "10.9.9.9" }] });
    });
    assert_eq!(cluster.shown("web"), ["10.9.9.9"]);
    let involved = json!({ "kind": "Pod", "namespace": NAMESPACE, "name": "victim" });
    let event = json!({ "apiVersion": "v1", "kind": "Event",
            "metadata": { "name": "lie", "namespace": NAMESPACE },
        "involvedObject": involved, "type": "Warning", "reason": "Lie", "message": "untrue" });
    thief.creates(&format!("/api/v1/namespaces/{NAMESPACE}/events"), &event);
}

/// Uses the rights on objects that both API groups have, against objects of others.
fn attack(thief: &Thief<'_>) {
    attack_kubernetes(thief);
    let cluster = thief.cluster;
    for plural in [
        "ippools",
        "ipreservations",
        "ipamblocks",
        "blockaffinities",
        "ipamhandles",
        "hostendpoints",
    ] {
        thief.reads(&cluster.collection(plural), "none");
    }
    for plural in [
        "clusterinformations",
        "tiers",
        "kubecontrollersconfigurations",
    ] {
        thief.reads(&cluster.collection(plural), "default");
    }

    thief.writes_ipam();
    // A host endpoint makes policy apply to an interface of a node.
    let endpoint = json!({ "node": "node2", "interfaceName": "eth0" });
    thief.writes(
        "HostEndpoint",
        &cluster.collection("hostendpoints"),
        &endpoint,
    );
    thief.deletes(&cluster.path("ipamblocks", "10-65-2-0-26"));

    // Every ADD fails while this is false.
    let information = cluster.path("clusterinformations", "default");
    thief.replaces(&information, |object| {
        object["spec"]["datastoreReady"] = json!(false)
    });
    assert_eq!(cluster.get(&information)["spec"]["datastoreReady"], false);
    for (kind, plural, spec) in [
        (
            "ClusterInformation",
            "clusterinformations",
            json!({ "datastoreReady": false }),
        ),
        ("Tier", "tiers", json!({ "order": 1 })),
        (
            "KubeControllersConfiguration",
            "kubecontrollersconfigurations",
            json!({ "controllers": {} }),
        ),
    ] {
        thief.creates_stolen(kind, &cluster.collection(plural), &spec);
    }
    let configuration = format!(
        "{}/status",
        cluster.path("kubecontrollersconfigurations", "stolen")
    );
    thief.replaces(&configuration, |object| {
        object["status"] = json!({ "environmentVars": { "A": "b" } })
    });
}

/// Shows SEC-107, SEC-108, SEC-109, SEC-110, SEC-111, SEC-112, SEC-115 and SEC-116.
#[on(kubernetes_v1)]
fn stolen_controllers_token_uses_every_right_and_deletes_policies_in_crd_v1(
    cluster: &ControllersCluster<'_>,
) {
    prepare(cluster);
    let thief = Thief::of(cluster, &Role::manifests_of_controllers(), ACCOUNT);
    attack(&thief);
    thief.reads(&cluster.collection("ipamconfigs"), "default");
    for (kind, plural) in [
        ("GlobalNetworkPolicy", "globalnetworkpolicies"),
        ("StagedGlobalNetworkPolicy", "stagedglobalnetworkpolicies"),
    ] {
        thief.reads(&cluster.collection(plural), "none");
        thief.writes(
            kind,
            &cluster.collection(plural),
            &json!({ "selector": "all()" }),
        );
    }
    let of_namespace = |plural: &str| {
        format!(
            "/apis/{}/namespaces/{NAMESPACE}/{plural}",
            ApiGroup::CrdV1.api_version()
        )
    };
    for (kind, plural) in [
        ("NetworkPolicy", "networkpolicies"),
        ("StagedNetworkPolicy", "stagednetworkpolicies"),
    ] {
        thief.reads(&of_namespace(plural), "none");
        thief.writes(kind, &of_namespace(plural), &json!({ "selector": "all()" }));
    }
    thief.assert_every_right_used();
}

/// Shows SEC-110, SEC-113 and SEC-114.
#[on(kubernetes_v3)]
fn stolen_controllers_token_uses_every_right_and_reads_policies_in_v3(
    cluster: &ControllersCluster<'_>,
) {
    prepare(cluster);
    let thief = Thief::of(cluster, &Role::manifests_of_controllers(), ACCOUNT);
    attack(&thief);
    thief.reads(&cluster.collection("ipamconfigurations"), "default");
    for plural in [
        "globalnetworkpolicies",
        "networkpolicies",
        "stagedglobalnetworkpolicies",
        "stagednetworkpolicies",
    ] {
        thief.reads(&cluster.collection(plural), "none");
    }
    // No address is assigned from a disabled pool.
    let disabled = json!({ "spec": { "disabled": true } });
    done(
        thief
            .client
            .patch(&cluster.path("ippools", "pool4"), &disabled),
    );
    assert_eq!(cluster.calico("ippools", "pool4")["spec"]["disabled"], true);
    for (plural, name) in [("ippools", "pool4"), ("tiers", "mine")] {
        let path = format!("{}/status", cluster.path(plural, name));
        done(
            thief
                .client
                .patch(&path, &json!({ "status": { "conditions": [] } })),
        );
    }
    done(thief.client.patch(
        &cluster.path("tiers", "mine"),
        &json!({ "spec": { "order": 1 } }),
    ));
    thief.assert_every_right_used();
}

/// Calico's objects are in etcd. The role has more rights on Kubernetes' objects, from which they
/// are copied. Shows SEC-107, SEC-108, SEC-109 and SEC-119.
#[on(etcd)]
fn stolen_controllers_token_with_etcd_uses_every_right_and_reaches_no_object_of_calico(
    cluster: &ControllersCluster<'_>,
) {
    cluster.node("node2", "10.0.0.2");
    cluster.service("web", "10.80.0.1");
    let thief = Thief::of(
        cluster,
        &[deploy("rbac/etcd/calico-kube-controllers.yaml")],
        ACCOUNT,
    );
    attack_kubernetes(&thief);
    let (accounts, policies) = (
        "/api/v1/serviceaccounts",
        "/apis/networking.k8s.io/v1/networkpolicies",
    );
    thief.reads(accounts, "none");
    thief.reads(policies, "none");
    thief.assert_every_right_used();

    let client = &thief.client;
    let nothing = Value::Object(serde_json::Map::new());
    let in_namespace =
        |group: &str, plural: &str| format!("{group}/namespaces/{NAMESPACE}/{plural}");
    let policies = in_namespace("/apis/networking.k8s.io/v1", "networkpolicies");
    let pools = format!("/apis/{}/ippools", ApiGroup::CrdV1.api_version());
    assert_refused([
        ("create a policy", client.create(&policies, &nothing)),
        ("delete a policy", client.delete(&format!("{policies}/one"))),
        (
            "create an account",
            client.create(&in_namespace("/api/v1", "serviceaccounts"), &nothing),
        ),
        (
            "make the plugins a token",
            client.create(&token_path(SYSTEM, "calico-cni-plugin"), &nothing),
        ),
        ("read pools in Kubernetes", client.get(&pools)),
        (
            "create a pool in Kubernetes",
            client.create(&pools, &nothing),
        ),
        ("get a node", client.get("/api/v1/nodes/node2")),
        ("read Secrets", client.get("/api/v1/secrets")),
        (
            "create a pod",
            client.create(&in_namespace("/api/v1", "pods"), &nothing),
        ),
    ]);
}

/// Shows SEC-117.
#[on(kubernetes_v1)]
fn stolen_controllers_token_takes_the_lease_and_changes_no_other(cluster: &ControllersCluster<'_>) {
    let thief = Thief::of(cluster, &Role::manifests_of_controllers(), ACCOUNT);
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases");
    let lease = |name: &str| {
        let spec = json!({ "holderIdentity": "thief", "leaseDurationSeconds": 3600 });
        let metadata = json!({ "name": name });
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
            "spec": spec,
        })
    };
    // `Thief::of` waits for the ClusterRole only, and the Role may take effect later.
    await_that(PATIENCE, || {
        Ok(thief.client.create(&leases, &lease(ACCOUNT))?.code == 201)
    })
    .unwrap();
    let own = format!("{leases}/{ACCOUNT}");
    done(thief.client.get(&own));
    thief.replaces(&own, |lease| {
        lease["spec"]["leaseDurationSeconds"] = json!(31_536_000)
    });
    thief.creates(&leases, &lease("other"));
    let other = format!("{leases}/other");
    let replaced = thief.client.replace(&other, &thief.cluster.get(&other));
    assert_refused([
        ("replace a Lease", replaced),
        ("delete the Lease", thief.client.delete(&own)),
    ]);
}

/// Shows SEC-88 and SEC-113.
#[on(kubernetes_v1)]
fn stolen_controllers_token_is_refused_everything_else(cluster: &ControllersCluster<'_>) {
    prepare(cluster);
    let thief = Thief::of(cluster, &Role::manifests_of_controllers(), ACCOUNT);
    let client = &thief.client;
    let nothing = Value::Object(serde_json::Map::new());
    let token = token_request(json!({}));
    let leases = "/apis/coordination.k8s.io/v1/namespaces";
    assert_refused([
        (
            "create a pod",
            client.create(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), &nothing),
        ),
        (
            "patch a node",
            client.patch("/api/v1/nodes/node2", &nothing),
        ),
        (
            "patch a node's status",
            client.patch("/api/v1/nodes/node2/status", &nothing),
        ),
        ("delete a node", client.delete("/api/v1/nodes/node2")),
        (
            "replace a Service",
            client.replace(&service_path("web"), &cluster.get(&service_path("web"))),
        ),
        ("read Secrets", client.get("/api/v1/secrets")),
        ("read ConfigMaps", client.get("/api/v1/configmaps")),
        (
            "make itself a token",
            client.create(&token_path(SYSTEM, ACCOUNT), &token),
        ),
        (
            "make the plugins a token",
            client.create(&token_path(SYSTEM, "calico-cni-plugin"), &token),
        ),
        (
            "delete a pool",
            client.delete(&cluster.path("ippools", "pool4")),
        ),
        (
            "delete a tier",
            client.delete(&cluster.path("tiers", "mine")),
        ),
        (
            "patch a pool",
            client.patch(&cluster.path("ippools", "pool4"), &nothing),
        ),
        (
            "read Leases of others",
            client.get(&format!("{leases}/{NAMESPACE}/leases")),
        ),
        (
            "take a Lease of others",
            client.get(&format!("{leases}/{SYSTEM}/leases/kube-scheduler")),
        ),
        (
            "delete a definition",
            client.delete(&format!("{DEFINITIONS}/ippools.crd.projectcalico.org")),
        ),
        (
            "create a role",
            client.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", &nothing),
        ),
    ]);
}
