mod conflicts;
mod deleted_nodes;
mod listing_endpoints;
mod marked;
mod parallel;
mod pools;
mod release_times;
mod stuck;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use datastore::Datastore;
use libcalico::ipam::gc::Index;
use libcalico::ipam::{AffinityOwner, Block, BlockRequest, OwnerSlot};
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use std::sync::Arc;

use libcalico::ipam::HandleId;

use super::*;
use crate::context::Context;
use crate::controllers::testing::{embedded, settings, silent_kubernetes};
use crate::gc::cache::ClusterCache;
use crate::gc::clock::Clock;
use crate::gc::pass_metrics::PassMetrics;
use crate::leader::{Deadline, Leadership, LeadershipTerm};
use crate::settings::Mode;
use crate::status::Watchdog;
use crate::telemetry::Metrics;
use crate::watches::Watches;

const ANSWER: Duration = Duration::from_secs(30);

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

fn leaky() -> (Index, Block) {
    leaked(
        libcalico::ipam::gc::GcSettings::default(),
        "net.gone",
        [
            &[("node", "node-a"), ("pod", "gone"), ("namespace", "ns")],
            &[],
        ],
    )
}

/// Returns an index with the confirmed leak 10.0.0.1, and its block.
fn leaked(
    settings: libcalico::ipam::gc::GcSettings,
    handle: &str,
    owners: [&[(&str, &str)]; 2],
) -> (Index, Block) {
    let grace = Duration::from_secs(600);
    let mut index = Index::new(libcalico::ipam::gc::GcSettings {
        leak_grace: Some(grace),
        ..settings
    });
    index.put_kubernetes_node("node-a", false);
    index.put_calico_node("node-a", Some("node-a"));
    let owner = AffinityOwner::Host("node-a".into());
    let mut block = Block::new(
        "10.0.0.0/26".parse().unwrap(),
        &owner,
        OffsetDateTime::now_utc(),
    )
    .unwrap();
    let [active, alternate] = owners.map(|owner| {
        owner
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect::<BTreeMap<_, _>>()
    });
    let id = HandleId::new(handle);
    let request = BlockRequest {
        handle: Some(&id),
        attributes: &active,
        requester: &owner,
        check_affinity: true,
    };
    block
        .assign_address("10.0.0.1".parse().unwrap(), &request)
        .unwrap();
    block.set_owner(&id, OwnerSlot::Active, &active);
    block.set_owner(&id, OwnerSlot::Alternate, &alternate);
    index.put_block(&block).unwrap();
    index.examine(Duration::ZERO, Scope::Everything);
    index.examine(grace, Scope::Changed);
    (index, block)
}

fn new_pass(
    kubernetes: kube::Client,
    calico: Arc<Datastore>,
    index: Index,
    leadership: Leadership,
) -> GcPass {
    pass_of(&new_context(kubernetes, calico, leadership), index)
}

fn new_context(
    kubernetes: kube::Client,
    calico: Arc<Datastore>,
    leadership: Leadership,
) -> Context {
    Context {
        kubernetes,
        calico,
        mode: Mode::Etcd,
        settings: watch::channel(Arc::new(settings())).1,
        leadership,
        metrics: Metrics::new(),
        same_cluster: Default::default(),
        watchdog: Watchdog::default(),
        stop: CancellationToken::new(),
    }
}

fn pass_of(context: &Context, index: Index) -> GcPass {
    let cache = ClusterCache::new(Mode::Etcd, index, &mut Watches::default());
    let metrics = PassMetrics::new(&context.metrics).unwrap();
    GcPass::new(PassInputs::of(context, cache, Clock::start(), metrics))
}

/// Returns the metrics of passes as `/metrics` serves them.
fn shown_metrics(gc_pass: &GcPass) -> String {
    let metrics = Metrics::new();
    metrics
        .register(gc_pass.inputs.metrics.families.clone())
        .unwrap();
    metrics.text().unwrap()
}

#[tokio::test(start_paused = true)]
async fn leak_whose_owner_is_unreadable_is_checked_once_per_pass() {
    let (_dir, calico) = embedded();
    let asked = Arc::new(AtomicUsize::new(0));
    let mut gc_pass = new_pass(
        failing(asked.clone()),
        calico,
        leaky().0,
        Leadership::always(),
    );
    assert_eq!(
        gc_pass
            .inputs
            .cache
            .index()
            .suspects(Duration::ZERO, 10)
            .len(),
        1
    );
    timeout(ANSWER * 20, gc_pass.release_leaks(GcMode::Reclaim))
        .await
        .expect("it ends");
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    // The postponement is counted from the response.
    assert!(
        gc_pass
            .inputs
            .cache
            .index()
            .suspects(gc_pass.now(), 10)
            .is_empty()
    );
}

#[tokio::test(start_paused = true)]
async fn gc_pass_stops_when_the_leadership_term_ends() {
    let (_dir, calico) = embedded();
    let asked = Arc::new(AtomicUsize::new(0));
    let right = Duration::from_secs(5);
    let (_sender, term) = watch::channel(LeadershipTerm::Until(Deadline::now().plus(right)));
    let mut gc_pass = new_pass(
        failing(asked.clone()),
        calico,
        leaky().0,
        Leadership::new(term),
    );
    let begin = Instant::now();
    gc_pass.run(Scope::Changed).await;
    assert_eq!(
        (begin.elapsed(), asked.load(Ordering::Relaxed)),
        (right, 1),
        "the answer was not waited for"
    );
}
