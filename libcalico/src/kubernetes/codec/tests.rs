mod derived;

use serde_json::json;

use super::super::{Location, Preconditions};
use super::*;
use crate::api::{IpPool, IpamConfiguration, Node, ObjectSelect, Profile};
use crate::ipam::{AffinityKey, AffinityOwner, AffinitySelect, Block, HandleId};
use crate::net::IpVersion;
use crate::store::{Freshness, ReadBatch, StoreError, WriteOp, decode_entry};

const UID: &str = "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7";

const GROUPS: [ApiGroup; 2] = [ApiGroup::CrdV1, ApiGroup::V3];

fn one<K: Kind>(key: &K::Key) -> Range {
    let mut batch = ReadBatch::new();
    batch.get::<K>(key);
    batch.ranges()[0].clone()
}

fn many<K: Kind>(select: &K::Select) -> Range {
    let mut batch = ReadBatch::new();
    batch.list::<K>(select);
    batch.ranges()[0].clone()
}

fn v1() -> Codec {
    Codec::new(ApiGroup::CrdV1)
}

fn location<K: Kind>(group: ApiGroup, key: &K::Key) -> String {
    match Codec::new(group).query(&one::<K>(key)).unwrap() {
        Query::Get(location) => location.url_path(),
        other => panic!("{other:?}"),
    }
}

/// The URLs that all writers of a cluster must share.
#[test]
fn maps_objects_to_api_urls() {
    for (group, config) in [
        (ApiGroup::CrdV1, "ipamconfigs"),
        (ApiGroup::V3, "ipamconfigurations"),
    ] {
        let root = format!("/apis/{}", group.api_version());
        let cidr = "fd00:10:244:1::/122".parse().unwrap();
        let affinity = AffinityKey {
            owner: AffinityOwner::Virtual("load-balancer".into()),
            cidr,
        };
        assert_eq!(
            location::<Block>(group, &cidr),
            format!("{root}/ipamblocks/fd00-10-244-1---122")
        );
        assert_eq!(
            location::<BlockAffinity>(group, &affinity),
            format!("{root}/blockaffinities/load-balancer-fd00-10-244-1---122")
        );
        assert_eq!(
            location::<Handle>(group, &HandleId::new("Net.C1")),
            format!("{root}/ipamhandles/net.c1")
        );
        assert_eq!(
            location::<IpamConfig>(group, &IpamConfigKey),
            format!("{root}/{config}/default")
        );
        let default = ObjectKey::global("default");
        assert_eq!(
            location::<IpamConfiguration>(group, &default),
            format!("{root}/{config}/default")
        );
        assert_eq!(
            location::<IpPool>(group, &ObjectKey::global("p")),
            format!("{root}/ippools/p")
        );
        assert_eq!(
            location::<Node>(group, &ObjectKey::global("n")),
            "/api/v1/nodes/n"
        );
        let endpoint = ObjectKey::namespaced("ns", "node--1-k8s-web--0-eth0");
        assert_eq!(
            location::<WorkloadEndpoint>(group, &endpoint),
            "/api/v1/namespaces/ns/pods/web-0"
        );
        assert_eq!(
            location::<Profile>(group, &ObjectKey::global("kns.ns")),
            "/api/v1/namespaces/ns"
        );
        let account = ObjectKey::global("ksa.ns.sa");
        assert_eq!(
            location::<Profile>(group, &account),
            "/api/v1/namespaces/ns/serviceaccounts/sa"
        );
        assert_eq!(
            location::<Pod>(group, &ObjectKey::namespaced("ns", "p")),
            "/api/v1/namespaces/ns/pods/p"
        );
        assert_eq!(
            location::<super::super::Namespace>(group, &ObjectKey::global("ns")),
            "/api/v1/namespaces/ns"
        );
    }
}

#[test]
fn objects_without_a_kubernetes_resource_are_not_requested() {
    let network = one::<Profile>(&ObjectKey::global("k8s-pod-network"));
    assert_eq!(v1().query(&network), Ok(Query::Nothing));
    let container = one::<WorkloadEndpoint>(&ObjectKey::namespaced("default", "n-cni-c1-eth0"));
    assert_eq!(v1().query(&container), Ok(Query::Nothing));
    let containers = ObjectSelect {
        namespace: Some("default".into()),
        name_prefix: "n-cni-c1-".into(),
    };
    assert_eq!(
        v1().query(&many::<WorkloadEndpoint>(&containers)),
        Ok(Query::Nothing)
    );
    assert!(matches!(
        v1().query(&many::<Profile>(&ObjectSelect::default())),
        Err(CodecError::Unsupported { .. })
    ));
    let elsewhere = Range {
        kind: "IPPool",
        path: "/calico/x".into(),
        is_prefix: false,
        keys_only: false,
        freshness: Freshness::Latest,
    };
    assert!(matches!(
        v1().query(&elsewhere),
        Err(CodecError::Path { .. })
    ));
    assert!(matches!(
        v1().query(&Range {
            kind: "Felix",
            ..elsewhere
        }),
        Err(CodecError::Unsupported { .. })
    ));
}

