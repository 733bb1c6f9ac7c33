//! [`ApiServer`]: the API server in memory, with interruptions at single writes, and faults.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::header::ACCEPT;
use hyper::{Method, Request, Response};
use kube::client::Body;
use libcalico::kubernetes::{ApiGroup, Location};
use libcalico::migration::{LOCKED_BY, MIGRATED_BY, cluster_information};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::discovery;
use super::paths::RequestPath;
use super::store::{ObjectStore, Reply, failure};

/// A field of a `spec` that the definitions of v3 lack.
pub(crate) const UNKNOWN_FIELD: &str = "unknownToV3";

/// The end of the program, or a fault, at a write. Writes count from 0 since
/// [`ApiServer::interrupt`].
///
/// Reads do not count. A program that ends before a read leaves the same objects as one that ends
/// after the write before it, and the objects are all that the next process finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// The program ends, and the API server never gets the request.
    Before(usize),
    /// The program ends after the request has taken effect, and never gets the response.
    After(usize),
    /// The program ends, and the request takes effect at [`ApiServer::release_held`].
    Hold(usize),
    /// The request takes effect, and the API server answers with a failure. The program runs on.
    Fail(usize),
}

/// A rule that answers a request instead of the store; `None` leaves the request to the store.
type Fault = Box<dyn FnMut(&ReceivedRequest) -> Option<Reply> + Send>;

/// A request that the server has received.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: Method,
    pub(crate) uri: hyper::Uri,
    pub(crate) metadata_only: bool,
    pub(crate) body: Value,
}

/// An API server in memory. Clones share its objects.
#[derive(Clone)]
pub(crate) struct ApiServer {
    shared: Arc<Mutex<ServerState>>,
    /// True while the program is to be ended.
    interrupted: watch::Sender<bool>,
    /// Number of requests that have taken effect.
    changes: watch::Sender<usize>,
}

#[derive(Default)]
struct ServerState {
    store: ObjectStore,
    /// Number of writes since [`ApiServer::interrupt`].
    writes: usize,
    log: Vec<String>,
    interruption: Option<Interruption>,
    /// True from an interruption until [`ApiServer::revive`]: no request is answered.
    is_dead: bool,
    held: Option<ReceivedRequest>,
    fault: Option<Fault>,
    denied_rights: Vec<String>,
    violations: Vec<String>,
}

impl ReceivedRequest {
    /// Returns true if the request can change objects.
    fn is_write(&self) -> bool {
        let is_dry_run = self
            .uri
            .query()
            .is_some_and(|query| query.contains("dryRun=All"));
        self.method != Method::GET
            && !is_dry_run
            && !self.uri.path().starts_with("/apis/authorization.k8s.io/")
    }
}

impl ApiServer {
    pub(crate) fn new() -> Self {
        ApiServer {
            shared: Arc::default(),
            interrupted: watch::Sender::new(false),
            changes: watch::Sender::new(0),
        }
    }

    /// Returns a client of this server, as a new process has one.
    pub(crate) fn client(&self) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        kube::Client::new(service, "default")
    }

    /// Calls `change` with the objects, beside all requests.
    pub(crate) fn with_store<T>(&self, change: impl FnOnce(&mut ObjectStore) -> T) -> T {
        let outcome = change(&mut self.state().store);
        self.changes.send_modify(|number| *number += 1);
        outcome
    }

    pub(crate) fn object(&self, at: &Location) -> Option<Value> {
        self.state().store.get(at).cloned()
    }

    /// Interrupts the program at a write from now on.
    pub(crate) fn interrupt(&self, interruption: Interruption) {
        let mut state = self.state();
        state.writes = 0;
        state.interruption = Some(interruption);
    }

    /// Cancels an interruption. Returns true if it was still to come.
    pub(crate) fn clear_interruption(&self) -> bool {
        self.state().interruption.take().is_some()
    }

    /// Waits for the interruption.
    pub(crate) async fn interrupted(&self) {
        let _ = self
            .interrupted
            .subscribe()
            .wait_for(|interrupted| *interrupted)
            .await;
    }

    /// Answers requests again, those of the next process.
    pub(crate) fn revive(&self) {
        self.state().is_dead = false;
        self.interrupted.send_replace(false);
    }

    /// Executes the request that [`Interruption::Hold`] has held, and returns the status of its
    /// response.
    pub(crate) fn release_held(&self) -> Option<u16> {
        let mut state = self.state();
        let request = state.held.take()?;
        let (code, _) = state.execute(&request);
        Some(code)
    }

    /// Answers with the replies of `fault`, where it returns one.
    pub(crate) fn fail(
        &self,
        fault: impl FnMut(&ReceivedRequest) -> Option<Reply> + Send + 'static,
    ) {
        self.state().fault = Some(Box::new(fault));
    }

    pub(crate) fn end_faults(&self) {
        self.state().fault = None;
    }

    /// Refuses a right in reviews of access, such as `delete apiservices`.
    pub(crate) fn deny(&self, right: &str) {
        self.state().denied_rights.push(right.to_owned());
    }

    /// Returns the requests so far as `METHOD /path?query`, and forgets them.
    pub(crate) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.state().log)
    }

    /// Returns the requests after which pods could use both groups.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    /// Waits until `condition` holds; it is checked after each request that has taken effect.
    pub(crate) async fn reached(&self, condition: impl Fn(&ObjectStore) -> bool) {
        let mut changes = self.changes.subscribe();
        while !condition(&self.state().store) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, ServerState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let accept = parts
            .headers
            .get(ACCEPT)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let metadata_only = accept.contains("as=PartialObjectMetadataList");
        let body = body.collect_bytes().await.unwrap();
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let request = ReceivedRequest {
            method: parts.method,
            uri: parts.uri,
            metadata_only,
            body,
        };
        let reply = self.state().receive(request);
        match reply {
            Some((code, body)) => {
                self.changes.send_modify(|number| *number += 1);
                let body = Body::from(body.to_string().into_bytes());
                Response::builder().status(code).body(body).unwrap()
            }
            None => {
                self.interrupted.send_replace(true);
                std::future::pending().await
            }
        }
    }
}

