//! Deferred DELs of a pod whose annotations the API server refuses to change.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::testing::{ApiServer, Reply, context};
use crate::world::World;

/// Answers for a cluster in which the pods shop/full and shop/web have annotations that cannot be
/// changed.
fn with_full_annotations(request: &str) -> Option<Reply> {
    with_refused_patches(request, 422, "Invalid")
}

/// Does the same, with an HTML page of another program for each PATCH.
fn another_server(request: &str) -> Option<Reply> {
    if request.starts_with("PATCH ") {
        return Some(Reply {
            after: Duration::ZERO,
            status: 405,
            body: json!("<html>another server</html>"),
        });
    }
    with_full_annotations(request)
}

/// Does the same as [`with_full_annotations`], and the handle of the container `held` counts an
/// address.
fn with_a_counted_address(request: &str) -> Option<Reply> {
    if !request.ends_with("/ipamhandles/net1.held") {
        return with_full_annotations(request);
    }
    let body = json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMHandle",
        "metadata": { "name": "net1.held", "resourceVersion": "7" },
        "spec": { "handleID": "net1.held", "block": { "10.65.0.0/26": 1 }, "deleted": false },
    });
    Some(Reply {
        after: Duration::ZERO,
        status: 200,
        body,
    })
}

/// Answers for a cluster that refuses changes of the pods shop/full and shop/web.
fn with_refused_patches(request: &str, code: u16, reason: &str) -> Option<Reply> {
    let (verb, path) = request.split_once(' ')?;
    let name = path.split('?').next()?.rsplit('/').next()?;
    let metadata = json!({
        "name": name, "uid": "00000000-0000-0000-0000-000000000001", "resourceVersion": "7",
    });
    let object = |version: &str, kind: &str, metadata: &Value, spec: Value| {
        (
            200,
            json!({ "apiVersion": version, "kind": kind, "spec": spec, "metadata": metadata }),
        )
    };
    let refused = |code: u16, reason: &str| {
        let details = json!({ "name": name });
        (
            code,
            json!({
                "kind": "Status", "status": "Failure", "reason": reason, "code": code,
                "details": details,
            }),
        )
    };
    let (status, body) = match (verb, path) {
        ("PATCH", _) => refused(code, reason),
        (_, path) if path.ends_with("/clusterinformations/default") => object(
            "crd.projectcalico.org/v1",
            "ClusterInformation",
            &metadata,
            json!({ "datastoreReady": true }),
        ),
        (_, "/api/v1/namespaces/kube-system") => object("v1", "Namespace", &metadata, json!({})),
        (_, path) if path.ends_with("/pods/full") || path.ends_with("/pods/web") => {
            let mut pod = metadata.clone();
            pod["namespace"] = json!("shop");
            pod["annotations"] = json!({
                "cni.projectcalico.org/podIP": "10.65.0.1/32",
                "cni.projectcalico.org/podIPs": "10.65.0.1/32",
            });
            let (status, mut body) = object("v1", "Pod", &pod, json!({ "nodeName": "node1" }));
            body["status"] = json!({ "phase": "Running" });
            (status, body)
        }
        _ => refused(404, "NotFound"),
    };
    Some(Reply {
        after: Duration::ZERO,
        status,
        body,
    })
}

fn pending_del(
    cx: &Context<impl World>,
    container: &str,
    pod: &str,
    handles: &[&str],
) -> PendingDel {
    PendingDel {
        handles: handles.iter().map(|handle| (*handle).to_owned()).collect(),
        ..pending_del_named(cx, container, &format!("node1-k8s-{pod}-eth0"))
    }
}

fn remaining(cx: &Context<impl World>) -> usize {
    cx.journal.entries().unwrap().len()
}

/// The entries without handles are of another IPAM plugin, so that each replay has to remove the
/// endpoint.
#[tokio::test]
async fn pass_merges_the_entries_of_a_pod_that_fails_and_replays_those_of_other_pods() {
    let files = tempfile::tempdir().unwrap();
    let server = ApiServer::start(with_full_annotations).await;
    let cx = context("DEL", &server, files.path());
    for number in 0..20 {
        cx.journal
            .record(&pending_del(&cx, &format!("full{number}"), "full", &[]))
            .unwrap();
    }
    cx.journal
        .record(&pending_del(&cx, "c9", "gone", &[]))
        .unwrap();
    replay_some(&cx).await;
    let patches = server
        .requests()
        .iter()
        .filter(|request| request.starts_with("PATCH "))
        .count();
    assert_eq!((patches, remaining(&cx)), (1, 1), "{:?}", server.requests());
}

