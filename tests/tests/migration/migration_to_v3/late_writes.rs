//! A write to v1 after v3 is open, by a program that does not observe the lock, on an API server
//! without the seal.

use integration_tests::controllers::{METRICS_PORT, metrics};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use crate::migration_to_v3::migrated_cluster::{MigratedCluster, at, create, on};
use crate::migration_to_v3::objects::handle;

/// Shows SEC-74.
#[on(kubernetes_v1)]
fn late_write_is_reported(cluster: &MigratedCluster<'_>) {
    let (admin, migration) = (cluster.servers.admin(), cluster.migration);
    let mut process = cluster.start("one");
    migration.create(None);
    process.end_and_restart();
    // During the wait before the first copy, which exists for such writes.
    cluster.await_lock(&process);
    create(
        admin,
        &at(ApiGroup::CrdV1, "IPAMHandle", None, "early"),
        json!({}),
        &handle("early"),
    );
    migration.await_open(&mut process);
    assert!(!cluster.in_v3("IPAMHandle", None, "early").is_null());
    create(
        admin,
        &at(ApiGroup::CrdV1, "IPAMHandle", None, "late"),
        json!({}),
        &handle("late"),
    );

    process.restart().unwrap();
    migration.await_phase(&process, "Complete");
    process
        .await_log("written in v1 after v3 opened", 1)
        .unwrap();
    assert!(
        process.log().unwrap().contains("IPAMHandle/late"),
        "{}",
        process.log().unwrap()
    );
    migration.until(&process, "the metric counts the write", || {
        let page = metrics(METRICS_PORT).unwrap_or_default();
        page.lines()
            .any(|line| line == "calico_migration_late_writes 1")
    });
    assert_eq!(cluster.in_v3("IPAMHandle", None, "late"), Value::Null);
}
