//! Requests for pods, nodes and namespaces, which both servers must answer alike.

use libcalico::api::{Node, NodeBgp, ObjectKey, ObjectSelect, Profile, WorkloadEndpoint};
use libcalico::kubernetes::{
    Location, NAMESPACES, NODES, Namespace, ObjectRevision, PODS, Pod, PodOnNode, Preconditions,
};
use libcalico::store::{Entry, Revision, Write};
use serde_json::{Value, json};

use super::NAMESPACE;
use super::record::{Record, pod};

/// Pods, and their endpoints.
pub(super) fn pods(record: &mut Record<'_>) {
    let missing = Location::namespaced(PODS, "nowhere", "web");
    record.create(&missing, &on_node("node1"));
    record.get::<Pod>(&ObjectKey::namespaced("nowhere", "web"));
    record.stored(&Location::global(NAMESPACES, "nowhere"));
    endpoint(record);
    former_pod(record);
    statuses(record);
    deletions(record);
    lists(record);
}

fn on_node(node: &str) -> Value {
    let mut pod = json!({ "spec": { "containers": [{ "name": "c", "image": "none" }] } });
    if !node.is_empty() {
        pod["spec"]["nodeName"] = node.into();
    }
    pod
}

fn key() -> ObjectKey {
    ObjectKey::namespaced(NAMESPACE, "node1-k8s-web-eth0")
}

fn attach(read: &Entry<WorkloadEndpoint>, address: &str) -> Write {
    let mut value = read.value.clone();
    value.spec.container_id = "cid".into();
    value.spec.ip_networks = vec![format!("{address}/32")];
    Write::update::<WorkloadEndpoint>(&key(), &value, &read.revision).unwrap()
}

fn detach(revision: Option<&Revision>) -> Write {
    Write::delete::<WorkloadEndpoint>(&key(), revision)
}

fn endpoint(record: &mut Record<'_>) {
    let web = pod("web");
    record.get::<WorkloadEndpoint>(&key());
    record.write("detach a missing pod", Ok(detach(None)));
    record.create(&web, &on_node("node1"));
    record.create(&web, &on_node("node1"));
    record.stored(&web);
    let read = record.found::<WorkloadEndpoint>(&key());
    record.patch(
        &web,
        &json!({ "metadata": { "annotations": { "a": "b" } } }),
    );
    let first = record.write("attach", Ok(attach(&read, "10.65.0.1")));
    let again = record.write("attach again", Ok(attach(&read, "10.65.0.1")));
    record.note("no change of a pod", first == again);
    record.stored(&web);
    let attached = record.found::<WorkloadEndpoint>(&key());
    let on_another_node = ObjectKey::namespaced(NAMESPACE, "node2-k8s-web-eth0");
    record.get::<WorkloadEndpoint>(&on_another_node);
    record.patch(
        &web,
        &json!({ "metadata": { "annotations": { "a": null } } }),
    );
    record.write(
        "detach at an old revision",
        Ok(detach(Some(&attached.revision))),
    );
    let read = record.found::<WorkloadEndpoint>(&key());
    let mut none = read.value.clone();
    none.spec.ip_networks = vec!["10.65.0.9/32".into()];
    let status = Write::update_status::<WorkloadEndpoint>(&key(), &none, &read.revision);
    let relisted = record.write("list another address", status);
    record.stored(&web);
    record.write("detach", Ok(detach(Some(&relisted))));
    record.stored(&web);
    let detached = record.found::<WorkloadEndpoint>(&key());
    record.write(
        "detach a detached pod",
        Ok(detach(Some(&detached.revision))),
    );
    record.revision::<Pod>(&ObjectKey::namespaced(NAMESPACE, "web"), &detached.revision);
    record.write("attach once more", Ok(attach(&read, "10.65.0.2")));
    record.write("detach at any revision", Ok(detach(None)));
    record.stored(&web);
}

fn former_pod(record: &mut Record<'_>) {
    let web = pod("web");
    let former = record.found::<WorkloadEndpoint>(&key());
    record.delete("by force", &web, Some(0));
    record.write("attach a missing pod", Ok(attach(&former, "10.65.0.3")));
    record.create(&web, &on_node("node1"));
    record.write("attach a former pod", Ok(attach(&former, "10.65.0.3")));
    let ObjectRevision { uid, .. } = ObjectRevision::parse(&former.revision);
    let without_mark = Revision(format!(
        "{}@{}",
        former.revision.resource_version(),
        uid.clone().unwrap_or_default()
    ));
    record.write("detach a former pod", Ok(detach(Some(&without_mark))));
    let current = record.found::<WorkloadEndpoint>(&key());
    let mixed = Revision(format!(
        "{}@{}",
        current.revision.resource_version(),
        uid.clone().unwrap_or_default()
    ));
    record.write(
        "detach with the uid of a former pod",
        Ok(detach(Some(&mixed))),
    );
    record.status(&web, uid.as_deref(), &json!({ "phase": "Running" }));
    let of_former = Preconditions {
        uid,
        resource_version: None,
    };
    record.delete_if("with the uid of a former pod", &web, Some(0), &of_former);
    record.stored(&web);
}

