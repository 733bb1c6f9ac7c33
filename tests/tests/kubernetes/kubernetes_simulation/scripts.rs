//! The requests that both servers must answer alike.

use libcalico::api::{IpPool, IpPoolSpec, ObjectKey, ObjectSelect, WorkloadEndpoint};
use libcalico::ipam::{
    AffinityKey, AffinityOwner, AffinitySelect, AffinityState, Block, BlockAffinity, Handle,
    HandleId,
};
use libcalico::kubernetes::{
    ApiGroup, Location, NAMESPACES, ObjectRevision, PODS, Pod, PodOnNode, Preconditions,
};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Revision, Write};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::NAMESPACE;
use super::record::{Record, pod};

const RANGE: &str = "10.65.0.0/26";
const NAME: &str = "10-65-0-0-26";

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn host(node: &str) -> AffinityOwner {
    AffinityOwner::Host(node.into())
}

fn block(range: &str) -> Block {
    Block::new(cidr(range), &host("node1"), OffsetDateTime::UNIX_EPOCH).unwrap()
}

fn affinity_key(node: &str, range: &str) -> AffinityKey {
    AffinityKey {
        owner: host(node),
        cidr: cidr(range),
    }
}

fn preconditions(revision: &Revision) -> Preconditions {
    let ObjectRevision {
        resource_version,
        uid,
        ..
    } = ObjectRevision::parse(revision);
    Preconditions {
        uid,
        resource_version: Some(resource_version),
    }
}

/// Writes of blocks, affinities, handles and pools.
pub(super) fn custom(record: &mut Record<'_>) {
    blocks(record);
    handles(record);
    affinities(record);
    pools(record);
}

fn blocks(record: &mut Record<'_>) {
    let key = cidr(RANGE);
    let location = record.at("IPAMBlock", NAME);
    let create = || Write::create::<Block>(&key, &block(RANGE));
    record.get::<Block>(&key);
    record.write("create", create());
    record.write("create again", create());
    record.stored(&location);
    let first = record.found::<Block>(&key);
    record.revision::<Block>(&key, &first.revision);

    let update = |value: &Block, revision: &Revision| Write::update::<Block>(&key, value, revision);
    let reset = record.write("same", update(&first.value, &first.revision));
    record.note("reset of managers", reset == first.revision);
    record.stored(&location);
    let same = record.write("same again", update(&first.value, &reset));
    record.note("no change", same == reset);
    let mut changed = first.value.clone();
    changed.count_write();
    record.write("old revision", update(&changed, &first.revision));
    let none = Revision(String::new());
    record.write("no revision", update(&changed, &none));
    let newer = record.write("change", update(&changed, &same));
    record.stored(&location);
    record.get::<Block>(&key);
    record.revision::<Block>(&key, &newer);

    let delete = |revision: Option<&Revision>| Ok(Write::delete::<Block>(&key, revision));
    record.write("delete at an old revision", delete(Some(&same)));
    record.write("delete", delete(Some(&newer)));
    record.write("delete again", delete(Some(&newer)));
    record.write("delete any", delete(None));
    record.write("update of a missing block", update(&changed, &newer));
    record.write("create once more", create());
    record.write("delete of a former block", delete(Some(&newer)));
    record.write("update of a former block", update(&changed, &newer));

    record.edit(&location, |block| block["spec"]["deleted"] = true.into());
    record.list::<Block>("blocks with a tombstone", &Some(IpVersion::V4));
    record.get::<Block>(&key);
    record.stored(&location);
}

