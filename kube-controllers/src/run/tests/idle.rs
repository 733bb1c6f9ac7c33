//! The requests of a leader in a cluster without objects.

use std::collections::BTreeMap;
use std::sync::Mutex;

use futures::StreamExt;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::Method;
use hyper::body::{Bytes, Frame};
use serde_json::Value;

use super::*;
use crate::settings::default_configuration;

/// Seconds after which each kind that the API server does not serve has been missing for long.
const SETTLED: usize = 600;
const MINUTES: usize = 10;
/// Largest number of requests in a minute.
const LIMIT: usize = 45;

const V1: &str = "/apis/crd.projectcalico.org/v1";
/// The plurals and kinds that the API server serves.
const KINDS: [(&str, &str); 20] = [
    ("pods", "Pod"),
    ("nodes", "Node"),
    ("namespaces", "Namespace"),
    ("services", "Service"),
    ("serviceaccounts", "ServiceAccount"),
    ("networkpolicies", "NetworkPolicy"),
    ("leases", "Lease"),
    ("events", "Event"),
    ("daemonsets", "DaemonSet"),
    ("clusterinformations", "ClusterInformation"),
    (
        "kubecontrollersconfigurations",
        "KubeControllersConfiguration",
    ),
    ("tiers", "Tier"),
    ("ippools", "IPPool"),
    ("ipreservations", "IPReservation"),
    ("ipamblocks", "IPAMBlock"),
    ("ipamhandles", "IPAMHandle"),
    ("blockaffinities", "BlockAffinity"),
    ("hostendpoints", "HostEndpoint"),
    ("globalnetworkpolicies", "GlobalNetworkPolicy"),
    ("stagedglobalnetworkpolicies", "StagedGlobalNetworkPolicy"),
];

/// An API server whose watches never end. A watch delivers only the changes before its request.
#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Value>,
    version: u64,
    /// The number of requests by method and path.
    counts: BTreeMap<String, usize>,
}

