use std::collections::BTreeMap;

use libcalico::kubernetes::{ApiGroup, Location};
use libcalico::migration::{MIGRATED_BY, SOURCE_REVISION, cluster_information};
use repository::effort::kill_every;
use serde_json::{Value, json};

use super::{
    assert_same, has_last_copy, is_gone, is_v1_locked, is_v1_ready, is_v3_open, office_in_v3,
    put_foreign, snapshot,
};
use crate::testing::{
    Ended, Interruption, MigratedCluster, ObjectStore, api_service, at, is_in_phase,
};

/// The program ends before a write, or after its effect, or gets a failure after the effect.
pub(super) const KILLS: [fn(usize) -> Interruption; 3] = [
    Interruption::Before,
    Interruption::After,
    Interruption::Fail,
];

/// Runs `course` again and again, each time with one interruption at the next write, until the
/// course ends before that write. Returns the number of that write. `KILL_EVERY` leaves writes out.
pub(super) async fn interrupt_each_request(
    interruption: fn(usize) -> Interruption,
    course: &impl AsyncFn(Interruption) -> MigratedCluster,
    check: impl Fn(&MigratedCluster, &str),
) -> usize {
    for number in (0..).step_by(kill_every()) {
        let cluster = course(interruption(number)).await;
        let is_interrupted = !cluster.server.clear_interruption();
        let case = format!("{:?}", interruption(number));
        assert_eq!(cluster.server.violations(), Vec::<String>::new(), "{case}");
        check(&cluster, &case);
        if !is_interrupted {
            return number;
        }
    }
    unreachable!("the numbers do not end")
}

/// Interrupts each write of `course`, asserts that each end is `expected`, and returns the number
/// of the writes.
async fn assert_same_end(
    interruption: fn(usize) -> Interruption,
    course: &impl AsyncFn(Interruption) -> MigratedCluster,
    expected: &BTreeMap<String, Value>,
) -> usize {
    interrupt_each_request(interruption, course, |cluster, case| {
        assert_same(&snapshot(cluster), expected, case)
    })
    .await
}

fn is_complete(store: &ObjectStore) -> bool {
    is_in_phase(store, "Complete")
}

fn aggregated_cluster() -> MigratedCluster {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster.aggregate();
    cluster
}

async fn complete_snapshot() -> BTreeMap<String, Value> {
    let cluster = aggregated_cluster();
    cluster.run_until(is_complete).await;
    snapshot(&cluster)
}

/// Shows SEC-73.
#[tokio::test(start_paused = true)]
async fn migration_killed_at_each_request_ends_in_the_same_state() {
    let expected = complete_snapshot().await;
    let course = async |interruption: Interruption| {
        let cluster = aggregated_cluster();
        cluster.server.interrupt(interruption);
        cluster.run_until(is_complete).await;
        cluster
    };
    for interruption in KILLS {
        let interrupted = assert_same_end(interruption, &course, &expected);
        assert!(interrupted.await > 35, "the course has more writes");
    }
}

/// A request of a former leader may take effect when the next leader has finished the migration.
#[tokio::test(start_paused = true)]
async fn late_request_of_a_former_leader_changes_no_finished_migration() {
    let expected = complete_snapshot().await;
    let course = async |interruption: Interruption| {
        let cluster = aggregated_cluster();
        cluster.server.interrupt(interruption);
        cluster.run_until(is_complete).await;
        cluster.server.release_held();
        cluster
    };
    assert!(assert_same_end(Interruption::Hold, &course, &expected).await > 35);
}

/// A leader that unlocks v1 after a conflict may end before its last request takes effect. The next
/// leader finds no conflict, and finishes the migration.
#[tokio::test(start_paused = true)]
async fn late_request_of_a_failed_attempt_changes_no_finished_migration() {
    let expected = complete_snapshot().await;
    let course = async |interruption: Interruption| {
        let cluster = aggregated_cluster();
        cluster
            .run_until(|store| is_in_phase(store, "Migrating"))
            .await;
        put_foreign(&cluster, &office_in_v3());
        cluster.server.interrupt(interruption);
        let failed = cluster
            .run_once(|store| is_in_phase(store, "WaitingForConflictResolution"))
            .await;
        if matches!(failed, Ended::Reached) {
            // The first attempt has no more writes, and the second one is to succeed.
            cluster.server.interrupt(Interruption::Hold(usize::MAX));
        }
        cluster
            .server
            .with_store(|store| store.remove(&office_in_v3()));
        cluster.run_until(is_complete).await;
        cluster.server.release_held();
        cluster
    };
    assert!(assert_same_end(Interruption::Hold, &course, &expected).await > 35);
}

/// The most harmful late requests: to open v3, and to lock v1, after an abort has unlocked
/// v1. Shows SEC-73.
#[tokio::test(start_paused = true)]
async fn late_request_of_a_former_leader_does_not_open_v3() {
    let course = async |interruption: Interruption| {
        let cluster = aggregated_cluster();
        cluster.server.interrupt(interruption);
        if matches!(cluster.run_once(is_v3_open).await, Ended::Killed)
            && !cluster.server.with_store(|s| is_v3_open(s))
        {
            cluster.delete().await;
            cluster.run_until(is_gone).await;
            cluster.server.release_held();
            let is_v1_in_use = cluster
                .server
                .with_store(|store| is_v1_ready(store) && !is_v3_open(store));
            assert!(is_v1_in_use, "{interruption:?}");
            let service = cluster.server.object(&api_service()).unwrap();
            assert!(service["spec"]["service"].is_object(), "{interruption:?}");
        }
        cluster
    };
    assert!(interrupt_each_request(Interruption::Hold, &course, |_, _| {}).await > 35);
}