#[test]
fn lists_are_narrowed_by_selectors_the_server_supports() {
    let select = AffinitySelect {
        owner: Some(AffinityOwner::Host("node-1".into())),
        version: Some(IpVersion::V4),
        ..AffinitySelect::default()
    };
    let Ok(Query::List(list)) = v1().query(&many::<BlockAffinity>(&select)) else {
        panic!()
    };
    let selector = "projectcalico.org/affinity-type=host,\
                    projectcalico.org/hostname-hash=A3XPYDATRKB7Q4SM2O5FN4RXIHBFIL2PITFX26BAIP5XAB2X74CA,\
                    projectcalico.org/ip-version=4";
    assert_eq!(list.label_selector.as_deref(), Some(selector));
    let names_only = |range: Range| match v1().query(&Range {
        keys_only: true,
        ..range
    }) {
        Ok(Query::List(list)) => list.metadata_only,
        other => panic!("{other:?}"),
    };
    assert!(names_only(many::<Block>(&None)));
    assert!(
        !names_only(many::<Handle>(&())),
        "the name of a handle is not its id"
    );
}

fn block(more: Value) -> Value {
    let mut block = json!({
        "metadata": {"name": "10-0-0-0-30", "uid": UID, "resourceVersion": "7"},
        "spec": {"cidr": "10.0.0.0/30", "allocations": [null, null, null, null],
            "unallocated": [0, 1, 2, 3],
            "attributes": [], "sequenceNumber": 1, "sequenceNumberForAllocation": {},
            "deleted": false,
            "strictAffinity": false},
    });
    block["spec"]
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    block
}

#[test]
fn decoded_lists_contain_only_objects_in_range() {
    let of = |version| {
        v1().decode(&many::<Block>(&version), block(json!({})))
            .is_some()
    };
    assert!(of(None) && of(Some(IpVersion::V4)) && !of(Some(IpVersion::V6)));
}

#[test]
fn block_names_suffice_to_decode_keys() {
    let range = Range {
        keys_only: true,
        ..many::<Block>(&Some(IpVersion::V4))
    };
    let named = |name: &str| {
        v1().decode(
            &range,
            json!({"metadata": {"name": name, "resourceVersion": "7"}}),
        )
    };
    assert_eq!(
        named("10-0-0-0-30").unwrap().entry.path,
        "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-30"
    );
    assert_eq!(named("fd00---122"), None);
    assert_eq!(named("what"), None);
}

