use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::Method;
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::{DATASTORE_MIGRATIONS, DRY_RUN, cluster_information};
use serde_json::{Value, json};

use super::metrics::assert_sample;
use super::{change, is_v1_locked, is_v1_ready, is_v3_open, office_in_v3, put_foreign};
use crate::testing::{
    Ended, MigratedCluster, ObjectStore, ReceivedRequest, api_service, at, definition, failure,
    is_in_phase, object,
};

const MINUTE: Duration = Duration::from_secs(60);

/// Records each phase of the controlling object that a request has stored.
fn record_phases(cluster: &MigratedCluster) -> Arc<Mutex<Vec<String>>> {
    let phases = Arc::<Mutex<Vec<String>>>::default();
    let recorded = phases.clone();
    cluster.server.fail(move |request: &ReceivedRequest| {
        if let Some(phase) = request.body["status"]["phase"].as_str() {
            let mut phases = recorded.lock().unwrap();
            if phases.last().is_none_or(|last| last != phase) {
                phases.push(phase.to_owned());
            }
        }
        None
    });
    phases
}

#[tokio::test(start_paused = true)]
async fn phase_follows_the_marks() {
    let cluster = MigratedCluster::new();
    cluster.start();
    let phases = record_phases(&cluster);
    let processes = cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
    assert_eq!(
        *phases.lock().unwrap(),
        ["Pending", "Migrating", "Converged", "Complete"]
    );
    assert_eq!(processes, 2, "the first one ends as v3 opens");
    assert_eq!(cluster.server.violations(), Vec::<String>::new());
    assert!(
        cluster
            .server
            .with_store(|store| is_v1_locked(store) && is_v3_open(store))
    );
    let status = cluster.status();
    let condition = &status["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!("PodsBlocked"), &json!("False"))
    );
    assert_eq!(condition["reason"], "V3Opened");
    for time in ["datastoreLockedAt", "startedAt", "completedAt"] {
        assert!(status[time].is_string(), "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn cluster_without_the_kind_gets_one_request_per_minute() {
    let cluster = MigratedCluster::new();
    cluster
        .server
        .with_store(|store| store.remove(&definition(&DATASTORE_MIGRATIONS)));
    cluster.run_for(10 * MINUTE + MINUTE / 2).await;
    let mut log = cluster.server.take_log();
    let lock = format!("GET {}", cluster_information(ApiGroup::CrdV1).url_path());
    assert_eq!(log.remove(1), lock, "a new leader looks for a lock once");
    assert_eq!(log, vec!["GET /apis/migration.projectcalico.org"; 11]);
}

#[tokio::test(start_paused = true)]
async fn complete_is_set_in_v3_mode_only() {
    let mut cluster = MigratedCluster::new();
    cluster.start();
    let ended = cluster.run_once(|_| false).await;
    assert!(
        matches!(ended, Ended::ByItself(Some(ApiGroup::V3))),
        "{ended:?}"
    );
    assert_eq!(
        (cluster.phase().as_str(), cluster.used_group()),
        ("Converged", ApiGroup::V3)
    );

    // A process that is configured for v1 does not end again and again.
    cluster.configured = Some(ApiGroup::CrdV1);
    cluster.run_for(10 * MINUTE).await;
    assert_eq!(cluster.phase(), "Converged");
    assert!(
        cluster.message().contains("CALICO_API_GROUP"),
        "{}",
        cluster.message()
    );
    cluster.configured = None;
    assert_eq!(
        cluster
            .run_until(|store| is_in_phase(store, "Complete"))
            .await,
        1
    );
}

#[tokio::test(start_paused = true)]
async fn lock_of_another_program_is_neither_used_nor_ended() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster.server.with_store(|store| {
        store.put(
            &cluster_information(ApiGroup::CrdV1),
            json!({ "spec": { "datastoreReady": false } }),
        );
    });
    cluster.run_for(10 * MINUTE).await;
    let marks = cluster
        .server
        .object(&cluster_information(ApiGroup::CrdV1))
        .unwrap()["metadata"]["annotations"]
        .clone();
    assert_eq!((cluster.phase().as_str(), marks), ("Pending", Value::Null));
}

#[tokio::test(start_paused = true)]
async fn conflict_before_the_lock_locks_nothing() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster.aggregate();
    put_foreign(&cluster, &office_in_v3());
    cluster
        .run_until(|store| is_in_phase(store, "WaitingForConflictResolution"))
        .await;
    assert!(
        cluster.message().ends_with("; the datastore is not locked"),
        "{}",
        cluster.message()
    );
    assert_eq!(
        cluster.status()["conditions"][0]["reason"],
        "ResourceMismatch"
    );
    let service = cluster.server.object(&api_service()).unwrap();
    assert!(service["spec"]["service"].is_object(), "{service}");
    assert_eq!(lock_writes(&cluster), 0);

    cluster
        .server
        .with_store(|store| store.remove(&office_in_v3()));
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
    assert_eq!(
        lock_writes(&cluster),
        2,
        "the lock, and its confirmation before v3 opens"
    );
}

