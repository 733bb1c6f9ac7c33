use std::time::Duration;

use libcalico::api::{NodeSpec, ObjectKey, OrchRef};
use libcalico::store::{Store, StoreError};
use libcalico::workload::{Orchestrator, PodIdentity, WorkloadIdentity};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use super::*;
use crate::controllers::testing::{embedded, kubernetes, settings};
use crate::leader::Leadership;
use crate::runtime::{NextReconcile, Reconcile};
use crate::settings::{GcMode, Mode};
use crate::status::Watchdog;
use crate::telemetry::Metrics;
use crate::watched::Node;
use crate::watched::Pod;
use crate::watched::{AddressAnnotations, Labels};
use crate::watches::Event;
use libcalico::api::Node as CalicoNode;
use libcalico::api::WorkloadEndpoint;
use libcalico::store::Entry;
use std::sync::{Arc, Mutex};

const GRACE: Duration = Duration::from_millis(60);

fn add(queue: &Queue<ResyncKey>, keys: Vec<ResyncKey>) {
    keys.into_iter().for_each(|key| queue.add(key));
}

struct Host {
    reconciler: PodEndpointReconciler,
    queue: Queue<ResyncKey>,
    workloads: SharedCache<Workloads>,
    /// The content of the API server: `pods` and `nodes`.
    live: Arc<Mutex<Value>>,
    _dir: tempfile::TempDir,
}

fn pod(label: &str) -> Pod {
    Pod {
        name: ObjectKey::namespaced("ns", "web-0"),
        uid: "u1".into(),
        node: "n1".into(),
        host_network: false,
        service_account: "robot".into(),
        labels: Labels::from([("app".to_owned(), label.to_owned())]),
        is_deleting: false,
        phase: "Running".into(),
        reason: "".into(),
        pod_ip: Some("10.0.0.1".into()),
        pod_ips: vec!["10.0.0.1".into()],
        annotations: AddressAnnotations::default(),
    }
}

fn live(pod: &Pod) -> Value {
    json!({
        "metadata": {
            "name": pod.name.name, "namespace": "ns", "uid": pod.uid, "labels": pod.labels,
        },
        "spec": {
            "nodeName": &*pod.node, "hostNetwork": pod.host_network,
            "serviceAccountName": &*pod.service_account,
        },
        "status": {
            "podIP": pod.pod_ip.as_deref().unwrap_or_default(),
            "podIPs": pod.pod_ip.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>(),
        },
    })
}

fn endpoint(node: &str, label: &str) -> WorkloadEndpoint {
    let facts = WorkloadIdentity {
        node: node.into(),
        container_id: "c1".into(),
        endpoint: "eth0".into(),
        orchestrator: Orchestrator::Kubernetes(PodIdentity {
            namespace: "ns".into(),
            name: "web-0".into(),
            labels: Labels::from([("app".to_owned(), label.to_owned())]),
            service_account: "robot".into(),
            ..PodIdentity::default()
        }),
    };
    let mut endpoint = facts.create(&["10.0.0.1".parse().unwrap()]).unwrap();
    endpoint.metadata.uid = "e1".into();
    endpoint
}

impl Host {
    fn new(mode: GcMode) -> Self {
        let (dir, calico) = embedded();
        let live = Arc::new(Mutex::new(
            json!({"pods": [], "nodes": [{"metadata": {"name": "n1"}}]}),
        ));
        let there = live.clone();
        let mut settings = settings();
        settings.orphan_endpoint_grace_period = GRACE;
        settings.gc_mode = mode;
        let context = Context {
            kubernetes: kubernetes(move |uri| {
                let kind = uri.path().rsplit('/').next().unwrap_or_default().to_owned();
                json!({"kind": "PartialObjectMetadataList", "items": there.lock().unwrap()[kind]})
            }),
            calico,
            mode: Mode::Etcd,
            settings: watch::channel(Arc::new(settings)).1,
            leadership: Leadership::always(),
            metrics: Metrics::new(),
            same_cluster: Default::default(),
            watchdog: Watchdog::default(),
            stop: tokio_util::sync::CancellationToken::new(),
        };
        let controller = WorkloadEndpoints::unsubscribed();
        let reconciler = PodEndpointReconciler::new(&context, &controller);
        let CachedController {
            queue,
            cache: workloads,
        } = controller;
        Host {
            reconciler,
            queue,
            workloads,
            live,
            _dir: dir,
        }
    }

