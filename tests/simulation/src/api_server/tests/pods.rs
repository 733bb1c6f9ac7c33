//! Pods: endpoints as annotations, the requests of kubelets and tenants, deletion.

use libcalico::api::{ObjectKey, WorkloadEndpoint};
use libcalico::kubernetes::{ApiGroup, CONTAINER_ID, Location, NAMESPACES, POD_IP, POD_IPS};
use libcalico::kubernetes::{Preconditions, is_detached};
use libcalico::store::{Entry, Write};
use serde_json::json;
use time::{Duration, OffsetDateTime};

use super::{ApiServer, found, kind_of};

const NS: &str = "default";

fn server_with_pod() -> ApiServer {
    let mut server = ApiServer::new(ApiGroup::CrdV1);
    server.create_pod(NS, "web", "n1", &[]).unwrap();
    server
}

fn key() -> ObjectKey {
    ObjectKey::namespaced(NS, "n1-k8s-web-eth0")
}

/// Returns the write by which an ADD attaches the pod that was read as `endpoint`.
fn attach(endpoint: &Entry<WorkloadEndpoint>, address: &str) -> Write {
    let mut value = endpoint.value.clone();
    value.spec.container_id = "cid".into();
    value.spec.ip_networks = vec![format!("{address}/32")];
    Write::update::<WorkloadEndpoint>(&key(), &value, &endpoint.revision).unwrap()
}

#[test]
fn endpoint_is_written_as_annotations_and_cleared_at_its_revision() {
    let mut server = server_with_pod();
    let read = found::<WorkloadEndpoint>(&server, &key());
    assert!(read.value.spec.ip_networks.is_empty());
    // An ADD may write after another client changed the pod.
    server.annotate_pod(NS, "web", &[("a", Some("b"))]).unwrap();
    server.apply(&attach(&read, "10.65.0.1")).unwrap();
    let read = found::<WorkloadEndpoint>(&server, &key());
    assert_eq!(read.value.spec.ip_networks, ["10.65.0.1/32"]);
    let annotations = server.pod(NS, "web").unwrap().metadata.annotations;
    assert_eq!(annotations[CONTAINER_ID], "cid");
    assert_eq!(annotations["a"], "b");

    server.annotate_pod(NS, "web", &[("a", None)]).unwrap();
    let delete = Write::delete::<WorkloadEndpoint>(&key(), Some(&read.revision));
    assert_eq!(kind_of(server.apply(&delete)), "Conflict");
    let read = found::<WorkloadEndpoint>(&server, &key());
    let delete = Write::delete::<WorkloadEndpoint>(&key(), Some(&read.revision));
    server.apply(&delete).unwrap();
    let annotations = server.pod(NS, "web").unwrap().metadata.annotations;
    assert_eq!(annotations[POD_IP], "");
    assert_eq!(annotations[POD_IPS], "");
    assert_eq!(annotations[CONTAINER_ID], "cid");

    let detached = found::<WorkloadEndpoint>(&server, &key());
    assert!(is_detached(&detached.revision));
    let before = server.revision();
    let delete = Write::delete::<WorkloadEndpoint>(&key(), Some(&detached.revision));
    server.apply(&delete).unwrap();
    assert_eq!(server.revision(), before);
}

#[test]
fn patch_without_a_change_keeps_the_revision() {
    let mut server = server_with_pod();
    let read = found::<WorkloadEndpoint>(&server, &key());
    let first = server.apply(&attach(&read, "10.65.0.1")).unwrap();
    assert_eq!(server.apply(&attach(&read, "10.65.0.1")), Ok(first));
}

#[test]
fn patch_of_another_pod_with_the_same_name_is_refused() {
    let mut server = server_with_pod();
    let read = found::<WorkloadEndpoint>(&server, &key());
    server.remove_pod(NS, "web", None).unwrap();
    assert_eq!(
        kind_of(server.apply(&attach(&read, "10.65.0.1"))),
        "NotFound"
    );
    let delete = Write::delete::<WorkloadEndpoint>(&key(), Some(&read.revision));
    assert_eq!(kind_of(server.apply(&delete)), "NotFound");

    let uid = server.create_pod(NS, "web", "n1", &[]).unwrap();
    assert_eq!(
        kind_of(server.apply(&attach(&read, "10.65.0.1"))),
        "NotFound"
    );
    // The server compares the resourceVersion first.
    assert_eq!(kind_of(server.apply(&delete)), "Conflict");
    let other = server.patch_pod_status(NS, "web", Some("other"), &json!({ "phase": "Running" }));
    assert_eq!(kind_of(other), "NotFound");
    server
        .patch_pod_status(NS, "web", Some(&uid), &json!({ "phase": "Running" }))
        .unwrap();
    assert_eq!(server.pod(NS, "web").unwrap().status.phase, "Running");
}

#[test]
fn status_patch_keeps_the_spec_and_a_patch_of_the_pod_keeps_the_status() {
    let mut server = server_with_pod();
    let location = super::super::pods::at(NS, "web");
    let both = json!({ "spec": { "nodeName": "n2" }, "status": { "phase": "Running" } });
    server
        .patch(&location, &both, super::super::Part::Status)
        .unwrap();
    let pod = server.pod(NS, "web").unwrap();
    assert_eq!(
        (&*pod.spec.node_name, &*pod.status.phase),
        ("n1", "Running")
    );
    server
        .patch_object(&location, &json!({ "status": { "phase": "Failed" } }))
        .unwrap();
    assert_eq!(server.pod(NS, "web").unwrap().status.phase, "Running");
}

