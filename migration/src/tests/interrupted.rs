//! The part of a migration's end after v1 is unlocked, if a process ends before that part or a
//! request is refused.

use std::time::Duration;

use hyper::Method;
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::{DATASTORE_MIGRATIONS, cluster_information};
use serde_json::json;

use super::existing_v3::cluster_with_v3;
use super::refused::{assert_no_lock_is_shown, is_aggregated, refuse_information};
use super::{change, has_last_copy, is_gone, is_v1_ready, is_v3_open, office_in_v3, put_foreign};
use crate::testing::{
    MigratedCluster, ObjectStore, ReceivedRequest, definition, failure, is_in_phase, object,
};

const MINUTE: Duration = Duration::from_secs(60);

/// Returns true if the status shows the lock.
fn is_lock_shown(store: &ObjectStore) -> bool {
    store
        .get(&object())
        .is_some_and(|found| found["status"]["datastoreLockedAt"].is_string())
}

/// Unlocks v1 as an interrupted process, which has not written the status.
fn unlock(cluster: &MigratedCluster) {
    change(cluster, &cluster_information(ApiGroup::CrdV1), |found| {
        found["spec"]["datastoreReady"] = true.into()
    });
}

/// Admission refuses the ClusterInformation of v3 although it has accepted the dry run.
#[tokio::test(start_paused = true)]
async fn status_that_shows_an_ended_lock_is_corrected_before_the_checks() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster.run_until(is_lock_shown).await;
    unlock(&cluster);
    refuse_information(&cluster, ApiGroup::V3);
    let checking = "checking the cluster and all objects before the lock";
    cluster
        .run_until(|store| {
            store
                .get(&object())
                .is_some_and(|found| found["status"]["message"] == checking)
        })
        .await;
    assert_no_lock_is_shown(&cluster, "during the checks");
    cluster.run_for(4 * MINUTE).await;
    let message = cluster.message();
    assert!(
        message.starts_with("projectcalico.org/v3 refuses ClusterInformation/default: "),
        "{message}"
    );
    assert_no_lock_is_shown(&cluster, "after the checks");
}

#[tokio::test(start_paused = true)]
async fn failed_migration_with_a_saved_api_service_gives_it_back() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster.aggregate();
    cluster
        .run_until(|store| is_in_phase(store, "Migrating"))
        .await;
    assert!(!is_aggregated(&cluster));
    unlock(&cluster);
    cluster
        .server
        .with_store(|store| store.remove(&cluster_information(ApiGroup::V3)));
    change(&cluster, &object(), |found| {
        found["status"]["phase"] = json!("Failed")
    });
    cluster.run_for(4 * MINUTE).await;
    assert!(is_aggregated(&cluster));
    assert_eq!(cluster.phase(), "Failed");
}

/// Lets each deletion of a tier in v3 fail: with 403, as Calico's policy for the built-in tiers
/// does, or with 409, as if another program changed the tier before.
fn refuse_deletion_of_tiers(cluster: &MigratedCluster, code: u16) {
    cluster.server.fail(move |request: &ReceivedRequest| {
        let is_deletion =
            request.method == Method::DELETE && request.uri.path().contains("/v3/tiers/");
        is_deletion.then(|| {
            failure(
                code,
                if code == 409 { "Conflict" } else { "Forbidden" },
                "built-in",
            )
        })
    });
}

/// Shows SEC-37.
#[tokio::test(start_paused = true)]
async fn refused_deletion_of_a_copy_is_repeated_each_minute_after_v1_is_unlocked() {
    for (code, text) in [
        (403, "built-in"),
        (409, "other programs change the object in v3 all the time"),
    ] {
        let cluster = MigratedCluster::new();
        cluster.start();
        cluster.run_until(has_last_copy).await;
        refuse_deletion_of_tiers(&cluster, code);
        cluster.delete().await;
        cluster.run_until(is_v1_ready).await;
        cluster.server.take_log();
        cluster.run_for(10 * MINUTE).await;
        let log = cluster.server.take_log();
        let lists = log
            .iter()
            .filter(|line| line.contains("/projectcalico.org/v3/tiers?"))
            .count();
        // A copy that changes is read again up to four times, by a list of its name.
        assert!((1..=60).contains(&lists), "{lists} lists of each kind");
        assert!(cluster.message().contains(text), "{}", cluster.message());
        cluster.server.end_faults();
        cluster.run_until(is_gone).await;
    }
}

#[tokio::test(start_paused = true)]
async fn failed_attempt_with_a_refused_deletion_gives_back_the_aggregated_api_server() {
    for (code, text) in [
        (403, "built-in"),
        (409, "other programs change the object in v3 all the time"),
    ] {
        let cluster = MigratedCluster::new();
        cluster.start();
        cluster.aggregate();
        cluster.run_until(has_last_copy).await;
        put_foreign(&cluster, &office_in_v3());
        refuse_deletion_of_tiers(&cluster, code);
        cluster.run_for(4 * MINUTE).await;
        assert!(is_aggregated(&cluster) && cluster.server.with_store(|store| is_v1_ready(store)));
        assert_eq!(cluster.phase(), "WaitingForConflictResolution");
        assert!(cluster.message().contains(text), "{}", cluster.message());
        cluster.server.end_faults();
        cluster
            .server
            .with_store(|store| store.remove(&office_in_v3()));
        cluster
            .run_until(|store| is_in_phase(store, "Complete"))
            .await;
        assert_eq!(cluster.server.violations(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn lock_without_an_object_is_ended_if_v3_existed_and_was_not_closed_yet() {
    type Change = fn(&MigratedCluster);
    let cases: [(&str, Change); 3] = [
        ("ready", |_| ()),
        ("locked by another program", |cluster| {
            change(cluster, &cluster_information(ApiGroup::V3), |found| {
                found["spec"]["datastoreReady"] = false.into()
            });
        }),
        (
            "behind an aggregated API server",
            MigratedCluster::aggregate,
        ),
    ];
    for (case, change_v3) in cases {
        let cluster = cluster_with_v3();
        cluster.start();
        cluster.run_until(is_lock_shown).await;
        change_v3(&cluster);
        let v3 = cluster.server.object(&cluster_information(ApiGroup::V3));
        cluster.server.with_store(|store| store.remove(&object()));
        cluster.run_for(5 * MINUTE).await;
        assert!(
            cluster.server.with_store(|store| is_v1_ready(store)),
            "{case}"
        );
        assert_eq!(
            cluster.server.object(&cluster_information(ApiGroup::V3)),
            v3,
            "{case}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn abort_interrupted_after_the_unlock_is_finished_without_the_object() {
    let cluster = cluster_with_v3();
    cluster.start();
    cluster.run_until(has_last_copy).await;
    unlock(&cluster);
    cluster.server.with_store(|store| store.remove(&object()));
    cluster.run_for(5 * MINUTE).await;
    assert!(
        cluster
            .server
            .with_store(|store| is_v1_ready(store) && is_v3_open(store) && !has_last_copy(store))
    );
    assert_eq!(cluster.server.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn lock_without_the_definition_of_the_object_is_ended_by_the_next_process() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster.run_until(has_last_copy).await;
    cluster.server.with_store(|store| {
        store.remove(&object());
        store.remove(&definition(&DATASTORE_MIGRATIONS));
    });
    cluster.run_for(5 * MINUTE).await;
    assert!(
        cluster
            .server
            .with_store(|store| is_v1_ready(store) && !has_last_copy(store))
    );
    assert_eq!(
        cluster.server.object(&cluster_information(ApiGroup::V3)),
        None
    );
}
