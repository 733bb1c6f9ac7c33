//! The Store on a real API server, in both API groups.

use std::time::{Duration, Instant};

use datastore::config::KubernetesConfig;
use datastore::{ClusterStore as _, Datastore, DatastoreConfig};
use integration_tests::Place;
use integration_tests::cluster::{Cluster, ControlPlane, on};
use integration_tests::kubernetes::ApiServer;
use integration_tests::plugin::Plugins;
use libcalico::api::{ObjectKey, WorkloadEndpoint};
use libcalico::ipam::{
    AffinityKey, AffinityOwner, AffinitySelect, AffinityState, Block, BlockAffinity, Handle,
    HandleId,
};
use libcalico::kubernetes::{ApiGroup, Pod};
use libcalico::net::Cidr;
use libcalico::store::{ReadBatch, Revision, Store, StoreError, Write};
use serde_json::json;
use time::OffsetDateTime;

/// Time after which the store does not wait any longer for the server's cache.
const LONGEST_CACHED_READ: Duration = Duration::from_secs(1);

fn open(api: &ApiServer, group: ApiGroup) -> Datastore {
    let config = KubernetesConfig {
        kubeconfig: vec![api.admin_kubeconfig()],
        group: Some(group),
        deadline: Duration::from_secs(20),
        ..KubernetesConfig::default()
    };
    Datastore::open(&DatastoreConfig::Kubernetes(Box::new(config))).unwrap()
}

fn block_on<T>(operation: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(operation)
}

fn cidr() -> Cidr {
    "10.65.0.0/26".parse().unwrap()
}

#[on(kubernetes_v1, kubernetes_v3)]
fn objects_of_each_kind_are_stored_compared_and_deleted(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let (api, group) = (&control_plane.servers.api, cluster.objects().group());
    let store = open(api, group);
    block_on(keep_compare_delete(&store));
}

async fn keep_compare_delete(store: &Datastore) {
    let owner = AffinityOwner::Host("node1".into());
    let block = Block::new(cidr(), &owner, OffsetDateTime::UNIX_EPOCH).unwrap();
    let affinity_key = AffinityKey {
        owner,
        cidr: cidr(),
    };
    let affinity = BlockAffinity {
        state: AffinityState::Pending,
        ..BlockAffinity::default()
    };
    let handle = HandleId::new("Net.Container-1");

    let writes = [
        Write::create::<Handle>(&handle, &Handle::default()).unwrap(),
        Write::create::<BlockAffinity>(&affinity_key, &affinity).unwrap(),
        Write::create::<Block>(&cidr(), &block).unwrap(),
    ];
    store.write(&writes).await.unwrap();
    let again = store.write(&writes[1..]).await.unwrap_err();
    assert!(
        matches!(again.cause, StoreError::AlreadyExists { .. }),
        "{again:?}"
    );
    assert_eq!((again.index, again.applied), (0, 0));

    let of = |node: &str| AffinitySelect::of(AffinityOwner::Host(node.into()));
    let mut batch = ReadBatch::new();
    let (block_ticket, handle_ticket) = (batch.get::<Block>(&cidr()), batch.get::<Handle>(&handle));
    let missing = batch.get::<Block>(&"10.65.0.64/26".parse().unwrap());
    let owned = batch.list::<BlockAffinity>(&of("node1"));
    let others = batch.list::<BlockAffinity>(&of("node2"));
    let before = store.requests();
    let answers = store.read(&batch).await.unwrap();
    assert_eq!(store.requests() - before, 5);
    let kept = answers.get(&block_ticket).unwrap().unwrap();
    assert_eq!((kept.key, &kept.value), (cidr(), &block));
    assert_eq!(answers.get(&handle_ticket).unwrap().unwrap().key, handle);
    assert!(answers.get(&missing).unwrap().is_none());
    assert_eq!(answers.list(&owned).len(), 1);
    assert!(answers.list(&others).is_empty());

    // The API server keeps the revision of an object if a write does not change it.
    let mut changed = kept.value;
    changed.count_write();
    let newer = store
        .update::<Block>(&cidr(), &changed, &kept.revision)
        .await
        .unwrap();
    let outdated = store
        .update::<Block>(&cidr(), &block, &kept.revision)
        .await
        .unwrap_err();
    assert!(
        matches!(outdated, StoreError::Conflict { .. }),
        "{outdated}"
    );
    let outdated = store
        .delete::<Block>(&cidr(), Some(&kept.revision))
        .await
        .unwrap_err();
    assert!(
        matches!(outdated, StoreError::Conflict { .. }),
        "{outdated}"
    );
    store.delete::<Block>(&cidr(), Some(&newer)).await.unwrap();
    let gone = store.get::<Block>(&cidr()).await.unwrap_err();
    assert!(matches!(gone, StoreError::NotFound { .. }), "{gone}");
}