/// A list omits an unreadable object whose name does not determine its key.
#[test]
fn unreadable_objects_decode_as_corrupt_with_the_reason() {
    let cidr = "10.0.0.0/30".parse().unwrap();
    let reason = |range: &Range, object: Value| {
        let decoded = v1().decode(range, object).unwrap();
        match decode_entry::<Block>(&decoded.entry) {
            Err(StoreError::Corrupt { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    };
    let one = one::<Block>(&cidr);
    assert!(reason(&one, block(json!({"cidr": "10.0.0.0"}))).contains("spec.cidr"));
    assert!(reason(&one, block(json!({"cidr": "10.0.0.4/30"}))).contains("ipv4/block/10.0.0.4-30"));
    assert!(reason(&one, block(json!({"allocations": ["x"]}))).contains("invalid type"));
    let mut unreadable = block(json!({}));
    unreadable["metadata"]["annotations"] = json!({"projectcalico.org/metadata": "{"});
    assert!(reason(&many::<Block>(&None), unreadable).contains("projectcalico.org/metadata"));
    assert_eq!(
        v1().decode(
            &many::<Handle>(&()),
            json!({"metadata": {"name": "h"}, "spec": {}})
        ),
        None
    );
    assert_eq!(v1().decode(&one, json!("no object")), None);
}

/// Objects that a writer marked as deleted and did not delete (DS-72).
#[test]
fn deleted_markers_decode_as_tombstones() {
    let cidr = "10.0.0.0/30".parse().unwrap();
    let deleted = block(json!({"deleted": true}));
    assert!(
        v1().decode(&one::<Block>(&cidr), deleted.clone())
            .unwrap()
            .is_tombstone
    );
    assert!(
        v1().decode(&many::<Block>(&None), deleted)
            .unwrap()
            .is_tombstone
    );
    for (group, deleted) in [
        (ApiGroup::CrdV1, json!("true")),
        (ApiGroup::V3, json!(true)),
    ] {
        let affinity = json!({
            "metadata": {"name": "n-10-0-0-0-30", "resourceVersion": "7", "uid": UID},
            "spec": {"state": "pendingDeletion", "node": "n", "type": "host", "cidr": "10.0.0.0/30",
                "deleted": deleted},
        });
        let codec = Codec::new(group);
        let key = AffinityKey {
            owner: AffinityOwner::Host("n".into()),
            cidr,
        };
        let found = codec
            .decode(&one::<BlockAffinity>(&key), affinity.clone())
            .unwrap();
        assert!(found.is_tombstone);
        assert_eq!(
            codec.decode(&many::<BlockAffinity>(&AffinitySelect::default()), affinity),
            None
        );
        let request = codec
            .request(&Write::delete::<BlockAffinity>(
                &key,
                Some(&found.entry.revision),
            ))
            .unwrap();
        let Request::Delete { preconditions, .. } = request else {
            panic!("{request:?}")
        };
        assert_eq!(
            preconditions.body().unwrap()["preconditions"],
            json!({"uid": UID, "resourceVersion": "7"}),
            "{group:?}"
        );
    }
}

#[test]
fn delete_without_a_revision_has_no_body() {
    let write = Write::delete::<Handle>(&HandleId::new("h"), None);
    let Ok(Request::Delete {
        preconditions,
        location,
    }) = v1().request(&write)
    else {
        panic!()
    };
    assert_eq!(
        (preconditions.body(), preconditions),
        (None, Preconditions::default())
    );
    assert_eq!(location.name, "h");
}

/// The replacement of a block does not require the uid (DS-71).
#[test]
fn handle_replacement_requires_the_same_uid() {
    for group in GROUPS {
        let codec = Codec::new(group);
        let stored = json!({
            "metadata": {"name": "net.c1", "uid": UID, "resourceVersion": "7"},
            "spec": {"handleID": "Net.C1", "block": {"10.0.0.0/30": 1}, "deleted": false},
        });
        let id = HandleId::new("Net.C1");
        let read =
            decode_entry::<Handle>(&codec.decode(&one::<Handle>(&id), stored).unwrap().entry)
                .unwrap();
        let write = Write::update(&id, &read.value, &read.revision).unwrap();
        let Request::Replace { body, .. } = codec.request(&write).unwrap() else {
            panic!()
        };
        assert_eq!(
            (
                &body["metadata"]["uid"],
                &body["metadata"]["resourceVersion"]
            ),
            (&json!(UID), &json!("7"))
        );
        let entry = codec
            .decode(&many::<Block>(&None), block(json!({})))
            .unwrap()
            .entry;
        let read = decode_entry::<Block>(&entry).unwrap();
        let write = Write::update(&read.key, &read.value, &read.revision).unwrap();
        let Request::Replace { body, .. } = codec.request(&write).unwrap() else {
            panic!()
        };
        assert_eq!(body["metadata"].get("uid"), None);
    }
}

#[test]
fn field_managers_are_discarded_for_updated_blocks_only() {
    for group in GROUPS {
        let codec = Codec::new(group);
        let entry = codec
            .decode(&many::<Block>(&None), block(json!({})))
            .unwrap()
            .entry;
        let read = decode_entry::<Block>(&entry).unwrap();
        let update = Write::update(&read.key, &read.value, &read.revision).unwrap();
        let Request::Replace { body, .. } = codec.request(&update).unwrap() else {
            panic!()
        };
        assert_eq!(body["metadata"]["managedFields"], json!([{}]));
        // The API server creates the record for a new object in any case.
        let create = Write::create::<Block>(&read.key, &read.value).unwrap();
        let Request::Create { body, .. } = codec.request(&create).unwrap() else {
            panic!()
        };
        assert_eq!(body["metadata"].get("managedFields"), None);
        let id = HandleId::new("h");
        let update = Write::update::<Handle>(&id, &Handle::default(), &read.revision).unwrap();
        let Request::Replace { body, .. } = codec.request(&update).unwrap() else {
            panic!()
        };
        assert_eq!(body["metadata"].get("managedFields"), None);
    }
}

/// IDs that differ only in case share a name.
#[test]
fn handle_with_another_id_under_the_same_name_is_corrupt() {
    let stored =
        json!({"metadata": {"name": "net.c1"}, "spec": {"handleID": "net.c1", "block": {}}});
    let found = v1()
        .decode(&one::<Handle>(&HandleId::new("Net.C1")), stored)
        .unwrap();
    assert!(
        decode_entry::<Handle>(&found.entry)
            .unwrap_err()
            .to_string()
            .contains("handle/net.c1")
    );
}

/// The stored forms that upstream writes in both API groups.
#[test]
fn v3_kinds_encode_to_upstreams_forms_in_both_groups() {
    let canonical = json!({
        "kind": "IPPool", "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "p", "uid": UID, "creationTimestamp": "2026-08-22T06:33:20Z"},
        "spec": {"cidr": "10.244.0.0/16", "future": [1]}, "future": true,
    });
    let key = ObjectKey::global("p");
    let write = |op| Write {
        kind: "IPPool",
        path: IpPool::path(&key),
        key: "IPPool(p)".into(),
        op,
    };
    let bytes = canonical.to_string().into_bytes();
    let Ok(Request::Create { body, .. }) = v1().request(&write(WriteOp::Create(bytes.clone())))
    else {
        panic!()
    };
    assert_eq!(
        body,
        json!({
            "kind": "IPPool", "apiVersion": "crd.projectcalico.org/v1",
            "metadata": {"name": "p", "uid": "fe392417-dc50-4cba-9ef8-45cd23ab67ef",
                "annotations": {
                "projectcalico.org/metadata": r#"{"creationTimestamp":"2026-08-22T06:33:20Z"}"#,
            }},
            "spec": {"cidr": "10.244.0.0/16", "future": [1]}, "future": true,
        })
    );
    let read = v1().decode(&one::<IpPool>(&key), body).unwrap();
    assert_eq!(*read.entry.value.json().unwrap(), canonical);
    let v3 = Codec::new(ApiGroup::V3);
    let Ok(Request::Create { body, .. }) = v3.request(&write(WriteOp::Create(bytes))) else {
        panic!()
    };
    assert_eq!(body, canonical);

    let settings = IpamConfiguration::new("default", Default::default());
    let write = Write::create(&settings.key(), &settings).unwrap();
    let Ok(Request::Create { body, .. }) = v1().request(&write) else {
        panic!()
    };
    assert_eq!(
        (&body["kind"], &body["spec"]["strictAffinity"]),
        (&json!("IPAMConfig"), &json!(false))
    );
}

#[test]
fn status_is_replaced_by_a_separate_request() {
    let mut pool = IpPool::new("p", Default::default());
    pool.status = Some(json!({"conditions": []}));
    let write = Write::update_status(&pool.key(), &pool, &Revision("7".into())).unwrap();
    for group in GROUPS {
        let Ok(Request::ReplaceStatus { location, body }) = Codec::new(group).request(&write)
        else {
            panic!()
        };
        assert_eq!(
            location.url_path(),
            format!("/apis/{}/ippools/p", group.api_version())
        );
        assert_eq!(body["status"], json!({"conditions": []}));
        assert_eq!(body["metadata"]["resourceVersion"], "7");
    }
    let node = Node::new("n", Default::default());
    let write = Write::update_status(&node.key(), &node, &Revision("7".into())).unwrap();
    let error = v1().request(&write).unwrap_err().to_string();
    assert!(error.contains("UpdateStatus"), "{error}");
}

/// The two kinds of settings are the same object (DS-53).
#[test]
fn ipam_settings_are_read_through_both_kinds() {
    for (group, kind) in [
        (ApiGroup::CrdV1, "IPAMConfig"),
        (ApiGroup::V3, "IPAMConfiguration"),
    ] {
        let codec = Codec::new(group);
        let stored = json!({
            "apiVersion": group.api_version(), "kind": kind,
            "metadata": {"name": "default", "resourceVersion": "7"},
            "spec": {"strictAffinity": true, "autoAllocateBlocks": true, "maxBlocksPerHost": 2},
        });
        let entry = codec
            .decode(&one::<IpamConfig>(&IpamConfigKey), stored.clone())
            .unwrap()
            .entry;
        let config = decode_entry::<IpamConfig>(&entry).unwrap();
        assert!(config.value.strict_affinity && config.value.unknown.is_empty());
        let entry = codec
            .decode(
                &one::<IpamConfiguration>(&ObjectKey::global("default")),
                stored,
            )
            .unwrap()
            .entry;
        let settings = decode_entry::<IpamConfiguration>(&entry).unwrap();
        assert_eq!(
            (
                settings.value.spec.max_blocks_per_host,
                settings.value.kind.as_str()
            ),
            (2, "IPAMConfiguration")
        );

        let write = Write::update(&IpamConfigKey, &config.value, &config.revision).unwrap();
        let Request::Replace { body, .. } = codec.request(&write).unwrap() else {
            panic!()
        };
        assert_eq!(body["kind"], kind);
        assert_eq!(
            body["spec"],
            json!({"strictAffinity": true, "autoAllocateBlocks": true, "maxBlocksPerHost": 2})
        );
    }
}
