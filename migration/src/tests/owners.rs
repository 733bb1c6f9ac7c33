use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::Method;
use kube_controllers::rollout::DEPLOYMENTS;
use libcalico::kubernetes::{ApiGroup, Location};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::copy::{control, copy_all, started};
use crate::attempts::LockTimer;
use crate::copy::{Category, Copier, Named, trial};
use crate::requests::Problem;
use crate::testing::{MigratedCluster, ReceivedRequest, at, failure};

fn set(group: ApiGroup) -> Location {
    at(group, "NetworkSet", "ns", "owned")
}

/// Returns a reference as clients of v1 store it: with the version of v3, and the uid of the API
/// server.
fn owner(cluster: &MigratedCluster, kind: &str, namespace: &str, name: &str) -> Value {
    let found = cluster
        .server
        .object(&at(ApiGroup::CrdV1, kind, namespace, name));
    let uid = found.map_or("00000000-0000-4000-8000-ffffffffffff".into(), |found| {
        found["metadata"]["uid"].clone()
    });
    json!({ "apiVersion": "projectcalico.org/v3", "kind": kind, "name": name, "uid": uid })
}

/// Puts a Deployment, and returns a reference to it.
fn put_deployment(cluster: &MigratedCluster, namespace: &str, name: &str) -> Value {
    let at = Location::namespaced(DEPLOYMENTS, namespace, name);
    let uid =
        cluster.server.with_store(|store| store.put(&at, json!({})))["metadata"]["uid"].clone();
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": uid })
}

/// Puts an object into v1 whose annotation has the references.
fn put_owned(cluster: &MigratedCluster, owners: &[Value]) {
    let annotations =
        json!({ "projectcalico.org/metadata": json!({ "ownerReferences": owners }).to_string() });
    cluster.server.with_store(|store| {
        store.put(
            &set(ApiGroup::CrdV1),
            json!({ "metadata": { "annotations": annotations }, "spec": { "nets": [] } }),
        );
    });
}