/// The name of the machine on which a person runs the command is not that of a node.
#[test]
fn init_for_a_node_that_the_cluster_lacks_writes_no_object() {
    on(Place::KubernetesV1, init_for_a_missing_node);
}

fn init_for_a_missing_node(_: &Cluster<'_>, control_plane: &mut ControlPlane<'_>) {
    let api = &control_plane.servers.api;
    let init = Plugins::locate()
        .unwrap()
        .call("calico-ipam")
        .args(["init", "--node", "laptop"]);
    let kubeconfig = api.admin_kubeconfig();
    let init = init
        .env("DATASTORE_TYPE", "kubernetes")
        .env("KUBECONFIG", kubeconfig.as_os_str())
        .run();
    assert_eq!(init.exit, Some(1), "{init:?}");
    assert!(
        init.stderr.contains("Kubernetes has no Node laptop") && init.stderr.contains("--node"),
        "{init:?}"
    );
    for group in [ApiGroup::CrdV1, ApiGroup::V3] {
        let path = format!("/apis/{}/clusterinformations", group.api_version());
        let written = api.admin().get(&path).unwrap().success();
        assert_eq!(written["items"], json!([]), "{path}");
    }
}

#[on(kubernetes_v1, kubernetes_v3)]
fn block_update_removes_managed_fields(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let (api, group) = (&control_plane.servers.api, cluster.objects().group());
    let path = format!("/apis/{}/ipamblocks/10-65-0-0-26", group.api_version());
    let get = || api.admin().get(&path).unwrap().success();
    let owner = AffinityOwner::Host("node1".into());
    let block = Block::new(cidr(), &owner, OffsetDateTime::UNIX_EPOCH).unwrap();
    let store = open(api, group);
    block_on(async {
        store.create::<Block>(&cidr(), &block).await.unwrap();
        assert!(
            get()["metadata"]["managedFields"].is_array(),
            "the server's own habit, which this test is about"
        );
        let kept = store.get::<Block>(&cidr()).await.unwrap();
        let mut changed = kept.value;
        changed.count_write();
        store
            .update::<Block>(&cidr(), &changed, &kept.revision)
            .await
            .unwrap();
    });
    let mut object = get();
    assert_eq!(object["metadata"].get("managedFields"), None);
    // `managedFields` are still missing after upstream's next write.
    object["spec"]["sequenceNumber"] = 77.into();
    api.admin().replace(&path, &object).unwrap().success();
    assert_eq!(
        (
            &get()["spec"]["sequenceNumber"],
            get()["metadata"].get("managedFields")
        ),
        (&json!(77), None)
    );
}

/// After a read of a revision that no cache ever reaches, the store reads the latest version.
#[on(kubernetes_v1)]
fn block_read_from_the_cache_has_at_least_the_given_revision(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let (api, group) = (&control_plane.servers.api, cluster.objects().group());
    let store = open(api, group);
    let owner = AffinityOwner::Host("node1".into());
    let mut block = Block::new(cidr(), &owner, OffsetDateTime::UNIX_EPOCH).unwrap();
    let read = async |since: &Revision| {
        let mut batch = ReadBatch::new();
        let ticket = batch.get_since::<Block>(&cidr(), since);
        let before = store.requests();
        let answers = store.read(&batch).await.unwrap();
        (
            answers.get(&ticket).unwrap().unwrap(),
            store.requests() - before,
        )
    };
    block_on(async {
        let mut revision = store.create::<Block>(&cidr(), &block).await.unwrap();
        // An outdated response might show in one of these repetitions.
        let mut repeated = 0;
        for _ in 0..50 {
            block.count_write();
            revision = store
                .update::<Block>(&cidr(), &block, &revision)
                .await
                .unwrap();
            let began = Instant::now();
            let (found, requests) = read(&revision).await;
            assert_eq!((&found.value, &found.revision), (&block, &revision));
            // Only a cache that is late causes a second request, and on a busy machine it
            // may be late once.
            assert!(
                requests == 1 || requests == 2 && began.elapsed() > LONGEST_CACHED_READ,
                "{requests}"
            );
            repeated += requests - 1;
        }
        assert!(repeated < 5, "{repeated} reads needed a second request");
        let never = revision.resource_version().to_owned() + "000000";
        // Together with a read of the latest version, the batch does not wait for the
        // cache.
        let mut batch = ReadBatch::new();
        batch.get_since::<Block>(&cidr(), &Revision(never.clone()));
        let latest = batch.get::<Block>(&cidr());
        let before = store.requests();
        assert!(
            store
                .read(&batch)
                .await
                .unwrap()
                .get(&latest)
                .unwrap()
                .is_some()
        );
        assert_eq!(store.requests() - before, 1);
        for (unknown, expected) in [(never, 2), ("none".into(), 1)] {
            let (found, requests) = read(&Revision(unknown.clone())).await;
            assert_eq!(
                (&found.value, &found.revision, requests),
                (&block, &revision, expected),
                "{unknown}"
            );
        }
    });
}