#[tokio::test(start_paused = true)]
async fn abort_killed_at_each_request_gives_back_v1() {
    let before = {
        let cluster = MigratedCluster::new();
        cluster.aggregate();
        snapshot(&cluster)
    };
    let course = async |interruption: Interruption| {
        let cluster = aggregated_cluster();
        cluster.run_until(has_last_copy).await;
        cluster.delete().await;
        cluster.server.interrupt(interruption);
        cluster.run_until(is_gone).await;
        cluster
    };
    for interruption in KILLS {
        let interrupted = assert_same_end(interruption, &course, &before);
        assert!(interrupted.await > 10);
    }
}

#[tokio::test(start_paused = true)]
async fn deletion_after_complete_killed_at_each_request_removes_v1_and_the_object() {
    let course = async |interruption: Interruption| {
        let cluster = aggregated_cluster();
        cluster.run_until(is_complete).await;
        cluster.delete().await;
        cluster.server.interrupt(interruption);
        cluster.run_until(is_gone).await;
        cluster
    };
    let finished = course(Interruption::Before(usize::MAX)).await;
    let is_in_v3 = |store: &mut ObjectStore| is_v3_open(store) && has_last_copy(store);
    assert!(finished.server.with_store(is_in_v3));
    let expected = snapshot(&finished);
    assert!(
        !expected
            .keys()
            .any(|key| key.contains("crd.projectcalico.org")),
        "{:?}",
        expected.keys()
    );
    for interruption in KILLS {
        let interrupted = assert_same_end(interruption, &course, &expected);
        assert_eq!(
            interrupted.await,
            24,
            "the status, 22 definitions, and the finalizer"
        );
    }
}

/// Runs a migration until v1 is locked, calls `change`, and lets the next process go on.
async fn changed_under_the_lock(change: impl FnOnce(&mut ObjectStore)) -> MigratedCluster {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster
        .run_until(|store| is_in_phase(store, "Migrating"))
        .await;
    cluster.server.with_store(change);
    cluster
}

#[tokio::test(start_paused = true)]
async fn copies_without_a_source_are_deleted_before_v3_is_open() {
    let copies: Vec<Location> = [("IPAMHandle", "gone"), ("GlobalNetworkSet", "gone")]
        .map(|(kind, name)| at(ApiGroup::V3, kind, "", name))
        .into();
    let put = |store: &mut ObjectStore| {
        for copy in &copies {
            let annotations = json!({ MIGRATED_BY: "an earlier attempt", SOURCE_REVISION: "3" });
            store.put(
                copy,
                json!({ "metadata": { "annotations": annotations }, "spec": {} }),
            );
        }
    };
    let cluster = changed_under_the_lock(put).await;
    cluster.run_until(is_v3_open).await;
    for copy in &copies {
        assert_eq!(cluster.server.object(copy), None, "{}", copy.resource.kind);
    }
}

/// The addresses of a second set of blocks would be assigned twice.
#[tokio::test(start_paused = true)]
async fn blocks_that_only_v3_has_are_a_conflict() {
    let block = at(ApiGroup::V3, "IPAMBlock", "", "10-9-0-0-26");
    let put = |store: &mut ObjectStore| {
        store.put(
            &block,
            json!({ "spec": { "cidr": "10.9.0.0/26", "allocations": [] } }),
        );
    };
    let cluster = changed_under_the_lock(put).await;
    cluster
        .run_until(|store| is_in_phase(store, "WaitingForConflictResolution"))
        .await;
    assert!(
        cluster
            .server
            .with_store(|store| is_v1_ready(store) && store.get(&block).is_some())
    );

    // Without the lock, the conflict is found before the next one.
    let unlocked = MigratedCluster::new();
    unlocked.start();
    unlocked.server.with_store(put);
    unlocked
        .run_until(|store| is_in_phase(store, "WaitingForConflictResolution"))
        .await;
    let path = format!("PUT {}", cluster_information(ApiGroup::CrdV1).url_path());
    assert!(!unlocked.server.take_log().contains(&path));
}

fn unlock(store: &mut ObjectStore) {
    let at = cluster_information(ApiGroup::CrdV1);
    let mut information = store.get(&at).unwrap().clone();
    information["spec"]["datastoreReady"] = true.into();
    store.put(&at, information);
}

#[tokio::test(start_paused = true)]
async fn v1_unlocked_while_objects_are_copied_is_locked_again_before_v3_is_open() {
    let cluster = MigratedCluster::new();
    cluster.start();
    let unlocked = async {
        cluster.server.reached(has_last_copy).await;
        cluster.server.with_store(unlock);
    };
    futures::future::join(cluster.run_until(is_complete), unlocked).await;
    assert_eq!(cluster.server.violations(), Vec::<String>::new());
    assert!(cluster.server.with_store(|store| is_v1_locked(store)));
}

#[tokio::test(start_paused = true)]
async fn v1_unlocked_by_a_person_is_locked_again_before_v3_is_open() {
    let cluster = changed_under_the_lock(unlock).await;
    cluster.run_until(is_complete).await;
    assert_eq!(cluster.server.violations(), Vec::<String>::new());
    assert!(cluster.server.with_store(|store| is_v1_locked(store)));
}
