use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datastore::Datastore;
use libcalico::api::{NodeSpec, OrchRef, WorkloadEndpointSpec};
use libcalico::store::Revision;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::controllers::testing::{embedded, refusing_kubernetes, settings, silent_kubernetes};
use crate::leader::Leadership;
use crate::runtime::Controller;
use crate::settings::Settings;
use crate::status::Watchdog;
use crate::telemetry::Metrics;

fn calico(name: &str, orchestrator: &str) -> Entry<CalicoNode> {
    let reference = OrchRef {
        node_name: format!("k-{name}"),
        orchestrator: orchestrator.into(),
        ..OrchRef::default()
    };
    let value = CalicoNode::new(
        name,
        NodeSpec {
            orch_refs: vec![reference],
            ..NodeSpec::default()
        },
    );
    Entry {
        key: value.key(),
        value,
        revision: Revision("1".into()),
    }
}

fn kubernetes(name: &str) -> Node {
    Node {
        name: ObjectKey::global(name),
        uid: "u".into(),
        labels: Default::default(),
    }
}

/// Returns a cache with the Calico nodes `a` and `b`, and `c` of another orchestrator. The list of
/// Kubernetes nodes is in progress, and contains only the node of `a`.
fn cache() -> NodeNameCache {
    let mut cache = NodeNameCache::default();
    cache.apply_calico_node(&Event::ListStart);
    for node in [calico("a", "k8s"), calico("b", "k8s"), calico("c", "other")] {
        assert_eq!(
            cache.apply_calico_node(&Event::Upsert(&node)),
            [],
            "Kubernetes' nodes are not known yet"
        );
    }
    cache.apply_calico_node(&Event::ListEnd);
    cache.apply_kubernetes_node(&Event::ListStart);
    cache.apply_kubernetes_node(&Event::Upsert(&kubernetes("k-a")));
    cache
}

#[test]
fn nodes_deleted_before_the_start_are_found_by_the_first_list() {
    let mut cache = cache();
    assert_eq!(cache.orphaned_nodes(), [], "the list is not complete");
    assert_eq!(
        cache.apply_kubernetes_node(&Event::ListEnd),
        [ObjectKey::global("b")]
    );
    assert_eq!(cache.missing_kubernetes_node(&ObjectKey::global("a")), None);
    assert_eq!(cache.missing_kubernetes_node(&ObjectKey::global("c")), None);
}

#[test]
fn deletion_event_returns_the_deleted_node_until_recreated() {
    let mut cache = cache();
    cache.apply_kubernetes_node(&Event::ListEnd);
    assert_eq!(
        cache.apply_kubernetes_node(&Event::Delete(&ObjectKey::global("k-a"))),
        [ObjectKey::global("a")]
    );
    assert_eq!(
        cache.missing_kubernetes_node(&ObjectKey::global("a")),
        Some(ObjectKey::global("k-a"))
    );
    // The node is back before it was processed.
    assert_eq!(
        cache.apply_kubernetes_node(&Event::Upsert(&kubernetes("k-a"))),
        []
    );
    assert_eq!(cache.missing_kubernetes_node(&ObjectKey::global("a")), None);
}

#[test]
fn restarted_list_reports_deletions_missed_meanwhile() {
    let mut cache = cache();
    cache.apply_kubernetes_node(&Event::ListEnd);
    cache.apply_kubernetes_node(&Event::ListStart);
    assert_eq!(
        cache.missing_kubernetes_node(&ObjectKey::global("a")),
        None,
        "a list under way proves nothing"
    );
    assert_eq!(
        cache.apply_kubernetes_node(&Event::ListEnd),
        [ObjectKey::global("a")]
    );
}

#[test]
fn late_calico_node_without_a_kubernetes_node_is_an_orphan() {
    let mut cache = cache();
    cache.apply_kubernetes_node(&Event::ListEnd);
    assert_eq!(
        cache.apply_calico_node(&Event::Upsert(&calico("d", "k8s"))),
        [ObjectKey::global("d")]
    );
    assert_eq!(
        cache.apply_calico_node(&Event::Upsert(&calico("e", "other"))),
        []
    );
}

