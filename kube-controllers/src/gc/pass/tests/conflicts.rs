//! Addresses that running pods report without an allocation are reported once, and nothing is
//! released.

use std::sync::Mutex;
use std::sync::atomic::AtomicU16;

use http_body_util::BodyExt;
use kube::client::Body;
use libcalico::ipam::{PodState, ReportedAddresses};
use libcalico::store::Store;
use serde_json::{Value, json};
use tokio::time::advance;

use super::*;

const BLOCK: &str = "10.0.0.0/29";

#[derive(Clone, Default)]
pub(super) struct Server {
    pod: Arc<Mutex<Value>>,
    pub(super) events: Arc<Mutex<Vec<Value>>>,
    /// The code with which requests for new Events fail; 0 if they succeed.
    pub(super) failure: Arc<AtomicU16>,
    /// Number of requests for new Events.
    pub(super) posts: Arc<AtomicU16>,
}

impl Server {
    pub(super) fn client(&self) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: hyper::Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let (code, answer) = server.answer(&parts.method, parts.uri.path(), &body);
                let answer = Body::from(answer.to_string().into_bytes());
                Ok::<_, std::convert::Infallible>(
                    hyper::Response::builder()
                        .status(code)
                        .body(answer)
                        .unwrap(),
                )
            }
        });
        kube::Client::new(service, "default")
    }

    fn answer(&self, method: &hyper::Method, path: &str, body: &[u8]) -> (u16, Value) {
        match (method.as_str(), path) {
            ("GET", "/api/v1/namespaces/ns/pods") => (
                200,
                json!({"kind": "PodList", "metadata": {}, "items": [*self.pod.lock().unwrap()]}),
            ),
            ("POST", "/api/v1/namespaces/ns/events" | "/api/v1/namespaces/default/events") => {
                self.posts.fetch_add(1, Ordering::Relaxed);
                let failure = self.failure.load(Ordering::Relaxed);
                if failure > 0 {
                    return (failure, json!({"kind": "Status", "code": failure}));
                }
                let event: Value = serde_json::from_slice(body).unwrap();
                let mut events = self.events.lock().unwrap();
                if events
                    .iter()
                    .any(|known| known["metadata"]["name"] == event["metadata"]["name"])
                {
                    return (
                        409,
                        json!({"kind": "Status", "code": 409, "reason": "AlreadyExists"}),
                    );
                }
                events.push(event);
                (201, json!({}))
            }
            _ => panic!("{method} {path}"),
        }
    }

    fn reported(&self) -> Vec<String> {
        let events = self.events.lock().unwrap();
        events
            .iter()
            .map(|event| {
                event["message"]
                    .as_str()
                    .unwrap()
                    .split(", so")
                    .next()
                    .unwrap()
                    .to_owned()
            })
            .collect()
    }
}

fn pod() -> Value {
    json!({
        "metadata": {"name": "lost", "namespace": "ns", "uid": "u1"},
        "spec": {"nodeName": "node-a"},
        "status": {"phase": "Running", "podIP": "10.0.0.5", "podIPs": [{"ip": "10.0.0.5"}]},
    })
}

async fn replica(server: &Server, calico: &Arc<Datastore>) -> GcPass {
    let mut index = Index::new(libcalico::ipam::gc::GcSettings::default());
    let block = Block::new(
        BLOCK.parse().unwrap(),
        &AffinityOwner::Host("node-a".into()),
        OffsetDateTime::now_utc(),
    )
    .unwrap();
    if calico.get::<Block>(&block.cidr).await.is_err() {
        calico.create(&block.cidr, &block).await.unwrap();
    }
    index.put_block(&block).unwrap();
    let addresses = ReportedAddresses::new(vec!["10.0.0.5".parse().unwrap()]);
    index.put_pod(
        "ns",
        "lost",
        &PodState {
            node: "node-a",
            addresses,
            ended: None,
            runs: true,
        },
    );
    new_pass(server.client(), calico.clone(), index, Leadership::always())
}

fn shown(gc_pass: &GcPass) -> bool {
    let line = "kube_controllers_gc_conflicting_addresses{held=\"free\"} 1\n";
    shown_metrics(gc_pass).contains(line)
}

#[tokio::test(start_paused = true)]
async fn conflict_lasting_two_minutes_is_counted_and_reported_once() {
    let (_dir, calico) = embedded();
    let server = Server {
        pod: Arc::new(Mutex::new(pod())),
        ..Server::default()
    };
    let mut replicas = [
        replica(&server, &calico).await,
        replica(&server, &calico).await,
    ];
    for (wait, told, counted) in [(0, 0, false), (115, 0, false), (5, 1, true), (300, 1, true)] {
        advance(Duration::from_secs(wait)).await;
        for replica in &mut replicas {
            replica.run(Scope::Changed).await;
            assert_eq!(shown(replica), counted, "after {wait} s more");
        }
        assert_eq!(server.reported().len(), told, "after {wait} s more");
    }
    assert_eq!(
        server.reported(),
        ["this pod uses 10.0.0.5, which IPAM has free"]
    );
    let event = server.events.lock().unwrap()[0].clone();
    let of =
        json!({"apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "lost", "uid": "u1"});
    assert_eq!(
        (&event["involvedObject"], &event["type"]),
        (&of, &json!("Warning"))
    );
    let block = calico.get::<Block>(&BLOCK.parse().unwrap()).await.unwrap();
    assert_eq!(
        block.value.allocated().count(),
        0,
        "nothing is written to IPAM"
    );
}

/// The watches lag behind, and the live pod and block show no conflict.
#[tokio::test(start_paused = true)]
async fn conflict_not_confirmed_by_a_live_read_is_not_reported() {
    for change in [
        (|pod: &mut Value| pod["status"]["podIPs"] = json!([{"ip": "10.0.0.6"}])) as fn(&mut Value),
        |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-11-21T21:00:00Z"),
        |pod| pod["spec"]["hostNetwork"] = json!(true),
        |pod| pod["status"]["phase"] = json!("Succeeded"),
        |_| {},
    ] {
        let (_dir, calico) = embedded();
        let server = Server {
            pod: Arc::new(Mutex::new(pod())),
            ..Server::default()
        };
        let mut replica = replica(&server, &calico).await;
        let mut now = pod();
        change(&mut now);
        if now == pod() {
            // The block has allocated the address to the pod, which the watch has not delivered
            // yet.
            let mut block = calico.get::<Block>(&BLOCK.parse().unwrap()).await.unwrap();
            let attributes = [("namespace", "ns"), ("pod", "lost")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into();
            let (handle, requester) = (
                HandleId::new("net.lost"),
                AffinityOwner::Host("node-a".into()),
            );
            let request = BlockRequest {
                handle: Some(&handle),
                attributes: &attributes,
                requester: &requester,
                check_affinity: true,
            };
            block
                .value
                .assign_address("10.0.0.5".parse().unwrap(), &request)
                .unwrap();
            calico
                .update(&block.key, &block.value, &block.revision)
                .await
                .unwrap();
        } else {
            now["status"]["podIP"] = now["status"]["podIPs"][0]["ip"].clone();
        }
        *server.pod.lock().unwrap() = now;
        replica.run(Scope::Changed).await;
        advance(Duration::from_secs(121)).await;
        replica.run(Scope::Changed).await;
        assert_eq!(server.reported(), Vec::<String>::new());
        // The two minutes start over.
        replica.run(Scope::Changed).await;
        assert!(!shown(&replica));
    }
}
