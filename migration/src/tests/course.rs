use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::Method;
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::{DATASTORE_MIGRATIONS, cluster_information};
use serde_json::json;
use tokio::time::Instant;

use super::{change, is_gone, is_v1_locked, is_v1_ready};
use crate::testing::{MigratedCluster, ReceivedRequest, definition, is_in_phase, object};

const MINUTE: Duration = Duration::from_secs(60);

/// The times of two requests, under the paused clock.
#[derive(Default)]
struct Times {
    locked: Option<Instant>,
    created: Option<Instant>,
}

/// Records the time of the lock of v1, and that of the first creation in v3.
fn record_times(cluster: &MigratedCluster) -> Arc<Mutex<Times>> {
    let times = Arc::<Mutex<Times>>::default();
    let recorded = times.clone();
    let information = cluster_information(ApiGroup::CrdV1).url_path();
    cluster.server.fail(move |request: &ReceivedRequest| {
        let (path, mut times) = (request.uri.path(), recorded.lock().unwrap());
        if request
            .uri
            .query()
            .is_some_and(|query| query.contains("dryRun"))
        {
            return None;
        }
        if request.method == Method::PUT
            && path == information
            && request.body["spec"]["datastoreReady"] == false
        {
            times.locked.get_or_insert_with(Instant::now);
        }
        if request.method == Method::POST && path.starts_with("/apis/projectcalico.org/v3/") {
            times.created.get_or_insert_with(Instant::now);
        }
        None
    });
    times
}

/// An ADD or DEL that has read an unlocked v1 may write for some seconds (MIG-57).
#[tokio::test(start_paused = true)]
async fn first_object_of_v3_is_created_ten_seconds_after_the_lock() {
    for is_restarted in [false, true] {
        let cluster = MigratedCluster::new();
        let times = record_times(&cluster);
        cluster.start();
        if is_restarted {
            cluster.run_until(is_v1_locked).await;
        }
        cluster
            .run_until(|store| is_in_phase(store, "Complete"))
            .await;
        let times = times.lock().unwrap();
        let waited = times.created.unwrap() - times.locked.unwrap();
        assert!(
            waited >= Duration::from_secs(10),
            "restarted: {is_restarted}: {waited:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn failed_migration_that_is_deleted_and_created_again_reaches_complete() {
    let cluster = MigratedCluster::new();
    let serve = |version: &str| {
        change(&cluster, &definition(&DATASTORE_MIGRATIONS), |found| {
            found["spec"]["versions"][0]["name"] = version.into()
        });
    };
    serve("v1beta1");
    cluster.start();
    cluster
        .run_until(|store| is_in_phase(store, "Failed"))
        .await;
    let failed = cluster.server.object(&object()).unwrap();

    // The correction alone starts nothing.
    serve("v1");
    cluster.run_for(5 * MINUTE).await;
    assert_eq!(cluster.server.object(&object()), Some(failed));
    assert!(cluster.server.with_store(|store| is_v1_ready(store)));

    cluster.delete().await;
    cluster.run_until(is_gone).await;
    cluster.start();
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
    assert_eq!(
        cluster.status()["conditions"][0]["reason"],
        json!("V3Opened")
    );
    assert_eq!(cluster.server.violations(), Vec::<String>::new());
}