/// Admission lets another account write the ClusterInformation of v3.
#[tokio::test(start_paused = true)]
async fn refused_cluster_information_of_v3_is_found_before_the_lock() {
    let cluster = MigratedCluster::new();
    let is_refused = Arc::new(AtomicBool::new(true));
    let rule = is_refused.clone();
    cluster.server.with_store(|store| {
        store.refuse(move |object| {
            let is_v3 = object["apiVersion"] == "projectcalico.org/v3"
                && object["kind"] == "ClusterInformation";
            (is_v3 && rule.load(Ordering::Relaxed)).then(|| "only calico-node".to_owned())
        });
    });
    cluster.start();
    cluster.run_for(MINUTE).await;
    assert_eq!(cluster.phase(), "Pending");
    let expected = "projectcalico.org/v3 refuses ClusterInformation/default: ";
    assert!(
        cluster.message().starts_with(expected) && cluster.message().ends_with("only calico-node"),
        "{}",
        cluster.message()
    );
    assert_eq!(lock_writes(&cluster), 0);
    is_refused.store(false, Ordering::Relaxed);
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
}

/// Returns the number of requests since the last call that have written the ClusterInformation of
/// v1.
fn lock_writes(cluster: &MigratedCluster) -> usize {
    let path = format!("PUT {}", cluster_information(ApiGroup::CrdV1).url_path());
    cluster
        .server
        .take_log()
        .iter()
        .filter(|line| **line == path)
        .count()
}

/// Upstream counts a failed read as "no conflict" (MB-6).
#[tokio::test(start_paused = true)]
async fn failed_read_of_a_conflicting_object_keeps_the_phase_and_locks_nothing() {
    let cluster = MigratedCluster::new();
    cluster.start();
    put_foreign(&cluster, &office_in_v3());
    cluster
        .run_until(|store| is_in_phase(store, "WaitingForConflictResolution"))
        .await;
    let path = office_in_v3().url_path();
    cluster.server.fail(move |request: &ReceivedRequest| {
        let is_read = request.method == Method::GET && request.uri.path() == path;
        is_read.then(|| failure(500, "InternalError", "etcd has no leader"))
    });
    cluster.run_for(10 * MINUTE).await;
    let expected = ("WaitingForConflictResolution", "etcd has no leader");
    assert_eq!(
        (cluster.phase().as_str(), cluster.message().as_str()),
        expected
    );
    assert_eq!(lock_writes(&cluster), 0);

    cluster.server.end_faults();
    cluster
        .server
        .with_store(|store| store.remove(&office_in_v3()));
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn conflict_under_the_lock_unlocks_v1() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster
        .run_until(|store| is_in_phase(store, "Migrating"))
        .await;
    let office = office_in_v3();
    cluster.server.with_store(|store| store.remove(&office));
    put_foreign(&cluster, &office);
    cluster
        .run_until(|store| is_v1_ready(store) && is_in_phase(store, "WaitingForConflictResolution"))
        .await;
    assert_eq!(cluster.server.violations(), Vec::<String>::new());
    assert_eq!(cluster.spec_of_information(ApiGroup::V3), Value::Null);
    assert_eq!(cluster.status()["datastoreLockedAt"], Value::Null);
    assert_eq!(
        cluster.server.object(&office).unwrap()["spec"],
        json!({ "nets": ["203.0.113.0/24"] })
    );
    assert_sample(
        &cluster,
        "calico_migration_resources_total{kind=\"GlobalNetworkSet\",outcome=\"conflict\"} 1",
    );

    cluster.server.with_store(|store| store.remove(&office));
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
}

/// Shows SEC-38.
#[tokio::test(start_paused = true)]
async fn refusal_of_v3_is_found_before_the_lock() {
    for aggregated in [false, true] {
        let cluster = MigratedCluster::new();
        cluster.start();
        if aggregated {
            cluster.aggregate();
        }
        cluster.server.with_store(|store| {
            store.refuse(|object| {
                let is_refused = object["apiVersion"] == "projectcalico.org/v3"
                    && object["metadata"]["name"] == "office";
                is_refused.then(|| "spec.nets: too few".to_owned())
            });
        });
        cluster.run_for(4 * MINUTE).await;
        let expected = "projectcalico.org/v3 refuses 1 object: GlobalNetworkSet/office: ";
        assert!(
            cluster.message().starts_with(expected) && cluster.message().contains("too few"),
            "{}",
            cluster.message()
        );
        assert_eq!(
            (cluster.phase().as_str(), lock_writes(&cluster)),
            ("Pending", 0)
        );
        let service = cluster.server.object(&api_service());
        assert_eq!(
            service.is_some_and(|service| service["spec"]["service"].is_object()),
            aggregated
        );
    }
}

