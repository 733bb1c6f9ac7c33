//! Admission that refuses a ClusterInformation, and a v3 that an aggregated API server hides until
//! it is removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::Method;
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::{MIGRATED_BY, SAVED_API_SERVICE, cluster_information};
use serde_json::json;
use tokio::time::advance;

use super::existing_v3::cluster_with_v3;
use super::{has_last_copy, is_gone, is_v1_locked, is_v1_ready, is_v3_open};
use crate::abort::{Copies, end_lock};
use crate::attempts::Withdrawals;
use crate::lock;
use crate::requests::Problem;
use crate::testing::{
    MigratedCluster, ObjectStore, ReceivedRequest, api_service, failure, is_in_phase, object,
};
use crate::v3_access::{self, Withdrawn};

const MINUTE: Duration = Duration::from_secs(60);

/// Refuses each creation and replacement of the ClusterInformation in a group, as long as the
/// result is true.
pub(super) fn refuse_information(cluster: &MigratedCluster, group: ApiGroup) -> Arc<AtomicBool> {
    let is_refused = Arc::new(AtomicBool::new(true));
    let rule = is_refused.clone();
    cluster.server.with_store(|store| {
        store.refuse(move |object| {
            let is_named = object["apiVersion"] == group.api_version()
                && object["kind"] == "ClusterInformation";
            (is_named && rule.load(Ordering::Relaxed)).then(|| "only calico-node".to_owned())
        });
    });
    is_refused
}

/// Answers each creation and replacement of the ClusterInformation in a group with a failure.
fn fail_information(cluster: &MigratedCluster, group: ApiGroup, code: u16) {
    let collection = cluster_information(group).collection();
    cluster.server.fail(move |request: &ReceivedRequest| {
        let is_write = [Method::POST, Method::PUT].contains(&request.method);
        let is_named = request.uri.path().starts_with(&collection);
        (is_write && is_named).then(|| failure(code, "Failed", "only calico-node"))
    });
}

/// Asserts that the status shows neither a present lock nor blocked pods.
#[track_caller]
pub(super) fn assert_no_lock_is_shown(cluster: &MigratedCluster, case: &str) {
    let status = cluster.status();
    assert!(status["datastoreLockedAt"].is_null(), "{case}: {status}");
    let conditions = status["conditions"].as_array().unwrap();
    let blocked = conditions
        .iter()
        .find(|condition| condition["type"] == "PodsBlocked")
        .unwrap();
    assert_eq!(
        (&blocked["status"], &blocked["reason"]),
        (&json!("False"), &json!("Unlocked")),
        "{case}"
    );
}

/// Returns the number of requests since the last call that have removed the APIService.
fn removals(cluster: &MigratedCluster) -> usize {
    let request = format!("DELETE {}", api_service().url_path());
    cluster
        .server
        .take_log()
        .iter()
        .filter(|line| **line == request)
        .count()
}

pub(super) fn is_aggregated(cluster: &MigratedCluster) -> bool {
    cluster
        .server
        .object(&api_service())
        .is_some_and(|service| service["spec"]["service"].is_object())
}

#[tokio::test(start_paused = true)]
async fn refused_lock_of_v1_is_found_before_the_aggregated_api_server_is_removed() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster.aggregate();
    let is_refused = refuse_information(&cluster, ApiGroup::CrdV1);
    cluster.run_for(4 * MINUTE).await;
    let message = cluster.message();
    let expected = "crd.projectcalico.org/v1 refuses ClusterInformation/default: ";
    assert!(
        message.starts_with(expected) && message.ends_with("only calico-node"),
        "{message}"
    );
    assert_eq!(
        (removals(&cluster), cluster.phase().as_str()),
        (0, "Pending")
    );
    is_refused.store(false, Ordering::Relaxed);
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
}

/// A rule of admission may except dry runs.
#[tokio::test(start_paused = true)]
async fn lock_of_v1_that_is_refused_after_its_dry_run_gives_back_the_aggregated_api_server() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster.aggregate();
    let path = cluster_information(ApiGroup::CrdV1).url_path();
    cluster.server.fail(move |request: &ReceivedRequest| {
        let is_lock = request.method == Method::PUT
            && request.uri.path() == path
            && request.uri.query().is_none();
        is_lock.then(|| failure(403, "Forbidden", "only calico-node"))
    });
    cluster.run_for(4 * MINUTE).await;
    let message = cluster.message();
    assert!(
        message.starts_with("crd.projectcalico.org/v1 refuses ClusterInformation/default: "),
        "{message}"
    );
    assert_eq!((removals(&cluster), is_aggregated(&cluster)), (1, true));
    cluster.server.end_faults();
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
}

