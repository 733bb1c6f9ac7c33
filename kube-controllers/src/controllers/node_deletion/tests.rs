use std::sync::atomic::{AtomicUsize, Ordering};

use libcalico::api::{NodeSpec, OrchRef};
use libcalico::store::Revision;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::memory::Memory;
use super::*;
use crate::controllers::testing::{embedded, settings};
use crate::runtime::Leadership;
use crate::settings::Settings;
use crate::telemetry::Metrics;

fn calico(name: &str, orchestrator: &str) -> Entry<CalicoNode> {
    let reference = OrchRef { node_name: format!("k-{name}"), orchestrator: orchestrator.into(), ..OrchRef::default() };
    let value = CalicoNode::new(name, NodeSpec { orch_refs: vec![reference], ..NodeSpec::default() });
    Entry { key: value.key(), value, revision: Revision("1".into()) }
}

fn kubernetes(name: &str) -> Node {
    Node { name: ObjectKey::global(name), uid: "u".into(), labels: Default::default() }
}

/// Nodes `a` and `b`, and `c` of another orchestrator. Only `a` exists in Kubernetes.
fn memory() -> Memory {
    let mut memory = Memory::default();
    memory.hear_calico(&Event::Restarted);
    for node in [calico("a", "k8s"), calico("b", "k8s"), calico("c", "other")] {
        assert_eq!(memory.hear_calico(&Event::Put(&node)), [], "Kubernetes' nodes are not known yet");
    }
    memory.hear_calico(&Event::Synced);
    memory.hear_kubernetes(&Event::Restarted);
    memory.hear_kubernetes(&Event::Put(&kubernetes("k-a")));
    memory
}

#[test]
fn a_node_that_went_while_nobody_looked_is_found_at_the_start() {
    let mut memory = memory();
    assert_eq!(memory.orphans(), [], "the list is not complete");
    assert_eq!(memory.hear_kubernetes(&Event::Synced), [ObjectKey::global("b")]);
    assert_eq!(memory.orphaned(&ObjectKey::global("a")), None);
    assert_eq!(memory.orphaned(&ObjectKey::global("c")), None);
}

#[test]
fn a_deletion_names_the_node() {
    let mut memory = memory();
    memory.hear_kubernetes(&Event::Synced);
    assert_eq!(memory.hear_kubernetes(&Event::Gone(&ObjectKey::global("k-a"))), [ObjectKey::global("a")]);
    assert_eq!(memory.orphaned(&ObjectKey::global("a")), Some(ObjectKey::global("k-a")));
    // The node is back before it was processed.
    assert_eq!(memory.hear_kubernetes(&Event::Put(&kubernetes("k-a"))), []);
    assert_eq!(memory.orphaned(&ObjectKey::global("a")), None);
}

#[test]
fn a_list_that_begins_anew_tells_of_deletions_it_slept_through() {
    let mut memory = memory();
    memory.hear_kubernetes(&Event::Synced);
    memory.hear_kubernetes(&Event::Restarted);
    assert_eq!(memory.orphaned(&ObjectKey::global("a")), None, "a list under way proves nothing");
    assert_eq!(memory.hear_kubernetes(&Event::Synced), [ObjectKey::global("a")]);
}

#[test]
fn a_node_that_registers_late_is_looked_at() {
    let mut memory = memory();
    memory.hear_kubernetes(&Event::Synced);
    assert_eq!(memory.hear_calico(&Event::Put(&calico("d", "k8s"))), [ObjectKey::global("d")]);
    assert_eq!(memory.hear_calico(&Event::Put(&calico("e", "other"))), []);
}

/// A Kubernetes API that counts requests and never responds.
fn silent(asked: Arc<AtomicUsize>) -> kube::Client {
    let service = tower::service_fn(move |_: hyper::Request<kube::client::Body>| {
        asked.fetch_add(1, Ordering::Relaxed);
        std::future::pending::<Result<hyper::Response<kube::client::Body>, std::convert::Infallible>>()
    });
    kube::Client::new(service, "default")
}

#[tokio::test]
async fn node_workers_says_how_many_nodes_are_worked_on_at_once() {
    let (_dir, calico_store) = embedded();
    let asked = Arc::new(AtomicUsize::new(0));
    let workers = [(ControllerName::Node, 3)].into();
    let context = Context {
        kubernetes: silent(asked.clone()),
        calico: calico_store.clone(),
        mode: crate::context::Mode::Etcd,
        settings: watch::channel(Arc::new(Settings { workers, ..settings() })).1,
        leadership: Leadership::always(),
        metrics: Metrics::new(),
        stop: CancellationToken::new(),
    };
    let controller = NodeDeletion::new(&context, &mut Feeds::default());
    for event in [Event::Restarted, Event::Synced] {
        controller.memory.lock().unwrap().hear_kubernetes(&event);
    }
    for number in 0..5 {
        let node = calico(&format!("n{number}"), "k8s");
        calico_store.create(&node.key, &node.value).await.unwrap();
        let orphans = controller.memory.lock().unwrap().hear_calico(&Event::Put(&node));
        orphans.into_iter().for_each(|key| controller.queue.add(key));
    }
    let queue = controller.queue.clone();
    tokio::select! {
        () = controller.run(context) => unreachable!("it was not stopped"),
        _ = timeout(Duration::from_secs(20), async {
            while asked.load(Ordering::Relaxed) < 3 || queue.len() > 2 {
                tokio::task::yield_now().await;
            }
        }) => {}
    }
    assert_eq!((asked.load(Ordering::Relaxed), queue.len()), (3, 2));
}