/// The first entry fails, and the others have the same endpoint.
#[tokio::test]
async fn entry_whose_handle_holds_an_address_is_not_merged_with_others_of_its_pod() {
    let files = tempfile::tempdir().unwrap();
    let server = ApiServer::start(with_a_counted_address).await;
    let cx = context("DEL", &server, files.path());
    for (container, handles) in [
        ("c1", &[][..]),
        ("held", &["net1.held"]),
        ("c3", &["net1.c3"]),
        ("c4", &[]),
    ] {
        cx.journal
            .record(&pending_del(&cx, container, "full", handles))
            .unwrap();
    }
    replay_some(&cx).await;
    let left = cx
        .journal
        .entries()
        .unwrap()
        .into_iter()
        .map(|entry| entry.pending_del.unwrap().container_id);
    let left = BTreeSet::from_iter(left);
    assert!(
        left.contains("held") && left.len() <= 2,
        "{left:?} {:?}",
        server.requests()
    );
    let patches = server
        .requests()
        .iter()
        .filter(|request| request.starts_with("PATCH "))
        .count();
    assert_eq!(patches, 1, "{:?}", server.requests());
}

#[tokio::test]
async fn pass_ends_at_a_failure_of_the_whole_datastore_only() {
    type Script = fn(&str) -> Option<Reply>;
    const SCRIPTS: [(u16, Script, usize); 8] = [
        (
            401,
            |request| with_refused_patches(request, 401, "Unauthorized"),
            1,
        ),
        (
            403,
            |request| with_refused_patches(request, 403, "Forbidden"),
            2,
        ),
        (405, another_server, 1),
        (
            409,
            |request| with_refused_patches(request, 409, "Conflict"),
            2,
        ),
        (
            413,
            |request| with_refused_patches(request, 413, "RequestEntityTooLarge"),
            2,
        ),
        (
            422,
            |request| with_refused_patches(request, 422, "Invalid"),
            2,
        ),
        (
            500,
            |request| with_refused_patches(request, 500, "InternalError"),
            1,
        ),
        (
            507,
            |request| with_refused_patches(request, 507, "InsufficientStorage"),
            1,
        ),
    ];
    for (code, script, tried) in SCRIPTS {
        let files = tempfile::tempdir().unwrap();
        let server = ApiServer::start(script).await;
        let cx = context("DEL", &server, files.path());
        for pod in ["full", "web"] {
            cx.journal
                .record(&pending_del(&cx, &format!("of-{pod}"), pod, &[]))
                .unwrap();
        }
        replay_some(&cx).await;
        let patches = server
            .requests()
            .into_iter()
            .filter(|request| request.starts_with("PATCH "));
        assert_eq!(patches.collect::<BTreeSet<_>>().len(), tried, "{code}");
        assert_eq!(remaining(&cx), 2, "{code}");
    }
}

#[tokio::test]
async fn replay_without_an_address_to_release_removes_the_entry_though_the_endpoint_stays() {
    let files = tempfile::tempdir().unwrap();
    let server = ApiServer::start(with_full_annotations).await;
    let cx = context("DEL", &server, files.path());
    cx.journal
        .record(&pending_del(&cx, "c9", "full", &["net1.c9"]))
        .unwrap();
    replay_some(&cx).await;
    assert_eq!(remaining(&cx), 0, "{:?}", server.requests());
}

#[tokio::test]
async fn del_without_an_address_to_release_is_not_deferred_though_the_endpoint_stays() {
    let files = tempfile::tempdir().unwrap();
    let server = ApiServer::start(with_full_annotations).await;
    let cx = context("DEL", &server, files.path());
    crate::del::del(&cx).await.unwrap();
    assert!(
        server
            .requests()
            .iter()
            .any(|request| request.starts_with("PATCH ")),
        "{:?}",
        server.requests()
    );
    assert_eq!(remaining(&cx), 0);
}