    /// Delivers complete lists of all kinds: these pods, the node n1, and the stored objects.
    async fn list(&self, pods: &[Pod]) {
        add(
            &self.queue,
            self.workloads.lock().apply_pod(&Event::ListStart),
        );
        pods.iter().for_each(|pod| {
            add(
                &self.queue,
                self.workloads.lock().apply_pod(&Event::Upsert(pod)),
            )
        });
        add(
            &self.queue,
            self.workloads.lock().apply_pod(&Event::ListEnd),
        );
        let node = Node {
            name: ObjectKey::global("n1"),
            uid: "k1".into(),
            labels: Labels::new(),
        };
        for event in [Event::ListStart, Event::Upsert(&node), Event::ListEnd] {
            add(&self.queue, self.workloads.lock().apply_node(&event));
        }
        let nodes = self
            .reconciler
            .context
            .calico
            .list::<CalicoNode>(&Default::default())
            .await
            .unwrap();
        add(
            &self.queue,
            self.workloads.lock().apply_calico_node(&Event::ListStart),
        );
        nodes.iter().for_each(|node| {
            add(
                &self.queue,
                self.workloads
                    .lock()
                    .apply_calico_node(&Event::Upsert(node)),
            )
        });
        add(
            &self.queue,
            self.workloads.lock().apply_calico_node(&Event::ListEnd),
        );
        self.list_endpoints().await;
    }

    async fn list_endpoints(&self) {
        let all = self
            .reconciler
            .context
            .calico
            .list::<WorkloadEndpoint>(&Default::default())
            .await
            .unwrap();
        add(
            &self.queue,
            self.workloads.lock().apply_endpoint(&Event::ListStart),
        );
        all.iter().for_each(|entry| {
            add(
                &self.queue,
                self.workloads.lock().apply_endpoint(&Event::Upsert(entry)),
            )
        });
        add(
            &self.queue,
            self.workloads.lock().apply_endpoint(&Event::ListEnd),
        );
    }

    fn apply_pod(&self, event: Event<'_, Pod>) {
        add(&self.queue, self.workloads.lock().apply_pod(&event));
    }

    async fn store(&self, endpoint: &WorkloadEndpoint) -> ObjectKey {
        self.reconciler
            .context
            .calico
            .create(&endpoint.key(), endpoint)
            .await
            .unwrap();
        endpoint.key()
    }

    async fn stored(&self, key: &ObjectKey) -> Option<Entry<WorkloadEndpoint>> {
        match self.reconciler.context.calico.get(key).await {
            Err(StoreError::NotFound { .. }) => None,
            found => Some(found.unwrap()),
        }
    }

    async fn work(&self) {
        while !self.queue.is_empty() {
            let work = self.queue.next().await;
            let next = self.reconciler.reconcile(&work).await.unwrap();
            self.queue.done(&work);
            if let (NextReconcile::After(later), ResyncKey::One(_)) = (next, &work) {
                self.queue.add_after(work, later);
            }
        }
    }

    /// Processes the queue before and after the grace period.
    async fn after_grace(&self) {
        self.work().await;
        sleep(GRACE + Duration::from_millis(20)).await;
        self.work().await;
    }

    fn set_live(&self, kind: &str, objects: Value) {
        self.live.lock().unwrap()[kind] = objects;
    }

    fn counted(&self, action: &str) -> u64 {
        self.reconciler
            .orphans
            .as_ref()
            .unwrap()
            .with_label_values(&[action])
            .get()
    }
}

#[tokio::test(start_paused = true)]
async fn label_update_follows_the_pod_and_changes_no_other_field() {
    let host = Host::new(GcMode::Reclaim);
    let mut before = endpoint("n1", "web");
    before.spec.mac = "aa:bb:cc:dd:ee:ff".into();
    let key = host.store(&before).await;
    host.set_live("pods", json!([live(&pod("web"))]));
    host.list(&[pod("web")]).await;
    host.work().await;
    let unchanged = host.stored(&key).await.unwrap();
    assert_eq!(unchanged.value.metadata.labels, before.metadata.labels);

    let mut changed = pod("shop");
    changed.service_account = "s".repeat(63);
    host.set_live("pods", json!([live(&changed)]));
    host.apply_pod(Event::Upsert(&changed));
    host.work().await;
    let after = host.stored(&key).await.unwrap();
    assert_eq!(after.value.spec.service_account_name, "s".repeat(63));
    let expected = json!({
        "app": "shop", "projectcalico.org/namespace": "ns", "projectcalico.org/orchestrator": "k8s",
    });
    assert_eq!(
        json!(after.value.metadata.labels),
        expected,
        "replaced, and no label that cannot hold the account"
    );
    let mut rest = after.value.clone();
    rest.metadata.labels = before.metadata.labels.clone();
    rest.spec.service_account_name = before.spec.service_account_name.clone();
    rest.metadata.resource_version.clear();
    assert_eq!(rest, before);
    // The watch has not delivered the controller's own write yet, and the endpoint is not written
    // again.
    host.queue.add(ResyncKey::All);
    host.work().await;
    assert_eq!(host.stored(&key).await.unwrap().revision, after.revision);
}