fn statuses(record: &mut Record<'_>) {
    let web = pod("web");
    for status in [
        json!({ "phase": "Running", "podIP": "10.65.0.1" }),
        json!({ "podIP": "10.65.0.1", "podIPs": [{ "ip": "10.65.0.1" }, { "ip": "fd00::1" }] }),
        json!({ "podIP": "10.65.0.2" }),
        json!({ "podIPs": [{ "ip": "10.65.0.3" }] }),
        json!({ "podIP": null, "podIPs": null }),
        json!({ "podIPs": [{ "ip": "10.65.0.4" }] }),
    ] {
        record.status(&web, None, &status);
        record.stored(&web);
        record.get::<WorkloadEndpoint>(&key());
    }
}

fn deletions(record: &mut Record<'_>) {
    let web = pod("web");
    record.delete("with its own grace period", &web, None);
    record.stored(&web);
    record.delete("with a longer grace period", &web, Some(60));
    record.stored(&web);
    record.delete("again", &web, None);
    record.stored(&web);
    record.create(&web, &on_node("node1"));
    let read = record.found::<WorkloadEndpoint>(&key());
    record.write("attach a deleted pod", Ok(attach(&read, "10.65.0.1")));
    record.stored(&web);
    record.delete("with a shorter grace period", &web, Some(5));
    record.stored(&web);
    let finalizers = |list: Value| json!({ "metadata": { "finalizers": list } });
    record.create(&pod("kept"), &on_node("node1"));
    record.patch(&pod("kept"), &finalizers(json!(["example.org/kept"])));
    record.delete("with a finalizer", &pod("kept"), Some(0));
    record.stored(&pod("kept"));
    record.patch(&pod("kept"), &finalizers(Value::Null));
    record.stored(&pod("kept"));
    record.delete("by force", &web, Some(0));
    record.stored(&web);
    record.delete("of a missing pod", &web, None);

    record.create(&pod("waiting"), &on_node(""));
    record.create(&pod("done"), &on_node("node1"));
    record.status(&pod("done"), None, &json!({ "phase": "Succeeded" }));
    for name in ["waiting", "done"] {
        record.delete("without processes", &pod(name), None);
        record.stored(&pod(name));
    }
}

fn lists(record: &mut Record<'_>) {
    for (name, node) in [("b", "node1"), ("a", "node2"), ("a-1", "node1"), ("c", "")] {
        record.create(&pod(name), &on_node(node));
    }
    let in_namespace = ObjectSelect {
        namespace: Some(NAMESPACE.into()),
        ..ObjectSelect::default()
    };
    record.list::<WorkloadEndpoint>("endpoints", &in_namespace);
    record.keys::<Pod>("pods", &in_namespace);
    record.keys::<PodOnNode>("pods of a node", &"node1".into());
    record.keys::<PodOnNode>("pods of another node", &"node3".into());
    for name in ["a", "a-1", "b", "c"] {
        record.delete("at the end", &pod(name), Some(0));
    }
}

/// Nodes as Calico reads and writes them, and the derived profile of a namespace.
pub(super) fn nodes(record: &mut Record<'_>) {
    let (key, location) = (ObjectKey::global("node1"), Location::global(NODES, "node1"));
    record.get::<Node>(&key);
    let labels = json!({ "kubernetes.io/hostname": "node1", "zone": "a" });
    let node = json!({ "metadata": { "labels": labels }, "spec": {} });
    record.create(&location, &node);
    record.create(&location, &node);
    let read = record.found::<Node>(&key);
    let mut changed = read.value.clone();
    changed.spec.bgp = Some(NodeBgp {
        ipv4_address: "192.0.2.1/24".into(),
        ..NodeBgp::default()
    });
    changed.spec.ipv4_vxlan_tunnel_addr = "10.65.0.1".into();
    let update = |value: &Node, revision: &Revision| Write::update::<Node>(&key, value, revision);
    let written = record.write("change a node", update(&changed, &read.revision));
    let same = record.write("change a node again", update(&changed, &written));
    record.note("no change of a node", same == written);
    record.write("old revision", update(&changed, &read.revision));
    record.list::<Node>("nodes", &ObjectSelect::default());
    let read = record.found::<Node>(&key);
    let mut without = read.value.clone();
    without.spec.bgp = None;
    record.write("remove fields", update(&without, &read.revision));
    record.found::<Node>(&key);
    record.write("delete", Ok(Write::delete::<Node>(&key, None)));
    record.delete("a node", &location, None);
    record.delete("a missing node", &location, None);
    record.write("missing node", update(&without, &read.revision));
    record.get::<Node>(&key);

    record.get::<Profile>(&ObjectKey::global(format!("kns.{NAMESPACE}")));
    record.get::<Profile>(&ObjectKey::global("kns.nowhere"));
    record.get::<Namespace>(&ObjectKey::global(NAMESPACE));
    record.get::<Namespace>(&ObjectKey::global("nowhere"));

    let ending = Location::global(NAMESPACES, "ending");
    record.create(&ending, &json!({}));
    record.create(&ending, &json!({}));
    record.get::<Namespace>(&ObjectKey::global("ending"));
    record.delete("a namespace", &ending, None);
    record.create(
        &Location::namespaced(PODS, "ending", "web"),
        &on_node("node1"),
    );
    record.get::<Namespace>(&ObjectKey::global("ending"));
}
