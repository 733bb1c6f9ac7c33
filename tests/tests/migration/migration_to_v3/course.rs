//! The course of a migration: all kinds, the way back, and the end.

use std::collections::BTreeSet;

use integration_tests::accounts::Accounts;
use integration_tests::kubernetes::Client;
use libcalico::kubernetes::{ApiGroup, Resource};
use libcalico::migration::{MIGRATED_BY, moved_kinds};
use serde_json::{Value, json};

use crate::migration_to_v3::kubelet::{Kubelet, NODES};
use crate::migration_to_v3::migrated_cluster::{MigratedCluster, on};
use crate::migration_to_v3::objects::sources;

/// A kind of v1's group that no migration copies.
const GADGETS: Resource = Resource {
    api_version: "crd.projectcalico.org/v1",
    kind: "Gadget",
    plural: "gadgets",
    namespaced: false,
};
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Returns the names of the definitions in v1's group.
fn definitions_of_v1(admin: &Client) -> Vec<String> {
    let all = admin.get(DEFINITIONS).unwrap().success();
    let names = all["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["metadata"]["name"].as_str().unwrap().to_owned());
    names
        .filter(|name| name.ends_with(".crd.projectcalico.org"))
        .collect()
}

#[on(kubernetes_v1)]
fn all_21_kinds_are_copied(cluster: &MigratedCluster<'_>) {
    let (admin, migration) = (cluster.servers.admin(), cluster.migration);
    cluster.servers.api.define_open(&GADGETS).unwrap();
    let mut process = cluster.start("one");
    migration.create(None);
    process.end_and_restart();
    migration.await_open(&mut process);
    // No program changes objects now.
    let object = migration.object();
    for source in sources() {
        source.assert_copied(admin, &object);
    }
    let kinds: BTreeSet<&str> = moved_kinds().iter().map(|moved| moved.v3.kind).collect();
    let progress = &object["status"]["progress"];
    let counted = progress["typeDetails"].as_array().unwrap();
    let with_copies: BTreeSet<&str> = counted
        .iter()
        .filter(|one| one["migrated"].as_u64().is_some_and(|count| count > 0))
        .map(|one| one["kind"].as_str().unwrap())
        .collect();
    assert_eq!(with_copies, kinds);
    assert_eq!(
        (&progress["typeProgress"], counted.len()),
        (&json!("21 / 21"), 21)
    );
    assert!(!migration.is_ready(ApiGroup::CrdV1) && migration.is_ready(ApiGroup::V3));
    let blocked = migration.condition("PodsBlocked");
    assert_eq!(
        (&blocked["status"], &blocked["reason"]),
        (&json!("False"), &json!("V3Opened"))
    );

    process.restart().unwrap();
    migration.await_phase(&process, "Complete");
    assert!(
        !object["status"]["startedAt"].is_null()
            && !migration.object()["status"]["completedAt"].is_null()
    );
    migration.delete();
    process.end_and_restart();
    migration.until(&process, "the object is gone", || migration.is_gone());
    // The API server deletes the objects of a definition before the definition.
    let is_only_gadgets = || definitions_of_v1(admin) == ["gadgets.crd.projectcalico.org"];
    migration.until(
        &process,
        "v1 has only another program's definition",
        is_only_gadgets,
    );
    process
        .await_log("gadgets.crd.projectcalico.org", 1)
        .unwrap();
    assert!(
        !cluster.in_v3("Tier", None, "security").is_null(),
        "v3 is complete"
    );
}

/// Returns the number of copies in v3.
fn copies(cluster: &MigratedCluster<'_>) -> usize {
    let all = cluster.dump(ApiGroup::V3);
    all.values()
        .filter(|object| object["metadata"]["annotations"][MIGRATED_BY].is_string())
        .count()
}

#[on(kubernetes_v1)]
fn aborted_migration_leaves_v1_as_it_was(cluster: &MigratedCluster<'_>) {
    let migration = cluster.migration;
    let mut process = cluster.start("one");
    assert!(process.terminate().unwrap().success());
    let (before, before_in_v3) = (cluster.dump(ApiGroup::CrdV1), cluster.dump(ApiGroup::V3));

    // Under the lock, before the first copy.
    migration.create(None);
    process.restart().unwrap();
    cluster.await_lock(&process);
    migration.delete();
    migration.until(&process, "the object is gone", || migration.is_gone());
    assert!(migration.is_ready(ApiGroup::CrdV1));
    assert_eq!(cluster.dump(ApiGroup::CrdV1), before);
    assert_eq!(cluster.dump(ApiGroup::V3), before_in_v3);

    // Under the lock, after the copies: the last kind has a conflict.
    migration.create(None);
    process.end_and_restart();
    cluster.await_lock(&process);
    let status = cluster.create_in_v3("CalicoNodeStatus", None, "node1", &json!({ "other": true }));
    migration.await_phase(&process, "WaitingForConflictResolution");
    assert!(
        migration.message().contains("the datastore is not locked"),
        "{}",
        migration.message()
    );
    assert!(migration.is_ready(ApiGroup::CrdV1) && !migration.is_ready(ApiGroup::V3));
    assert!(
        copies(cluster) >= sources().len() - 1,
        "{:?}",
        cluster.dump(ApiGroup::V3).keys()
    );
    migration.delete();
    process.end_and_restart();
    migration.until(&process, "the object is gone", || migration.is_gone());
    assert_eq!(cluster.dump(ApiGroup::CrdV1), before);
    let left: Vec<Value> = cluster
        .dump(ApiGroup::V3)
        .into_values()
        .map(|object| object["metadata"]["uid"].clone())
        .collect();
    assert_eq!(left, [status["metadata"]["uid"].clone()]);
    assert!(process.terminate().unwrap().success());
    let node = cluster.node(NODES[0]);
    let mut kubelet = Kubelet::new(&node, cluster.servers.admin());
    kubelet.start();
    let held = Accounts::of(&cluster.dump(ApiGroup::CrdV1)).held;
    assert!(
        kubelet
            .addresses()
            .all(|(address, handle)| held.get(&address) == Some(&handle)),
        "{held:?}"
    );
    kubelet.end();
    assert!(kubelet.failed.is_empty(), "{:?}", kubelet.failed);
}
