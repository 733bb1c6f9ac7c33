use libcalico::kubernetes::{ApiGroup, Location, Resource};
use libcalico::migration::{
    FINALIZER, MIGRATED_BY, V1_LOCKED_BY, cluster_information, definition_name,
};
use serde_json::{Value, json};

use super::{
    assert_same, has_last_copy, is_gone, is_v1_locked, is_v1_ready, is_v3_open, office_in_v3,
    put_foreign, snapshot,
};
use crate::testing::{DEFINITIONS, MigratedCluster, ObjectStore, at, define, is_in_phase, object};

fn has_finalizer(store: &ObjectStore) -> bool {
    store
        .get(&object())
        .is_some_and(|found| found["metadata"]["finalizers"] == json!([FINALIZER]))
}

/// Runs a migration until `condition`, deletes the controlling object, and compares the end with
/// the state before.
async fn abort_after(
    case: &str,
    cluster: MigratedCluster,
    condition: impl Fn(&ObjectStore) -> bool,
) {
    let before = snapshot(&cluster);
    cluster.start();
    cluster.run_until(condition).await;
    cluster.delete().await;
    cluster.run_until(is_gone).await;
    assert_same(&snapshot(&cluster), &before, case);
    assert_eq!(cluster.server.violations(), Vec::<String>::new(), "{case}");
}

type Condition = fn(&ObjectStore) -> bool;

#[tokio::test(start_paused = true)]
async fn abort_in_each_phase_unlocks_v1() {
    let conditions: [(&str, Condition); 5] = [
        ("Pending", |store| is_in_phase(store, "Pending")),
        ("with the finalizer", has_finalizer),
        ("locked", is_v1_locked),
        ("Migrating", |store| is_in_phase(store, "Migrating")),
        ("copied", has_last_copy),
    ];
    for (case, condition) in conditions {
        for aggregated in [false, true] {
            let cluster = MigratedCluster::new();
            if aggregated {
                cluster.aggregate();
            }
            abort_after(case, cluster, condition).await;
        }
    }
    let waiting = MigratedCluster::new();
    put_foreign(&waiting, &office_in_v3());
    let phase = "WaitingForConflictResolution";
    abort_after(phase, waiting, |store| is_in_phase(store, phase)).await;
}

/// After the failure, the aggregated API server is restored, and hides the copies from the abort.
#[tokio::test(start_paused = true)]
async fn failed_attempt_beside_an_aggregated_api_server_leaves_no_copies() {
    let cluster = MigratedCluster::new();
    cluster.aggregate();
    let before = snapshot(&cluster);
    cluster.start();
    cluster.run_until(has_last_copy).await;
    put_foreign(&cluster, &office_in_v3());
    cluster
        .run_until(|store| is_v1_ready(store) && is_in_phase(store, "WaitingForConflictResolution"))
        .await;
    cluster
        .server
        .with_store(|store| store.remove(&office_in_v3()));
    cluster.delete().await;
    cluster.run_until(is_gone).await;
    assert_same(&snapshot(&cluster), &before, "aggregated");
}

/// Upstream leaves v1 locked then (MIG-71).
#[tokio::test(start_paused = true)]
async fn abort_before_started_at_unlocks_v1() {
    let is_locked_only = |store: &ObjectStore| {
        let has_started = store
            .get(&object())
            .is_some_and(|found| found["status"]["startedAt"].is_string());
        is_v1_locked(store) && !has_started
    };
    abort_after("before startedAt", MigratedCluster::new(), is_locked_only).await;
}

#[tokio::test(start_paused = true)]
async fn failed_migration_unlocks_v1_without_and_with_an_abort() {
    for is_deleted in [false, true] {
        let cluster = MigratedCluster::new();
        let before = cluster.spec_of_information(ApiGroup::CrdV1);
        cluster.start();
        cluster.run_until(is_v1_locked).await;
        cluster.server.with_store(|store| {
            let mut failed = store.get(&object()).unwrap().clone();
            failed["status"] = json!({ "phase": "Failed", "message": "cause" });
            store.put(&object(), failed);
        });
        if is_deleted {
            cluster.delete().await;
            cluster.run_until(is_gone).await;
        } else {
            cluster.run_until(|store| !is_v1_locked(store)).await;
            assert_eq!(cluster.phase(), "Failed");
        }
        assert_eq!(cluster.spec_of_information(ApiGroup::CrdV1), before);
    }
}

#[tokio::test(start_paused = true)]
async fn abort_leaves_the_lock_of_another_program() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster.run_until(has_finalizer).await;
    cluster.server.with_store(|store| {
        store.put(
            &cluster_information(ApiGroup::CrdV1),
            json!({ "spec": { "datastoreReady": false } }),
        );
    });
    cluster.delete().await;
    cluster.run_until(is_gone).await;
    assert!(cluster.server.with_store(|store| is_v1_locked(store)));
}