impl ServerState {
    /// Returns `None` if the program ends at this request.
    fn receive(&mut self, request: ReceivedRequest) -> Option<Reply> {
        if self.is_dead {
            return None;
        }
        if !request.is_write() {
            return Some(self.execute(&request));
        }
        let number = self.writes;
        self.writes += 1;
        match self.interruption {
            Some(Interruption::Before(at)) if at == number => {}
            Some(Interruption::After(at)) if at == number => {
                self.execute(&request);
            }
            Some(Interruption::Hold(at)) if at == number => self.held = Some(request),
            Some(Interruption::Fail(at)) if at == number => {
                self.interruption = None;
                self.execute(&request);
                return Some(failure(
                    500,
                    "InternalError",
                    "etcdserver: request timed out",
                ));
            }
            _ => return Some(self.execute(&request)),
        }
        (self.interruption, self.is_dead) = (None, true);
        None
    }

    fn execute(&mut self, request: &ReceivedRequest) -> Reply {
        self.log.push(format!("{} {}", request.method, request.uri));
        let reply = match self.fault.as_mut().and_then(|fault| fault(request)) {
            Some(reply) => reply,
            None => self.serve(request),
        };
        if self
            .store
            .get(&cluster_information(ApiGroup::CrdV1))
            .is_some_and(is_ready)
            && self.is_v3_open()
        {
            self.violations
                .push(format!("{} {}", request.method, request.uri));
        }
        reply
    }

    fn serve(&mut self, request: &ReceivedRequest) -> Reply {
        let Some(path) = RequestPath::parse(&request.uri) else {
            let found = discovery::describe(&self.store.kinds(), request.uri.path());
            return found.map_or((404, "404 page not found".into()), |found| (200, found));
        };
        if path.group == ApiGroup::V3.name() && self.store.is_aggregated(&path.group) {
            return failure(503, "ServiceUnavailable", "error trying to reach service");
        }
        let Some(kind) = self.store.kind_of(&path) else {
            return failure(
                404,
                "NotFound",
                "the server could not find the requested resource",
            );
        };
        let body = match with_known_fields(&path, &request.body) {
            Ok(body) => body,
            Err(refusal) => return refusal,
        };
        match request.method {
            Method::POST if kind.kind == "SelfSubjectAccessReview" => {
                (201, self.review(&request.body))
            }
            Method::POST if kind.kind == "SelfSubjectRulesReview" => (201, self.rules()),
            Method::POST => self.store.create(&kind, &path, body),
            Method::PUT => self.store.replace(&kind, &path, body),
            Method::DELETE => self.store.delete(&kind, &path, &request.body),
            Method::GET if path.name.is_empty() => {
                self.store.list(&kind, &path, request.metadata_only)
            }
            Method::GET => self.store.read(&kind, &path),
            _ => failure(
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            ),
        }
    }

