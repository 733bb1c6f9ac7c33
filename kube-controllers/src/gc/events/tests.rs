use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, UNIX_EPOCH};

use hyper::Request;
use libcalico::ipam::gc::SuspectOwner;
use libcalico::ipam::{HandleId, LeakReason, OwnerKind};
use tokio_util::sync::CancellationToken;

use super::*;

pub(in crate::gc) fn suspect(number: u8, node: Option<&str>) -> Suspect {
    let address = std::net::Ipv4Addr::new(10, 0, 0, number).into();
    Suspect {
        block: "10.0.0.0/26".parse().unwrap(),
        address,
        handle: HandleId::new(format!("net.{number}")),
        sequence: Some(7),
        fingerprint: 0,
        owner: SuspectOwner { kind: OwnerKind::Pod, names: Some(("ns".into(), format!("pod{number}"))) },
        owners: Vec::new(),
        node: node.map(str::to_owned),
        kubernetes_node: node.map(str::to_owned),
        pool: Some("pool".into()),
        reason: LeakReason::PodGone,
        by_node: false,
    }
}

#[tokio::test]
async fn no_event_is_published_after_the_gate_closes() {
    let (asked, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let count = asked.clone();
    let service = tower::service_fn(move |_: Request<kube::client::Body>| {
        count.fetch_add(1, Ordering::Relaxed);
        let answer = hyper::Response::new(kube::client::Body::from(b"{}".to_vec()));
        async move { Ok::<_, std::convert::Infallible>(answer) }
    });
    let client = kube::Client::new(service, "default");
    let gate = LeaderGate::new(crate::leader::Leadership::always(), stop.clone(), 0);
    let (events, suspect) = (EventPublisher::default(), suspect(1, Some("a")));
    events.publish(&client, &gate, GcMode::Reclaim, &[&suspect]).await;
    stop.cancel();
    events.publish(&client, &gate, GcMode::Reclaim, &[&suspect]).await;
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn event_message_escapes_control_characters() {
    let (sent, stop) = (Arc::new(std::sync::Mutex::new(Vec::new())), CancellationToken::new());
    let bodies = sent.clone();
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let bodies = bodies.clone();
        async move {
            let body = request.into_body().collect_bytes().await.unwrap();
            bodies.lock().unwrap().push(serde_json::from_slice::<Value>(&body).unwrap()["message"].clone());
            Ok::<_, std::convert::Infallible>(hyper::Response::new(kube::client::Body::from(b"{}".to_vec())))
        }
    });
    let gate = LeaderGate::new(crate::leader::Leadership::always(), stop, 0);
    let client = kube::Client::new(service, "default");
    EventPublisher::default()
        .write(&client, &gate, json!({ "metadata": { "namespace": NAMESPACE }, "message": "a\n\x1b[2Kb" }))
        .await;
    assert_eq!(*sent.lock().unwrap(), ["a\\n\\u001b[2Kb"]);
}

/// A tenant may forbid Events in the tenant's own namespace, for example by a quota.
#[tokio::test]
async fn event_forbidden_in_a_tenant_namespace_does_not_block_other_events() {
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let paths = asked.clone();
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let path = request.uri().path().to_owned();
        let code = if path.contains("tenant") { 403 } else { 201 };
        paths.lock().unwrap().push(path);
        let body = kube::client::Body::from(format!(r#"{{"kind":"Status","code":{code}}}"#).into_bytes());
        let response = hyper::Response::builder().status(code).body(body).unwrap();
        async move { Ok::<_, std::convert::Infallible>(response) }
    });
    let client = kube::Client::new(service, "default");
    let gate = LeaderGate::new(crate::leader::Leadership::always(), CancellationToken::new(), 0);
    let (events, suspect) = (EventPublisher::default(), suspect(1, Some("a")));
    let conflict =
        Conflict { namespace: "tenant".into(), name: "p".into(), address: suspect.address, block: suspect.block };
    let event = conflict_event(&conflict, "u", &ConflictKind::Free, UNIX_EPOCH);
    assert!(events.write(&client, &gate, event).await, "it is not tried again");
    events.publish(&client, &gate, GcMode::Reclaim, &[&suspect]).await;
    assert_eq!(*asked.lock().unwrap(), ["/api/v1/namespaces/tenant/events", "/api/v1/namespaces/default/events"]);
}

#[test]
fn event_message_with_the_longest_names_fits_in_a_kibibyte() {
    let mut long = suspect(1, Some("a"));
    long.owner.names = Some(("n".repeat(63), "p".repeat(253)));
    let event = build_event("a", GcMode::Reclaim, &[&long; 9], UNIX_EPOCH);
    let message = event["message"].as_str().unwrap();
    assert!(message.len() <= 1024 && message.ends_with(" and 7 more"), "{}: {message}", message.len());
}

#[test]
fn released_leaks_are_published_as_an_event_per_node() {
    let suspects: Vec<Suspect> =
        (1..=14).map(|n| suspect(n, (n > 1).then_some(if n == 2 { "b" } else { "a" }))).collect();
    let suspects: Vec<&Suspect> = suspects.iter().collect();
    let by_node = group_by_node(&suspects);
    assert_eq!(by_node.iter().map(|(node, of)| (*node, of.len())).collect::<Vec<_>>(), [("a", 12), ("b", 1)]);
    let at = UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
    let event = build_event("a", GcMode::Reclaim, &by_node["a"], at);
    let message = event["message"].as_str().unwrap();
    let begin = "released 12 leaked address(es): 10.0.0.3 of pod ns/pod3 (its pod is gone), ";
    assert!(message.starts_with(begin), "{message}");
    assert!(message.ends_with(" and 2 more"), "{message}");
    assert_eq!(event["firstTimestamp"], "2023-11-14T22:13:20Z");
    assert_eq!(
        (&event["involvedObject"]["kind"], &event["reason"]),
        (&"Node".into(), &"LeakedAddressesReclaimed".into())
    );
}
