use std::time::Duration;

use hyper::Method;

use super::{is_v1_locked, is_v1_ready};
use crate::testing::{MigratedCluster, ReceivedRequest, failure, is_in_phase};

const FIVE_MINUTES: Duration = Duration::from_secs(300);

/// Asserts that a line of the metrics exists.
#[track_caller]
pub(super) fn assert_sample(cluster: &MigratedCluster, expected: &str) {
    let text = cluster.metrics.text().unwrap();
    let found: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("calico_migration_"))
        .collect();
    assert!(found.contains(&expected), "{expected}: {found:#?}");
}

#[tokio::test(start_paused = true)]
async fn migration_adds_to_the_metrics_of_objects_and_durations() {
    let cluster = MigratedCluster::new();
    cluster.start();
    // The process that opens v3 ends, and its successor sets the phase `Complete`.
    for _ in 0..2 {
        cluster.run_for(FIVE_MINUTES).await;
    }
    assert_eq!(cluster.phase(), "Complete");
    for expected in [
        "calico_migration_resources_total{kind=\"Tier\",outcome=\"migrated\"} 1",
        "calico_migration_resources_total{kind=\"IPAMHandle\",outcome=\"migrated\"} 2",
        "calico_migration_resources_total{kind=\"IPAMHandle\",outcome=\"skipped\"} 0",
        "calico_migration_resource_errors_total{kind=\"IPAMHandle\"} 0",
        "calico_migration_type_duration_seconds_count{kind=\"IPAMHandle\"} 1",
        "calico_migration_type_duration_seconds_count{kind=\"BGPPeer\"} 1",
        "calico_migration_duration_seconds_count 1",
        "calico_migration_late_writes 0",
    ] {
        assert_sample(&cluster, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn object_that_v3_refuses_under_the_lock_adds_to_the_errors() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster.server.fail(|request: &ReceivedRequest| {
        let is_copied =
            request.method == Method::POST && request.uri.path().ends_with("/v3/globalnetworksets");
        let is_dry_run = request
            .uri
            .query()
            .is_some_and(|query| query.contains("dryRun"));
        (is_copied && !is_dry_run).then(|| failure(422, "Invalid", "spec.nets: too few"))
    });
    cluster.run_until(is_v1_locked).await;
    cluster
        .run_until(|store| is_v1_ready(store) && is_in_phase(store, "Pending"))
        .await;
    let expected =
        "projectcalico.org/v3 refuses 1 object: GlobalNetworkSet/office: spec.nets: too few";
    assert!(
        cluster.message().starts_with(expected),
        "{}",
        cluster.message()
    );
    assert_sample(
        &cluster,
        "calico_migration_resource_errors_total{kind=\"GlobalNetworkSet\"} 1",
    );
    assert_sample(
        &cluster,
        "calico_migration_resource_errors_total{kind=\"Tier\"} 0",
    );
    assert_sample(&cluster, "calico_migration_duration_seconds_count 0");
}