#[on(kubernetes_v1, kubernetes_v3)]
fn get_of_a_tombstone_completes_the_deletion(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let (api, group) = (&control_plane.servers.api, cluster.objects().group());
    let path = format!("/apis/{}/ipamblocks/10-65-0-0-26", group.api_version());
    let store = open(api, group);
    block_on(async {
        let owner = AffinityOwner::Host("node1".into());
        let block = Block::new(cidr(), &owner, OffsetDateTime::UNIX_EPOCH).unwrap();
        store.create::<Block>(&cidr(), &block).await.unwrap();
        let mut object = api.admin().get(&path).unwrap().success();
        object["spec"]["deleted"] = true.into();
        api.admin().replace(&path, &object).unwrap().success();
        let gone = store.get::<Block>(&cidr()).await.unwrap_err();
        assert!(matches!(gone, StoreError::NotFound { .. }), "{gone}");
    });
    assert_eq!(api.admin().get(&path).unwrap().code, 404);
}

#[test]
fn endpoint_is_stored_in_the_pods_annotations() {
    on(Place::KubernetesV3, endpoint_is_in_the_annotations);
}

fn endpoint_is_in_the_annotations(_: &Cluster<'_>, control_plane: &mut ControlPlane<'_>) {
    let api = &control_plane.servers.api;
    api.namespace("web").unwrap();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "p1", "namespace": "web", "labels": { "app": "a" } },
        "spec": { "nodeName": "node1", "containers": [{ "name": "c", "image": "none" }] },
    });
    api.admin().apply_object(&pod).unwrap();
    let store = open(api, ApiGroup::V3);
    block_on(async {
        let key = ObjectKey::namespaced("web", "node1-k8s-p1-eth0");
        let mut batch = ReadBatch::new();
        let (endpoint, pod) = (
            batch.get::<WorkloadEndpoint>(&key),
            batch.get::<Pod>(&ObjectKey::namespaced("web", "p1")),
        );
        let answers = store.read(&batch).await.unwrap();
        assert_eq!(store.requests(), 1);
        assert_eq!(
            answers.get(&pod).unwrap().unwrap().value.spec.node_name,
            "node1"
        );
        let found = answers.get(&endpoint).unwrap().unwrap();
        let mut value = found.value;
        value.spec.container_id = "cid".into();
        value.spec.ip_networks = vec!["10.65.0.1/32".into()];
        store
            .update::<WorkloadEndpoint>(&key, &value, &found.revision)
            .await
            .unwrap();
        let kept = store.get::<WorkloadEndpoint>(&key).await.unwrap();
        assert_eq!(kept.value.spec.ip_networks, ["10.65.0.1/32"]);
        assert_eq!(kept.value.spec.container_id, "cid");
    });
    let pod = api
        .admin()
        .get("/api/v1/namespaces/web/pods/p1")
        .unwrap()
        .success();
    assert_eq!(
        pod["metadata"]["annotations"],
        json!({
            "cni.projectcalico.org/containerID": "cid",
            "cni.projectcalico.org/podIP": "10.65.0.1/32",
            "cni.projectcalico.org/podIPs": "10.65.0.1/32",
        })
    );
}
