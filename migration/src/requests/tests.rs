use kube_controllers::leader::LeadershipTerm;
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::cluster_information;
use prometheus::Opts;
use serde_json::json;
use tokio::sync::watch;

use super::*;
use crate::testing::{MigratedCluster, ReceivedRequest, at, failure};

fn tier() -> (Location, Value) {
    let body = json!({
        "apiVersion": "projectcalico.org/v3", "kind": "Tier", "metadata": { "name": "a" },
    });
    (at(ApiGroup::V3, "Tier", "", "a"), body)
}

#[tokio::test(start_paused = true)]
async fn temporary_failure_is_repeated_up_to_five_times_and_counted() {
    let cluster = MigratedCluster::new();
    let retries =
        IntCounterVec::new(Opts::new("retries", "Retries."), &["kind", "operation"]).unwrap();
    let requests = cluster.requests().counting(retries.clone());
    cluster
        .server
        .fail(|_: &ReceivedRequest| Some(failure(503, "ServiceUnavailable", "busy")));
    let (at, body) = tier();
    assert_eq!(
        requests.create(&at, &body, false).await,
        Err(Problem::Transient("busy".into()))
    );
    assert_eq!(cluster.server.take_log().len(), 5);
    assert_eq!(retries.with_label_values(&["Tier", "create"]).get(), 4);

    let mut failures = 3;
    cluster.server.fail(move |_: &ReceivedRequest| {
        failures -= 1;
        (failures >= 0).then(|| failure(429, "TooManyRequests", "wait"))
    });
    assert!(matches!(
        requests.create(&at, &body, false).await,
        Ok(Created::New(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn object_is_read_by_a_list_of_its_name() {
    let cluster = MigratedCluster::new();
    let requests = cluster.requests();
    for (namespace, name) in [("ns", "partners"), ("other", "partners"), ("ns", "partner")] {
        let at = at(ApiGroup::CrdV1, "NetworkSet", namespace, name);
        assert_eq!(
            requests.get_by_list(&at).await,
            requests.get(&at).await,
            "{namespace}/{name}"
        );
    }
    let log = cluster.server.take_log();
    let path = "/apis/crd.projectcalico.org/v1/namespaces/ns/networksets?fieldSelector=metadata.name%3Dpartners";
    assert_eq!(log[0], format!("GET {path}"));
    cluster
        .server
        .fail(|_: &ReceivedRequest| Some((200, json!({ "kind": "Other" }))));
    let at = at(ApiGroup::CrdV1, "Tier", "", "default");
    assert!(matches!(
        requests.get_by_list(&at).await,
        Err(Problem::Transient(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn page_that_names_an_earlier_page_as_the_next_one_is_a_failure() {
    let cluster = MigratedCluster::new();
    let mut answered = 0;
    cluster.server.fail(move |_: &ReceivedRequest| {
        answered += 1;
        let token = if answered % 2 == 0 { "a" } else { "b" };
        Some((
            200,
            json!({ "kind": "TierList", "metadata": { "continue": token }, "items": [] }),
        ))
    });
    let (at, _) = tier();
    let listed = cluster
        .requests()
        .pages(&at.resource, false, async |_: Vec<Value>| Ok(()))
        .await;
    assert!(
        matches!(&listed, Err(Problem::Transient(text)) if text.contains("has no end")),
        "{listed:?}"
    );
    assert_eq!(cluster.server.take_log().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn refused_request_is_sent_once() {
    let cluster = MigratedCluster::new();
    let requests = cluster.requests();
    let (at, body) = tier();
    for (code, reason) in [(403, "Forbidden"), (410, "Expired"), (422, "Invalid")] {
        cluster
            .server
            .fail(move |_: &ReceivedRequest| Some(failure(code, reason, "no")));
        let refused = Problem::Refused {
            code,
            text: "no".into(),
        };
        assert_eq!(requests.get(&at).await, Err(refused.clone()));
        let listed = requests
            .pages(&at.resource, false, async |_: Vec<Value>| Ok(()))
            .await;
        assert_eq!(listed, Err(refused.clone()));
        assert_eq!(requests.replace(&at, &body).await, Err(refused));
        assert_eq!(
            requests.create(&at, &body, false).await,
            Ok(Created::Refused("no".into()))
        );
        assert_eq!(cluster.server.take_log().len(), 4, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn response_of_a_proxy_shows_neither_a_missing_nor_another_object() {
    let cluster = MigratedCluster::new();
    let requests = cluster.requests();
    let at = cluster_information(ApiGroup::CrdV1);
    cluster
        .server
        .fail(|_: &ReceivedRequest| Some((200, json!({ "kind": "Other" }))));
    assert!(matches!(
        requests.get(&at).await,
        Err(Problem::Transient(_))
    ));
    let listed = requests
        .pages(&at.resource, false, async |_: Vec<Value>| Ok(()))
        .await;
    assert!(matches!(listed, Err(Problem::Transient(_))), "{listed:?}");
    cluster
        .server
        .fail(|_: &ReceivedRequest| Some((404, json!("page not found"))));
    assert!(matches!(
        requests.get(&at).await,
        Err(Problem::Refused { code: 404, .. })
    ));
    assert_eq!(requests.discover("/apis/other").await, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn replica_that_is_not_the_leader_reads_and_does_not_write() {
    let cluster = MigratedCluster::new();
    let (_sender, term) = watch::channel(LeadershipTerm::No);
    let requests = Requests::new(cluster.server.client(), Leadership::new(term));
    let (at, body) = tier();
    assert_eq!(
        requests.create(&at, &body, true).await,
        Err(Problem::MayNotWrite)
    );
    assert_eq!(
        requests.replace(&at, &body).await,
        Err(Problem::MayNotWrite)
    );
    assert_eq!(
        requests.replace_status(&at, &body).await,
        Err(Problem::MayNotWrite)
    );
    assert_eq!(
        requests.delete(&at, &Preconditions::default()).await,
        Err(Problem::MayNotWrite)
    );
    assert!(cluster.server.take_log().is_empty());
    assert!(
        requests
            .get(&cluster_information(ApiGroup::CrdV1))
            .await
            .unwrap()
            .is_some()
    );
}