/// A tool for deployments may change the object each second, so that the migration cannot write the
/// object.
#[tokio::test(start_paused = true)]
async fn failed_record_of_a_restored_api_service_does_not_shorten_the_pause() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster.aggregate();
    let (mut is_removed, mut conflicts) = (false, 0);
    cluster.server.fail(move |request: &ReceivedRequest| {
        let path = request.uri.path();
        is_removed |= request.method == Method::DELETE && path == api_service().url_path();
        let is_dry_run = request
            .uri
            .query()
            .is_some_and(|query| query.contains("dryRun"));
        if is_dry_run && path.starts_with("/apis/projectcalico.org/v3/") {
            return Some(failure(422, "Invalid", "refused"));
        }
        let is_record = request.method == Method::PUT && path == object().url_path();
        conflicts += u32::from(is_record && is_removed);
        (is_record && is_removed && conflicts < 9).then(|| failure(409, "Conflict", "modified"))
    });
    cluster.run_for(4 * MINUTE).await;
    assert_eq!((removals(&cluster), is_aggregated(&cluster)), (1, true));
    let found = cluster.server.object(&object()).unwrap();
    assert!(
        found["metadata"]["annotations"][SAVED_API_SERVICE].is_null(),
        "{found}"
    );
}

#[tokio::test(start_paused = true)]
async fn v3_of_a_former_migration_behind_an_aggregated_api_server_gives_it_back() {
    for (is_ready, expected) in [
        (true, "two datastores are in use"),
        (false, "is marked and locked"),
    ] {
        let cluster = MigratedCluster::new();
        cluster.server.with_store(|store| {
            let metadata = json!({ "annotations": { MIGRATED_BY: "former" } });
            let former = json!({ "metadata": metadata, "spec": { "datastoreReady": is_ready } });
            store.put(&cluster_information(ApiGroup::V3), former);
        });
        cluster.start();
        cluster.aggregate();
        cluster.run_for(4 * MINUTE).await;
        assert!(
            cluster.message().contains(expected),
            "{}",
            cluster.message()
        );
        assert_eq!(
            (removals(&cluster), is_aggregated(&cluster)),
            (1, true),
            "{expected}"
        );
        assert!(cluster.server.with_store(|store| is_v1_ready(store)));
    }
}

/// The request of a former leader that opens v3 may still be under way.
#[tokio::test(start_paused = true)]
async fn refused_withdrawal_unlocks_v1_only_after_earlier_requests_are_over() {
    let cluster = MigratedCluster::new();
    let requests = cluster.requests();
    assert!(lock::lock(&requests, "u").await.unwrap());
    v3_access::close(&requests, "u").await.unwrap();
    assert!(lock::confirm(&requests).await.unwrap());
    refuse_information(&cluster, ApiGroup::V3);
    let mut withdrawals = Withdrawals::default();
    let early = end_lock(&requests, "u", Copies::Keep, &mut withdrawals).await;
    assert!(matches!(early, Err(Problem::Transient(_))), "{early:?}");
    assert!(cluster.server.with_store(|store| is_v1_locked(store)));
    advance(2 * MINUTE).await;
    // Admission does not refuse the deletion.
    let ended = end_lock(&requests, "u", Copies::Keep, &mut withdrawals).await;
    assert_eq!(ended, Ok(Withdrawn::Closed { existed: false }));
    assert!(cluster.server.with_store(|store| is_v1_ready(store)));
    assert_eq!(
        cluster.server.object(&cluster_information(ApiGroup::V3)),
        None
    );
}