    fn review(&self, review: &Value) -> Value {
        let right = &review["spec"]["resourceAttributes"];
        let text = |field: &str| right[field].as_str().unwrap_or_default().to_owned();
        let is_denied =
            self.denied_rights
                .contains(&format!("{} {}", text("verb"), text("resource")));
        let mut answer = review.clone();
        answer["status"] = json!({ "allowed": !is_denied });
        answer
    }

    /// Returns the rules of an account that may do everything, or none if a right is denied.
    fn rules(&self) -> Value {
        let all = json!({ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] });
        let rules = if self.denied_rights.is_empty() {
            vec![all]
        } else {
            Vec::new()
        };
        json!({
            "kind": "SelfSubjectRulesReview",
            "status": { "resourceRules": rules, "incomplete": false },
        })
    }

    fn is_v3_open(&self) -> bool {
        let information = self.store.get(&cluster_information(ApiGroup::V3));
        information.is_some_and(|information| {
            let annotations = &information["metadata"]["annotations"];
            is_ready(information)
                && [MIGRATED_BY, LOCKED_BY]
                    .iter()
                    .any(|mark| annotations[mark].is_string())
        })
    }
}

/// Drops the unknown field of an object in v3, or refuses the object if the query has the strict
/// validation.
fn with_known_fields(path: &RequestPath, body: &Value) -> Result<Value, Reply> {
    let mut body = body.clone();
    let spec = body
        .pointer_mut("/spec")
        .and_then(Value::as_object_mut)
        .filter(|_| path.group == ApiGroup::V3.name());
    let has_unknown = spec.is_some_and(|spec| spec.remove(UNKNOWN_FIELD).is_some());
    if has_unknown
        && path
            .query
            .get("fieldValidation")
            .is_some_and(|mode| mode == "Strict")
    {
        let text = format!("strict decoding error: unknown field \"spec.{UNKNOWN_FIELD}\"");
        return Err(failure(400, "BadRequest", &text));
    }
    Ok(body)
}

fn is_ready(information: &Value) -> bool {
    information["spec"]["datastoreReady"] == true
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use datastore::kubernetes::is_allowed;
    use tokio::time::timeout;

    use super::super::cluster::{MigratedCluster, object};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn interruptions_end_the_program_before_or_after_the_effect() {
        for (interruption, has_effect) in [
            (Interruption::Before(0), false),
            (Interruption::After(0), true),
            (Interruption::Hold(0), false),
        ] {
            let cluster = MigratedCluster::new();
            cluster.start();
            let requests = cluster.requests();
            cluster.server.interrupt(interruption);
            requests.get(&object()).await.unwrap();
            tokio::select! {
                () = cluster.delete() => panic!("{interruption:?}"),
                () = cluster.server.interrupted() => {}
            }
            let dead = timeout(Duration::from_secs(60), requests.get(&object())).await;
            assert!(dead.is_err(), "a dead program gets no response");
            cluster.server.revive();
            assert_eq!(
                requests.get(&object()).await.unwrap().is_none(),
                has_effect,
                "{interruption:?}"
            );
            let late = matches!(interruption, Interruption::Hold(_)).then_some(200);
            assert_eq!(cluster.server.release_held(), late);
            assert_eq!(
                requests.get(&object()).await.unwrap().is_none(),
                has_effect || late.is_some()
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failed_write_has_its_effect_and_is_repeated() {
        let cluster = MigratedCluster::new();
        cluster.start();
        cluster.server.interrupt(Interruption::Fail(0));
        cluster.delete().await;
        assert_eq!(cluster.server.take_log().len(), 2);
        assert!(!cluster.server.clear_interruption() && cluster.server.object(&object()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn reviews_of_access_grant_all_but_the_denied_rights() {
        let cluster = MigratedCluster::new();
        cluster.server.deny("delete apiservices");
        let right = |verb| ["apiregistration.k8s.io", "apiservices", "", verb];
        let client = cluster.server.client();
        assert_eq!(is_allowed(&client, right("get")).await.unwrap(), Some(true));
        assert_eq!(
            is_allowed(&client, right("delete")).await.unwrap(),
            Some(false)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn open_v3_beside_a_ready_v1_is_a_violation() {
        let cluster = MigratedCluster::new();
        cluster.server.with_store(|store| {
            let annotations = json!({ MIGRATED_BY: "u" });
            let open = json!({
                "metadata": { "annotations": annotations }, "spec": { "datastoreReady": true },
            });
            store.put(&cluster_information(ApiGroup::V3), open);
        });
        cluster.requests().get(&object()).await.unwrap();
        assert_eq!(cluster.server.violations().len(), 1);
    }
}
