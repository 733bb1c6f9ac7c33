use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use datastore::config::{DEFAULT_DEADLINE, LocalConfig};
use datastore::{Datastore, DatastoreConfig};

use libcalico::api::KubeControllersConfigurationSpec;
use libcalico::variables::Variables;
use serde_json::json;

use crate::settings::{Environment, Mode, Settings, default_configuration, merge};

/// Returns an embedded datastore, in a directory that is deleted with the first value. Like etcd,
/// it has transactions.
pub(crate) fn embedded() -> (tempfile::TempDir, Arc<Datastore>) {
    let dir = tempfile::tempdir().unwrap();
    let local = LocalConfig {
        path: dir.path().join("calico.db"),
        deadline: DEFAULT_DEADLINE,
    };
    let store = Datastore::open(&DatastoreConfig::Local(local)).unwrap();
    (dir, Arc::new(store))
}

pub(crate) fn settings() -> Settings {
    merged(&default_configuration())
}

pub(super) fn configured(spec: serde_json::Value) -> Settings {
    merged(&serde_json::from_value(spec).unwrap())
}

fn merged(spec: &KubeControllersConfigurationSpec) -> Settings {
    merge(
        &Environment::read(Variables::NONE).unwrap(),
        spec,
        Mode::Etcd,
    )
    .settings
}

/// Returns a client of an API server that answers each request with the JSON that `answer` returns
/// for the request's URI.
pub(super) fn kubernetes(
    answer: impl Fn(&hyper::Uri) -> serde_json::Value + Clone + Send + Sync + 'static,
) -> kube::Client {
    refusing_kubernetes(move |uri| Ok(answer(uri)))
}

/// Returns a client of an API server with this Node alone, and the number of its requests.
pub(crate) fn kubernetes_with_node(node: &str) -> (kube::Client, Arc<AtomicUsize>) {
    let requests = Arc::<AtomicUsize>::default();
    let (counted, named) = (requests.clone(), format!("%3D{node}&"));
    let items = json!([{ "metadata": { "name": node } }]);
    let client = kubernetes(move |uri| {
        counted.fetch_add(1, Ordering::Relaxed);
        let is_named = uri.query().is_some_and(|query| query.contains(&named));
        let items = if is_named { items.clone() } else { json!([]) };
        json!({ "apiVersion": "v1", "kind": "NodeList", "metadata": {}, "items": items })
    });
    (client, requests)
}

/// Returns a client like [`kubernetes`], whose API server refuses a request for which `answer`
/// returns `Err`, with that HTTP status.
pub(crate) fn refusing_kubernetes(
    answer: impl Fn(&hyper::Uri) -> Result<serde_json::Value, u16> + Clone + Send + Sync + 'static,
) -> kube::Client {
    let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
        let (status, body) = match answer(request.uri()) {
            Ok(body) => (200, body),
            Err(code) => {
                let message = format!("refused with {code}");
                let reason = if code == 404 { "NotFound" } else { "Refused" };
                let status = json!({
                    "kind": "Status", "status": "Failure", "message": message, "reason": reason,
                    "code": code,
                });
                (code, status)
            }
        };
        let response = hyper::Response::builder().status(status);
        let response = response
            .body(kube::client::Body::from(body.to_string().into_bytes()))
            .unwrap();
        async move { Ok::<_, std::convert::Infallible>(response) }
    });
    kube::Client::new(service, "default")
}

/// Returns a client of an API server that accepts every request, and the bodies that the client has
/// sent.
pub(crate) fn posting_kubernetes() -> (kube::Client, Arc<Mutex<Vec<serde_json::Value>>>) {
    let taken = Arc::<Mutex<Vec<serde_json::Value>>>::default();
    let sent = taken.clone();
    let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
        let taken = taken.clone();
        async move {
            let body = request.into_body().collect_bytes().await.unwrap();
            taken
                .lock()
                .unwrap()
                .push(serde_json::from_slice(&body).unwrap());
            Ok::<_, std::convert::Infallible>(hyper::Response::new(kube::client::Body::from(
                b"{}".to_vec(),
            )))
        }
    });
    (kube::Client::new(service, "default"), sent)
}

/// Returns a client of an API server that counts requests in `asked` and never responds.
pub(crate) fn silent_kubernetes(asked: Arc<AtomicUsize>) -> kube::Client {
    type Answer = Result<hyper::Response<kube::client::Body>, std::convert::Infallible>;
    let service = tower::service_fn(move |_: hyper::Request<kube::client::Body>| {
        asked.fetch_add(1, Ordering::Relaxed);
        std::future::pending::<Answer>()
    });
    kube::Client::new(service, "default")
}