#[test]
fn addresses_of_a_status_agree() {
    let mut server = server_with_pod();
    let mut patch = |status| {
        server.patch_pod_status(NS, "web", None, &status).unwrap();
        let status = server.pod(NS, "web").unwrap().status;
        let all = status.listed_ips().join(",");
        (status.pod_ip, all)
    };
    let of = |first: &str, all: &str| (first.to_owned(), all.to_owned());
    assert_eq!(
        patch(json!({ "podIP": "10.0.0.1" })),
        of("10.0.0.1", "10.0.0.1")
    );
    let both =
        json!({ "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }] });
    assert_eq!(patch(both), of("10.0.0.1", "10.0.0.1,fd00::1"));
    assert_eq!(
        patch(json!({ "podIP": "10.0.0.2" })),
        of("10.0.0.2", "10.0.0.2")
    );
    let none = json!({ "podIP": null, "podIPs": null });
    assert_eq!(patch(none), of("", ""));
    let list = json!({ "podIPs": [{ "ip": "10.0.0.3" }] });
    assert_eq!(patch(list), of("10.0.0.3", "10.0.0.3"));
}

#[test]
fn conditions_are_merged_by_type() {
    let mut server = server_with_pod();
    let mut patch = |kind: &str, status: &str| {
        let conditions = json!({ "conditions": [{ "type": kind, "status": status }] });
        server
            .patch_pod_status(NS, "web", None, &conditions)
            .unwrap();
    };
    patch("Ready", "True");
    patch("PodScheduled", "True");
    patch("Ready", "False");
    let location = super::super::pods::at(NS, "web");
    assert_eq!(
        server.object(&location).unwrap()["status"]["conditions"],
        json!([
            { "type": "Ready", "status": "False" }, { "type": "PodScheduled", "status": "True" },
        ])
    );
}

#[test]
fn deleted_pod_remains_for_its_grace_period() {
    let mut server = server_with_pod();
    let uid = server.pod(NS, "web").unwrap().metadata.uid;
    server.set_time(OffsetDateTime::UNIX_EPOCH + Duration::seconds(60));
    server.delete_pod(NS, "web", None).unwrap();
    let pod = server.pod(NS, "web").unwrap();
    assert_eq!(
        pod.metadata.deletion_timestamp.as_deref(),
        Some("1970-01-01T00:01:30Z")
    );
    let marked = server.revision();
    server.delete_pod(NS, "web", None).unwrap();
    server.delete_pod(NS, "web", Some(60)).unwrap();
    assert_eq!(server.revision(), marked);
    assert_eq!(
        kind_of(server.create_pod(NS, "web", "n1", &[])),
        "AlreadyExists"
    );
    server.delete_pod(NS, "web", Some(10)).unwrap();
    let until = server.pod(NS, "web").unwrap().metadata.deletion_timestamp;
    assert_eq!(until.as_deref(), Some("1970-01-01T00:01:10Z"));
    // The endpoint of a pod that is being deleted can still be written.
    let read = found::<WorkloadEndpoint>(&server, &key());
    server.apply(&attach(&read, "10.65.0.1")).unwrap();
    assert_eq!(
        kind_of(server.remove_pod(NS, "web", Some("other"))),
        "Conflict"
    );
    server.remove_pod(NS, "web", Some(&uid)).unwrap();
    assert!(server.pod(NS, "web").is_none());
    assert_eq!(kind_of(server.delete_pod(NS, "web", None)), "NotFound");
}

#[test]
fn pod_without_processes_is_deleted_at_once() {
    let mut server = server_with_pod();
    server
        .patch_pod_status(NS, "web", None, &json!({ "phase": "Succeeded" }))
        .unwrap();
    server.create_pod(NS, "waiting", "", &[]).unwrap();
    for name in ["web", "waiting"] {
        server.delete_pod(NS, name, None).unwrap();
        assert!(server.pod(NS, name).is_none());
    }
}

#[test]
fn pod_with_a_finalizer_remains_after_a_deletion_by_force() {
    let mut server = server_with_pod();
    let location = super::super::pods::at(NS, "web");
    let finalizers = |list| json!({ "metadata": { "finalizers": list } });
    server
        .patch_object(&location, &finalizers(json!(["a/b"])))
        .unwrap();
    server.remove_pod(NS, "web", None).unwrap();
    assert!(server.pod(NS, "web").is_some());
    server
        .patch_object(&location, &finalizers(json!(null)))
        .unwrap();
    assert!(server.pod(NS, "web").is_none());
}

#[test]
fn pod_in_a_missing_namespace_is_refused() {
    let mut server = ApiServer::new(ApiGroup::V3);
    assert_eq!(
        kind_of(server.create_pod("shop", "web", "n1", &[])),
        "NotFound"
    );
    server.create_namespace("shop").unwrap();
    assert_eq!(kind_of(server.create_namespace("shop")), "AlreadyExists");
    server
        .create_pod("shop", "web", "n1", &[("a", "b")])
        .unwrap();
    let shop = Location::global(NAMESPACES, "shop");
    server
        .delete_object(&shop, &Preconditions::default())
        .unwrap();
    assert_eq!(
        kind_of(server.create_pod("shop", "two", "n1", &[])),
        "Forbidden"
    );
    assert!(server.pod("shop", "web").is_some());
    server.remove_object(&shop);
    assert!(server.object(&shop).is_none());
}

#[test]
fn node_is_deleted_at_once() {
    let mut server = ApiServer::new(ApiGroup::V3);
    let uid = server.create_node("n1", &[("zone", "a")]).unwrap();
    assert_eq!(kind_of(server.create_node("n1", &[])), "AlreadyExists");
    server.delete_node("n1").unwrap();
    assert_eq!(kind_of(server.delete_node("n1")), "NotFound");
    assert_ne!(server.create_node("n1", &[]).unwrap(), uid);
}
