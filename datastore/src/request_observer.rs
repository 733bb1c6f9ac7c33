//! [`RequestObserver`]: receives the outcome of each request to an API server, for metrics.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use hyper::{Request, StatusCode};
use libcalico::kubernetes::{ApiVerb, request_kind};
use tokio::time::Instant;

/// A receiver of the outcomes of requests.
pub trait RequestObserver: Send + Sync + Debug {
    /// Records a request. `kind` is of a closed list ([`request_kind`]). `code` is the status of
    /// the response, or `None` if the request has none, because the connection failed or the sender
    /// did not wait any longer. `took` ends with the head of the response, so that of a watch ends
    /// when the watch opens.
    fn finished(&self, verb: ApiVerb, kind: &'static str, code: Option<u16>, took: Duration);
}

/// The observer of a client, if there is one. Two values are equal whatever they contain: settings
/// with different observers locate the same server.
#[derive(Debug, Clone, Default)]
pub struct Observer(Option<Arc<dyn RequestObserver>>);

impl Observer {
    /// Returns the observer that passes each outcome to `receiver`.
    pub fn new(receiver: Arc<dyn RequestObserver>) -> Self {
        Observer(Some(receiver))
    }

    /// Begins to observe a request. `root` is the path of the server's URL, which the path of the
    /// request begins with. Returns `None` without an observer.
    pub(crate) fn begin<B>(&self, request: &Request<B>, root: &str) -> Option<ObservedRequest> {
        let receiver = Arc::clone(self.0.as_ref()?);
        let path = request.uri().path();
        let path = path.strip_prefix(root).unwrap_or(path);
        let (verb, kind) = request_kind(
            request.method().as_str(),
            path,
            request.uri().query().unwrap_or_default(),
        );
        Some(ObservedRequest {
            receiver,
            verb,
            kind,
            begin: Instant::now(),
            code: None,
        })
    }
}

impl PartialEq for Observer {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Observer {}

/// A request in progress. Dropping the value reports the outcome, so a request whose sender gives
/// up is reported too.
pub(crate) struct ObservedRequest {
    receiver: Arc<dyn RequestObserver>,
    verb: ApiVerb,
    kind: &'static str,
    begin: Instant,
    code: Option<u16>,
}

impl ObservedRequest {
    /// Records the head of the response.
    pub(crate) fn answered(&mut self, status: StatusCode) {
        self.code = Some(status.as_u16());
    }
}

impl Drop for ObservedRequest {
    fn drop(&mut self) {
        self.receiver
            .finished(self.verb, self.kind, self.code, self.begin.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Debug, Default)]
    struct RecordedRequests(Mutex<Vec<(ApiVerb, &'static str, Option<u16>)>>);

    impl RequestObserver for RecordedRequests {
        fn finished(&self, verb: ApiVerb, kind: &'static str, code: Option<u16>, _: Duration) {
            self.0.lock().unwrap().push((verb, kind, code));
        }
    }

    fn get(path: &str) -> Request<()> {
        Request::get(path).body(()).unwrap()
    }

    #[test]
    fn dropped_request_is_reported_with_and_without_a_response() {
        let seen = Arc::new(RecordedRequests::default());
        let observer = Observer::new(seen.clone());
        let mut answered = observer
            .begin(&get("https://server/api/v1/pods?limit=1"), "")
            .unwrap();
        answered.answered(StatusCode::TOO_MANY_REQUESTS);
        assert!(
            seen.0.lock().unwrap().is_empty(),
            "the request is in progress"
        );
        drop(answered);
        drop(observer.begin(&get("/api/v1/nodes/n1"), ""));
        let expected = [
            (ApiVerb::List, "pods", Some(429)),
            (ApiVerb::Get, "nodes", None),
        ];
        assert_eq!(*seen.0.lock().unwrap(), expected);
    }

    #[test]
    fn path_of_the_servers_url_does_not_hide_the_kind() {
        let seen = Arc::new(RecordedRequests::default());
        let observer = Observer::new(seen.clone());
        drop(observer.begin(
            &get("https://server/k8s/clusters/c-1/api/v1/pods"),
            "/k8s/clusters/c-1",
        ));
        assert_eq!(*seen.0.lock().unwrap(), [(ApiVerb::List, "pods", None)]);
    }

    #[test]
    fn settings_with_and_without_an_observer_are_equal() {
        assert_eq!(
            Observer::new(Arc::new(RecordedRequests::default())),
            Observer::default()
        );
        assert!(
            Observer::default()
                .begin(&get("/api/v1/pods"), "")
                .is_none()
        );
    }
}
