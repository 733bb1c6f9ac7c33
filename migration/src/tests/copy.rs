use std::time::Duration;

use hyper::Method;
use libcalico::kubernetes::{ApiGroup, Location};
use libcalico::migration::{DATASTORE_MIGRATIONS, MIGRATED_BY, SOURCE_REVISION, definition_name};
use serde_json::{Value, json};
use tokio::time::advance;

use super::{is_v1_locked, is_v1_ready, is_v3_open, office_in_v3, put_foreign};
use crate::attempts::LockTimer;
use crate::copy::{Category, Copier, Outcome, delete_copy};
use crate::late_writes::LateWrites;
use crate::object::Control;
use crate::requests::Problem;
use crate::testing::{
    DEFINITIONS, MigratedCluster, ReceivedRequest, UNKNOWN_FIELD, at, failure, is_in_phase, object,
};

/// Returns a cluster whose migration has an object.
pub(super) fn started() -> MigratedCluster {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster
}

pub(super) async fn control(cluster: &MigratedCluster) -> Control {
    Control::read(&cluster.requests(), DATASTORE_MIGRATIONS)
        .await
        .unwrap()
        .unwrap()
}

/// Makes a pass over all objects, as a process does under the lock.
pub(super) async fn copy_all(cluster: &MigratedCluster) -> Result<Outcome, Problem> {
    let (requests, mut control, timer) = (
        cluster.requests(),
        control(cluster).await,
        LockTimer::start(),
    );
    Copier::new(&requests, &mut control, &timer).all().await
}

/// Returns the numbers of objects that were copied, were in v3, are in conflict, and were refused.
fn numbers(outcome: &Outcome) -> (usize, usize, usize, usize) {
    let [copied, skipped, conflicts, refused] = [
        Category::Copied,
        Category::Skipped,
        Category::Conflict,
        Category::Refused,
    ]
    .map(|each| outcome.total(each));
    (copied, skipped, conflicts, refused)
}

pub(super) fn put(cluster: &MigratedCluster, at: &Location, object: Value) -> Value {
    cluster.server.with_store(|store| store.put(at, object))
}

/// Replaces a field of an object, in the way of a program that keeps the rest.
pub(super) fn edit(cluster: &MigratedCluster, at: &Location, pointer: &str, value: Value) {
    let mut object = cluster.server.object(at).unwrap();
    *object.pointer_mut(pointer).unwrap() = value;
    put(cluster, at, object);
}

pub(super) fn office_in_v1() -> Location {
    at(ApiGroup::CrdV1, "GlobalNetworkSet", "", "office")
}

pub(super) fn block(group: ApiGroup) -> Location {
    at(group, "IPAMBlock", "", "10-0-0-0-26")
}

pub(super) fn handle(group: ApiGroup, name: &str) -> Location {
    at(group, "IPAMHandle", "", name)
}

#[tokio::test(start_paused = true)]
async fn pass_marks_the_copies_and_shows_its_progress() {
    let cluster = started();
    let outcome = copy_all(&cluster).await.unwrap();
    assert_eq!(numbers(&outcome), (9, 0, 0, 0), "{outcome:?}");
    let (source, copy) = (
        cluster.server.object(&office_in_v1()).unwrap(),
        cluster.server.object(&office_in_v3()).unwrap(),
    );
    let expected = json!({
        MIGRATED_BY: cluster.server.object(&object()).unwrap()["metadata"]["uid"],
        SOURCE_REVISION: source["metadata"]["resourceVersion"],
    });
    assert_eq!(
        (&copy["metadata"]["annotations"], &copy["spec"]),
        (&expected, &source["spec"])
    );
    let progress = &cluster.status()["progress"];
    assert_eq!(
        (&progress["total"], &progress["migrated"]),
        (&json!(9), &json!(9))
    );
    assert_eq!(
        (&progress["typeProgress"], &progress["currentType"]),
        (&json!("21 / 21"), &Value::Null)
    );
    assert_eq!(progress["typeDetails"].as_array().map(Vec::len), Some(21));
    assert_eq!(
        progress["typeDetails"][0],
        json!({ "kind": "Tier", "migrated": 1, "skipped": 0, "conflicts": 0 })
    );
}

