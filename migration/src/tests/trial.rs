use std::time::Duration;

use futures::future::join;
use hyper::Method;
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::{DRY_RUN, cluster_information};
use serde_json::{Value, json};

use super::copy::{copy_all, edit, office_in_v1, started};
use super::{change, is_v1_ready, office_in_v3, put_foreign, snapshot};
use crate::copy::{Category, Named, trial};
use crate::report;
use crate::testing::{
    MigratedCluster, ObjectStore, ReceivedRequest, UNKNOWN_FIELD, at, failure, is_in_phase, object,
};

fn names(listed: &[Named]) -> Vec<&str> {
    listed.iter().map(|named| named.object.as_str()).collect()
}

/// Lets v3 refuse a name.
fn refuse(cluster: &MigratedCluster, name: &'static str) {
    cluster.server.with_store(|store| {
        store.refuse(move |object| {
            let is_refused = object["apiVersion"] == "projectcalico.org/v3"
                && object["metadata"]["name"] == name;
            is_refused.then(|| "spec: not allowed".to_owned())
        });
    });
}

/// Returns a cluster with an object of each outcome.
fn cluster_with_each_outcome() -> MigratedCluster {
    let cluster = started();
    put_foreign(&cluster, &office_in_v3());
    refuse(&cluster, "pool");
    cluster.server.with_store(|store| {
        let spec = json!({ "order": 1_000_000, "defaultAction": "Deny" });
        store.put(
            &at(ApiGroup::V3, "Tier", "", "default"),
            json!({ "spec": spec }),
        );
        store.put(&at(ApiGroup::V3, "Tier", "", "own"), json!({ "spec": {} }));
        store.put(
            &at(ApiGroup::V3, "IPAMHandle", "", "own"),
            json!({ "spec": { "handleID": "own" } }),
        );
        let owner = json!({
            "apiVersion": "projectcalico.org/v3", "kind": "Tier", "name": "gone", "uid": "",
        });
        let metadata = json!({ "ownerReferences": [owner] }).to_string();
        let annotations = json!({ "projectcalico.org/metadata": metadata });
        let set = at(ApiGroup::CrdV1, "NetworkSet", "ns", "owned");
        store.put(
            &set,
            json!({ "metadata": { "annotations": annotations }, "spec": {} }),
        );
    });
    cluster
}

#[tokio::test(start_paused = true)]
async fn trial_lists_each_outcome_and_changes_nothing() {
    let cluster = cluster_with_each_outcome();
    let before = snapshot(&cluster);
    let outcome = trial(&cluster.requests(), true).await.unwrap();
    assert_eq!(snapshot(&cluster), before);
    assert_eq!(names(outcome.list(Category::Skipped)), ["Tier/default"]);
    assert_eq!(names(outcome.list(Category::Refused)), ["IPPool/pool"]);
    assert_eq!(
        names(outcome.list(Category::Conflict)),
        ["GlobalNetworkSet/office", "IPAMHandle/own"]
    );
    assert_eq!(names(outcome.list(Category::OnlyInV3)), ["Tier/own"]);
    assert_eq!(
        names(outcome.list(Category::LeftOut)),
        ["NetworkSet/ns/owned"]
    );
    assert_eq!(outcome.total(Category::Copied), 7);
    let log = cluster.server.take_log();
    let is_write = |line: &&String| !line.starts_with("GET") && !line.ends_with("&dryRun=All");
    assert_eq!(log.iter().filter(is_write).count(), 0, "{log:#?}");
}

#[tokio::test(start_paused = true)]
async fn trial_without_v3_reads_v1_only() {
    let cluster = cluster_with_each_outcome();
    cluster.server.with_store(|store| {
        let set = at(ApiGroup::CrdV1, "GlobalNetworkSet", "", "damaged");
        let annotations = json!({ "projectcalico.org/metadata": "{" });
        store.put(&set, json!({ "metadata": { "annotations": annotations } }));
    });
    let outcome = trial(&cluster.requests(), false).await.unwrap();
    assert_eq!(
        names(outcome.list(Category::Refused)),
        ["GlobalNetworkSet/damaged"]
    );
    assert_eq!(
        (
            outcome.total(Category::Copied),
            names(outcome.list(Category::LeftOut))
        ),
        (10, vec!["NetworkSet/ns/owned"])
    );
    let log = cluster.server.take_log();
    assert!(
        log.iter()
            .all(|line| line.starts_with("GET /apis/crd.projectcalico.org/v1/")),
        "{log:#?}"
    );
}

/// The API server checks an object before it looks for the name.
#[tokio::test(start_paused = true)]
async fn trial_checks_objects_that_a_migration_would_replace() {
    let cluster = started();
    copy_all(&cluster).await.unwrap();
    assert_eq!(
        trial(&cluster.requests(), true)
            .await
            .unwrap()
            .total(Category::Skipped),
        9
    );
    cluster.server.with_store(|store| {
        let pool = at(ApiGroup::CrdV1, "IPPool", "", "pool");
        let mut changed = store.get(&pool).unwrap().clone();
        changed["spec"]["blockSize"] = json!(64);
        store.put(&pool, changed);
    });
    let changed = trial(&cluster.requests(), true).await.unwrap();
    assert_eq!(names(changed.list(Category::Copied)), ["IPPool/pool"]);
    refuse(&cluster, "pool");
    let outcome = trial(&cluster.requests(), true).await.unwrap();
    assert_eq!(names(outcome.list(Category::Refused)), ["IPPool/pool"]);
    assert_eq!(
        (
            outcome.total(Category::Copied),
            outcome.total(Category::Skipped)
        ),
        (0, 8)
    );
}