/// The request of a former leader may open v3 during the repetitions of the write.
#[tokio::test(start_paused = true)]
async fn withdrawal_that_fails_for_long_does_not_rely_on_an_early_read_of_v3() {
    let cluster = MigratedCluster::new();
    let requests = cluster.requests();
    assert!(lock::lock(&requests, "u").await.unwrap());
    v3_access::close(&requests, "u").await.unwrap();
    fail_information(&cluster, ApiGroup::V3, 500);
    let mut withdrawals = Withdrawals::default();
    let mut is_transient = Vec::new();
    // The second withdrawal begins before the two minutes have passed, and ends after them.
    for pause in [0, 119, 2] {
        advance(Duration::from_secs(pause)).await;
        let withdrawn = v3_access::withdraw(&requests, &mut withdrawals).await;
        is_transient.push(matches!(withdrawn, Err(Problem::Transient(_))));
    }
    assert_eq!(is_transient, [true, true, false]);
}

/// The pod of an unreachable webhook may wait for an address.
#[tokio::test(start_paused = true)]
async fn v3_that_cannot_be_withdrawn_does_not_keep_v1_locked() {
    for (code, existed, is_deleted) in [
        (403, false, false),
        (403, false, true),
        (403, true, false),
        (403, true, true),
        (500, false, false),
        (500, false, true),
        (500, true, false),
        (500, true, true),
    ] {
        let case = format!("{code} {existed} {is_deleted}");
        let cluster = if existed {
            cluster_with_v3()
        } else {
            MigratedCluster::new()
        };
        cluster.start();
        cluster.run_until(has_last_copy).await;
        fail_information(&cluster, ApiGroup::V3, code);
        if is_deleted {
            cluster.delete().await;
        }
        cluster.run_until(is_v1_ready).await;
        cluster.server.take_log();
        cluster.run_for(10 * MINUTE).await;
        let is_in_v1 = |store: &mut ObjectStore| is_v1_ready(store) && !is_v3_open(store);
        assert!(cluster.server.with_store(is_in_v1), "{case}");
        if existed {
            let message = cluster.message();
            let is_explained = message.contains("the datastore is not locked, but ");
            assert!(
                is_explained && message.ends_with("only calico-node"),
                "{case}: {message}"
            );
            assert_no_lock_is_shown(&cluster, &case);
            let log = cluster.server.take_log();
            let lock = format!("PUT {}", cluster_information(ApiGroup::CrdV1).url_path());
            assert!(!log.contains(&lock), "{case}: v1 is unlocked once");
            let lists = log
                .iter()
                .filter(|line| line.contains("/projectcalico.org/v3/tiers?"))
                .count();
            assert!(
                (1..=12).contains(&lists),
                "{case}: {lists} lists of each kind"
            );
        }
        cluster.server.end_faults();
        cluster
            .run_until(|store| {
                if is_deleted {
                    is_gone(store)
                } else {
                    is_in_phase(store, "Complete")
                }
            })
            .await;
        assert_eq!(cluster.server.violations(), Vec::<String>::new(), "{case}");
        assert_eq!(
            cluster.server.with_store(|store| is_v1_ready(store)),
            is_deleted,
            "{case}"
        );
    }
}

/// Admission forbids the deletion of a copy.
#[tokio::test(start_paused = true)]
async fn status_shows_the_end_of_the_lock_before_the_copies_are_deleted() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster.run_until(has_last_copy).await;
    cluster.server.fail(|request: &ReceivedRequest| {
        let is_deletion =
            request.method == Method::DELETE && request.uri.path().contains("/v3/tiers/");
        is_deletion.then(|| failure(403, "Forbidden", "built-in"))
    });
    cluster.delete().await;
    cluster.run_for(4 * MINUTE).await;
    assert!(
        cluster.message().ends_with("built-in"),
        "{}",
        cluster.message()
    );
    assert!(cluster.server.with_store(|store| is_v1_ready(store)));
    assert_no_lock_is_shown(&cluster, "abort");
}

#[tokio::test(start_paused = true)]
async fn abort_with_a_refused_withdrawal_gives_back_the_aggregated_api_server() {
    let cluster = cluster_with_v3();
    cluster.start();
    cluster.aggregate();
    cluster.run_until(has_last_copy).await;
    fail_information(&cluster, ApiGroup::V3, 403);
    cluster.delete().await;
    cluster.run_until(is_gone).await;
    assert!(is_aggregated(&cluster));
    assert!(
        cluster
            .server
            .with_store(|store| is_v1_ready(store) && !is_v3_open(store) && !has_last_copy(store))
    );
    assert_eq!(cluster.server.violations(), Vec::<String>::new());
}