#[tokio::test(start_paused = true)]
async fn foreign_label_changes_of_an_endpoint_are_reverted() {
    let host = Host::new(GcMode::Reclaim);
    let key = host.store(&endpoint("n1", "stale")).await;
    host.set_live("pods", json!([live(&pod("web"))]));
    host.list(&[pod("web")]).await;
    host.work().await;
    assert_eq!(
        host.stored(&key).await.unwrap().value.metadata.labels["app"],
        "web"
    );
}

#[tokio::test(start_paused = true)]
async fn pod_without_an_address_or_endpoint_is_left_unchanged() {
    let host = Host::new(GcMode::Reclaim);
    let key = host.store(&endpoint("n1", "stale")).await;
    let mut waiting = pod("web");
    (waiting.pod_ip, waiting.pod_ips) = (None, vec![]);
    let mut other = pod("web");
    other.name = ObjectKey::namespaced("ns", "other");
    host.set_live("pods", json!([live(&waiting)]));
    host.list(&[waiting, other]).await;
    host.after_grace().await;
    assert_eq!(
        host.stored(&key).await.unwrap().value.metadata.labels["app"],
        "stale"
    );
    assert_eq!(
        host.reconciler
            .context
            .calico
            .list::<WorkloadEndpoint>(&Default::default())
            .await
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn endpoint_without_a_pod_is_deleted_after_the_grace_period() {
    let host = Host::new(GcMode::Reclaim);
    let key = host.store(&endpoint("n1", "web")).await;
    host.set_live("pods", json!([live(&pod("web"))]));
    host.list(&[pod("web")]).await;
    host.after_grace().await;
    host.set_live("pods", json!([]));
    host.apply_pod(Event::Delete(&pod("web").name));
    host.work().await;
    assert!(host.stored(&key).await.is_some(), "not at once");
    host.after_grace().await;
    assert!(host.stored(&key).await.is_none());
    assert_eq!(host.counted("deleted"), 1);
}

#[tokio::test(start_paused = true)]
async fn endpoint_of_a_pod_deleted_before_the_start_is_deleted() {
    let host = Host::new(GcMode::Reclaim);
    let key = host.store(&endpoint("n1", "web")).await;
    host.list(&[]).await;
    host.after_grace().await;
    assert!(host.stored(&key).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn endpoint_of_a_pod_missing_only_from_the_cache_is_retained() {
    let host = Host::new(GcMode::Reclaim);
    let key = host.store(&endpoint("n1", "web")).await;
    host.set_live("pods", json!([live(&pod("web"))]));
    // The watch lags behind, and has not delivered the pod.
    host.list(&[]).await;
    host.after_grace().await;
    assert!(host.stored(&key).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn recreated_endpoint_gets_a_new_grace_period() {
    let host = Host::new(GcMode::Reclaim);
    let key = host.store(&endpoint("n1", "web")).await;
    host.list(&[]).await;
    host.work().await;
    sleep(GRACE / 2).await;
    let mut entry = host.stored(&key).await.unwrap();
    entry.value.metadata.uid = "e2".into();
    host.reconciler
        .context
        .calico
        .update(&key, &entry.value, &entry.revision)
        .await
        .unwrap();
    host.list_endpoints().await;
    host.work().await;
    sleep(GRACE / 2 + Duration::from_millis(10)).await;
    host.queue.add(ResyncKey::All);
    host.work().await;
    assert!(host.stored(&key).await.is_some());
    host.after_grace().await;
    assert!(host.stored(&key).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn endpoint_on_the_former_node_is_deleted_unless_the_pod_has_the_address() {
    for (address, kept) in [("10.0.0.2", false), ("10.0.0.1", true)] {
        let host = Host::new(GcMode::Reclaim);
        let key = host.store(&endpoint("n1", "web")).await;
        let moved = Pod {
            node: "n2".into(),
            pod_ip: Some(address.into()),
            pod_ips: vec![address.into()],
            ..pod("web")
        };
        host.set_live("pods", json!([live(&moved)]));
        host.list(&[moved]).await;
        host.after_grace().await;
        assert_eq!(host.stored(&key).await.is_some(), kept, "{address}");
    }
}

const FIRST: &str = "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7";
const SECOND: &str = "8f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7";

#[tokio::test(start_paused = true)]
async fn successor_pod_on_the_same_node_does_not_retain_its_predecessors_endpoint() {
    for (uid, address, kept) in [
        (FIRST, None, true),
        (SECOND, None, false),
        (SECOND, Some("10.0.0.2"), false),
        (SECOND, Some("10.0.0.1"), true),
    ] {
        let host = Host::new(GcMode::Reclaim);
        let key = host.store(&endpoint("n1", "web")).await;
        let first = Pod {
            uid: FIRST.into(),
            ..pod("web")
        };
        host.set_live("pods", json!([live(&first)]));
        host.list(&[first]).await;
        host.work().await;
        let address: Option<Box<str>> = address.map(Into::into);
        let successor = Pod {
            uid: uid.into(),
            pod_ips: address.iter().cloned().collect(),
            pod_ip: address,
            ..pod("web")
        };
        host.set_live("pods", json!([live(&successor)]));
        host.apply_pod(Event::Upsert(&successor));
        host.work().await;
        assert!(host.stored(&key).await.is_some(), "not at once");
        host.after_grace().await;
        assert_eq!(host.stored(&key).await.is_some(), kept, "{successor:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn endpoint_written_by_a_successor_pod_meanwhile_is_retained() {
    let host = Host::new(GcMode::Reclaim);
    let key = host.store(&endpoint("n1", "web")).await;
    let first = Pod {
        uid: FIRST.into(),
        ..pod("web")
    };
    host.list(std::slice::from_ref(&first)).await;
    let successor = Pod {
        uid: SECOND.into(),
        pod_ip: None,
        pod_ips: vec![],
        ..pod("web")
    };
    host.set_live("pods", json!([live(&successor)]));
    host.apply_pod(Event::Upsert(&successor));
    host.work().await;
    // The endpoint changes, and the watch does not deliver the change.
    let mut entry = host.stored(&key).await.unwrap();
    entry.value.spec.container_id = "c2".into();
    host.reconciler
        .context
        .calico
        .update(&key, &entry.value, &entry.revision)
        .await
        .unwrap();
    host.after_grace().await;
    assert!(host.stored(&key).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn endpoint_of_a_host_network_pod_is_deleted() {
    let host = Host::new(GcMode::Reclaim);
    let key = host.store(&endpoint("n1", "web")).await;
    let own = Pod {
        host_network: true,
        pod_ip: Some("192.0.2.1".into()),
        pod_ips: vec![],
        ..pod("web")
    };
    host.set_live("pods", json!([live(&own)]));
    host.list(&[own]).await;
    host.after_grace().await;
    assert!(host.stored(&key).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn endpoint_on_a_deleted_node_is_deleted_unless_the_pod_reports_the_address() {
    let there = json!([{"metadata": {"name": "lost"}}]);
    for (nodes, address, kept) in [
        (json!([]), "10.0.0.9", false),
        (json!([]), "10.0.0.1", true),
        (there, "10.0.0.9", true),
    ] {
        let host = Host::new(GcMode::Reclaim);
        let key = host.store(&endpoint("lost", "web")).await;
        let there = Pod {
            node: "lost".into(),
            pod_ip: Some(address.into()),
            pod_ips: vec![],
            ..pod("web")
        };
        host.set_live("pods", json!([live(&there)]));
        host.set_live("nodes", nodes);
        host.list(&[there]).await;
        host.after_grace().await;
        assert_eq!(host.stored(&key).await.is_some(), kept);
    }
}

#[tokio::test(start_paused = true)]
async fn endpoint_on_a_calico_node_of_another_name_is_matched_to_its_pod() {
    let host = Host::new(GcMode::Reclaim);
    let reference = OrchRef {
        node_name: "n1".into(),
        orchestrator: "k8s".into(),
        ..OrchRef::default()
    };
    let node = CalicoNode::new(
        "calico-1",
        NodeSpec {
            orch_refs: vec![reference],
            ..NodeSpec::default()
        },
    );
    host.reconciler
        .context
        .calico
        .create(&node.key(), &node)
        .await
        .unwrap();
    let key = host.store(&endpoint("calico-1", "stale")).await;
    let fresh = Pod {
        pod_ip: Some("10.0.0.9".into()),
        ..pod("web")
    };
    host.set_live("pods", json!([live(&fresh)]));
    host.list(&[fresh]).await;
    host.after_grace().await;
    assert_eq!(
        host.stored(&key).await.unwrap().value.metadata.labels["app"],
        "web",
        "labelled, and not an orphan"
    );
}

#[tokio::test(start_paused = true)]
async fn dry_run_reports_a_deletion_once() {
    let host = Host::new(GcMode::Report);
    let key = host.store(&endpoint("n1", "web")).await;
    host.list(&[]).await;
    host.after_grace().await;
    host.queue.add(ResyncKey::All);
    host.work().await;
    assert!(host.stored(&key).await.is_some());
    assert_eq!((host.counted("reported"), host.counted("deleted")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn endpoints_of_other_orchestrators_are_not_deleted() {
    let host = Host::new(GcMode::Reclaim);
    let mut container = endpoint("n1", "web");
    container.metadata.name = "n1-cni-c1-eth0".into();
    container.spec.orchestrator = "cni".into();
    let key = host.store(&container).await;
    host.list(&[]).await;
    host.after_grace().await;
    assert!(host.stored(&key).await.is_some());
}