/// A person may add the annotation at any time before the lock.
#[tokio::test(start_paused = true)]
async fn dry_run_requested_during_the_checks_locks_nothing() {
    type Moment = fn(&ObjectStore) -> bool;
    let moments: [(&str, Moment); 2] = [
        ("first report", |store| is_in_phase(store, "Pending")),
        ("finalizer", |store| {
            store
                .get(&object())
                .is_some_and(|found| found["metadata"]["finalizers"].is_array())
        }),
    ];
    for (case, moment) in moments {
        let cluster = MigratedCluster::new();
        cluster.start();
        let request = async {
            cluster.server.reached(moment).await;
            change(&cluster, &object(), |found| {
                found["metadata"]["annotations"][DRY_RUN] = "first".into()
            });
        };
        join(cluster.run_for(Duration::from_secs(60)), request).await;
        assert!(
            cluster.message().starts_with("dry run: "),
            "{case}: {}",
            cluster.message()
        );
        let lock = format!("PUT {}", cluster_information(ApiGroup::CrdV1).url_path());
        assert!(!cluster.server.take_log().contains(&lock), "{case}");
    }
}

/// A webhook can be unreachable for days, and the checks read each object.
#[tokio::test(start_paused = true)]
async fn temporary_failure_of_the_checks_is_followed_by_a_pause_that_depends_on_their_time() {
    for is_dry_run in [false, true] {
        let cluster = started();
        if is_dry_run {
            change(&cluster, &object(), |found| {
                found["metadata"]["annotations"][DRY_RUN] = "first".into()
            });
        }
        cluster.server.fail(|request: &ReceivedRequest| {
            let is_tried =
                request.method == Method::POST && request.uri.path().ends_with("/v3/tiers");
            is_tried.then(|| failure(500, "InternalError", "the webhook is unreachable"))
        });
        cluster.run_for(Duration::from_secs(600)).await;
        let (phase, message) = (cluster.phase(), cluster.message());
        assert!(
            phase == "Pending" && message.ends_with("the webhook is unreachable"),
            "{phase}: {message}"
        );
        let log = cluster.server.take_log();
        let path = "POST /apis/projectcalico.org/v3/tiers?fieldValidation=Strict&dryRun=All";
        let requests = log.iter().filter(|line| *line == path).count();
        // Each of the checks sends the request five times, and takes 1.5 to 3 seconds for that.
        assert!((50..=200).contains(&requests), "{is_dry_run}: {requests}");
    }
}

/// The API server would otherwise drop the field.
#[tokio::test(start_paused = true)]
async fn object_with_a_field_that_v3_lacks_is_refused_before_the_lock() {
    let cluster = started();
    let spec = cluster.server.object(&office_in_v1()).unwrap()["spec"].take();
    edit(
        &cluster,
        &office_in_v1(),
        "/spec",
        json!({ "nets": [], UNKNOWN_FIELD: { "a": "b" } }),
    );
    cluster.run_for(Duration::from_secs(60)).await;
    let (phase, message) = (cluster.phase(), cluster.message());
    let expected =
        "projectcalico.org/v3 refuses 1 object: GlobalNetworkSet/office: strict decoding error: ";
    assert!(
        phase == "Pending" && message.starts_with(expected),
        "{phase}: {message}"
    );
    assert!(cluster.server.with_store(|store| is_v1_ready(store)));
    assert_eq!(cluster.server.object(&office_in_v3()), None);
    edit(&cluster, &office_in_v1(), "/spec", spec);
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn report_is_written_when_it_changes() {
    let cluster = cluster_with_each_outcome();
    let requests = cluster.requests();
    let mut outcome = trial(&requests, true).await.unwrap();
    cluster.server.take_log();
    for _ in 0..2 {
        report::write(&requests, "calico-system", &outcome, true)
            .await
            .unwrap();
    }
    outcome.lists.remove(&Category::Conflict);
    report::write(&requests, "calico-system", &outcome, true)
        .await
        .unwrap();
    let methods: Vec<_> = cluster
        .server
        .take_log()
        .iter()
        .map(|line| line.split(' ').next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(methods, ["GET", "POST", "GET", "GET", "PUT"]);
    let written = cluster.server.with_store(|store| {
        store
            .of_kind("", "configmaps")
            .map(|found| found["data"].clone())
            .collect::<Vec<Value>>()
    });
    assert_eq!(written.len(), 1);
    assert_eq!(written[0]["only-in-v3"], "Tier/own\n");
    assert_eq!(written[0]["refused"], "IPPool/pool: spec: not allowed\n");
}