fn context(kubernetes: kube::Client, calico: Arc<Datastore>, settings: Settings) -> Context {
    Context {
        kubernetes,
        calico,
        mode: crate::settings::Mode::Etcd,
        settings: watch::channel(Arc::new(settings)).1,
        leadership: Leadership::always(),
        metrics: Metrics::new(),
        same_cluster: Default::default(),
        watchdog: Watchdog::default(),
        stop: CancellationToken::new(),
    }
}

#[tokio::test]
async fn node_workers_limits_concurrent_node_deletions() {
    let (_dir, calico_store) = embedded();
    let asked = Arc::new(AtomicUsize::new(0));
    let workers = [(ControllerName::Node, 3)].into();
    let context = context(
        silent_kubernetes(asked.clone()),
        calico_store.clone(),
        Settings {
            workers,
            ..settings()
        },
    );
    let controller = NodeDeletion::new(&context, &mut Watches::default());
    for event in [Event::ListStart, Event::ListEnd] {
        controller.cache.lock().apply_kubernetes_node(&event);
    }
    for number in 0..5 {
        let node = calico(&format!("n{number}"), "k8s");
        calico_store.create(&node.key, &node.value).await.unwrap();
        let orphaned_nodes = controller
            .cache
            .lock()
            .apply_calico_node(&Event::Upsert(&node));
        orphaned_nodes
            .into_iter()
            .for_each(|key| controller.queue.add(key));
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

#[tokio::test(start_paused = true)]
async fn single_endpoint_list_serves_all_waiting_nodes() {
    let (_dir, store) = embedded();
    for node in ["a", "b", "c"] {
        let spec = WorkloadEndpointSpec {
            node: node.into(),
            ..WorkloadEndpointSpec::default()
        };
        let mut endpoint = WorkloadEndpoint::new(format!("{node}-k8s-web-eth0"), spec);
        endpoint.metadata.namespace = "default".into();
        store.create(&endpoint.key(), &endpoint).await.unwrap();
    }
    let [a, b, c] = ["a", "b", "c"].map(ObjectKey::global);
    let endpoints = EndpointKeyCache::default();
    let (waiting, never) = (
        || vec![a.clone(), b.clone()],
        || panic!("one look was enough"),
    );
    assert_eq!(endpoints.read(&*store, &a, waiting).await.unwrap().len(), 1);
    assert_eq!(endpoints.read(&*store, &b, never).await.unwrap().len(), 1);
    assert_eq!(
        endpoints
            .read(&*store, &b, || vec![b.clone()])
            .await
            .unwrap()
            .len(),
        1,
        "a second attempt"
    );
    assert_eq!(
        endpoints
            .read(&*store, &c, || vec![c.clone()])
            .await
            .unwrap()
            .len(),
        1,
        "not waiting then"
    );
}

/// The API server has neither the node nor a pod on it. The deletion of the node releases
/// addresses.
#[tokio::test]
async fn node_deleted_in_kubernetes_stays_in_report_mode_and_is_deleted_otherwise() {
    for (gc_mode, stays) in [(GcMode::Report, true), (GcMode::Reclaim, false)] {
        let (_dir, store) = embedded();
        let node = calico("b", "k8s");
        store.create(&node.key, &node.value).await.unwrap();
        let spec = WorkloadEndpointSpec {
            node: "b".into(),
            ..WorkloadEndpointSpec::default()
        };
        let mut endpoint = WorkloadEndpoint::new("b-k8s-web-eth0", spec);
        endpoint.metadata.namespace = "default".into();
        store.create(&endpoint.key(), &endpoint).await.unwrap();
        let api_server = refusing_kubernetes(|uri| {
            let kind = if uri.path().ends_with("/pods") {
                "PodList"
            } else {
                "NodeList"
            };
            Ok(json!({ "kind": kind, "apiVersion": "v1", "metadata": {}, "items": [] }))
        });
        let context = context(
            api_server,
            store.clone(),
            Settings {
                gc_mode,
                ..settings()
            },
        );
        let controller = NodeDeletion::new(&context, &mut Watches::default());
        *controller.cache.lock() = cache();
        controller
            .cache
            .lock()
            .apply_kubernetes_node(&Event::ListEnd);

        let next = DeletedNodeReconciler::new(&context, &controller)
            .reconcile(&node.key)
            .await
            .unwrap();
        assert_eq!(next, NextReconcile::AwaitChange, "{gc_mode:?}");
        assert_eq!(
            store.get::<CalicoNode>(&node.key).await.is_ok(),
            stays,
            "{gc_mode:?}"
        );
        assert_eq!(
            store.get::<WorkloadEndpoint>(&endpoint.key()).await.is_ok(),
            stays,
            "{gc_mode:?}"
        );
    }
}

/// Returns a client of an API server that has no object, and the paths of the objects that were
/// created.
fn empty_cluster() -> (kube::Client, Arc<std::sync::Mutex<Vec<String>>>) {
    let created = Arc::<std::sync::Mutex<Vec<String>>>::default();
    let seen = created.clone();
    let client = refusing_kubernetes(move |uri| {
        if uri.path().ends_with("/events") {
            seen.lock().unwrap().push(uri.path().to_owned());
        }
        let kind = if uri.path().ends_with("/pods") {
            "PodList"
        } else {
            "NodeList"
        };
        Ok(json!({ "kind": kind, "apiVersion": "v1", "metadata": {}, "items": [] }))
    });
    (client, created)
}

/// The API server may be that of another cluster, or its data may be lost.
#[tokio::test(start_paused = true)]
async fn no_node_is_deleted_while_kubernetes_has_none_of_the_nodes() {
    let (_dir, store) = embedded();
    let (client, events) = empty_cluster();
    let grace = Duration::from_secs(60);
    let context = context(
        client,
        store.clone(),
        Settings {
            leak_grace_period: Some(grace),
            ..settings()
        },
    );
    let mut watches = Watches::default();
    crate::controllers::same_cluster::follow(&context.same_cluster, &mut watches);
    let controller = NodeDeletion::new(&context, &mut watches);
    let node = calico("a", "k8s");
    store.create(&node.key, &node.value).await.unwrap();
    for event in [Event::ListStart, Event::Upsert(&node), Event::ListEnd] {
        watches.calico_nodes.dispatch(&event);
    }
    for event in [Event::ListStart, Event::ListEnd] {
        watches.nodes.dispatch(&event);
    }
    let reconciler = DeletedNodeReconciler::new(&context, &controller);
    let is_stored = async || {
        find::<CalicoNode>(&*store, &node.key)
            .await
            .unwrap()
            .is_some()
    };
    for _ in 0..2 {
        let next = reconciler.reconcile(&node.key).await.unwrap();
        assert!(
            matches!(next, NextReconcile::After(_)) && is_stored().await,
            "{next:?}"
        );
        tokio::time::advance(grace * 100).await;
    }
    assert_eq!(
        *events.lock().unwrap(),
        ["/api/v1/namespaces/default/events"]
    );
    watches.nodes.dispatch(&Event::Upsert(&kubernetes("other")));
    let next = reconciler.reconcile(&node.key).await.unwrap();
    assert!(
        matches!(next, NextReconcile::After(_)) && is_stored().await,
        "{next:?}"
    );
    assert_eq!(events.lock().unwrap().len(), 2, "the time of the deletion");
    tokio::time::advance(grace).await;
    assert_eq!(
        reconciler.reconcile(&node.key).await.unwrap(),
        NextReconcile::AwaitChange
    );
    assert!(!is_stored().await);
}