/// Returns the uids in the references of the copy.
fn owners_of_copy(cluster: &MigratedCluster) -> Vec<Value> {
    let copy = cluster.server.object(&set(ApiGroup::V3)).unwrap();
    let owners = copy["metadata"]["ownerReferences"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    owners
        .into_iter()
        .map(|owner| owner["uid"].clone())
        .collect()
}

fn uid_of_copy(cluster: &MigratedCluster, kind: &str, name: &str) -> Value {
    cluster
        .server
        .object(&at(ApiGroup::V3, kind, "", name))
        .unwrap()["metadata"]["uid"]
        .clone()
}

fn reasons(listed: &[Named]) -> Vec<&str> {
    listed.iter().map(|named| named.reason.as_str()).collect()
}

/// Answers all requests whose paths begin with `path` as Kubernetes does for an unreachable server
/// behind it.
fn make_unreachable(cluster: &MigratedCluster, path: &'static str) {
    cluster.server.fail(move |request: &ReceivedRequest| {
        let is_behind = request.uri.path().starts_with(path);
        is_behind.then(|| failure(503, "ServiceUnavailable", "error trying to reach service"))
    });
}

/// Returns the objects of v3 that were created with references.
fn record_created_with_owners(cluster: &MigratedCluster) -> Arc<Mutex<Vec<Value>>> {
    let created = Arc::<Mutex<Vec<Value>>>::default();
    let recorded = created.clone();
    cluster.server.fail(move |request: &ReceivedRequest| {
        if request.method == Method::POST && !request.body["metadata"]["ownerReferences"].is_null()
        {
            recorded
                .lock()
                .unwrap()
                .push(request.body["metadata"]["name"].clone());
        }
        None
    });
    created
}

#[tokio::test(start_paused = true)]
async fn copies_get_their_owners_after_all_copies_exist() {
    let cluster = started();
    // An owner that is copied later than the object, and one that is copied earlier.
    let owners = [
        owner(&cluster, "IPAMBlock", "", "10-0-0-0-26"),
        owner(&cluster, "Tier", "", "default"),
    ];
    put_owned(&cluster, &owners);
    let created = record_created_with_owners(&cluster);
    let outcome = copy_all(&cluster).await.unwrap();
    assert_eq!(*created.lock().unwrap(), Vec::<Value>::new());
    assert!(outcome.list(Category::LeftOut).is_empty(), "{outcome:?}");
    let expected = [
        uid_of_copy(&cluster, "IPAMBlock", "10-0-0-0-26"),
        uid_of_copy(&cluster, "Tier", "default"),
    ];
    assert_eq!(owners_of_copy(&cluster), expected);
    assert_eq!(
        cluster.server.with_store(|store| store.collect_garbage()),
        0
    );

    // A second pass writes the references neither again nor away.
    cluster.server.take_log();
    copy_all(&cluster).await.unwrap();
    let log = cluster.server.take_log();
    assert_eq!(
        log.iter()
            .filter(|line| line.starts_with("PUT") && !line.ends_with("/status"))
            .count(),
        0,
        "{log:#?}"
    );
    assert_eq!(owners_of_copy(&cluster), expected);
}

/// Kubernetes' garbage collector deletes an object whose owners are missing.
#[tokio::test(start_paused = true)]
async fn owners_without_a_copy_are_left_out() {
    let cluster = started();
    put_owned(&cluster, &[owner(&cluster, "Tier", "", "gone")]);
    let outcome = copy_all(&cluster).await.unwrap();
    assert_eq!(owners_of_copy(&cluster), Vec::<Value>::new());
    assert_eq!(
        cluster.server.with_store(|store| store.collect_garbage()),
        0
    );
    assert_eq!(
        outcome.list(Category::LeftOut)[0].object,
        "NetworkSet/ns/owned"
    );
    assert!(
        outcome.list(Category::LeftOut)[0]
            .reason
            .starts_with("owner Tier gone ("),
        "{outcome:?}"
    );
    assert_eq!(outcome.total(Category::LeftOut), 1);
}

/// A tenant writes the references of its own policies and sets.
#[tokio::test(start_paused = true)]
async fn owners_in_another_namespace_are_left_out() {
    let cluster = started();
    let foreign = at(ApiGroup::CrdV1, "NetworkSet", "other", "foreign");
    cluster
        .server
        .with_store(|store| store.put(&foreign, json!({ "spec": { "nets": [] } })));
    let named_wrongly = Value::from("renamed");
    let mut renamed = owner(&cluster, "Tier", "", "default");
    renamed["name"] = named_wrongly;
    put_owned(
        &cluster,
        &[owner(&cluster, "NetworkSet", "other", "foreign"), renamed],
    );
    let outcome = copy_all(&cluster).await.unwrap();
    assert_eq!(
        (
            owners_of_copy(&cluster),
            outcome.list(Category::LeftOut).len()
        ),
        (Vec::new(), 2)
    );
}

/// The garbage collector may never have looked for an owner that only Calico's annotation names.
#[tokio::test(start_paused = true)]
async fn owners_of_other_kinds_that_do_not_exist_are_left_out() {
    let cluster = started();
    let deployment = put_deployment(&cluster, "ns", "present");
    let with = |field: &str, value: &str| {
        let mut changed = deployment.clone();
        changed[field] = value.into();
        changed
    };
    let missing = [
        with("name", "gone"),
        with("name", ""),
        with("uid", "00000000-0000-4000-8000-ffffffffffff"),
        with("kind", "Shop"),
        with("apiVersion", "example.org/v1"),
        with("apiVersion", "a/b/c"),
        put_deployment(&cluster, "other", "elsewhere"),
    ];
    for owner in &missing {
        put_owned(&cluster, std::slice::from_ref(owner));
        let tried = trial(&cluster.requests(), true).await.unwrap();
        let outcome = copy_all(&cluster).await.unwrap();
        assert_eq!(owners_of_copy(&cluster), Vec::<Value>::new(), "{owner}");
        assert_eq!(
            cluster.server.with_store(|store| store.collect_garbage()),
            0,
            "{owner}"
        );
        for outcome in [tried, outcome] {
            assert!(
                reasons(outcome.list(Category::LeftOut))[0].ends_with("in another namespace"),
                "{owner}: {outcome:?}"
            );
        }
    }
    put_owned(&cluster, &[missing[0].clone(), deployment.clone()]);
    assert_eq!(
        copy_all(&cluster).await.unwrap().total(Category::LeftOut),
        1
    );
    assert_eq!(owners_of_copy(&cluster), [deployment["uid"].clone()]);
}

/// A tenant may name a kind that kube-controllers may not read.
#[tokio::test(start_paused = true)]
async fn owners_of_other_kinds_that_cannot_be_read_are_left_out() {
    let cluster = started();
    put_owned(&cluster, &[put_deployment(&cluster, "ns", "secret")]);
    for code in [403, 503] {
        cluster.server.fail(move |request: &ReceivedRequest| {
            request
                .uri
                .path()
                .ends_with("/deployments/secret")
                .then(|| failure(code, "Reason", "no access"))
        });
        let outcome = copy_all(&cluster).await.unwrap();
        assert_eq!(owners_of_copy(&cluster), Vec::<Value>::new());
        assert!(
            reasons(outcome.list(Category::LeftOut))[0].ends_with("no access"),
            "{outcome:?}"
        );
    }
}

/// The looks happen while v1 is locked, and a tenant may name the owners in many objects.
#[tokio::test(start_paused = true)]
async fn owners_on_an_unreachable_server_are_looked_for_once() {
    let cluster = started();
    let owners: Vec<Value> = (0..9)
        .map(|number| put_deployment(&cluster, "ns", &format!("d{number}")))
        .collect();
    put_owned(&cluster, &owners);
    for unreachable in ["/apis/apps/v1", "/apis/apps/v1/namespaces/ns/deployments/"] {
        make_unreachable(&cluster, unreachable);
        cluster.server.take_log();
        let outcome = copy_all(&cluster).await.unwrap();
        assert_eq!(
            (owners_of_copy(&cluster), outcome.total(Category::LeftOut)),
            (Vec::new(), 9),
            "{outcome:?}"
        );
        let log = cluster.server.take_log();
        let looks = log
            .iter()
            .filter(|line| line.starts_with(&format!("GET {unreachable}")))
            .count();
        // Each request has five attempts.
        assert_eq!(looks, 5, "{log:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn eleventh_owner_of_another_kind_is_left_out_without_a_look() {
    let cluster = started();
    let mut owners: Vec<Value> = (0..11)
        .map(|number| put_deployment(&cluster, "ns", &format!("d{number}")))
        .collect();
    owners.push(owner(&cluster, "Tier", "", "default"));
    put_owned(&cluster, &owners);
    cluster.server.take_log();
    let outcome = copy_all(&cluster).await.unwrap();
    let log = cluster.server.take_log();
    assert_eq!(
        log.iter()
            .filter(|line| line.contains("/deployments/"))
            .count(),
        10,
        "{log:#?}"
    );
    assert!(
        reasons(outcome.list(Category::LeftOut))[0].contains("more than 10 references"),
        "{outcome:?}"
    );
    assert_eq!(
        (
            outcome.total(Category::LeftOut),
            owners_of_copy(&cluster).len()
        ),
        (1, 11)
    );
}

/// A pass without progress for five minutes ends.
#[tokio::test(start_paused = true)]
async fn look_for_the_owners_of_an_object_is_progress() {
    let cluster = started();
    put_owned(&cluster, &[put_deployment(&cluster, "ns", "d")]);
    // The attempts take more than a second.
    make_unreachable(&cluster, "/apis/apps/v1");
    let (requests, mut control, timer) = (
        cluster.requests(),
        control(&cluster).await,
        LockTimer::start(),
    );
    timer.drained().await;
    Copier::new(&requests, &mut control, &timer)
        .all()
        .await
        .unwrap();
    assert!(
        timeout(Duration::from_secs(299), timer.expired())
            .await
            .is_err()
    );
}

/// Clients of v1 store references without a check by the API server.
#[tokio::test(start_paused = true)]
async fn owners_that_v3_refuses_are_left_out() {
    let cluster = started();
    put_owned(&cluster, &[owner(&cluster, "Tier", "", "default")]);
    cluster.server.with_store(|store| {
        store.refuse(|object| {
            let has_owners = object["metadata"]["ownerReferences"].is_array();
            has_owners.then(|| {
                "metadata.ownerReferences: Only one reference can have Controller set".to_owned()
            })
        });
    });
    let outcome = copy_all(&cluster).await.unwrap();
    assert_eq!(outcome.total(Category::Refused), 0);
    assert!(
        reasons(outcome.list(Category::LeftOut))[0].contains("Only one reference"),
        "{outcome:?}"
    );
    assert!(cluster.server.object(&set(ApiGroup::V3)).is_some());
}

/// A tenant may change a copy of its own many times in a second. Shows SEC-36.
#[tokio::test(start_paused = true)]
async fn copy_that_changes_before_each_write_of_its_owners_ends_the_pass() {
    let cluster = started();
    put_owned(&cluster, &[owner(&cluster, "Tier", "", "default")]);
    cluster.server.fail(|request: &ReceivedRequest| {
        let is_write =
            request.method == Method::PUT && request.uri.path() == set(ApiGroup::V3).url_path();
        is_write.then(|| failure(409, "Conflict", "modified"))
    });
    let Err(Problem::Refused { text, .. }) = copy_all(&cluster).await else {
        panic!()
    };
    assert!(
        text.starts_with(
            "NetworkSet/ns/owned: other programs change the object in v3 all the time"
        ),
        "{text}"
    );
}

/// The references of all objects are in memory at the same time.
#[tokio::test(start_paused = true)]
async fn object_with_too_many_owners_is_refused() {
    let cluster = started();
    // Equal references count as one.
    let tiers = |count: usize| -> Vec<Value> {
        (0..count)
            .map(|number| owner(&cluster, "Tier", "", &format!("t{number}")))
            .collect()
    };
    put_owned(&cluster, &tiers(200));
    let outcome = copy_all(&cluster).await.unwrap();
    assert_eq!(
        outcome.list(Category::Refused)[0].object,
        "NetworkSet/ns/owned"
    );
    assert!(
        outcome.list(Category::Refused)[0]
            .reason
            .contains("too large"),
        "{outcome:?}"
    );
    put_owned(&cluster, &tiers(50));
    assert_eq!(
        copy_all(&cluster).await.unwrap().total(Category::Refused),
        0
    );
}

#[tokio::test(start_paused = true)]
async fn replaced_copy_gets_its_owners_again_beside_those_of_other_kinds() {
    let cluster = started();
    let deployment = put_deployment(&cluster, "ns", "d");
    put_owned(
        &cluster,
        &[deployment.clone(), owner(&cluster, "Tier", "", "default")],
    );
    copy_all(&cluster).await.unwrap();
    let expected = [
        uid_of_copy(&cluster, "Tier", "default"),
        deployment["uid"].clone(),
    ];
    assert_eq!(owners_of_copy(&cluster), expected);
    cluster.server.with_store(|store| {
        let mut changed = store.get(&set(ApiGroup::CrdV1)).unwrap().clone();
        changed["spec"]["nets"] = json!(["192.0.2.0/24"]);
        store.put(&set(ApiGroup::CrdV1), changed);
    });
    let outcome = copy_all(&cluster).await.unwrap();
    assert_eq!(outcome.total(Category::Copied), 1);
    assert_eq!(owners_of_copy(&cluster), expected);
}
