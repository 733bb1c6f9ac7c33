//! Migrations to a v3 that programs could use before, or whose ClusterInformation another program
//! changes or deletes: pods may have its addresses.

use std::time::Duration;

use libcalico::kubernetes::ApiGroup;
use libcalico::migration::{FINALIZER, MIGRATED_BY, SOURCE_REVISION, cluster_information};
use serde_json::{Value, json};

use super::killed::{KILLS, interrupt_each_request};
use super::{
    assert_same, change, has_last_copy, is_gone, is_v1_locked, is_v1_ready, is_v3_open,
    office_in_v3, put_foreign, snapshot,
};
use crate::marks::{ATTEMPT, CREATED_BY, V3Access};
use crate::testing::{Interruption, MigratedCluster, ObjectStore, at, is_in_phase, object};

const TEN_MINUTES: Duration = Duration::from_secs(600);

/// Returns a cluster whose v3 is ready, and part of no migration.
pub(super) fn cluster_with_v3() -> MigratedCluster {
    let cluster = MigratedCluster::new();
    cluster.server.with_store(|store| {
        let spec = json!({ "datastoreReady": true, "clusterGUID": "of v3" });
        store.put(&cluster_information(ApiGroup::V3), json!({ "spec": spec }));
    });
    cluster
}

/// Returns true if programs could use v3 beside a copy. An abort deletes the copy of the first kind
/// last.
fn is_copy_usable(store: &ObjectStore) -> bool {
    is_v3_open(store)
        && store
            .get(&at(ApiGroup::V3, "Tier", "", "default"))
            .is_some()
}

