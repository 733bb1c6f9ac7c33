//! Objects of calico-node and Typha, without their programs: what a migration demands of them, and
//! when.

use integration_tests::controllers::Controllers;
use integration_tests::migration::installer;
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::{FOLLOW, PLUGINS};
use serde_json::{Value, json};

use crate::migration_to_v3::migrated_cluster::{MigratedCluster, on};

/// Upstream's text.
const WAITS_FOR_USER: &str = "Waiting for user to set CALICO_API_GROUP=projectcalico.org/v3 on";

/// Returns the spec of a pod with one container, whose `CALICO_API_GROUP` is v3 if `uses_v3`.
fn program(name: &str, uses_v3: bool) -> Value {
    let group = json!([{ "name": "CALICO_API_GROUP", "value": ApiGroup::V3.api_version() }]);
    let environment = if uses_v3 { group } else { json!([]) };
    json!({ "containers": [{ "name": name, "image": "none", "env": environment }] })
}

/// Returns the spec of a pod of calico-node with `install-cni`.
fn node(uses_v3: bool) -> Value {
    let mut spec = installer(Some(""));
    spec["containers"] = program("calico-node", uses_v3)["containers"].take();
    spec
}

/// Creates the object, and waits for a message of a new leader.
#[track_caller]
fn begin(cluster: &MigratedCluster<'_>, process: &mut Controllers, message: &str) {
    cluster.migration.create(None);
    process.end_and_restart();
    cluster.migration.await_message(process, message);
}

#[on(kubernetes_v1)]
fn migration_waits_for_calico_node_and_typha_until_they_use_v3(cluster: &MigratedCluster<'_>) {
    let migration = cluster.migration;
    let mut process = cluster.start("one");
    migration.roll_out("DaemonSet", "calico-node", &node(false));
    migration.roll_out(
        "Deployment",
        "calico-typha",
        &program("calico-typha", false),
    );
    // Only a person knows which plugin `install-cni` of calico-node installs (MB-3).
    begin(cluster, &mut process, "with v1 locked no pod could start");
    assert!(migration.is_ready(ApiGroup::CrdV1));
    migration.annotate(PLUGINS, Some(FOLLOW));
    process.end_and_restart();
    migration.await_open(&mut process);

    process.restart().unwrap();
    migration.await_message(&process, WAITS_FOR_USER);
    let message = migration.message();
    assert!(
        message.contains("calico-node") && message.contains("calico-typha"),
        "{message}"
    );
    migration.roll_out("DaemonSet", "calico-node", &node(true));
    process.end_and_restart();
    migration.until(&process, "Typha alone is missing", || {
        let message = migration.message();
        message.starts_with(WAITS_FOR_USER)
            && message.contains("calico-typha")
            && !message.contains("calico-node")
    });
    // Upstream does not look whether Typha is rolled out.
    migration.apply_workload("Deployment", "calico-typha", &program("calico-typha", true));
    process.end_and_restart();
    migration.await_message(&process, "Waiting for calico-typha");
    migration.delete();
    process.end_and_restart();
    migration.await_message(
        &process,
        "Deletion pending: migration is Converged and cannot be rolled back.",
    );
    assert_eq!(migration.phase(), "Converged");

    // The same process sees the end of the roll-out.
    migration.report_rollout("Deployment", "calico-typha");
    migration.until(&process, "the object is gone", || migration.is_gone());
    assert_eq!(
        cluster.servers.calico("tiers", "security"),
        Value::Null,
        "v1 is deleted"
    );
}

#[on(kubernetes_v1)]
fn migration_on_the_network_of_pods_or_with_a_named_group_is_refused(
    cluster: &MigratedCluster<'_>,
) {
    let migration = cluster.migration;
    assert!(cluster.start("one").terminate().unwrap().success());
    migration.create(None);
    let v1 = ApiGroup::CrdV1.api_version();
    let mut named = migration
        .setup("one")
        .env("CALICO_API_GROUP", v1)
        .start(cluster.servers.host, "named")
        .unwrap();
    migration.await_message(
        &named,
        "CALICO_API_GROUP of kube-controllers is crd.projectcalico.org/v1",
    );
    assert!(named.terminate().unwrap().success());

    let metadata = json!({ "name": "in-pods", "namespace": "kube-system" });
    let spec = json!({ "nodeName": "node1", "containers": [{ "name": "c", "image": "none" }] });
    cluster
        .servers
        .apply(json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec }));
    let process = migration
        .setup("in-pods")
        .start(cluster.servers.host, "in-pods")
        .unwrap();
    migration.await_message(&process, "kube-controllers is not on the host network");
    assert!(migration.is_ready(ApiGroup::CrdV1));
}
