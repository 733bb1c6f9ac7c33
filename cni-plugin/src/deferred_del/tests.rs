mod limits;
mod same_container;
mod same_pod;

use std::path::Path;

use datastore::Local;
use datastore::config::LocalConfig;
use libcalico::api::WorkloadEndpoint;
use libcalico::store::Store as _;
use libcalico::workload::{ContainerIdentity, Orchestrator, PodIdentity, WorkloadIdentity};

use super::replayer::has_other_endpoint;
use super::*;
use crate::endpoint::ContainerEndpoints;
use crate::testing::open;
use crate::world::ThisNode;

fn workload(container_id: &str, ifname: &str, orchestrator: Orchestrator) -> WorkloadIdentity {
    let (node, container_id, endpoint) = ("node1".into(), container_id.into(), ifname.into());
    WorkloadIdentity {
        node,
        container_id,
        endpoint,
        orchestrator,
    }
}

fn pending_del_of(workload: &WorkloadIdentity) -> PendingDel {
    let key = workload.key().unwrap();
    PendingDel {
        network: "net1".into(),
        container_id: workload.container_id.clone(),
        ifname: workload.endpoint.clone(),
        node: workload.node.clone(),
        datastore: "local".into(),
        endpoint: (key.namespace.unwrap(), key.name),
        ..PendingDel::default()
    }
}

/// Returns a deferred DEL of the endpoint with this name in the namespace `shop`.
fn pending_del_named(cx: &Context<impl World>, container: &str, endpoint: &str) -> PendingDel {
    PendingDel {
        network: "net1".into(),
        container_id: container.into(),
        ifname: "eth0".into(),
        node: "node1".into(),
        datastore: cx.datastore_name(),
        endpoint: ("shop".into(), endpoint.into()),
        ..PendingDel::default()
    }
}

#[tokio::test]
async fn other_interface_of_the_container_is_found_in_the_endpoints() {
    let directory = tempfile::tempdir().unwrap();
    let config = LocalConfig {
        path: directory.path().join("db"),
        deadline: std::time::Duration::from_secs(10),
    };
    let store = Local::new(&config);
    let plain = || Orchestrator::Cni(ContainerIdentity::new("net1"));
    let pod = || {
        let names = PodIdentity {
            namespace: "default".into(),
            name: "web".into(),
            ..PodIdentity::default()
        };
        Orchestrator::Kubernetes(names)
    };
    for existing in [
        workload("c1", "eth0", plain()),
        workload("c1", "eth0", pod()),
    ] {
        let endpoint = existing.create(&["10.0.0.1".parse().unwrap()]).unwrap();
        store.create(&endpoint.key(), &endpoint).await.unwrap();
    }
    for (deferred, expected) in [
        (workload("c1", "eth1", plain()), true),
        (workload("c1", "eth0", plain()), false),
        (workload("c", "eth1", plain()), false),
        (workload("c2", "eth1", plain()), false),
        (workload("c1", "eth1", pod()), true),
        (workload("c1", "eth0", pod()), false),
        (workload("c2", "eth1", pod()), false),
    ] {
        let pending_del = pending_del_of(&deferred).attachment();
        assert_eq!(pending_del.key(), deferred.key());
        assert_eq!(
            has_other_endpoint(&store, &pending_del).await.unwrap(),
            expected,
            "{deferred:?}"
        );
    }
}

#[tokio::test]
async fn endpoint_of_a_successor_without_a_container_id_is_retained() {
    let directory = tempfile::tempdir().unwrap();
    let config = LocalConfig {
        path: directory.path().join("db"),
        deadline: std::time::Duration::from_secs(10),
    };
    let store = Local::new(&config);
    let names = PodIdentity {
        namespace: "default".into(),
        name: "web".into(),
        ..PodIdentity::default()
    };
    let old = workload("c1", "eth0", Orchestrator::Kubernetes(names));
    let mut endpoint = old.create(&[]).unwrap();
    (endpoint.spec.container_id, endpoint.metadata.uid) = (String::new(), "u2".into());
    store.create(&endpoint.key(), &endpoint).await.unwrap();
    for (pod_uid, remaining) in [("u1", 1), ("u2", 0)] {
        let pending_del = PendingDel {
            pod_uid: pod_uid.into(),
            ..pending_del_of(&old)
        };
        ContainerEndpoints::new(&store, pending_del.attachment())
            .including_unnamed(&pending_del.pod_uid)
            .delete_own()
            .await
            .unwrap();
        let endpoints = store
            .list::<WorkloadEndpoint>(&old.endpoint_select().unwrap())
            .await
            .unwrap();
        assert_eq!(endpoints.len(), remaining, "for the pod {pod_uid}");
    }
}

fn context_of_add(files: &Path, args: &str) -> Context<ThisNode> {
    open(
        "ADD",
        args,
        serde_json::json!({ "datastore_type": "local", "datastore_path": files.join("db") }),
        files,
    )
}

/// The journal may contain a deferred DEL of the same attachment, and a later replay would release
/// the addresses of the ADD.
#[tokio::test]
async fn add_with_an_unreadable_journal_fails_before_any_datastore_request() {
    let files = tempfile::tempdir().unwrap();
    let journal = files.path().join("journal");
    std::os::unix::fs::symlink(&journal, &journal).unwrap();
    let cx = context_of_add(files.path(), "");
    let error = replay_before_add(&cx).await.unwrap_err();
    assert_eq!((error.code, cx.store.requests()), (Code::IO, 0));
    assert!(
        error.msg.contains(&journal.display().to_string()) && error.msg.contains("move it away"),
        "{error:?}"
    );
}

#[tokio::test]
async fn add_with_a_file_at_the_journal_path_proceeds() {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("journal"), "").unwrap();
    replay_before_add(&context_of_add(files.path(), ""))
        .await
        .unwrap();
}
