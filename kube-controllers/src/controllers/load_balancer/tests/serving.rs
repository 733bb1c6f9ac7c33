//! The writes of the controller and their order, with the embedded datastore and a simulated API
//! server with one Service.

mod changes;
mod cooling;
mod families;
mod missing;
mod overwritten;
mod trimming;
mod waiting;

use std::convert::Infallible;

use futures::FutureExt;
use hyper::{Method, Request as HttpRequest, Response};
use kube::client::Body;
use libcalico::api::ObjectSelect;
use libcalico::store::{Kind, ReadBatch, Store, Write, WriteOp};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::controllers::testing::{configured, embedded, settings};
use crate::settings::Mode;
use crate::status::Watchdog;
use crate::telemetry::Metrics;

/// The Service in the API server. Each write of the status records the published and the stored
/// addresses.
#[derive(Default)]
struct Server {
    service: Value,
    /// True if the API server has no Service.
    is_missing: bool,
    written: Vec<(Vec<String>, Vec<String>)>,
    /// The Events in the namespace of the Service.
    events: Vec<Value>,
    /// Number of attempts to create an Event.
    posts: usize,
    /// A barrier for reads of the namespace, which come right before an assignment.
    meeting: Option<Arc<tokio::sync::Barrier>>,
    /// A change of the Service, applied once, after the next read of the Service.
    after_read: Option<fn(&mut Value)>,
}

struct Serving {
    calico: Arc<Datastore>,
    server: Arc<Mutex<Server>>,
    reconciler: ServiceReconciler,
    _dir: TempDir,
}

fn stored_service(annotations: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "s", "namespace": "n", "uid": "u", "resourceVersion": "1",
            "annotations": annotations,
        },
        "spec": {"type": "LoadBalancer", "ipFamilies": ["IPv4"]},
    })
}

fn wants(ip: &str) -> Value {
    json!({ADDRESSES: format!("[{ip:?}]")})
}

fn texts(ips: &[&str]) -> Vec<String> {
    ips.iter().map(|ip| (*ip).to_owned()).collect()
}