#[tokio::test(start_paused = true)]
async fn abort_gives_back_a_cluster_information_that_existed() {
    let cluster = MigratedCluster::new();
    cluster.server.with_store(|store| {
        let spec = json!({ "datastoreReady": true, "clusterGUID": "of v3" });
        store.put(&cluster_information(ApiGroup::V3), json!({ "spec": spec }));
    });
    abort_after("v3 existed", cluster, has_last_copy).await;
}

/// Copies keep the finalizers of their sources, and no program would remove them from the copies.
#[tokio::test(start_paused = true)]
async fn abort_deletes_copies_with_finalizers_and_of_former_migrations() {
    let cluster = MigratedCluster::new();
    let before = snapshot(&cluster);
    cluster.start();
    cluster
        .run_until(|store| is_in_phase(store, "Migrating"))
        .await;
    let pool = at(ApiGroup::V3, "IPPool", "", "left");
    cluster.server.with_store(|store| {
        let metadata = json!({
            "finalizers": ["f"], "annotations": { MIGRATED_BY: "the uid of a former object" },
        });
        store.put(
            &pool,
            json!({ "metadata": metadata, "spec": { "cidr": "10.1.0.0/24" } }),
        );
    });
    cluster.delete().await;
    cluster.run_until(is_gone).await;
    assert_same(&snapshot(&cluster), &before, "finalizers");
}

#[tokio::test(start_paused = true)]
async fn new_object_continues_the_migration_of_a_removed_one() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster
        .run_until(|store| is_in_phase(store, "Migrating"))
        .await;
    cluster.server.with_store(|store| store.remove(&object()));
    cluster.start();
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
    assert_eq!(
        cluster.server.object(&object()).unwrap()["metadata"]["finalizers"],
        json!([FINALIZER])
    );
    let v1 = cluster
        .server
        .object(&cluster_information(ApiGroup::CrdV1))
        .unwrap();
    assert!(v1["metadata"]["annotations"][V1_LOCKED_BY].is_string());
}

/// A person removes the finalizer of an object, because its deletion does not end.
#[tokio::test(start_paused = true)]
async fn lock_without_an_object_is_ended_unless_v3_is_open() {
    let cluster = MigratedCluster::new();
    let before = snapshot(&cluster);
    for is_open in [false, true] {
        cluster.start();
        cluster
            .run_until(|store| {
                if is_open {
                    is_in_phase(store, "Complete")
                } else {
                    has_last_copy(store)
                }
            })
            .await;
        cluster.server.with_store(|store| store.remove(&object()));
        cluster.run_for(std::time::Duration::from_secs(300)).await;
        if is_open {
            assert!(
                cluster
                    .server
                    .with_store(|store| is_v1_locked(store) && is_v3_open(store))
            );
        } else {
            assert_same(&snapshot(&cluster), &before, "v1 is unlocked");
        }
    }
    assert_eq!(cluster.server.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn deletion_after_v3_is_open_finishes() {
    let cluster = MigratedCluster::new();
    let other = Resource {
        api_version: "crd.projectcalico.org/v1",
        kind: "Other",
        plural: "others",
        namespaced: false,
    };
    cluster.server.with_store(|store| define(store, &other));
    cluster.start();
    cluster.run_until(is_v3_open).await;
    cluster.delete().await;
    cluster.run_until(is_gone).await;
    cluster.server.with_store(|store| {
        assert!(is_v3_open(store) && store.get(&cluster_information(ApiGroup::CrdV1)).is_none());
        let names = |group: &str| {
            let all = store.of_kind("apiextensions.k8s.io", "customresourcedefinitions");
            let names = all.filter(|found| found["spec"]["group"] == group);
            names
                .map(|found| found["metadata"]["name"].clone())
                .collect::<Vec<Value>>()
        };
        assert_eq!(
            names("crd.projectcalico.org"),
            ["others.crd.projectcalico.org"]
        );
        assert_eq!(names("projectcalico.org").len(), 22);
        assert!(
            store
                .get(&Location::global(DEFINITIONS, definition_name(&other)))
                .is_some()
        );
    });
}

#[tokio::test(start_paused = true)]
async fn definitions_of_an_unlocked_v1_are_not_deleted() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
    cluster.server.with_store(|store| {
        store.put(
            &cluster_information(ApiGroup::CrdV1),
            json!({ "spec": { "datastoreReady": true } }),
        );
    });
    cluster.delete().await;
    cluster.run_for(std::time::Duration::from_secs(600)).await;
    assert!(
        cluster
            .message()
            .starts_with("v1 is not locked; two datastores are in use"),
        "{}",
        cluster.message()
    );
    assert!(
        cluster
            .server
            .object(&cluster_information(ApiGroup::CrdV1))
            .is_some()
    );
}
