//! A client with an observer.

use std::sync::Mutex as StdMutex;

use libcalico::kubernetes::ApiVerb;

use super::*;
use crate::request_observer::{Observer, RequestObserver};

/// The verb, kind and status of each request, in order of their ends.
#[derive(Debug, Default)]
struct RecordedRequests(StdMutex<Vec<(ApiVerb, &'static str, Option<u16>)>>);

impl RequestObserver for RecordedRequests {
    fn finished(&self, verb: ApiVerb, kind: &'static str, code: Option<u16>, _: Duration) {
        self.0.lock().unwrap().push((verb, kind, code));
    }
}

fn observed(server: &Server) -> (Arc<RecordedRequests>, KubernetesConfig) {
    let seen = Arc::new(RecordedRequests::default());
    let config = KubernetesConfig {
        observer: Observer::new(seen.clone()),
        ..server.config(LONG)
    };
    (seen, config)
}

#[tokio::test]
async fn repeated_request_is_observed_once_per_attempt() {
    let server = Server::start(&["h2"], &[Reply::Busy(0), Reply::Cut]).await;
    let (seen, config) = observed(&server);
    ApiClient::new(&config)
        .send(&ApiRequest::get("/api/v1/nodes/n1"))
        .await
        .unwrap();
    let expected = [Some(429), None, Some(200)].map(|code| (ApiVerb::Get, "nodes", code));
    assert_eq!(*seen.0.lock().unwrap(), expected);
    assert_eq!(server.requests().len(), expected.len());
}

#[tokio::test]
async fn request_of_a_kube_client_is_observed_once_and_a_watch_when_it_opens() {
    for alpn in [&["h2"][..], &["http/1.1"]] {
        let server = Server::start(alpn, &[Reply::Status(404), Reply::Ok]).await;
        let (seen, config) = observed(&server);
        let client = super::client(&config).await.unwrap();
        let get =
            |target: &'static str| client.send(Request::get(target).body(Body::empty()).unwrap());
        get("/api/v1/namespaces/shop/pods/web").await.unwrap();
        let _open = get("/api/v1/pods?watch=true").await.unwrap();
        let expected = [
            (ApiVerb::Get, "pods", Some(404)),
            (ApiVerb::Watch, "pods", Some(200)),
        ];
        assert_eq!(*seen.0.lock().unwrap(), expected, "{alpn:?}");
    }
}

#[tokio::test]
async fn request_whose_sender_gives_up_is_observed_without_a_status() {
    let server = Server::start(&["h2"], &[Reply::Never]).await;
    let (seen, config) = observed(&server);
    let client = ApiClient::new(&config);
    let request = ApiRequest::get("/api/v1/nodes/n1");
    let sent = async {
        while server.requests().is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        answer = client.send(&request) => panic!("{answer:?}"),
        () = sent => {}
    }
    assert_eq!(*seen.0.lock().unwrap(), [(ApiVerb::Get, "nodes", None)]);
}
