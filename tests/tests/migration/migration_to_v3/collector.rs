//! Kubernetes' garbage collector, which deletes each object whose owners do not exist, during a
//! migration.

use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::kubernetes::{Client, program};
use integration_tests::server_process::ServerProcess;
use integration_tests::skip::skipped;
use libcalico::kubernetes::{ApiGroup, Location};
use libcalico::migration::MIGRATED_BY;
use serde_json::{Value, json};

use crate::migration_to_v3::migrated_cluster::{MigratedCluster, at, create, on};
use crate::migration_to_v3::objects::{CALICO_METADATA, NAMESPACE, sources};

/// The uid of no object.
const UNKNOWN: &str = "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7";

/// Starts the garbage collector of Kubernetes alone.
fn start_collector(cluster: &MigratedCluster<'_>) -> ServerProcess {
    let directory = cluster.servers.host.dir("kube-controller-manager");
    let kubeconfig = format!(
        "--kubeconfig={}",
        cluster.servers.api.admin_kubeconfig().display()
    );
    let args = [
        kubeconfig.as_str(),
        "--leader-elect=false",
        "--secure-port=0",
        "--controllers=garbage-collector-controller",
    ];
    let mut collector = ServerProcess::default();
    let args = args.map(str::to_owned);
    collector
        .start(
            &program("kube-controller-manager").unwrap(),
            &args,
            &directory.join("log"),
        )
        .unwrap();
    collector
}

/// Returns references to one owner.
fn owner(api_version: &str, kind: &str, name: &str, uid: &Value) -> Value {
    json!([{ "apiVersion": api_version, "kind": kind, "name": name, "uid": uid }])
}

/// Creates a policy of v1 in the tier `security` with references to owners, as Calico's clients do.
fn create_owned(client: &Client, name: &str, owners: &Value) {
    let metadata = json!({ "name": name, "ownerReferences": owners });
    let annotations = json!({ CALICO_METADATA: metadata.to_string() });
    let spec = json!({ "tier": "security", "selector": "all()" });
    create(
        client,
        &at(ApiGroup::CrdV1, "GlobalNetworkPolicy", None, name),
        annotations,
        &spec,
    );
}

/// Waits until the garbage collector has deleted an object of v3 whose owner does not exist.
fn await_collection(cluster: &MigratedCluster<'_>, name: &str) {
    let owner = json!({
        "apiVersion": ApiGroup::V3.api_version(), "kind": "GlobalNetworkPolicy", "name": "missing",
        "uid": UNKNOWN,
    });
    let metadata = json!({ "name": name, "ownerReferences": [owner] });
    let location: Location = at(ApiGroup::V3, "GlobalNetworkPolicy", None, name);
    let policy = json!({
        "apiVersion": ApiGroup::V3.api_version(), "kind": "GlobalNetworkPolicy",
        "metadata": metadata,
        "spec": { "tier": "default", "selector": "all()" },
    });
    let admin = cluster.servers.admin();
    admin
        .create(&location.collection(), &policy)
        .unwrap()
        .success();
    await_that(PATIENCE * 2, || {
        Ok(admin.get(&location.url_path())?.code == 404)
    })
    .unwrap();
}

#[on(kubernetes_v1)]
fn owned_copies_outlive_the_garbage_collector(cluster: &MigratedCluster<'_>) {
    if let Err(missing) = program("kube-controller-manager") {
        return skipped(&missing.to_string());
    }
    let (admin, migration) = (cluster.servers.admin(), cluster.migration);
    let tier = cluster.servers.calico("tiers", "security");
    let v1 = ApiGroup::CrdV1.api_version();
    create_owned(
        admin,
        "security.owned",
        &owner(v1, "Tier", "security", &tier["metadata"]["uid"]),
    );
    create_owned(
        admin,
        "security.orphan",
        &owner(v1, "Tier", "security", &json!(UNKNOWN)),
    );
    create_owned(
        admin,
        "security.of-nothing",
        &owner("v1", "Namespace", "missing", &json!(UNKNOWN)),
    );
    let namespace = cluster
        .servers
        .get(&format!("/api/v1/namespaces/{NAMESPACE}"));
    create_owned(
        admin,
        "security.of-kubernetes",
        &owner("v1", "Namespace", NAMESPACE, &namespace["metadata"]["uid"]),
    );
    let mut process = cluster.start("one");
    let _collector = start_collector(cluster);
    await_collection(cluster, "before");

    migration.create(None);
    process.end_and_restart();
    migration.await_open(&mut process);
    await_collection(cluster, "after");
    let object = migration.object();
    for source in sources() {
        source.assert_copied(admin, &object);
    }
    let copy = |name: &str| cluster.in_v3("GlobalNetworkPolicy", None, name);
    let owners = |name: &str| {
        let copy = copy(name);
        assert!(
            copy["metadata"]["annotations"][MIGRATED_BY].is_string(),
            "{name}: {copy}"
        );
        copy["metadata"]["ownerReferences"].clone()
    };
    let tier_in_v3 = cluster.in_v3("Tier", None, "security");
    let reference = &owners("security.owned")[0];
    assert_eq!(
        (&reference["kind"], &reference["uid"]),
        (&json!("Tier"), &tier_in_v3["metadata"]["uid"])
    );
    assert_eq!(reference["apiVersion"], ApiGroup::V3.api_version());
    for name in ["security.orphan", "security.of-nothing"] {
        assert_eq!(owners(name), Value::Null, "{name}");
    }
    assert_eq!(
        owners("security.of-kubernetes")[0]["uid"],
        namespace["metadata"]["uid"]
    );

    // The reference has its meaning: the policy is deleted with its tier.
    cluster
        .servers
        .remove(&at(ApiGroup::V3, "Tier", None, "security").url_path());
    await_that(PATIENCE * 2, || Ok(copy("security.owned").is_null())).unwrap();
    assert!(!copy("security.orphan").is_null());
}