fn shown(service: &Value) -> Vec<String> {
    let entries = service["status"]["loadBalancer"]["ingress"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    entries
        .iter()
        .filter_map(|entry| Some(entry["ip"].as_str()?.to_owned()))
        .collect()
}

async fn held_by(calico: &Arc<Datastore>, service: &Value) -> Vec<String> {
    let handle = LoadBalancerService::live(&serde_json::from_value(service.clone()).unwrap())
        .unwrap()
        .handle;
    let held = ServiceAddresses {
        store: calico.clone(),
    }
    .held(&handle)
    .await
    .unwrap();
    held.iter().map(|held| held.ip.to_string()).collect()
}

async fn answer(
    server: &Mutex<Server>,
    calico: &Arc<Datastore>,
    request: HttpRequest<Body>,
) -> Value {
    let (parts, body) = request.into_parts();
    match (parts.method, parts.uri.path()) {
        (Method::GET, "/api/v1/namespaces/n") => {
            let meeting = server.lock().unwrap().meeting.clone();
            if let Some(meeting) = meeting {
                meeting.wait().await;
            }
            json!({"metadata": {"name": "n"}})
        }
        (Method::GET, "/api/v1/namespaces/n/services") => {
            assert_eq!(
                parts.uri.query(),
                Some("fieldSelector=metadata.name%3Ds&limit=1")
            );
            let mut server = server.lock().unwrap();
            let items: Vec<&Value> = Some(&server.service)
                .filter(|_| !server.is_missing)
                .into_iter()
                .collect();
            let answer = json!({"kind": "ServiceList", "metadata": {}, "items": items});
            if let Some(change) = server.after_read.take() {
                change(&mut server.service);
                server.service["metadata"]["resourceVersion"] = json!("1000");
            }
            answer
        }
        (Method::PUT, "/api/v1/namespaces/n/services/s/status") => {
            let service: Value =
                serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
            let held = held_by(calico, &service).await;
            let mut server = server.lock().unwrap();
            let stored = &server.service["metadata"]["resourceVersion"];
            if service["metadata"]["resourceVersion"] != *stored {
                return json!({
                    "kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409,
                });
            }
            let next = stored.as_str().unwrap().parse::<u64>().unwrap() + 1;
            server.service["metadata"]["resourceVersion"] = json!(next.to_string());
            server.service["status"] = service["status"].clone();
            server.written.push((shown(&service), held));
            server.service.clone()
        }
        // The Event about a mismatch of the nodes.
        (Method::POST, "/api/v1/namespaces/default/events") => json!({}),
        (Method::POST, "/api/v1/namespaces/n/events") => {
            let event: Value =
                serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
            let mut server = server.lock().unwrap();
            server.posts += 1;
            let is_same = |other: &Value| other["metadata"]["name"] == event["metadata"]["name"];
            if server.events.iter().any(is_same) {
                return json!({
                    "kind": "Status", "status": "Failure", "reason": "AlreadyExists", "code": 409,
                });
            }
            server.events.push(event.clone());
            event
        }
        other => panic!("{other:?}"),
    }
}

fn reconciler(server: &Arc<Mutex<Server>>, calico: &Arc<Datastore>) -> ServiceReconciler {
    let answers = (server.clone(), calico.clone());
    let api = tower::service_fn(move |request: HttpRequest<Body>| {
        let (server, calico) = answers.clone();
        async move {
            let answer = answer(&server, &calico, request).await;
            let status = answer["code"]
                .as_u64()
                .map_or(200, |code| code.try_into().unwrap());
            let response = Response::builder().status(status);
            Ok::<_, Infallible>(
                response
                    .body(Body::from(answer.to_string().into_bytes()))
                    .unwrap(),
            )
        }
        .boxed()
    });
    let cache = SharedCache::<ServiceCache>::default();
    let kubernetes = kube::Client::new(api, "default");
    let waiting = cache.lock().waiting.clone();
    let context = Context {
        kubernetes: kubernetes.clone(),
        calico: calico.clone(),
        mode: Mode::Etcd,
        settings: watch::channel(Arc::new(settings())).1,
        leadership: Leadership::always(),
        same_cluster: Default::default(),
        metrics: Metrics::new(),
        watchdog: Watchdog::default(),
        stop: CancellationToken::new(),
    };
    ServiceReconciler {
        context,
        addresses: ServiceAddresses {
            store: calico.clone(),
        },
        cache,
        reports: WaitReports {
            kubernetes,
            leadership: Leadership::always(),
            events: EventPublisher::default(),
            waiting,
            queue: Queue::default(),
        },
        status_writes: SharedCache::default(),
    }
}

impl Serving {
    async fn new(service: Value, pools: &[IpPool]) -> Self {
        let (dir, calico) = embedded();
        let server = Arc::new(Mutex::new(Server {
            service,
            ..Server::default()
        }));
        let serving = Serving {
            reconciler: reconciler(&server, &calico),
            calico,
            server,
            _dir: dir,
        };
        for pool in pools {
            serving.calico.create(&pool.key(), pool).await.unwrap();
        }
        serving.on_event().await;
        serving
    }

    /// Returns a reconciler with a pool and a Service that has an address of the pool.
    async fn served(annotations: Value) -> Self {
        let serving = Serving::new(stored_service(annotations), &[stored_pool().value]).await;
        assert_eq!(
            serving.reconcile().await.unwrap(),
            NextReconcile::AwaitChange
        );
        assert_eq!(serving.shown(), serving.held().await);
        assert_eq!(serving.shown().len(), 1);
        serving.server.lock().unwrap().written.clear();
        serving.on_event().await;
        serving
    }

    async fn on_event(&self) {
        self.tell(&self.reconciler).await;
    }

    async fn tell(&self, reconciler: &ServiceReconciler) {
        let pools = self
            .calico
            .list::<IpPool>(&ObjectSelect::default())
            .await
            .unwrap();
        let blocks = self.calico.list::<Block>(&None).await.unwrap();
        let server = self.server.lock().unwrap();
        let (live, is_missing) = (server.service.clone(), server.is_missing);
        drop(server);
        let live: K8sService = serde_json::from_value(live).unwrap();
        let service = Service {
            annotations: live.metadata.annotations.unwrap_or_default(),
            spec: live.spec.unwrap(),
            load_balancer: live.status.and_then(|status| status.load_balancer),
            ..watched("s", "u")
        };
        let mut cache = reconciler.cache.lock();
        cache.apply_service(&Event::ListStart);
        if !is_missing {
            cache.apply_service(&Event::Upsert(&service));
        }
        cache.apply_service(&Event::ListEnd);
        cache.apply_pool(&Event::ListStart);
        pools
            .iter()
            .for_each(|pool| _ = cache.apply_pool(&Event::Upsert(pool)));
        cache.apply_pool(&Event::ListEnd);
        cache.apply_block(&Event::ListStart);
        blocks
            .iter()
            .for_each(|block| _ = cache.apply_block(&Event::Upsert(block)));
        cache.apply_block(&Event::ListEnd);
    }

    fn annotate(&self, annotations: Value) {
        self.server.lock().unwrap().service["metadata"]["annotations"] = annotations;
    }

    async fn reconcile(&self) -> Result<NextReconcile, ReconcileError> {
        self.reconciler
            .reconcile(&ObjectKey::namespaced("n", "s"))
            .await
    }

    fn shown(&self) -> Vec<String> {
        shown(&self.server.lock().unwrap().service)
    }

    async fn held(&self) -> Vec<String> {
        let service = self.server.lock().unwrap().service.clone();
        held_by(&self.calico, &service).await
    }

    fn written(&self) -> Vec<(Vec<String>, Vec<String>)> {
        std::mem::take(&mut self.server.lock().unwrap().written)
    }

    async fn overwrite_pool(&self, bytes: Vec<u8>) {
        let key = ObjectKey::global("p");
        let mut batch = ReadBatch::new();
        let ticket = batch.get::<IpPool>(&key);
        let revision = self
            .calico
            .read(&batch)
            .await
            .unwrap()
            .raw(&ticket)
            .unwrap()
            .revision
            .clone();
        let (kind, path, op) = (
            IpPool::KIND,
            IpPool::path(&key),
            WriteOp::Update(bytes, revision),
        );
        self.calico
            .write_one(Write {
                kind,
                path,
                key: key.to_string(),
                op,
            })
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn live_service_and_not_the_cache_decides_the_release() {
    let serving = Serving::served(wants("10.0.0.5")).await;
    serving.annotate(wants("10.0.0.7"));
    serving.on_event().await;
    // The Service was changed back, and the cache does not show that yet.
    serving.annotate(wants("10.0.0.5"));
    assert_eq!(
        serving.reconcile().await.unwrap(),
        NextReconcile::AwaitChange
    );
    assert_eq!(
        (serving.held().await, serving.written()),
        (texts(&["10.0.0.5"]), vec![])
    );
}

#[tokio::test]
async fn unreadable_pool_releases_no_service_address() {
    let serving = Serving::served(wants("10.0.0.5")).await;
    let no_range =
        json!({"metadata": {"name": "p"}, "spec": {"cidr": "x", "allowedUses": ["LoadBalancer"]}});
    for bytes in [b"\"no pool\"".to_vec(), no_range.to_string().into_bytes()] {
        serving.overwrite_pool(bytes).await;
        serving.on_event().await;
        let failure = serving.reconcile().await.unwrap_err();
        assert!(
            matches!(&failure, ReconcileError::Retry(text) if text.contains("IPPool p")),
            "{failure}"
        );
        assert_eq!(
            (serving.held().await, serving.written()),
            (texts(&["10.0.0.5"]), vec![])
        );
    }
    // A Service that is no longer managed loses its addresses anyway.
    serving.server.lock().unwrap().service["spec"]["loadBalancerClass"] = json!("other");
    serving.on_event().await;
    assert_eq!(
        serving.reconcile().await.unwrap(),
        NextReconcile::AwaitChange
    );
    assert_eq!(
        (serving.held().await, serving.written()),
        (texts(&[]), vec![(texts(&[]), texts(&["10.0.0.5"]))])
    );
}

#[tokio::test]
async fn unknown_assign_ips_value_neither_assigns_nor_releases() {
    let assigning = |word: &str| {
        let spec = json!({"controllers": {"loadBalancer": {"assignIPs": word}}});
        watch::channel(Arc::new(configured(spec))).1
    };
    let mut serving = Serving::served(json!({})).await;
    let held = serving.held().await;
    serving.reconciler.context.settings = assigning("Allservices");
    assert_eq!(
        serving.reconcile().await.unwrap(),
        NextReconcile::AwaitChange
    );
    assert_eq!(
        (serving.held().await, serving.shown(), serving.written()),
        (held.clone(), held.clone(), vec![])
    );
    serving.reconciler.context.settings = assigning("RequestedServicesOnly");
    assert_eq!(
        serving.reconcile().await.unwrap(),
        NextReconcile::AwaitChange
    );
    assert_eq!(
        (serving.held().await, serving.written()),
        (texts(&[]), vec![(texts(&[]), held)])
    );
}

#[tokio::test]
async fn service_addresses_are_released_when_no_pool_exists() {
    let serving = Serving::served(wants("10.0.0.5")).await;
    let pool = ObjectKey::global("p");
    let kept = serving.calico.get::<IpPool>(&pool).await.unwrap().value;
    serving.calico.delete::<IpPool>(&pool, None).await.unwrap();
    serving.on_event().await;
    serving.calico.create(&pool, &kept).await.unwrap();
    assert_eq!(
        serving.reconcile().await.unwrap(),
        NextReconcile::After(CACHE_LAG),
        "there is one again"
    );
    assert_eq!(serving.held().await, texts(&["10.0.0.5"]));
    serving.calico.delete::<IpPool>(&pool, None).await.unwrap();
    assert_eq!(
        serving.reconcile().await.unwrap(),
        NextReconcile::AwaitChange
    );
    assert_eq!(
        (serving.held().await, serving.written()),
        (texts(&[]), vec![(texts(&[]), texts(&["10.0.0.5"]))])
    );
}