impl Server {
    fn new() -> Self {
        let mut server = Server::default();
        let spec = json!({
            "clusterGUID": "0".repeat(32), "clusterType": "k8s,kdd", "datastoreReady": true,
        });
        let information = json!({ "apiVersion": "crd.projectcalico.org/v1",
                "kind": "ClusterInformation",
            "metadata": { "name": "default" }, "spec": spec });
        server.store(&format!("{V1}/clusterinformations/default"), information);
        let configuration = json!({ "apiVersion": "crd.projectcalico.org/v1",
                "kind": "KubeControllersConfiguration",
            "metadata": { "name": "default" }, "spec": default_configuration() });
        server.store(
            &format!("{V1}/kubecontrollersconfigurations/default"),
            configuration,
        );
        server
    }

    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        object["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000001");
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    fn answer(&mut self, method: &Method, path: &str, body: Value) -> (u16, Value) {
        *self.counts.entry(format!("{method} {path}")).or_default() += 1;
        let (parent, last) = path.rsplit_once('/').unwrap_or_default();
        let collection = KINDS
            .iter()
            .find(|(plural, _)| *plural == last && !path.contains("kubevirt.io"));
        let object = path.strip_suffix("/status").unwrap_or(path);
        match (method, collection) {
            (_, None) if path == "/healthz" => (200, json!("ok")),
            (_, None) if path == "/apis" => (
                200,
                json!({ "kind": "APIGroupList", "groups": [{ "name": "crd.projectcalico.org" }] }),
            ),
            (_, None) if parent.ends_with("authorization.k8s.io/v1") => {
                (201, json!({ "status": { "allowed": true } }))
            }
            (&Method::GET, Some((_, kind))) => {
                let prefix = format!("{path}/");
                let items: Vec<&Value> = self
                    .objects
                    .iter()
                    .filter(|(path, _)| path.starts_with(&prefix))
                    .map(|(_, item)| item)
                    .collect();
                let metadata = json!({ "resourceVersion": self.version.to_string() });
                (
                    200,
                    json!({ "kind": format!("{kind}List"), "metadata": metadata, "items": items }),
                )
            }
            (&Method::POST, Some(_)) => {
                let name = body["metadata"]["name"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                (201, self.store(&format!("{path}/{name}"), body))
            }
            (&Method::PUT | &Method::PATCH, None) if self.objects.contains_key(object) => {
                (200, self.store(object, body))
            }
            (&Method::GET, None) if self.objects.contains_key(path) => {
                (200, self.objects[path].clone())
            }
            _ => {
                let details = json!({ "name": last });
                (
                    404,
                    json!({
                        "kind": "Status", "reason": "NotFound", "code": 404, "details": details,
                    }),
                )
            }
        }
    }
}

impl Server {
    /// Returns the changes of the collection since this version, as lines of a watch.
    fn changes(&self, collection: &str, since: u64) -> Vec<u8> {
        let version = |object: &Value| {
            object["metadata"]["resourceVersion"]
                .as_str()
                .and_then(|text| text.parse().ok())
        };
        let prefix = format!("{collection}/");
        let of_collection = self
            .objects
            .iter()
            .filter(|(path, _)| path.starts_with(&prefix))
            .map(|(_, object)| object);
        let changed = of_collection.filter(|object| version(object) > Some(since));
        changed
            .flat_map(|object| {
                format!("{}\n", json!({ "type": "MODIFIED", "object": object })).into_bytes()
            })
            .collect()
    }
}

type Body = BoxBody<Bytes, Infallible>;

async fn respond(
    server: Arc<Mutex<Server>>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map(|body| body.to_bytes())
        .unwrap_or_default();
    let body = serde_json::from_slice(&body).unwrap_or_default();
    let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
    let (code, answer) = server.lock().unwrap().answer(&parts.method, path, body);
    let body = if query.contains("watch=true") && code == 200 {
        let since = query
            .split('&')
            .find_map(|part| part.strip_prefix("resourceVersion=")?.parse().ok());
        let changes = server
            .lock()
            .unwrap()
            .changes(path, since.unwrap_or_default());
        let changes = futures::stream::iter([Ok(Frame::data(Bytes::from(changes)))]);
        BodyExt::boxed(StreamBody::new(changes.chain(futures::stream::pending())))
    } else {
        Full::new(Bytes::from(answer.to_string())).boxed()
    };
    Ok(Response::builder()
        .status(code)
        .header("Content-Type", "application/json")
        .body(body)
        .unwrap())
}

async fn serve(server: Arc<Mutex<Server>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let server = server.clone();
            let service = service_fn(move |request| respond(server.clone(), request));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    url
}

#[tokio::test(start_paused = true)]
async fn idle_leader_sends_at_most_45_requests_a_minute() {
    let server = Arc::new(Mutex::new(Server::new()));
    let directory = tempfile::tempdir().unwrap();
    let url = serve(server.clone()).await;
    let process = process(directory.path(), &url, &[("PROMETHEUS_METRICS_PORT", "0")]);
    let counted = tokio::spawn(async move {
        seconds(SETTLED).await;
        server.lock().unwrap().counts.clear();
        seconds(MINUTES * 60).await;
        std::mem::take(&mut server.lock().unwrap().counts)
    });
    let counts = tokio::select! {
        ended = process.run() => panic!("the process ends: {ended:?}"),
        counts = counted => counts.unwrap(),
    };
    let of = |part: &str| {
        counts
            .iter()
            .filter(|(path, _)| path.contains(part))
            .map(|(_, count)| count)
            .sum::<usize>()
    };
    assert!(
        of("PUT /apis/coordination.k8s.io") > MINUTES * 10,
        "it does not lead: {counts:#?}"
    );
    assert!(
        of("GET /healthz") > MINUTES * 4 && of("kubevirt.io") >= MINUTES,
        "{counts:#?}"
    );
    let all: usize = counts.values().sum();
    assert!(
        all <= MINUTES * LIMIT,
        "{all} requests in {MINUTES} minutes: {counts:#?}"
    );
}
