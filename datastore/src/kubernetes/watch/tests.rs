//! Tests [`ApiSource`] with an API server that sends scripted responses.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::watch::{NextPage, ObjectChange, WatchFailure, WatchSource};

struct Names {
    metadata_only: bool,
}

impl Decode for Names {
    type Value = String;
    type Key = String;

    fn kind(&self) -> &'static str {
        "Thing"
    }

    fn is_metadata_only(&self) -> bool {
        self.metadata_only
    }

    async fn collection(&mut self) -> Result<String, CollectionError> {
        Ok("/things".into())
    }

    fn decode(&mut self, object: &str) -> Option<ObjectChange<String, String>> {
        self.decode_key(object).map(ObjectChange::Upsert)
    }

    fn decode_key(&mut self, object: &str) -> Option<String> {
        Some(
            serde_json::from_str::<Value>(object).ok()?["name"]
                .as_str()?
                .to_owned(),
        )
    }
}

#[derive(Clone, Default)]
struct Server {
    answers: Arc<Mutex<VecDeque<(u16, Value)>>>,
    requests: Arc<Mutex<Vec<String>>>,
    accepted: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn source(&self, answers: impl IntoIterator<Item = (u16, Value)>) -> ApiSource<Names> {
        self.source_of(false, answers)
    }

    fn source_of(
        &self,
        metadata_only: bool,
        answers: impl IntoIterator<Item = (u16, Value)>,
    ) -> ApiSource<Names> {
        self.answers.lock().unwrap().extend(answers);
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            server
                .requests
                .lock()
                .unwrap()
                .push(request.uri().to_string());
            let accept = request.headers()["accept"].to_str().unwrap().to_owned();
            server.accepted.lock().unwrap().push(accept);
            let (code, body) = server.answers.lock().unwrap().pop_front().unwrap();
            let response = Response::builder().status(code).header("retry-after", "3");
            let response = response
                .body(Body::from(body.to_string().into_bytes()))
                .unwrap();
            async move { Ok::<_, std::convert::Infallible>(response) }
        });
        ApiSource::new(
            kube::Client::new(service, "default"),
            Names { metadata_only },
        )
    }
}

fn page(name: &str, token: &str) -> (u16, Value) {
    (
        200,
        json!({
            "kind": "ThingList", "metadata": {"resourceVersion": "7", "continue": token},
            "items": [{"name": name}],
        }),
    )
}

fn refused(code: u16) -> (u16, Value) {
    (
        code,
        json!({"kind": "Status", "code": code, "message": "no"}),
    )
}

/// Shows SEC-63.
#[tokio::test]
async fn response_other_than_a_list_is_not_mistaken_for_an_empty_list() {
    for answer in [
        json!({"kind": "ThingList", "metadata": {"resourceVersion": "7"}}),
        json!({"kind": "OtherList", "metadata": {"resourceVersion": "7"}, "items": []}),
        json!({"metadata": {"resourceVersion": "7"}, "items": []}),
        json!({"kind": "Status", "metadata": {}, "status": "Success"}),
    ] {
        let mut source = Server::default().source([(200, answer.clone())]);
        assert!(
            matches!(source.list(None).await, Err(WatchFailure::Lost { .. })),
            "{answer}"
        );
    }
    let nothing = json!({"kind": "ThingList", "metadata": {"resourceVersion": "7"}, "items": null});
    assert_eq!(
        Server::default()
            .source([(200, nothing)])
            .list(None)
            .await
            .unwrap()
            .objects,
        []
    );
}

#[tokio::test]
async fn metadata_is_requested_where_it_is_enough_and_whole_objects_are_accepted() {
    let list = |kind: &str| {
        let metadata = json!({"resourceVersion": "7"});
        let list = json!({"kind": kind, "metadata": metadata, "items": [{"name": "a"}]});
        (200, list)
    };
    let (metadata, whole) = (list("PartialObjectMetadataList"), list("ThingList"));
    let server = Server::default();
    let mut source = server.source_of(true, [metadata.clone(), whole, (200, json!({}))]);
    for _ in 0..2 {
        let page = source.list(None).await.unwrap();
        assert_eq!(page.objects, [ObjectChange::Upsert("a".into())]);
    }
    source.open(&"7".to_owned()).await.unwrap();
    let accepted = server.accepted.lock().unwrap().clone();
    for (accepted, kind) in accepted.iter().zip(["List;", "List;", ";"]) {
        let metadata = format!("application/json;as=PartialObjectMetadata{kind}");
        assert!(
            accepted.starts_with(&metadata) && accepted.ends_with(",application/json"),
            "{accepted}"
        );
    }
    let server = Server::default();
    let failure = server.source([metadata]).list(None).await.err();
    assert!(matches!(failure, Some(WatchFailure::Lost { .. })));
    assert_eq!(*server.accepted.lock().unwrap(), ["application/json"]);
}

#[tokio::test]
async fn list_page_returns_the_next_token_and_the_last_page_a_watch_position() {
    let server = Server::default();
    let mut source = server.source([page("a", "x/y="), page("b", "")]);
    let first = source.list(None).await.unwrap();
    assert_eq!(first.objects, [ObjectChange::Upsert("a".into())]);
    let NextPage::Page(token) = first.next else {
        panic!("the last page")
    };
    let second = source.list(Some(token)).await.unwrap();
    assert_eq!(second.objects, [ObjectChange::Upsert("b".into())]);
    assert!(matches!(second.next, NextPage::Watch(position) if position == "7"));
    let requests = server.requests.lock().unwrap();
    assert!(
        requests[0].starts_with("/things?limit=") && !requests[0].contains("continue"),
        "{requests:?}"
    );
    assert!(requests[1].ends_with("&continue=x%2Fy%3D"), "{requests:?}");
}

#[tokio::test]
async fn list_page_that_names_an_earlier_page_as_the_next_one_is_a_failure() {
    for tokens in [&["x", "x"][..], &["x", "y", "x"]] {
        let answers: Vec<_> = tokens.iter().map(|token| page("a", token)).collect();
        let mut source = Server::default().source(answers);
        let mut position = None;
        for _ in 1..tokens.len() {
            let NextPage::Page(next) = source.list(position).await.unwrap().next else {
                panic!("the last page")
            };
            position = Some(next);
        }
        assert!(
            matches!(source.list(position).await, Err(WatchFailure::Lost { .. })),
            "{tokens:?}"
        );
    }
}

/// The tokens of the interrupted list come again.
#[tokio::test]
async fn list_that_begins_again_has_the_same_tokens() {
    let mut source = Server::default().source([page("a", "x"), page("a", "x"), page("b", "")]);
    for position in [None, None, Some("x".to_owned())] {
        source.list(position).await.unwrap();
    }
}

#[tokio::test]
async fn http_status_decides_the_watch_failure_class() {
    for code in [401, 403, 404, 410, 429, 500, 503] {
        let mut source = Server::default().source([refused(code)]);
        let failure = source.list(Some("x".into())).await.err().unwrap();
        let expected = match code {
            404 => matches!(failure, WatchFailure::Missing(_)),
            410 => matches!(failure, WatchFailure::Expired(_)),
            401 => matches!(
                failure,
                WatchFailure::Lost {
                    retry_after: None,
                    ..
                }
            ),
            403 => matches!(failure, WatchFailure::Refused(_)),
            _ => matches!(
                failure,
                WatchFailure::Lost {
                    retry_after: Some(Duration { .. }),
                    ..
                }
            ),
        };
        assert!(expected, "{code}: {failure:?}");
    }
}