#[tokio::test(start_paused = true)]
async fn failure_of_the_trial_gives_back_the_aggregated_api_server() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster.aggregate();
    cluster.server.fail(|request: &ReceivedRequest| {
        let is_dry_run = request
            .uri
            .query()
            .is_some_and(|query| query.contains("dryRun"));
        let is_tried = is_dry_run
            && request
                .uri
                .path()
                .starts_with("/apis/projectcalico.org/v3/");
        is_tried.then(|| failure(500, "InternalError", "the webhook is unreachable"))
    });
    cluster.run_for(4 * MINUTE).await;
    let log = cluster.server.take_log();
    let path = format!("DELETE {}", api_service().url_path());
    assert_eq!(
        log.iter().filter(|line| **line == path).count(),
        1,
        "{log:#?}"
    );
    let service = cluster.server.object(&api_service()).unwrap();
    assert!(service["spec"]["service"].is_object(), "{service}");
    assert!(
        cluster.message().contains("the webhook is unreachable"),
        "{}",
        cluster.message()
    );

    cluster.server.end_faults();
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
}

/// The checks read each object, and a person may need days for a correction.
#[tokio::test(start_paused = true)]
async fn slow_checks_are_followed_by_long_pauses() {
    let cluster = MigratedCluster::new();
    cluster.start();
    put_foreign(&cluster, &office_in_v3());
    // Each check meets one failure, and takes at least the time of one pause.
    let mut requests = 0;
    cluster.server.fail(move |request: &ReceivedRequest| {
        if !request.uri.path().ends_with("/v1/tiers") {
            return None;
        }
        requests += 1;
        (requests % 5 != 0).then(|| failure(503, "ServiceUnavailable", "busy"))
    });
    cluster.run_for(10 * MINUTE).await;
    let log = cluster.server.take_log();
    let path = "POST /apis/projectcalico.org/v3/tiers?fieldValidation=Strict&dryRun=All";
    let checks = log.iter().filter(|line| *line == path).count();
    assert!((2..25).contains(&checks), "{checks}");
}