fn handles(record: &mut Record<'_>) {
    let id = HandleId::new("Net.Container-1");
    let mut handle = Handle::default();
    handle.increment(cidr(RANGE), 1);
    let create = Write::create::<Handle>(&id, &handle);
    record.write("create a handle", create.clone());
    let old = record.found::<Handle>(&id);
    record.stored(&record.at("IPAMHandle", "net.container-1"));
    let same = record.write(
        "same handle",
        Write::update::<Handle>(&id, &old.value, &old.revision),
    );
    record.note("no change of a handle", same == old.revision);
    record.write("delete a handle", Ok(Write::delete::<Handle>(&id, None)));
    handle.increment(cidr(RANGE), 1);
    let update = Write::update::<Handle>(&id, &handle, &old.revision);
    record.write("update of a missing handle", update.clone());
    record.write("create the handle again", create);
    record.write("update of a former handle", update);
    let delete = Write::delete::<Handle>(&id, Some(&old.revision));
    record.write("delete a former handle", Ok(delete));
    let location = record.at("IPAMHandle", "net.container-1");
    let current = record.found::<Handle>(&id);
    for (about, wanted) in [
        (
            "with another uid",
            Preconditions {
                uid: Some("9a3f2c1e-0000-4000-8000-000000000000".into()),
                ..Preconditions::default()
            },
        ),
        (
            "at another revision",
            Preconditions {
                resource_version: Some("1".into()),
                ..preconditions(&current.revision)
            },
        ),
        ("at its revision", preconditions(&current.revision)),
        ("once more", preconditions(&current.revision)),
    ] {
        record.delete_if(about, &location, None, &wanted);
    }
    record.get::<Handle>(&id);
}

fn affinities(record: &mut Record<'_>) {
    let key = affinity_key("node1", RANGE);
    let mut affinity = BlockAffinity {
        state: AffinityState::Pending,
        ..BlockAffinity::default()
    };
    let create = Write::create::<BlockAffinity>(&key, &affinity);
    record.write("create an affinity", create.clone());
    let location = record.at("BlockAffinity", "node1-10-65-0-0-26");
    record.stored(&location);
    let first = record.found::<BlockAffinity>(&key);
    affinity.state = AffinityState::Confirmed;
    record.edit(&location, |object| {
        object["metadata"]["labels"]["owner"] = "other".into();
    });
    let update = Write::update::<BlockAffinity>(&key, &affinity, &first.revision);
    record.write("update after another client", update);
    let read = record.found::<BlockAffinity>(&key);
    let update = Write::update::<BlockAffinity>(&key, &affinity, &read.revision);
    record.write("confirm", update);
    record.stored(&location);
    let deleted = match record.group {
        ApiGroup::CrdV1 => json!("true"),
        ApiGroup::V3 => json!(true),
    };
    record.edit(&location, |object| object["spec"]["deleted"] = deleted);
    record.list::<BlockAffinity>("tombstones", &AffinitySelect::default());
    record.get::<BlockAffinity>(&key);
    record.stored(&location);
}

fn pools(record: &mut Record<'_>) {
    let key = ObjectKey::global("pool4");
    let spec = IpPoolSpec {
        cidr: "10.65.0.0/16".into(),
        block_size: Some(26),
        ..IpPoolSpec::default()
    };
    let mut pool = IpPool::new("pool4", spec);
    pool.metadata.uid = "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7".into();
    pool.metadata.labels.insert("zone".into(), "a".into());
    record.write("create a pool", Write::create::<IpPool>(&key, &pool));
    let location = record.at("IPPool", "pool4");
    record.stored(&location);
    record.edit(&location, |pool| {
        pool["metadata"]["finalizers"] = json!(["example.org/kept"]);
        pool["metadata"]["annotations"]["note"] = "of others".into();
        pool["spec"]["invented"] = 1.into();
    });
    record.stored(&location);
    let read = record.found::<IpPool>(&key);
    let mut changed = read.value.clone();
    changed.spec.nat_outgoing = true;
    record.write(
        "change a pool",
        Write::update::<IpPool>(&key, &changed, &read.revision),
    );
    record.stored(&location);

    let read = record.found::<IpPool>(&key);
    let mut with_status = read.value.clone();
    with_status.spec.nat_outgoing = false;
    with_status.status = Some(json!({ "conditions": [{
        "type": "Allocatable", "status": "True", "reason": "Ready", "message": "",
        "lastTransitionTime": "2026-08-22T01:02:03Z",
    }] }));
    let status = Write::update_status::<IpPool>(&key, &with_status, &read.revision);
    record.write("status of a pool", status);
    record.stored(&location);
    let read = record.found::<IpPool>(&key);
    let mut without_status = read.value.clone();
    without_status.status = None;
    without_status.spec.disabled = true;
    record.write(
        "pool without its status",
        Write::update::<IpPool>(&key, &without_status, &read.revision),
    );
    record.stored(&location);

    record.write("delete a pool", Ok(Write::delete::<IpPool>(&key, None)));
    record.stored(&location);
    record.write(
        "delete the pool again",
        Ok(Write::delete::<IpPool>(&key, None)),
    );
    record.stored(&location);
    let create = Write::create::<IpPool>(&key, &pool);
    record.write("create a pool that is being deleted", create);
    let read = record.found::<IpPool>(&key);
    let mut again = read.value.clone();
    again.spec.disabled = false;
    record.write(
        "change a pool that is being deleted",
        Write::update::<IpPool>(&key, &again, &read.revision),
    );
    record.stored(&location);
    record.edit(&location, |pool| {
        pool["metadata"]["finalizers"] = json!([]);
    });
    record.stored(&location);
    record.get::<IpPool>(&key);
}

