use std::time::Duration;

use serde_json::json;

use super::*;
use crate::testing::{ApiServer, Clock, Reply, context};
use crate::world::World;

fn record_all(cx: &Context<impl World>, count: usize, name: impl Fn(usize) -> PendingDel) {
    (0..count).for_each(|number| cx.journal.record(&name(number)).unwrap());
}

fn remaining(cx: &Context<impl World>) -> Vec<String> {
    let entries = cx.journal.entries().unwrap();
    let mut remaining: Vec<_> = entries
        .into_iter()
        .map(|entry| entry.pending_del.unwrap().container_id)
        .collect();
    remaining.sort();
    remaining
}

/// Deferred DELs of others are replayed only while fewer than two were tried.
#[tokio::test(start_paused = true)]
async fn add_replays_all_deferred_dels_of_its_pod_or_requested_address() {
    for args in ["K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web", "IP=10.65.0.9"] {
        let files = tempfile::tempdir().unwrap();
        let cx = context_of_add(files.path(), args);
        record_all(&cx, 3, |number| {
            pending_del_named(
                &cx,
                &format!("other{number}"),
                &format!("node1-k8s-other{number}-eth0"),
            )
        });
        record_all(&cx, 6, |number| match args.strip_prefix("IP=") {
            None => pending_del_named(&cx, &format!("own{number}"), "node1-k8s-web-eth0"),
            Some(ip) => PendingDel {
                addresses: vec!["10.65.0.7".parse().unwrap(), ip.parse().unwrap()],
                ..pending_del_named(
                    &cx,
                    &format!("requested{number}"),
                    &format!("node1-k8s-requested{number}-eth0"),
                )
            },
        });
        replay_before_add(&cx).await.unwrap();
        assert_eq!(remaining(&cx), ["other0", "other1", "other2"], "{args}");
    }
}

/// Answers a request for a pod after a second, with 404.
fn slowly_without_pods(request: &str) -> Option<Reply> {
    let (_, path) = request.split_once(' ')?;
    let name = path.rsplit('/').next()?;
    let object = |version: &str, kind: &str, spec| {
        let metadata = json!({
            "name": name, "uid": "00000000-0000-0000-0000-000000000001", "resourceVersion": "7",
        });
        (
            0,
            200,
            json!({ "apiVersion": version, "kind": kind, "spec": spec, "metadata": metadata }),
        )
    };
    let (seconds, status, body) = match path {
        _ if path.ends_with("/clusterinformations/default") => object(
            "crd.projectcalico.org/v1",
            "ClusterInformation",
            json!({ "datastoreReady": true }),
        ),
        "/api/v1/namespaces/kube-system" => object("v1", "Namespace", json!({})),
        _ => {
            let (code, details) = (404, json!({ "name": name }));
            let body = json!({
                "kind": "Status", "status": "Failure", "reason": "NotFound", "code": code,
                "details": details,
            });
            (u64::from(path.contains("/pods/")), code, body)
        }
    };
    Some(Reply {
        after: Duration::from_secs(seconds),
        status,
        body,
    })
}

fn requested_pods(server: &ApiServer) -> Vec<String> {
    let requests = server.requests();
    let pods = requests
        .iter()
        .filter_map(|request| request.strip_prefix("GET /api/v1/namespaces/shop/pods/other"));
    let mut pods: Vec<_> = pods.map(|number| format!("other{number}")).collect();
    pods.sort();
    pods.dedup();
    pods
}

#[tokio::test(start_paused = true)]
async fn add_starts_no_unrelated_replay_after_a_second() {
    let clock = Clock::stop();
    let files = tempfile::tempdir().unwrap();
    let server = ApiServer::start(slowly_without_pods).await;
    let cx = context("ADD", &server, files.path());
    let other = |number| {
        pending_del_named(
            &cx,
            &format!("other{number}"),
            &format!("node1-k8s-other{number}-eth0"),
        )
    };
    record_all(&cx, 2, other);
    replay_before_add(&cx).await.unwrap();
    let (replayed, stay) = (requested_pods(&server), remaining(&cx));
    assert_eq!(
        (replayed.len(), stay.len()),
        (1, 1),
        "{replayed:?} {stay:?}"
    );
    assert_ne!(replayed, stay);

    record_all(&cx, 3, |number| {
        pending_del_named(&cx, &format!("own{number}"), "node1-k8s-web-eth0")
    });
    replay_before_add(&cx).await.unwrap();
    assert_eq!((remaining(&cx), requested_pods(&server)), (stay, replayed));
    drop(clock);
}
