use std::time::Duration;

use libcalico::kubernetes::ApiGroup;
use serde_json::json;
use tokio::time::advance;

use super::copy::{block, control, edit, handle, office_in_v1, put, started};
use super::office_in_v3;
use crate::attempts::LockTimer;
use crate::copy::Copier;
use crate::requests::Problem;
use crate::testing::at;

#[tokio::test(start_paused = true)]
async fn second_look_copies_changes_until_it_finds_none() {
    let cluster = started();
    let (requests, mut control, timer) = (
        cluster.requests(),
        control(&cluster).await,
        LockTimer::start(),
    );
    let mut copier = Copier::new(&requests, &mut control, &timer);
    copier.all().await.unwrap();
    assert_eq!(copier.second_look().await, Ok(true));

    edit(
        &cluster,
        &block(ApiGroup::CrdV1),
        "/spec/sequenceNumber",
        json!(8),
    );
    let spec = cluster
        .server
        .object(&handle(ApiGroup::CrdV1, "lb-mixed"))
        .unwrap()["spec"]
        .clone();
    put(
        &cluster,
        &handle(ApiGroup::CrdV1, "lb-new"),
        json!({ "spec": { "handleID": "lb-New", "block": spec["block"] } }),
    );
    cluster
        .server
        .with_store(|store| store.remove(&handle(ApiGroup::CrdV1, "lb-mixed")));
    assert_eq!(copier.second_look().await, Ok(false));
    assert_eq!(
        cluster.server.object(&block(ApiGroup::V3)).unwrap()["spec"]["sequenceNumber"],
        8
    );
    assert_eq!(
        cluster
            .server
            .object(&handle(ApiGroup::V3, "lb-new"))
            .unwrap()["spec"]["handleID"],
        "lb-New"
    );
    assert_eq!(
        cluster.server.object(&handle(ApiGroup::V3, "lb-mixed")),
        None
    );
    cluster.server.take_log();
    assert_eq!(copier.second_look().await, Ok(true));
    assert_eq!(
        cluster.server.take_log().len(),
        20,
        "one list of each kind but CalicoNodeStatus"
    );
    assert!(copier.seen_revision().parse::<u64>().is_ok());
}

/// People may change policies, sets and pools of v1 under the lock, which concerns addresses only.
#[tokio::test(start_paused = true)]
async fn second_look_copies_what_people_change_after_the_lock() {
    let cluster = started();
    let (requests, mut control, timer) = (
        cluster.requests(),
        control(&cluster).await,
        LockTimer::start(),
    );
    let mut copier = Copier::new(&requests, &mut control, &timer);
    copier.all().await.unwrap();
    let set = |group, namespace, name| at(group, "NetworkSet", namespace, name);
    put(
        &cluster,
        &set(ApiGroup::CrdV1, "other", "partners"),
        json!({ "spec": { "nets": ["203.0.113.0/24"] } }),
    );
    cluster
        .server
        .with_store(|store| store.remove(&set(ApiGroup::CrdV1, "ns", "partners")));
    edit(
        &cluster,
        &office_in_v1(),
        "/spec/nets",
        json!(["192.0.2.128/25"]),
    );
    let status = at(ApiGroup::CrdV1, "CalicoNodeStatus", "", "node-1");
    put(&cluster, &status, json!({ "spec": { "node": "node-1" } }));
    assert_eq!(copier.second_look().await, Ok(false));
    assert_eq!(copier.second_look().await, Ok(true));
    let copy = cluster
        .server
        .object(&set(ApiGroup::V3, "other", "partners"))
        .unwrap();
    assert_eq!(copy["spec"]["nets"], json!(["203.0.113.0/24"]));
    assert_eq!(
        cluster.server.object(&set(ApiGroup::V3, "ns", "partners")),
        None
    );
    assert_eq!(
        cluster.server.object(&office_in_v3()).unwrap()["spec"]["nets"],
        json!(["192.0.2.128/25"])
    );
}

/// The resource of an older Calico has the tier before the policy's name.
#[tokio::test(start_paused = true)]
async fn policy_with_the_name_of_a_copy_ends_the_second_look_unless_it_replaces_the_source() {
    let policy = |name| at(ApiGroup::CrdV1, "GlobalNetworkPolicy", "", name);
    let named = |order: u32| {
        let annotations =
            json!({ "projectcalico.org/metadata": json!({ "name": "p" }).to_string() });
        json!({
            "metadata": { "annotations": annotations },
            "spec": { "tier": "default", "order": order },
        })
    };
    for is_replaced in [true, false] {
        let cluster = started();
        put(&cluster, &policy("default.p"), named(1));
        let (requests, mut control, timer) = (
            cluster.requests(),
            control(&cluster).await,
            LockTimer::start(),
        );
        let mut copier = Copier::new(&requests, &mut control, &timer);
        copier.all().await.unwrap();
        put(&cluster, &policy("p"), named(2));
        if is_replaced {
            cluster
                .server
                .with_store(|store| store.remove(&policy("default.p")));
            assert_eq!(copier.second_look().await, Ok(false));
            assert_eq!(copier.second_look().await, Ok(true));
        } else {
            let Err(Problem::Refused { text, .. }) = copier.second_look().await else {
                panic!()
            };
            assert!(text.contains("default.p has the same name in v3"), "{text}");
        }
        let copy = cluster
            .server
            .object(&at(ApiGroup::V3, "GlobalNetworkPolicy", "", "p"))
            .unwrap();
        assert_eq!(copy["spec"]["order"], if is_replaced { 2 } else { 1 });
    }
}

#[tokio::test(start_paused = true)]
async fn changes_that_v3_cannot_have_end_the_second_look() {
    for is_gone in [true, false] {
        let cluster = started();
        let (requests, mut control, timer) = (
            cluster.requests(),
            control(&cluster).await,
            LockTimer::start(),
        );
        let mut copier = Copier::new(&requests, &mut control, &timer);
        copier.all().await.unwrap();
        let source = handle(ApiGroup::CrdV1, "lb-mixed");
        if is_gone {
            // An object without marks is not deleted.
            edit(
                &cluster,
                &handle(ApiGroup::V3, "lb-mixed"),
                "/metadata/annotations",
                json!({}),
            );
            cluster.server.with_store(|store| store.remove(&source));
        } else {
            edit(
                &cluster,
                &source,
                "/metadata",
                json!({ "name": "lb-mixed", "deletionTimestamp": "t", "uid": "u" }),
            );
        }
        let Err(Problem::Refused { text, .. }) = copier.second_look().await else {
            panic!("{is_gone}")
        };
        assert!(text.starts_with("IPAMHandle/lb-mixed: "), "{text}");
    }
}

/// The lock of a migration that never ends would keep all pods from starting.
#[tokio::test(start_paused = true)]
async fn objects_that_change_all_the_time_are_no_progress() {
    let cluster = started();
    let (requests, mut control, timer) = (
        cluster.requests(),
        control(&cluster).await,
        LockTimer::start(),
    );
    let mut copier = Copier::new(&requests, &mut control, &timer);
    copier.all().await.unwrap();
    for number in 10..20 {
        advance(Duration::from_secs(60)).await;
        edit(
            &cluster,
            &block(ApiGroup::CrdV1),
            "/spec/sequenceNumber",
            json!(number),
        );
        assert_eq!(copier.second_look().await, Ok(false));
    }
    assert!(timer.has_expired());
}
