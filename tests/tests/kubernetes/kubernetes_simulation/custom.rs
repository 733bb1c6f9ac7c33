//! Requests for Calico's objects, which both servers must answer alike.

use libcalico::api::{IpPool, IpPoolSpec, ObjectKey, ObjectSelect};
use libcalico::ipam::{
    AffinityKey, AffinityOwner, AffinitySelect, AffinityState, Block, BlockAffinity, Handle,
    HandleId,
};
use libcalico::kubernetes::{ApiGroup, ObjectRevision, Preconditions};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Revision, Write};
use serde_json::json;
use time::OffsetDateTime;

use super::record::Record;

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
pub(super) fn writes(record: &mut Record<'_>) {
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