/// A process that ends again and again, each time before the five minutes, would never unlock v1.
#[tokio::test(start_paused = true)]
async fn lock_of_half_an_hour_is_ended_by_the_next_process() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster
        .run_until(|store| is_in_phase(store, "Migrating"))
        .await;
    cluster.server.with_store(|store| {
        let mut found = store.get(&object()).unwrap().clone();
        found["status"]["datastoreLockedAt"] = json!("2020-01-01T00:00:00Z");
        store.put(&object(), found);
    });
    cluster
        .run_until(|store| is_v1_ready(store) && is_in_phase(store, "Pending"))
        .await;
    assert!(
        cluster
            .message()
            .starts_with("v1 was locked for half an hour"),
        "{}",
        cluster.message()
    );
    assert_eq!(cluster.status()["datastoreLockedAt"], Value::Null);
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn five_minutes_without_progress_unlock_v1() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster.server.fail(|request: &ReceivedRequest| {
        let is_copied =
            request.method == Method::POST && request.uri.path().ends_with("/v3/ipamblocks");
        let is_dry_run = request
            .uri
            .query()
            .is_some_and(|query| query.contains("dryRun"));
        (is_copied && !is_dry_run)
            .then(|| failure(500, "InternalError", "the webhook is unreachable"))
    });
    cluster.run_until(is_v1_locked).await;
    cluster
        .run_until(|store| is_v1_ready(store) && is_in_phase(store, "Pending"))
        .await;
    let message = cluster.message();
    assert!(
        message.starts_with("no object could be copied for five minutes"),
        "{message}"
    );
    assert!(
        message.ends_with("the datastore is not locked, and the next attempt begins in 5 minutes"),
        "{message}"
    );
    assert_eq!(cluster.spec_of_information(ApiGroup::V3), Value::Null);

    cluster.server.end_faults();
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
    assert_eq!(cluster.server.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn dry_run_locks_nothing_and_is_made_once_for_each_text() {
    let cluster = MigratedCluster::new();
    cluster.start();
    let annotate = |text: Value| {
        cluster.server.with_store(|store: &mut ObjectStore| {
            let mut found = store.get(&object()).unwrap().clone();
            found["metadata"]["annotations"][DRY_RUN] = text;
            store.put(&object(), found);
        });
    };
    annotate(json!("first"));
    let before = cluster.server.with_store(|store| store.all().count());
    cluster.run_for(10 * MINUTE).await;
    assert!(
        cluster.message().starts_with("dry run: "),
        "{}",
        cluster.message()
    );
    assert!(
        cluster.server.with_store(|store| store.all().count()) <= before + 1,
        "only a ConfigMap is new"
    );
    let log = cluster.server.take_log();
    let count = |part: &str| {
        log.iter()
            .filter(|line| line.starts_with("PUT") && line.contains(part))
            .count()
    };
    assert_eq!(
        (count("/status"), count("/clusterinformations/")),
        (1, 0),
        "{log:?}"
    );
    annotate(Value::Null);
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
}

/// Replaces the definition of the controlling object by one that serves v1beta1 alone.
fn serve_v1beta1(cluster: &MigratedCluster) {
    change(cluster, &definition(&DATASTORE_MIGRATIONS), |found| {
        found["spec"]["versions"][0]["name"] = json!("v1beta1")
    });
}

#[tokio::test(start_paused = true)]
async fn old_definition_starts_no_migration_but_is_read() {
    let cluster = MigratedCluster::new();
    cluster.start();
    serve_v1beta1(&cluster);
    cluster.run_for(5 * MINUTE).await;
    let log = cluster.server.take_log();
    assert!(
        log.iter()
            .any(|line| line.contains("/v1beta1/datastoremigrations/v1-to-v3")),
        "{log:?}"
    );
    assert_eq!(cluster.phase(), "Failed");
    assert!(
        cluster.server.with_store(|store| is_v1_ready(store)),
        "{log:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn migration_under_way_continues_with_an_old_definition() {
    let stages: [fn(&ObjectStore) -> bool; 3] = [
        |store| {
            store
                .get(&object())
                .is_some_and(|found| found["metadata"]["finalizers"].is_array())
        },
        |store| is_in_phase(store, "Migrating"),
        |store| is_in_phase(store, "Converged"),
    ];
    for has_begun in stages {
        let cluster = MigratedCluster::new();
        cluster.start();
        cluster.run_until(has_begun).await;
        serve_v1beta1(&cluster);
        cluster.server.take_log();
        cluster
            .run_until(|store| is_in_phase(store, "Complete"))
            .await;
        let log = cluster.server.take_log();
        assert!(
            !log.iter()
                .any(|line| line.contains("/v1/datastoremigrations/")),
            "{log:?}"
        );
        assert_eq!(cluster.server.violations(), Vec::<String>::new());
    }
}

/// Returns the last word of the path of each creation in v3, each word once.
fn created_in_v3(cluster: &MigratedCluster) -> Vec<String> {
    let log = cluster.server.take_log();
    let paths = log
        .iter()
        .filter_map(|line| line.strip_prefix("POST /apis/projectcalico.org/v3/"));
    let stored = paths.filter(|path| !path.contains("dryRun"));
    let mut plurals: Vec<String> = stored
        .filter_map(|path| Some(path.split('?').next()?.rsplit('/').next()?.to_owned()))
        .collect();
    plurals.dedup();
    plurals
}

#[tokio::test(start_paused = true)]
async fn kinds_are_copied_in_upstreams_order_after_v3_is_locked() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
    let expected = [
        "clusterinformations",
        "tiers",
        "ippools",
        "globalnetworksets",
        "networksets",
        "blockaffinities",
        "ipamblocks",
        "ipamconfigurations",
        "ipamhandles",
    ];
    assert_eq!(created_in_v3(&cluster), expected);
}

#[tokio::test(start_paused = true)]
async fn each_object_of_v1_has_a_copy_with_its_lower_case_name() {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
    let handle = cluster
        .server
        .object(&at(ApiGroup::V3, "IPAMHandle", "", "lb-mixed"))
        .unwrap();
    assert_eq!(handle["spec"]["handleID"], "lb-Mixed");
    for (kind, namespace, name) in [
        ("Tier", "", "default"),
        ("IPPool", "", "pool"),
        ("NetworkSet", "ns", "partners"),
        ("IPAMBlock", "", "10-0-0-0-26"),
        ("BlockAffinity", "", "node-1-10-0-0-0-26"),
    ] {
        assert!(
            cluster
                .server
                .object(&at(ApiGroup::V3, kind, namespace, name))
                .is_some(),
            "{kind}"
        );
    }
}