#[tokio::test(start_paused = true)]
async fn v3_is_given_back_only_without_copies() {
    for is_aborted in [true, false] {
        let cluster = cluster_with_v3();
        cluster.start();
        cluster.run_until(has_last_copy).await;
        if is_aborted {
            cluster.delete().await;
        } else {
            cluster
                .server
                .with_store(|store| store.remove(&office_in_v3()));
            put_foreign(&cluster, &office_in_v3());
        }
        let is_over = |store: &ObjectStore| {
            is_gone(store) || is_in_phase(store, "WaitingForConflictResolution")
        };
        tokio::select! {
            biased;
            () = cluster.server.reached(is_copy_usable) => panic!("{is_aborted}"),
            _ = cluster.run_until(is_over) => {}
        }
        let information = cluster
            .server
            .object(&cluster_information(ApiGroup::V3))
            .unwrap();
        assert_eq!(
            information["spec"],
            json!({ "datastoreReady": true, "clusterGUID": "of v3" })
        );
        assert_eq!(information["metadata"]["annotations"], Value::Null);
        assert!(
            cluster
                .server
                .with_store(|store| is_v1_ready(store) && !has_last_copy(store)),
            "{is_aborted}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn failed_attempt_killed_at_each_request_leaves_v3_as_it_was() {
    let cluster = cluster_with_v3();
    put_foreign(&cluster, &office_in_v3());
    let before = snapshot(&cluster);
    let course = async |interruption: Interruption| {
        let cluster = cluster_with_v3();
        cluster.start();
        cluster
            .run_until(|store| is_in_phase(store, "Migrating"))
            .await;
        put_foreign(&cluster, &office_in_v3());
        cluster.server.interrupt(interruption);
        cluster
            .run_until(|store| is_in_phase(store, "WaitingForConflictResolution"))
            .await;
        cluster
    };
    for interruption in KILLS {
        let interrupted = interrupt_each_request(interruption, &course, |cluster, case| {
            let mut after = snapshot(cluster);
            after.remove("migration.projectcalico.org/datastoremigrations//v1-to-v3");
            assert_same(&after, &before, case);
        });
        assert!(interrupted.await > 20);
    }
}

/// The annotations of a ClusterInformation may be lost, for example if it was deleted and created
/// again.
#[tokio::test(start_paused = true)]
async fn copies_of_a_former_migration_in_a_ready_v3_are_neither_swept_nor_deleted_by_an_abort() {
    let cluster = cluster_with_v3();
    let block = at(ApiGroup::V3, "IPAMBlock", "", "10-9-0-0-26");
    let put = |store: &mut ObjectStore| {
        let annotations = json!({ MIGRATED_BY: "former", SOURCE_REVISION: "3" });
        store.put(
            &block,
            json!({
                "metadata": { "annotations": annotations }, "spec": { "cidr": "10.9.0.0/26" },
            }),
        )
    };
    let used = cluster.server.with_store(put);
    cluster.start();
    cluster.run_for(TEN_MINUTES).await;
    assert!(
        cluster
            .message()
            .starts_with("projectcalico.org/v3 is ready, and a former"),
        "{}",
        cluster.message()
    );
    cluster.delete().await;
    cluster.run_until(is_gone).await;
    assert_eq!(cluster.server.object(&block), Some(used));
    assert!(cluster.server.with_store(|store| is_v1_ready(store)));
}

/// A person locks v3 after the migration, and removes the object with its finalizer. The next
/// object has no phase.
#[tokio::test(start_paused = true)]
async fn copies_that_were_open_stay_when_v3_is_locked_and_the_object_is_new() {
    for is_deleted in [false, true] {
        let cluster = MigratedCluster::new();
        cluster.start();
        cluster
            .run_until(|store| is_in_phase(store, "Complete"))
            .await;
        let information = cluster_information(ApiGroup::V3);
        cluster.server.with_store(|store| {
            let mut locked = store.get(&information).unwrap().clone();
            locked["spec"]["datastoreReady"] = false.into();
            store.put(&information, locked);
            store.remove(&object());
            store.put(
                &object(),
                json!({ "metadata": { "finalizers": [FINALIZER] } }),
            );
        });
        if is_deleted {
            cluster.delete().await;
        }
        cluster.run_for(TEN_MINUTES).await;
        assert!(
            cluster.message().contains("is marked and locked"),
            "{}",
            cluster.message()
        );
        let is_kept = |store: &mut ObjectStore| has_last_copy(store) && is_v1_locked(store);
        assert!(cluster.server.with_store(is_kept), "{is_deleted}");
    }
}

/// A person, or calico-node that starts in v3, may set the field. Plugins would use the copies that
/// exist by then.
#[tokio::test(start_paused = true)]
async fn v3_set_ready_while_objects_are_copied_is_closed_again() {
    let information = cluster_information(ApiGroup::V3);
    for existed in [false, true] {
        let cluster = if existed {
            cluster_with_v3()
        } else {
            MigratedCluster::new()
        };
        cluster.start();
        let access = || V3Access::of(cluster.server.object(&information).as_ref());
        let set_ready = async {
            cluster
                .server
                .reached(|store| {
                    store
                        .get(&at(ApiGroup::V3, "Tier", "", "default"))
                        .is_some()
                })
                .await;
            change(&cluster, &information, |found| {
                assert_eq!(found["spec"]["datastoreReady"], false);
                found["spec"]["datastoreReady"] = true.into();
            });
            assert_eq!(access(), V3Access::Closed);
            assert!(!cluster.server.with_store(|store| has_last_copy(store)));
        };
        futures::future::join(
            cluster.run_until(|store| is_in_phase(store, "Complete")),
            set_ready,
        )
        .await;
        assert_eq!(access(), V3Access::Open);
        assert!(
            cluster
                .server
                .with_store(|store| is_v1_locked(store) && has_last_copy(store)),
            "{existed}"
        );
        assert_eq!(cluster.server.violations(), Vec::<String>::new());
    }
}

/// Migrates, and deletes the ClusterInformation of v3. Replaces the controlling object by a new one
/// with the finalizer.
async fn cluster_with_a_lost_v3() -> MigratedCluster {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
    cluster.server.with_store(|store| {
        store.remove(&cluster_information(ApiGroup::V3));
        store.remove(&object());
        store.put(
            &object(),
            json!({ "metadata": { "finalizers": [FINALIZER] } }),
        );
    });
    cluster
}

/// The lock of v1 alone shows then that pods may use v3.
#[tokio::test(start_paused = true)]
async fn v1_stays_locked_if_the_cluster_information_of_an_open_v3_is_deleted() {
    for (has_object, is_deleted) in [(true, false), (true, true), (false, false)] {
        let cluster = cluster_with_a_lost_v3().await;
        if is_deleted {
            cluster.delete().await;
        }
        if !has_object {
            cluster.server.with_store(|store| store.remove(&object()));
        }
        cluster.run_for(TEN_MINUTES).await;
        let is_kept = |store: &mut ObjectStore| {
            is_v1_locked(store)
                && has_last_copy(store)
                && store.get(&cluster_information(ApiGroup::V3)).is_none()
        };
        assert!(
            cluster.server.with_store(is_kept),
            "{has_object} {is_deleted}"
        );
        let is_explained = cluster
            .message()
            .starts_with("projectcalico.org/v3 may have been open, but its");
        assert_eq!(is_explained, has_object, "{}", cluster.message());
    }
}

#[tokio::test(start_paused = true)]
async fn deleted_cluster_information_of_v3_is_restored_or_given_up_by_a_person() {
    let restored = cluster_with_a_lost_v3().await;
    restored.run_for(TEN_MINUTES).await;
    restored.server.with_store(|store| {
        let metadata = json!({ "annotations": { MIGRATED_BY: "restored" } });
        let open = json!({ "metadata": metadata, "spec": { "datastoreReady": true } });
        store.put(&cluster_information(ApiGroup::V3), open);
    });
    restored
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
    assert!(
        restored
            .server
            .with_store(|store| is_v1_locked(store) && is_v3_open(store))
    );

    let unused = cluster_with_a_lost_v3().await;
    unused.delete().await;
    unused.run_for(TEN_MINUTES).await;
    change(&unused, &cluster_information(ApiGroup::CrdV1), |found| {
        found["metadata"]["annotations"]
            .as_object_mut()
            .unwrap()
            .remove(ATTEMPT);
    });
    unused.run_until(is_gone).await;
    assert!(
        unused
            .server
            .with_store(|store| is_v1_ready(store) && !has_last_copy(store))
    );
}

/// Requests of a former leader may also create the locked ClusterInformation of v3 after the end of
/// a migration.
#[tokio::test(start_paused = true)]
async fn locked_v3_beside_an_unlocked_v1_is_given_back() {
    let (created, found) = (
        json!({ ATTEMPT: "", CREATED_BY: "former" }),
        json!({ ATTEMPT: "7" }),
    );
    for (annotations, is_kept) in [(created, false), (found, true)] {
        let cluster = MigratedCluster::new();
        let information = cluster_information(ApiGroup::V3);
        cluster.server.with_store(|store| {
            let metadata = json!({ "annotations": annotations });
            store.put(
                &information,
                json!({ "metadata": metadata, "spec": { "datastoreReady": false } }),
            );
            store.put(
                &object(),
                json!({ "status": { "phase": "Failed", "message": "cause" } }),
            );
        });
        cluster.run_for(TEN_MINUTES).await;
        let spec = cluster
            .server
            .object(&information)
            .map(|found| found["spec"].clone());
        assert_eq!(spec, is_kept.then(|| json!({ "datastoreReady": true })));
        assert_eq!(
            (cluster.phase().as_str(), cluster.message().as_str()),
            ("Failed", "cause")
        );
        assert!(cluster.server.with_store(|store| is_v1_ready(store)));
    }
}
