use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use hyper::Request;
use libcalico::ipam::gc::SuspectOwner;
use libcalico::ipam::{HandleId, Holder, LeakReason};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::*;
use crate::gc::gate::LeaderGate;
use crate::gc::owners_api::OwnersApi;
use crate::leader::Leadership;

pub(in crate::gc) fn suspect(number: u8, node: Option<&str>) -> Suspect {
    let address = std::net::Ipv4Addr::new(10, 0, 0, number).into();
    Suspect {
        block: "10.0.0.0/26".parse().unwrap(),
        address,
        handle: HandleId::new(format!("net.{number}")),
        sequence: Some(7),
        fingerprint: 0,
        owner: SuspectOwner {
            kind: OwnerKind::Pod,
            names: Some(("ns".into(), format!("pod{number}"))),
        },
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
    let gate = LeaderGate::new(Leadership::always(), stop.clone(), 0);
    let (api, suspect) = (OwnersApi::new(client), suspect(1, Some("a")));
    publish(&api, &gate, GcMode::Reclaim, &[&suspect], UNIX_EPOCH).await;
    stop.cancel();
    publish(&api, &gate, GcMode::Reclaim, &[&suspect], UNIX_EPOCH).await;
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[test]
fn conflict_event_names_no_owner_of_another_namespace() {
    let suspect = suspect(1, None);
    let conflict = Conflict {
        namespace: "tenant".into(),
        name: "p".into(),
        address: suspect.address,
        block: suspect.block,
    };
    let holder = Holder {
        whole: "pod shop/web".into(),
        for_caller: "another namespace".into(),
    };
    let event = conflict_event(&conflict, "u", &ConflictKind::Another(holder), UNIX_EPOCH);
    let message = event["message"].as_str().unwrap();
    let begin = "this pod uses 10.0.0.1, which IPAM has allocated to another namespace, so ";
    assert!(
        message.starts_with(begin) && !message.contains("shop"),
        "{message}"
    );
    // Each replica computes this name.
    let digest = Uuid::new_v5(&Uuid::NAMESPACE_OID, b"u/10.0.0.1");
    assert_eq!(event["metadata"]["name"], format!("p.{}", digest.simple()));
}

/// The Events of nodes are in the namespace `default`, which may be a tenant's. Shows SEC-25.
#[test]
fn node_event_names_pods_of_default_only() {
    let (mut near, mut machine) = (suspect(1, Some("a")), suspect(3, Some("a")));
    near.owner.names = Some((NAMESPACE.into(), "web".into()));
    machine.owner = SuspectOwner {
        kind: OwnerKind::Vmi,
        names: Some((NAMESPACE.into(), "db".into())),
    };
    let event = build_event(
        "a",
        GcMode::Report,
        &[&near, &suspect(2, Some("a")), &machine],
        UNIX_EPOCH,
    );
    assert_eq!(
        event["message"],
        "would release 3 leaked address(es): 10.0.0.1 of pod default/web (its pod is gone), \
         10.0.0.2 (its pod is gone), 10.0.0.3 (its pod is gone)"
    );
}

#[test]
fn event_message_with_the_longest_names_fits_in_a_kibibyte() {
    let mut long = suspect(1, Some("a"));
    long.owner.names = Some((NAMESPACE.into(), "p".repeat(253)));
    let event = build_event("a", GcMode::Reclaim, &[&long; 9], UNIX_EPOCH);
    let message = event["message"].as_str().unwrap();
    assert!(
        message.len() <= 1024 && message.ends_with(" and 7 more"),
        "{}: {message}",
        message.len()
    );
}

#[test]
fn released_leaks_are_published_as_an_event_per_node() {
    let suspects: Vec<Suspect> = (1..=14)
        .map(|n| suspect(n, (n > 1).then_some(if n == 2 { "b" } else { "a" })))
        .collect();
    let suspects: Vec<&Suspect> = suspects.iter().collect();
    let by_node = group_by_node(&suspects);
    assert_eq!(
        by_node
            .iter()
            .map(|(node, of)| (*node, of.len()))
            .collect::<Vec<_>>(),
        [("a", 12), ("b", 1)]
    );
    let at = UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
    let event = build_event("a", GcMode::Reclaim, &by_node["a"], at);
    let message = event["message"].as_str().unwrap();
    let begin = "released 12 leaked address(es): 10.0.0.3 (its pod is gone), ";
    assert!(message.starts_with(begin), "{message}");
    assert!(message.ends_with(" and 2 more"), "{message}");
    assert_eq!(event["firstTimestamp"], "2023-11-14T22:13:20Z");
    assert_eq!(
        (&event["involvedObject"]["kind"], &event["reason"]),
        (&"Node".into(), &"LeakedAddressesReclaimed".into())
    );
}