/// Lists, by labels, of keys, and in the order of names.
pub(super) fn reads(record: &mut Record<'_>) {
    for range in [
        "10.65.0.64/26",
        "10.65.0.128/26",
        "10.65.0.0/26",
        "fd00:65::/122",
    ] {
        let key = cidr(range);
        record.write(range, Write::create::<Block>(&key, &block(range)));
    }
    let confirmed = BlockAffinity {
        state: AffinityState::Confirmed,
        ..BlockAffinity::default()
    };
    for (node, range) in [
        ("node1", "10.65.0.64/26"),
        ("node1", "fd00:65::/122"),
        ("node-1", "10.65.0.128/26"),
        ("node2", "10.65.0.0/26"),
    ] {
        let key = affinity_key(node, range);
        let create = Write::create::<BlockAffinity>(&key, &confirmed);
        record.write(node, create);
    }
    let deleted = match record.group {
        ApiGroup::CrdV1 => json!("false"),
        ApiGroup::V3 => json!(false),
    };
    let unlabeled = record.at("BlockAffinity", "node2-10-65-0-192-26");
    let spec = json!({
        "cidr": "10.65.0.192/26", "node": "node2", "state": "confirmed", "deleted": deleted,
    });
    record.create(&unlabeled, &json!({ "spec": spec }));

    for version in [IpVersion::V4, IpVersion::V6] {
        record.list::<Block>("blocks", &Some(version));
        record.keys::<Block>("ranges", &Some(version));
    }
    for owner in ["node1", "node-1", "node2", "node3"] {
        let of_owner = AffinitySelect::of(host(owner));
        record.list::<BlockAffinity>(owner, &of_owner);
        let of_family = AffinitySelect {
            version: Some(IpVersion::V6),
            ..of_owner
        };
        record.list::<BlockAffinity>(owner, &of_family);
        record.keys::<BlockAffinity>(owner, &of_family);
    }
    record.list::<BlockAffinity>("unlabeled", &AffinitySelect::without_labels());
    record.list::<BlockAffinity>("all", &AffinitySelect::default());
    record.list::<Handle>("no handles", &());
    record.get::<Handle>(&HandleId::new("missing"));
    let first = record.found::<Block>(&cidr(RANGE));
    record.revision::<Block>(&cidr(RANGE), &first.revision);
    record.revision::<Block>(&cidr("10.66.0.0/26"), &first.revision);

    for name in ["b", "a-1", "a"] {
        let spec = IpPoolSpec {
            cidr: "10.70.0.0/16".into(),
            ..IpPoolSpec::default()
        };
        let pool = IpPool::new(name, spec);
        let create = Write::create::<IpPool>(&ObjectKey::global(name), &pool);
        record.write(name, create);
    }
    record.keys::<IpPool>("names of pools", &ObjectSelect::default());
    record.list::<IpPool>("pools", &ObjectSelect::default());
}

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

fn attach(read: &libcalico::store::Entry<WorkloadEndpoint>, address: &str) -> Write {
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
