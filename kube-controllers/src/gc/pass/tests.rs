mod conflicts;
mod ended;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use datastore::config::{DEFAULT_DEADLINE, LocalConfig};
use datastore::{Datastore, DatastoreConfig};
use libcalico::ipam::gc::Index;
use libcalico::ipam::{AssignRequest, Block, Owner};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::context::Mode;
use crate::feed::Feeds;
use crate::runtime::Leadership;
use crate::settings::{Environment, default_configuration, merge};
use crate::telemetry::Metrics;

/// What each answer of the API server takes.
const ANSWER: Duration = Duration::from_secs(30);

/// An API server that fails after a while, counting how often it is asked.
fn failing(asked: Arc<AtomicUsize>) -> kube::Client {
    let service = tower::service_fn(move |_: hyper::Request<kube::client::Body>| {
        asked.fetch_add(1, Ordering::Relaxed);
        async move {
            sleep(ANSWER).await;
            let body = kube::client::Body::from(br#"{"kind":"Status","code":504}"#.to_vec());
            let answer = hyper::Response::builder().status(504).body(body);
            Ok::<_, std::convert::Infallible>(answer.unwrap())
        }
    });
    kube::Client::new(service, "default")
}

/// An index that is sure of one leak.
fn leaky() -> Index {
    let grace = Duration::from_secs(60);
    let settings = libcalico::ipam::gc::Settings { leak_grace: Some(grace), ..Default::default() };
    let mut index = Index::new(settings);
    index.put_kubernetes_node("node-a", false);
    index.put_calico_node("node-a", Some("node-a"));
    let owner = Owner::Host("node-a".into());
    let mut block = Block::new("10.0.0.0/26".parse().unwrap(), &owner, OffsetDateTime::now_utc()).unwrap();
    let attributes: BTreeMap<String, String> =
        [("node", "node-a"), ("pod", "gone"), ("namespace", "ns")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let id = HandleId::new("net.gone");
    let request = AssignRequest { handle: Some(&id), attributes: &attributes, requester: &owner, check_affinity: true };
    block.assign_address("10.0.0.1".parse().unwrap(), &request).unwrap();
    index.put_block(&block).unwrap();
    index.examine(Duration::ZERO, Scope::Everything);
    index.examine(grace, Scope::Changed);
    index
}

fn collector(kubernetes: kube::Client, calico: Arc<Datastore>, index: Index) -> Collector {
    let settings = merge(&Environment::read(|_| None).unwrap(), &default_configuration(), Mode::Etcd).settings;
    let context = Context {
        kubernetes,
        calico,
        mode: Mode::Etcd,
        settings: tokio::sync::watch::channel(Arc::new(settings)).1,
        leadership: Leadership::always(),
        metrics: Metrics::new(),
        stop: CancellationToken::new(),
    };
    let known = Known::new(Mode::Etcd, index, &mut Feeds::default());
    let metrics = PassMetrics::new(&context.metrics).unwrap();
    Collector::new(context, known, Clock::start(), metrics)
}

fn local(dir: &tempfile::TempDir) -> Arc<Datastore> {
    let local = LocalConfig { path: dir.path().join("calico.db"), deadline: DEFAULT_DEADLINE };
    Arc::new(Datastore::open(&DatastoreConfig::Local(local)).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_leak_that_cannot_be_looked_at_is_looked_at_once_in_a_pass() {
    let dir = tempfile::tempdir().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let mut collector = collector(failing(asked.clone()), local(&dir), leaky());
    assert_eq!(collector.known.index().suspects(Duration::ZERO, 10).len(), 1);
    timeout(ANSWER * 20, collector.release_leaks(Gc::Reclaim)).await.expect("it ends");
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    // It is put off from when the answer came.
    assert!(collector.known.index().suspects(collector.now(), 10).is_empty());
}
