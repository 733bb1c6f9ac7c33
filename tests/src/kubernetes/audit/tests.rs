use serde_json::{Value, json};
use time::macros::datetime;

use super::*;

/// Returns a line of the log; `at` is in milliseconds.
fn line(id: &str, stage: &str, verb: &str, at: u64, code: Option<u16>) -> String {
    let time = |at: u64| format!("2026-11-21T10:00:00.{at:03}000Z");
    let event = json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "auditID": id,
        "stage": stage,
        "requestURI": "/api/v1/namespaces/golden/pods/pod1/status?fieldManager=x", "verb": verb,
        "user": {
            "username": "system:serviceaccount:kube-system:plugin",
            "groups": ["system:authenticated"],
        },
        "sourceIPs": ["127.0.0.1"],
        "objectRef": {
            "resource": "pods", "namespace": "golden", "name": "pod1", "apiVersion": "v1",
            "subresource": "status",
        },
        "responseStatus": code.map_or(
            Value::Null, |code| json!({ "metadata": {}, "code": code, "message": "why" }),
        ),
        "requestReceivedTimestamp": time(0), "stageTimestamp": time(at), "annotations": {},
    });
    format!("{event}\n")
}

fn texts(log: &str) -> Vec<String> {
    event::requests(log.lines())
        .unwrap()
        .iter()
        .map(Request::to_string)
        .collect()
}

#[test]
fn request_has_the_fields_and_status_code_of_its_audit_events() {
    let log = line("a", "RequestReceived", "patch", 0, None)
        + &line("a", "ResponseComplete", "patch", 7, Some(409));
    let request = Request {
        verb: "patch".to_owned(),
        group: String::new(),
        resource: "pods/status".to_owned(),
        namespace: "golden".to_owned(),
        name: "pod1".to_owned(),
        user: "system:serviceaccount:kube-system:plugin".to_owned(),
        code: Some(409),
        uri: "/api/v1/namespaces/golden/pods/pod1/status?fieldManager=x".to_owned(),
        reason: "why".to_owned(),
        received: datetime!(2026-11-21 10:00:00 UTC),
        answered: datetime!(2026-11-21 10:00:00.007 UTC),
    };
    assert_eq!(request.to_string(), "patch pods/status golden/pod1: 409");
    assert_eq!(event::requests(log.lines()).unwrap(), [request]);
}

#[test]
fn text_of_a_server_error_has_the_reason() {
    let log = line("a", "RequestReceived", "get", 0, None)
        + &line("a", "ResponseComplete", "get", 1, Some(500));
    assert_eq!(texts(&log), ["get pods/status golden/pod1: 500 why"]);
}

#[test]
fn audited_requests_are_in_order_of_arrival() {
    let log = line("a", "RequestReceived", "get", 0, None)
        + &line("b", "RequestReceived", "list", 1, None)
        + &line("b", "ResponseComplete", "list", 2, Some(200));
    assert_eq!(
        texts(&log),
        [
            "get pods/status golden/pod1: no answer",
            "list pods/status golden/pod1: 200"
        ]
    );
}

#[test]
fn watch_has_a_code_at_its_start_and_unauthenticated_request_is_listed() {
    let log = line("a", "RequestReceived", "watch", 0, None)
        + &line("a", "ResponseStarted", "watch", 1, Some(200))
        + &line("b", "ResponseStarted", "get", 2, Some(401))
        + &line("b", "ResponseComplete", "get", 2, Some(401));
    assert_eq!(
        texts(&log),
        [
            "watch pods/status golden/pod1: 200",
            "get pods/status golden/pod1: 401"
        ]
    );
}

#[test]
fn requests_that_arrived_before_the_log_are_omitted() {
    let log = line("old", "ResponseStarted", "watch", 0, Some(200))
        + &line("old", "ResponseComplete", "get", 1, Some(200));
    assert_eq!(texts(&log), [""; 0]);
}

#[test]
fn partially_written_audit_line_is_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("audit.log");
    let before = line("a", "RequestReceived", "get", 0, None)
        + &line("a", "ResponseComplete", "get", 1, Some(200));
    std::fs::write(&log, &before).unwrap();
    let audit = Audit::from_now(log.clone()).unwrap();
    let after = line("b", "RequestReceived", "get", 2, None)
        + &line("b", "ResponseComplete", "get", 3, Some(404));
    std::fs::write(&log, format!("{before}{after}{{\"kind\":\"Ev")).unwrap();
    assert_eq!(audit.lines().unwrap(), ["get pods/status golden/pod1: 404"]);
}

#[test]
fn overlapping_requests_count_as_one_round() {
    let at = |received: i64, answered: i64| {
        let mut request = event::requests(line("a", "RequestReceived", "get", 0, None).lines())
            .unwrap()
            .remove(0);
        let begin = request.received;
        request.received = begin + time::Duration::milliseconds(received);
        request.answered = begin + time::Duration::milliseconds(answered);
        request
    };
    assert_eq!(rounds(&[]), 0);
    assert_eq!(rounds(&[at(0, 5), at(1, 4)]), 1);
    assert_eq!(rounds(&[at(0, 5), at(1, 2), at(3, 4)]), 2);
    assert_eq!(
        rounds(&[at(0, 2), at(2, 3), at(3, 9), at(4, 5), at(5, 6)]),
        4
    );
    let apart = Duration::from_millis(10);
    assert_eq!(waves(&[], apart), 0);
    assert_eq!(waves(&[at(0, 5), at(9, 10), at(2, 3)], apart), 1);
    assert_eq!(
        waves(&[at(0, 5), at(11, 12), at(12, 13), at(30, 31)], apart),
        3
    );
}