/// A person or a tool for deployments may change the object all the time.
#[tokio::test(start_paused = true)]
async fn pass_without_a_stored_progress_copies_all_objects() {
    let cluster = started();
    cluster.server.fail(|request: &ReceivedRequest| {
        request
            .uri
            .path()
            .ends_with("/v1-to-v3/status")
            .then(|| failure(409, "Conflict", "modified"))
    });
    assert_eq!(numbers(&copy_all(&cluster).await.unwrap()), (9, 0, 0, 0));
    assert_eq!(cluster.status(), Value::Null);
}

#[tokio::test(start_paused = true)]
async fn migration_beside_an_editor_of_its_object_completes() {
    let cluster = started();
    let mut writes = 0;
    cluster.server.fail(move |request: &ReceivedRequest| {
        let is_written = request.method == Method::PUT
            && request.uri.path().contains("/datastoremigrations/v1-to-v3");
        writes += u32::from(is_written);
        (is_written && writes % 4 != 0).then(|| failure(409, "Conflict", "modified"))
    });
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
    assert_eq!(cluster.server.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn second_pass_skips_the_copies() {
    let cluster = started();
    copy_all(&cluster).await.unwrap();
    cluster.server.take_log();
    let outcome = copy_all(&cluster).await.unwrap();
    assert_eq!(numbers(&outcome), (0, 9, 0, 0));
    let log = cluster.server.take_log();
    let writes = |line: &&String| {
        line.starts_with("PUT") && !line.ends_with("/status") || line.starts_with("DELETE")
    };
    assert_eq!(log.iter().filter(writes).count(), 0, "{log:#?}");
    assert_eq!(
        log.iter().filter(|line| line.starts_with("POST")).count(),
        9
    );
}

#[tokio::test(start_paused = true)]
async fn stale_copy_is_replaced_and_an_edited_one_is_a_conflict() {
    let cluster = started();
    copy_all(&cluster).await.unwrap();
    edit(
        &cluster,
        &office_in_v1(),
        "/spec/nets",
        json!(["192.0.2.128/25"]),
    );
    assert_eq!(numbers(&copy_all(&cluster).await.unwrap()), (1, 8, 0, 0));
    let copy = cluster.server.object(&office_in_v3()).unwrap();
    assert_eq!(copy["spec"]["nets"], json!(["192.0.2.128/25"]));

    edit(
        &cluster,
        &office_in_v3(),
        "/spec/nets",
        json!(["203.0.113.0/24"]),
    );
    let outcome = copy_all(&cluster).await.unwrap();
    assert_eq!(numbers(&outcome), (0, 8, 1, 0));
    assert_eq!(
        outcome.list(Category::Conflict)[0].object,
        "GlobalNetworkSet/office"
    );
    assert!(
        outcome.list(Category::Conflict)[0]
            .reason
            .contains("edited"),
        "{outcome:?}"
    );
    // The deletion of the copy ends the conflict.
    cluster
        .server
        .with_store(|store| store.remove(&office_in_v3()));
    assert_eq!(numbers(&copy_all(&cluster).await.unwrap()), (1, 8, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn object_with_a_field_that_v3_lacks_is_neither_copied_nor_replaces_its_copy() {
    for is_copied_before in [false, true] {
        let cluster = started();
        if is_copied_before {
            copy_all(&cluster).await.unwrap();
        }
        let copy = cluster.server.object(&office_in_v3());
        edit(
            &cluster,
            &office_in_v1(),
            "/spec",
            json!({ "nets": [], UNKNOWN_FIELD: { "a": "b" } }),
        );
        let outcome = copy_all(&cluster).await.unwrap();
        assert!(
            outcome.list(Category::Refused)[0]
                .reason
                .contains("unknown field"),
            "{outcome:?}"
        );
        assert_eq!(
            outcome.list(Category::Refused)[0].object,
            "GlobalNetworkSet/office"
        );
        assert_eq!(cluster.server.object(&office_in_v3()), copy);
    }
}

#[tokio::test(start_paused = true)]
async fn object_of_another_program_is_kept() {
    let cluster = started();
    put_foreign(&cluster, &office_in_v3());
    let same = at(ApiGroup::V3, "NetworkSet", "ns", "partners");
    let kept = put(
        &cluster,
        &same,
        json!({ "spec": { "nets": ["198.51.100.0/24"] } }),
    );
    let outcome = copy_all(&cluster).await.unwrap();
    assert_eq!(numbers(&outcome), (7, 1, 1, 0));
    assert_eq!(
        outcome.list(Category::Conflict)[0].reason,
        "v3 resource exists with different spec"
    );
    assert_eq!(cluster.server.object(&same), Some(kept));
}

/// The API server would remove the object as soon as its finalizers are gone.
#[tokio::test(start_paused = true)]
async fn object_that_is_being_deleted_in_v3_is_a_conflict() {
    let cluster = started();
    copy_all(&cluster).await.unwrap();
    let mut ending = cluster.server.object(&office_in_v3()).unwrap();
    ending["metadata"]["finalizers"] = json!(["f"]);
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    put(&cluster, &office_in_v3(), ending);
    assert_eq!(numbers(&copy_all(&cluster).await.unwrap()), (0, 8, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn equal_object_whose_creation_v3_would_refuse_is_skipped() {
    let cluster = started();
    copy_all(&cluster).await.unwrap();
    cluster.server.with_store(|store| {
        store.refuse(|object| {
            let is_refused = object["apiVersion"] == "projectcalico.org/v3"
                && object["metadata"]["name"] == "office";
            is_refused.then(|| "spec.nets: no longer allowed".to_owned())
        });
    });
    assert_eq!(numbers(&copy_all(&cluster).await.unwrap()), (0, 9, 0, 0));
    cluster
        .server
        .with_store(|store| store.remove(&office_in_v3()));
    let outcome = copy_all(&cluster).await.unwrap();
    assert_eq!(numbers(&outcome), (0, 8, 0, 1));
    assert!(
        outcome.list(Category::Refused)[0]
            .reason
            .contains("no longer allowed"),
        "{outcome:?}"
    );
}

/// Shows SEC-38.
#[tokio::test(start_paused = true)]
async fn two_objects_with_one_name_in_v3_are_refused() {
    let cluster = started();
    let second = at(ApiGroup::CrdV1, "IPAMBlock", "", "10-0-0-0-26-again");
    let spec = cluster.server.object(&block(ApiGroup::CrdV1)).unwrap()["spec"].clone();
    put(&cluster, &second, json!({ "spec": spec }));
    let outcome = copy_all(&cluster).await.unwrap();
    assert_eq!(numbers(&outcome), (9, 0, 0, 1));
    assert_eq!(
        outcome.list(Category::Refused)[0].object,
        "IPAMBlock/10-0-0-0-26-again"
    );
    assert!(
        outcome.list(Category::Refused)[0]
            .reason
            .starts_with("10-0-0-0-26 has the same name in v3"),
        "{outcome:?}"
    );
}

/// The copy of an object without a name in v3 is no copy without a source.
#[tokio::test(start_paused = true)]
async fn object_that_cannot_be_converted_is_refused_and_its_copy_stays() {
    let cluster = started();
    copy_all(&cluster).await.unwrap();
    edit(
        &cluster,
        &office_in_v1(),
        "/metadata",
        json!({ "name": "office", "annotations": {
        "projectcalico.org/metadata": "{",
    } }),
    );
    let outcome = copy_all(&cluster).await.unwrap();
    assert_eq!(numbers(&outcome), (0, 8, 0, 1));
    assert!(cluster.server.object(&office_in_v3()).is_some());
}

fn many_sets(cluster: &MigratedCluster, number: usize) {
    for index in 0..number {
        let set = at(
            ApiGroup::CrdV1,
            "GlobalNetworkSet",
            "",
            &format!("set-{index}"),
        );
        put(cluster, &set, json!({ "spec": { "nets": [] } }));
    }
}

#[tokio::test(start_paused = true)]
async fn list_that_expires_begins_anew() {
    let cluster = started();
    many_sets(&cluster, 600);
    let mut expirations = 0;
    cluster.server.fail(move |request: &ReceivedRequest| {
        let is_second_page = request.uri.path().ends_with("v1/globalnetworksets")
            && request
                .uri
                .query()
                .is_some_and(|query| query.ends_with("continue=100"));
        let expires = is_second_page && expirations < 1;
        expirations += usize::from(expires);
        expires.then(|| failure(410, "Expired", "The provided continue parameter is too old"))
    });
    let outcome = copy_all(&cluster).await.unwrap();
    assert_eq!(numbers(&outcome), (609 - 100, 100, 0, 0));
    assert_eq!(
        outcome
            .counts
            .iter()
            .filter(|count| count.kind == "GlobalNetworkSet")
            .count(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn list_that_always_expires_is_a_temporary_failure() {
    let cluster = started();
    cluster.server.fail(|request: &ReceivedRequest| {
        let is_list = request.uri.path().ends_with("v1/tiers");
        is_list.then(|| failure(410, "Expired", "too old"))
    });
    let Err(Problem::Transient(text)) = copy_all(&cluster).await else {
        panic!()
    };
    assert!(text.contains("expires"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn kind_without_a_definition_has_no_objects() {
    let cluster = started();
    cluster.server.with_store(|store| {
        for group in [ApiGroup::CrdV1, ApiGroup::V3] {
            let resource = at(group, "CalicoNodeStatus", "", "").resource;
            store.remove(&Location::global(DEFINITIONS, definition_name(&resource)));
        }
    });
    assert_eq!(numbers(&copy_all(&cluster).await.unwrap()), (9, 0, 0, 0));

    // A proxy in front of the API server may send 404 for a kind that the API server has.
    cluster.server.fail(|request: &ReceivedRequest| {
        let is_list =
            request.method == Method::GET && request.uri.path().ends_with("v1/ipamblocks");
        is_list.then(|| (404, "404 page not found".into()))
    });
    let Err(Problem::Transient(text)) = copy_all(&cluster).await else {
        panic!()
    };
    assert!(
        text.starts_with("cannot list ipamblocks.crd.projectcalico.org/v1"),
        "{text}"
    );
    assert!(cluster.server.object(&block(ApiGroup::V3)).is_some());
}

#[tokio::test(start_paused = true)]
async fn copies_of_deleted_objects_are_deleted_and_others_are_listed() {
    let cluster = started();
    copy_all(&cluster).await.unwrap();
    put(
        &cluster,
        &at(ApiGroup::V3, "Tier", "", "own"),
        json!({ "spec": {} }),
    );
    put(
        &cluster,
        &at(ApiGroup::V3, "IPAMConfiguration", "", "own"),
        json!({ "spec": {} }),
    );
    edit(
        &cluster,
        &office_in_v3(),
        "/metadata/annotations/migration.projectcalico.org~1migrated-by",
        json!("former"),
    );
    let mut copy = cluster.server.object(&office_in_v3()).unwrap();
    copy["metadata"]["finalizers"] = json!(["f"]);
    put(&cluster, &office_in_v3(), copy);
    cluster
        .server
        .with_store(|store| store.remove(&office_in_v1()));
    let outcome = copy_all(&cluster).await.unwrap();
    assert_eq!(numbers(&outcome), (0, 8, 1, 0));
    assert_eq!(
        outcome.list(Category::Conflict)[0].object,
        "IPAMConfiguration/own"
    );
    assert_eq!(
        outcome
            .list(Category::OnlyInV3)
            .iter()
            .map(|named| named.object.as_str())
            .collect::<Vec<_>>(),
        ["Tier/own"]
    );
    assert_eq!(cluster.server.object(&office_in_v3()), None);
}

/// Answers the first requests of the method for the copy of the office as if another program had
/// changed the copy.
fn change_office_before(cluster: &MigratedCluster, method: Method, most: usize) {
    let mut requests = 0;
    cluster.server.fail(move |request: &ReceivedRequest| {
        let is_meant = request.method == method && request.uri.path() == office_in_v3().url_path();
        requests += usize::from(is_meant);
        (is_meant && requests <= most).then(|| failure(409, "Conflict", "modified"))
    });
}

#[tokio::test(start_paused = true)]
async fn copy_without_a_source_that_changes_is_read_again_before_its_deletion() {
    let cluster = started();
    copy_all(&cluster).await.unwrap();
    cluster
        .server
        .with_store(|store| store.remove(&office_in_v1()));
    change_office_before(&cluster, Method::DELETE, 3);
    assert_eq!(numbers(&copy_all(&cluster).await.unwrap()), (0, 8, 0, 0));
    assert_eq!(cluster.server.object(&office_in_v3()), None);
}

/// A tenant may change a copy of its own many times in a second. Shows SEC-36.
#[tokio::test(start_paused = true)]
async fn copy_without_a_source_that_changes_all_the_time_ends_the_lock_in_the_first_pass() {
    let cluster = started();
    copy_all(&cluster).await.unwrap();
    cluster
        .server
        .with_store(|store| store.remove(&office_in_v1()));
    change_office_before(&cluster, Method::DELETE, usize::MAX);
    cluster.run_until(is_v1_locked).await;
    cluster.server.take_log();
    cluster
        .run_until(|store| is_v1_ready(store) && is_in_phase(store, "Pending"))
        .await;
    let message = cluster.message();
    assert!(
        message.starts_with("GlobalNetworkSet/office: other programs change the object in v3 all"),
        "{message}"
    );
    let log = cluster.server.take_log();
    let creation = "POST /apis/projectcalico.org/v3/tiers?fieldValidation=Strict";
    assert_eq!(
        log.iter().filter(|line| *line == creation).count(),
        1,
        "{log:#?}"
    );
}

/// Shows SEC-36.
#[tokio::test(start_paused = true)]
async fn stale_copy_that_changes_before_each_replacement_is_a_conflict() {
    let cluster = started();
    copy_all(&cluster).await.unwrap();
    edit(
        &cluster,
        &office_in_v1(),
        "/spec/nets",
        json!(["192.0.2.128/25"]),
    );
    change_office_before(&cluster, Method::PUT, usize::MAX);
    let outcome = copy_all(&cluster).await.unwrap();
    assert_eq!(numbers(&outcome), (0, 8, 1, 0));
    assert!(
        outcome.list(Category::Conflict)[0]
            .reason
            .contains("all the time"),
        "{outcome:?}"
    );
}

/// A deletion by a former leader may take effect after the next leader has copied the object again,
/// and opened v3.
#[tokio::test(start_paused = true)]
async fn copy_that_has_changed_is_not_deleted() {
    let cluster = started();
    copy_all(&cluster).await.unwrap();
    let former = cluster.server.object(&office_in_v3()).unwrap();
    edit(
        &cluster,
        &office_in_v1(),
        "/spec/nets",
        json!(["192.0.2.128/25"]),
    );
    copy_all(&cluster).await.unwrap();
    let (requests, resource) = (cluster.requests(), office_in_v3().resource);
    assert_eq!(
        delete_copy(&requests, resource, &former["metadata"]).await,
        Err(Problem::Lost)
    );
    let present = cluster.server.object(&office_in_v3()).unwrap();
    assert_eq!(
        delete_copy(&requests, resource, &present["metadata"]).await,
        Ok(())
    );
    assert_eq!(cluster.server.object(&office_in_v3()), None);
}

#[tokio::test(start_paused = true)]
async fn late_writes_to_v1_are_found_once() {
    let cluster = started();
    cluster.run_until(is_v3_open).await;
    let requests = cluster.requests();
    let mut late_writes = LateWrites::default();
    assert_eq!(late_writes.look(&requests).await, Ok(0));
    edit(
        &cluster,
        &block(ApiGroup::CrdV1),
        "/spec/sequenceNumber",
        json!(8),
    );
    cluster.server.take_log();
    assert_eq!(
        late_writes.look(&requests).await,
        Ok(0),
        "the next look is due in a minute"
    );
    assert_eq!(cluster.server.take_log(), Vec::<String>::new());
    for _ in 0..2 {
        advance(Duration::from_secs(61)).await;
        assert_eq!(late_writes.look(&requests).await, Ok(1));
    }
    // A new process finds the same.
    assert_eq!(LateWrites::default().look(&requests).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn late_writes_after_a_migration_by_upstream_are_unknown() {
    let cluster = started();
    cluster.run_until(is_v3_open).await;
    let information = libcalico::migration::cluster_information(ApiGroup::V3);
    edit(
        &cluster,
        &information,
        "/metadata/annotations",
        json!({ MIGRATED_BY: "upstream" }),
    );
    edit(
        &cluster,
        &block(ApiGroup::CrdV1),
        "/spec/sequenceNumber",
        json!(8),
    );
    assert_eq!(LateWrites::default().look(&cluster.requests()).await, Ok(0));
}
