//! Another program that restores the APIService of the aggregated API server under the lock.

use std::time::Duration;

use hyper::Method;
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::cluster_information;
use serde_json::json;

use super::{change, has_last_copy, is_gone, is_v1_locked, is_v1_ready};
use crate::marks::ATTEMPT;
use crate::testing::{
    MigratedCluster, ObjectStore, ReceivedRequest, api_service, failure, is_in_phase,
};

const MINUTE: Duration = Duration::from_secs(60);

/// Returns a cluster whose objects are copied under the lock, and whose APIService another program
/// has restored then.
async fn covered() -> MigratedCluster {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster.run_until(has_last_copy).await;
    cluster.aggregate();
    cluster
}

/// Restores the APIService 300 times, each time at once after its removal.
async fn restore_again_and_again(cluster: &MigratedCluster) {
    let is_removed = |store: &ObjectStore| {
        store
            .get(&api_service())
            .is_none_or(|found| found["spec"]["service"].is_null())
    };
    for _ in 0..300 {
        cluster.server.reached(is_removed).await;
        cluster.aggregate();
    }
}

fn refuse_removal(cluster: &MigratedCluster) {
    cluster.server.fail(|request: &ReceivedRequest| {
        let is_removal =
            request.method == Method::DELETE && request.uri.path() == api_service().url_path();
        is_removal.then(|| failure(403, "Forbidden", "managed by another program"))
    });
}

#[tokio::test(start_paused = true)]
async fn api_service_restored_under_the_lock_again_and_again_ends_the_lock() {
    for is_deleted in [false, true] {
        let cluster = covered().await;
        // The aggregated API server serves v3 too.
        cluster.server.fail(|request: &ReceivedRequest| {
            let is_probe = request.method == Method::GET && request.uri.query() == Some("limit=1");
            is_probe.then(|| (200, json!({})))
        });
        if is_deleted {
            cluster.delete().await;
        }
        tokio::select! {
            biased;
            () = restore_again_and_again(&cluster) => panic!("v1 stays locked: {}", cluster.message()),
            _ = cluster.run_until(|store| is_v1_ready(store) && is_in_phase(store, "Pending")) => {}
        }
        let message = cluster.message();
        assert!(
            message.starts_with("another program restores APIService v3.projectcalico.org, "),
            "{message}"
        );
        assert!(
            message.contains("; the datastore is not locked"),
            "{message}"
        );
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
        assert_eq!(cluster.server.violations(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn refused_removal_of_an_api_service_under_the_lock_ends_the_lock() {
    let cluster = covered().await;
    refuse_removal(&cluster);
    cluster.run_for(MINUTE).await;
    assert!(cluster.server.with_store(|store| is_v1_ready(store)));
    let message = cluster.message();
    assert!(
        message.starts_with("managed by another program; the datastore is not locked"),
        "{message}"
    );
    cluster.server.end_faults();
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
    assert_eq!(cluster.server.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn confirmed_lock_with_a_hidden_v3_is_kept_and_explained() {
    let cluster = covered().await;
    change(&cluster, &cluster_information(ApiGroup::CrdV1), |found| {
        found["metadata"]["annotations"][ATTEMPT] = "7".into();
    });
    refuse_removal(&cluster);
    cluster.run_for(10 * MINUTE).await;
    assert!(cluster.server.with_store(|store| is_v1_locked(store)));
    let expected = "APIService v3.projectcalico.org hides whether v3 is open, and v1 stays locked: \
                    managed by another program";
    assert_eq!(cluster.message(), expected);
    cluster.server.end_faults();
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
    assert_eq!(cluster.server.violations(), Vec::<String>::new());
}
