//! Migrations of clusters where an aggregated API server serves v3. The tests have its APIService,
//! and no such server.

use integration_tests::controllers::{PATIENCE, await_that};
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::{SAVED_API_SERVICE, moved_kinds};
use serde_json::{Value, json};

use super::kubelet::{Kubelet, NODES, assert_accounts, assert_failed_under_the_lock, with_pods};
use super::objects::NAMESPACE;
use super::{Scene, on};

const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v3.projectcalico.org";
const REPORT: &str = "/api/v1/namespaces/kube-system/configmaps/calico-migration-v1-to-v3";
/// Name of an object of v1 that the API server refuses to create in v3.
const REFUSED: &str = "node1";
/// Addresses and handles in the block of the scene.
const OWNERS: [(&str, &str); 2] = [
    ("10.65.1.0", "k8s-pod-network.lower"),
    ("10.65.1.1", "k8s-pod-network.Mixed"),
];

/// Replaces the APIService of the API server by that of another server. Returns its `spec`.
fn aggregate(scene: &Scene<'_>) -> Value {
    let admin = scene.api.admin();
    let mut spec = Value::Null;
    let replace = || {
        let mut service = admin.get(API_SERVICE)?.success()?;
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
        spec = answer.success()?["spec"].take();
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
fn service(scene: &Scene<'_>) -> Value {
    scene.world.get(API_SERVICE)["spec"].clone()
}

/// Creates the pods with the addresses of the scene's block, as the plugin annotates them.
fn create_owners(scene: &Scene<'_>) {
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
        scene.world.apply(
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec }),
        );
    }
}

#[test]
fn migration_takes_the_aggregated_api_server_away() {
    on(|scene| {
        let migration = scene.migration;
        scene.world.node(NODES[1], "192.0.2.2");
        create_owners(scene);
        let mut process = scene.start("one");
        let aggregated = aggregate(scene);
        migration.create(Some("first"));
        process.end_and_restart();
        migration.until(&process, "a dry run", || {
            migration.condition("DryRun")["message"] == "first"
        });
        let summary = scene.world.get(REPORT)["data"]["summary"].clone();
        assert!(
            summary.as_str().unwrap().contains("not checked: "),
            "{summary}"
        );
        assert_eq!(service(scene), aggregated, "a dry run takes nothing away");

        migration.delete();
        process.end_and_restart();
        migration.until(&process, "the object is gone", || migration.is_gone());
        let nodes = NODES.map(|name| scene.node(name));
        let mut kubelets = nodes
            .each_ref()
            .map(|node| Kubelet::new(node, scene.api.admin()));
        let audit = scene.api.audit().unwrap();
        with_pods(&mut kubelets, || {
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
        assert_accounts(scene.api, &kubelets, &OWNERS);
        assert_eq!(
            service(scene)["service"],
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
            scene.world.calico("tiers", "security"),
            Value::Null,
            "v1 is deleted"
        );
        assert!(!scene.in_v3("Tier", None, "security").is_null());
        for kubelet in &mut kubelets {
            while !kubelet.pods.is_empty() {
                kubelet.end();
            }
        }
        assert_accounts(scene.api, &kubelets, &OWNERS);
    });
}

#[test]
fn refused_and_aborted_migrations_give_the_aggregated_api_server_back() {
    on(|scene| {
        let migration = scene.migration;
        let mut process = scene.start("one");
        let statuses = moved_kinds()
            .into_iter()
            .find(|moved| moved.v3.kind == "CalicoNodeStatus")
            .unwrap()
            .v3;
        scene.refuse(statuses, REFUSED, false);
        let aggregated = aggregate(scene);
        migration.create(None);
        process.end_and_restart();
        migration.await_message(
            &process,
            "projectcalico.org/v3 refuses 1 object: CalicoNodeStatus/node1",
        );
        assert_eq!(service(scene), aggregated);
        assert!(migration.is_ready(ApiGroup::CrdV1), "v1 was not locked");

        // The policy accepts the trial and refuses the copy: v1 is locked then.
        migration.delete();
        process.end_and_restart();
        migration.until(&process, "the object is gone", || migration.is_gone());
        assert!(process.terminate().unwrap().success());
        scene.world.remove(API_SERVICE);
        let serves = || {
            Ok(scene
                .api
                .admin()
                .get(&statuses.collection(None))
                .is_ok_and(|answer| answer.code == 200))
        };
        await_that(PATIENCE, serves).unwrap();
        scene.refuse(statuses, REFUSED, true);
        let aggregated = aggregate(scene);
        migration.create(None);
        process.restart().unwrap();
        migration.await_message(&process, "the datastore is not locked");
        assert!(
            migration.message().contains("refuses 1 object"),
            "{}",
            migration.message()
        );
        assert!(migration.is_ready(ApiGroup::CrdV1));
        assert_eq!(service(scene), aggregated);
        migration.delete();
        process.end_and_restart();
        migration.until(&process, "the object is gone", || migration.is_gone());
        assert_eq!(service(scene), aggregated);
        assert!(migration.is_ready(ApiGroup::CrdV1));
    });
}
