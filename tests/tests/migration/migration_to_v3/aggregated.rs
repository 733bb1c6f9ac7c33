//! Migrations of clusters where an aggregated API server serves v3. The tests have its APIService,
//! and no such server.

use integration_tests::controllers::{PATIENCE, await_that};
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::{SAVED_API_SERVICE, moved_kinds};
use serde_json::{Value, json};

use crate::migration_to_v3::kubelet::{
    Kubelet, NODES, assert_accounts, assert_failed_under_the_lock, run_pods_during,
};
use crate::migration_to_v3::migrated_cluster::{MigratedCluster, on};
use crate::migration_to_v3::objects::NAMESPACE;

const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v3.projectcalico.org";
const REPORT: &str = "/api/v1/namespaces/kube-system/configmaps/calico-migration-v1-to-v3";
/// Name of an object of v1 that the API server refuses to create in v3.
const REFUSED: &str = "node1";
/// Addresses and handles in the block of the cluster.
const OWNERS: [(&str, &str); 2] = [
    ("10.65.1.0", "k8s-pod-network.lower"),
    ("10.65.1.1", "k8s-pod-network.Mixed"),
];

/// Replaces the APIService of the API server by that of another server. Returns its `spec`.
fn aggregate(cluster: &MigratedCluster<'_>) -> Value {
    let admin = cluster.servers.admin();
    let mut spec = Value::Null;
    let replace = || {
        let mut service = admin.get(API_SERVICE)?.checked()?;
        // Without the label, the API server does not restore its own.
        service["metadata"]["labels"] = json!({});
        service["spec"]["service"] =
            json!({ "namespace": "calico-apiserver", "name": "calico-api" });
        service["spec"]["insecureSkipTLSVerify"] = json!(true);
        let answer = admin.replace(API_SERVICE, &service)?;
        // The API server may have written the status of the APIService since.
        if answer.code == 409 {
            return Ok(false);
        }
        spec = answer.checked()?["spec"].take();
        Ok(true)
    };
    await_that(PATIENCE, replace).unwrap();
    await_that(PATIENCE, || {
        Ok(admin
            .get("/apis/projectcalico.org/v3")
            .is_ok_and(|answer| answer.code == 503))
    })
    .unwrap();
    spec
}

/// Returns the `spec` of the present APIService.
fn service(cluster: &MigratedCluster<'_>) -> Value {
    cluster.servers.get(API_SERVICE)["spec"].clone()
}

/// Creates the pods with the addresses of the cluster's block, as the plugin annotates them.
fn create_owners(cluster: &MigratedCluster<'_>) {
    for ((address, handle), name) in OWNERS.into_iter().zip(["lower", "mixed"]) {
        let container = handle.rsplit('.').next();
        let annotations = json!({
            "cni.projectcalico.org/podIP": format!("{address}/32"),
            "cni.projectcalico.org/podIPs": format!("{address}/32"),
            "cni.projectcalico.org/containerID": container,
        });
        let spec =
            json!({ "nodeName": NODES[0], "containers": [{ "name": "c", "image": "none" }] });
        let metadata = json!({ "name": name, "namespace": NAMESPACE, "annotations": annotations });
        cluster.servers.apply(
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec }),
        );
    }
}

#[on(kubernetes_v1)]
fn migration_takes_the_aggregated_api_server_away(cluster: &MigratedCluster<'_>) {
    let migration = cluster.migration;
    cluster.servers.node(NODES[1], "192.0.2.2");
    create_owners(cluster);
    let mut process = cluster.start("one");
    let aggregated = aggregate(cluster);
    migration.create(Some("first"));
    process.end_and_restart();
    migration.until(&process, "a dry run", || {
        migration.condition("DryRun")["message"] == "first"
    });
    let summary = cluster.servers.get(REPORT)["data"]["summary"].clone();
    assert!(
        summary.as_str().unwrap().contains("not checked: "),
        "{summary}"
    );
    assert_eq!(service(cluster), aggregated, "a dry run takes nothing away");

    migration.delete();
    process.end_and_restart();
    migration.until(&process, "the object is gone", || migration.is_gone());
    let nodes = NODES.map(|name| cluster.node(name));
    let mut kubelets = nodes
        .each_ref()
        .map(|node| Kubelet::new(node, cluster.servers.admin()));
    let audit = cluster.servers.api.audit().unwrap();
    run_pods_during(&mut kubelets, || {
        migration.create(None);
        process.end_and_restart();
        migration.finish(&mut process);
    });
    assert_failed_under_the_lock(&kubelets, &audit);
    assert!(
        migration.is_locked(ApiGroup::CrdV1),
        "v1 stays, and stays locked"
    );
    kubelets.iter_mut().for_each(Kubelet::start);
    assert_accounts(cluster.servers.api, &kubelets, &OWNERS);
    assert_eq!(
        service(cluster)["service"],
        Value::Null,
        "the API server itself serves v3"
    );
    let saved = migration.object()["metadata"]["annotations"][SAVED_API_SERVICE].clone();
    let saved: Value = serde_json::from_str(saved.as_str().unwrap()).unwrap();
    assert_eq!(saved["spec"], aggregated);

    migration.delete();
    process.end_and_restart();
    migration.until(&process, "the object is gone", || migration.is_gone());
    assert_eq!(
        cluster.servers.calico("tiers", "security"),
        Value::Null,
        "v1 is deleted"
    );
    assert!(!cluster.in_v3("Tier", None, "security").is_null());
    for kubelet in &mut kubelets {
        while !kubelet.pods.is_empty() {
            kubelet.end();
        }
    }
    assert_accounts(cluster.servers.api, &kubelets, &OWNERS);
}

#[on(kubernetes_v1)]
fn refused_and_aborted_migrations_give_the_aggregated_api_server_back(
    cluster: &MigratedCluster<'_>,
) {
    let migration = cluster.migration;
    let mut process = cluster.start("one");
    let statuses = moved_kinds()
        .into_iter()
        .find(|moved| moved.v3.kind == "CalicoNodeStatus")
        .unwrap()
        .v3;
    cluster.refuse(statuses, REFUSED, false);
    let aggregated = aggregate(cluster);
    migration.create(None);
    process.end_and_restart();
    migration.await_message(
        &process,
        "projectcalico.org/v3 refuses 1 object: CalicoNodeStatus/node1",
    );
    assert_eq!(service(cluster), aggregated);
    assert!(migration.is_ready(ApiGroup::CrdV1), "v1 was not locked");

    // The policy accepts the trial and refuses the copy: v1 is locked then.
    migration.delete();
    process.end_and_restart();
    migration.until(&process, "the object is gone", || migration.is_gone());
    assert!(process.terminate().unwrap().success());
    cluster.servers.remove(API_SERVICE);
    let serves = || {
        Ok(cluster
            .servers
            .api
            .admin()
            .get(&statuses.collection(None))
            .is_ok_and(|answer| answer.code == 200))
    };
    await_that(PATIENCE, serves).unwrap();
    cluster.refuse(statuses, REFUSED, true);
    let aggregated = aggregate(cluster);
    migration.create(None);
    process.restart().unwrap();
    migration.await_message(&process, "the datastore is not locked");
    assert!(
        migration.message().contains("refuses 1 object"),
        "{}",
        migration.message()
    );
    assert!(migration.is_ready(ApiGroup::CrdV1));
    assert_eq!(service(cluster), aggregated);
    migration.delete();
    process.end_and_restart();
    migration.until(&process, "the object is gone", || migration.is_gone());
    assert_eq!(service(cluster), aggregated);
    assert!(migration.is_ready(ApiGroup::CrdV1));
}
