use serde_json::json;

use super::super::golden::states;
use super::super::{Codec, DecodedObject};
use super::*;
use crate::migration::{Found, is_copy, judge, marked_copy, moved_kinds};
use crate::store::{Freshness, Range};

const UID: &str = "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7";
const REVERSED: &str = "fe392417-dc50-4cba-9ef8-45cd23ab67ef";

fn kind(name: &str) -> MovedKind {
    moved_kinds()
        .into_iter()
        .find(|kind| kind.v3.kind == name)
        .unwrap()
}

fn moved(name: &str, v1: Value) -> Moved {
    to_v3(&kind(name), v1).unwrap()
}

fn reason(name: &str, v1: Value) -> String {
    to_v3(&kind(name), v1).unwrap_err().to_string()
}

/// Returns an object of v1 as upstream writes it. Its v3 metadata is `inner`.
fn annotated(kind: &MovedKind, name: &str, inner: Value, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": kind.v1.api_version, "kind": kind.v1.kind, "spec": spec,
        "future": {"a": [1, null]},
        "metadata": {
            "name": name, "uid": UID, "resourceVersion": "7", "generation": 3,
            "creationTimestamp": "2026-08-22T06:33:20Z", "managedFields": [{"manager": "calico"}],
            "labels": {"projectcalico.org/a": "1"},
            "annotations": {"foo": "bar", ANNOTATION: inner.to_string()},
        },
    });
    if kind.v1.namespaced {
        object["metadata"]["namespace"] = "shop".into();
    }
    object
}

const ANNOTATION: &str = "projectcalico.org/metadata";

/// Returns the least `spec` of a kind, with a field that no type models.
fn spec_of(kind: &MovedKind) -> Value {
    match kind.v3.kind {
        "IPAMBlock" => {
            json!({"cidr": "10.0.0.0/30", "affinity": "host:n",
                    "allocations": [null, 0, null, null],
            "unallocated": [0, 2, 3], "attributes": [{"handle_id": "h", "future": 1}],
            "strictAffinity": false,
            "sequenceNumber": 1_787_380_400_123_456_789_u64,
            "sequenceNumberForAllocation": {"1": 3}, "future": [1]})
        }
        "BlockAffinity" => {
            json!({"state": "confirmed", "node": "n", "type": "host", "cidr": "10.0.0.0/30",
            "deleted": "false", "future": [1]})
        }
        "IPAMHandle" => {
            json!({"handleID": "k8s-pod-network.c1", "block": {"10.0.0.0/30": 1}, "deleted": false,
            "future": [1]})
        }
        "IPAMConfiguration" => {
            json!({"strictAffinity": true, "autoAllocateBlocks": true, "maxBlocksPerHost": 20,
            "future": [1]})
        }
        _ => json!({"tier": "security", "future": [1], "nested": {"future": true}}),
    }
}

#[test]
fn each_kind_keeps_fields_that_no_type_models() {
    for kind in moved_kinds() {
        let spec = spec_of(&kind);
        let moved = to_v3(
            &kind,
            annotated(
                &kind,
                "security.p",
                json!({"labels": {"q": "r"}}),
                spec.clone(),
            ),
        )
        .unwrap();
        let mut expected = spec;
        if kind.v3.kind == "BlockAffinity" {
            expected["deleted"] = false.into();
        }
        assert_eq!(moved.body["spec"], expected, "{}", kind.v3.kind);
        assert_eq!(
            moved.body["future"],
            json!({"a": [1, null]}),
            "{}",
            kind.v3.kind
        );
        assert_eq!(moved.body["apiVersion"], "projectcalico.org/v3");
        assert_eq!(
            (&moved.body["kind"], moved.location.resource),
            (&json!(kind.v3.kind), kind.v3)
        );
        assert_eq!(
            moved.location.namespace.as_deref(),
            kind.v3.namespaced.then_some("shop")
        );
        assert!(moved.location.is_of(&moved.body), "{}", moved.body);
        assert_eq!(
            moved.source,
            Source {
                uid: REVERSED.into(),
                revision: "7".into()
            }
        );
        let mut metadata = moved.body["metadata"].clone();
        if kind.v3.kind == "BlockAffinity" {
            let labels = metadata["labels"].as_object_mut().unwrap();
            labels.retain(|key, _| ["q", "projectcalico.org/a"].contains(&key.as_str()));
        }
        let mut expected = json!({"name": moved.location.name,
                "labels": {"projectcalico.org/a": "1", "q": "r"},
            "annotations": {"foo": "bar"}});
        if kind.v3.namespaced {
            expected["namespace"] = "shop".into();
        }
        assert_eq!(metadata, expected, "{}", kind.v3.kind);
    }
}

#[test]
fn object_by_kubectl_keeps_its_metadata() {
    let pool = moved(
        "IPPool",
        json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool",
                "spec": {"cidr": "10.0.0.0/16"},
            "metadata": {"name": "p", "uid": UID, "resourceVersion": "7", "labels": {"a": "b"},
                "finalizers": ["f"],
                "creationTimestamp": "2026-08-22T06:33:20Z", "deletionTimestamp": null}}),
    );
    assert_eq!(
        pool.body["metadata"],
        json!({"name": "p", "labels": {"a": "b"}, "finalizers": ["f"]})
    );
    let empty = moved(
        "FelixConfiguration",
        json!({"metadata": {"name": "default"}, "spec": null}),
    );
    assert_eq!(
        (&empty.body["spec"], empty.source),
        (&json!({}), Source::default())
    );
}

/// Upstream uses the ID as it is, and the API server refuses that name (MB-1).
#[test]
fn mixed_case_handle_gets_its_lower_case_name() {
    let id = "lb-aGVsbG8";
    let handle = json!({
        "metadata": {"name": id.to_lowercase()},
        "spec": {"handleID": id, "block": {"10.0.0.0/30": 1}},
    });
    let moved = moved("IPAMHandle", handle);
    assert_eq!(
        (
            moved.location.name.as_str(),
            &moved.body["spec"]["handleID"]
        ),
        ("lb-agvsbg8", &json!(id))
    );
}

#[test]
fn cooling_address_keeps_its_release_time() {
    let mut spec = spec_of(&kind("IPAMBlock"));
    spec["attributes"] = json!([{"handle_id": "h", "releasedAt": "2026-08-22T06:33:20Z"}]);
    spec["affinityClaimTime"] = "2026-08-22T06:33:19Z".into();
    let block = moved(
        "IPAMBlock",
        json!({"metadata": {"name": "10-0-0-0-30"}, "spec": spec.clone()}),
    );
    assert_eq!(
        (block.location.name.as_str(), &block.body["spec"]),
        ("10-0-0-0-30", &spec)
    );
}

#[test]
fn tombstones_are_moved_as_tombstones() {
    for (name, deleted) in [
        ("BlockAffinity", json!("true")),
        ("IPAMBlock", json!(true)),
        ("IPAMHandle", json!(true)),
    ] {
        let mut spec = spec_of(&kind(name));
        spec["deleted"] = deleted;
        assert_eq!(
            moved(name, json!({"metadata": {"name": "x"}, "spec": spec})).body["spec"]["deleted"],
            true,
            "{name}"
        );
    }
}

/// A list by owner in v3 finds an affinity by its labels (DS-70).
#[test]
fn affinity_without_labels_gets_them() {
    let spec = json!({"state": "", "node": "n", "cidr": "10.0.0.0/30", "deleted": ""});
    let affinity = moved(
        "BlockAffinity",
        json!({"metadata": {"name": "n-10-0-0-0-30"}, "spec": spec}),
    );
    assert_eq!(affinity.location.name, "n-10-0-0-0-30");
    assert_eq!(
        affinity.body["metadata"]["labels"]["projectcalico.org/affinity-type"],
        "host"
    );
    let expected =
        json!({"state": "", "node": "n", "type": "host", "cidr": "10.0.0.0/30", "deleted": false});
    assert_eq!(affinity.body["spec"], expected);
}

/// The default of `autoAllocateBlocks` in v3 is true (DS-46).
#[test]
fn missing_settings_keep_their_meaning() {
    let settings = moved(
        "IPAMConfiguration",
        json!({"metadata": {"name": "default"}, "spec": {}}),
    );
    let expected =
        json!({"strictAffinity": false, "autoAllocateBlocks": false, "maxBlocksPerHost": 0});
    assert_eq!(
        (settings.location.name.as_str(), &settings.body["spec"]),
        ("default", &expected)
    );
    assert_eq!(
        settings.location.url_path(),
        "/apis/projectcalico.org/v3/ipamconfigurations/default"
    );
}

/// A resource of an older Calico has the tier before the policy's name (DS-33).
#[test]
fn old_policies_get_the_names_that_clients_see() {
    let name = |resource: &str, inner: Option<Value>, tier: &str| {
        let mut policy =
            json!({"metadata": {"name": resource, "namespace": "shop"}, "spec": {"tier": tier}});
        if let Some(inner) = inner {
            policy["metadata"]["annotations"] = json!({ANNOTATION: inner.to_string()});
        }
        let moved = moved("NetworkPolicy", policy);
        assert_eq!(moved.body["metadata"].get("annotations"), None);
        assert_eq!(moved.body["metadata"]["name"], moved.location.name.as_str());
        moved.location.name
    };
    let unnamed = || Some(json!({"creationTimestamp": null}));
    assert_eq!(name("default.p", unnamed(), "default"), "p");
    assert_eq!(name("default.p", unnamed(), "other"), "default.p");
    assert_eq!(
        name("default.p", Some(json!({"name": "p"})), "default"),
        "p"
    );
    assert_eq!(
        name("default.p", Some(json!({"name": "default.p"})), "default"),
        "default.p"
    );
    assert_eq!(name("default.p", None, "default"), "default.p");
}

/// Shows SEC-38.
#[test]
fn two_policies_with_one_v3_name_have_one_location() {
    let location = |resource: &str| {
        let annotations = json!({ANNOTATION: json!({"name": "p"}).to_string()});
        let metadata = json!({"name": resource, "annotations": annotations});
        moved(
            "GlobalNetworkPolicy",
            json!({"metadata": metadata, "spec": {}}),
        )
        .location
    };
    assert_eq!(location("default.p"), location("p"));
}

#[test]
fn owners_of_calicos_kinds_and_those_in_the_annotation_are_separated() {
    let owner = |version: &str, kind: &str, uid: &str| {
        json!({
            "apiVersion": version, "kind": kind, "name": "o", "uid": uid,
        })
    };
    let kubernetes = owner("apps/v1", "Deployment", UID);
    // The annotation of upstream has the uids of the API server, and either version.
    let settings = owner("crd.projectcalico.org/v1", "IPAMConfig", UID);
    let tier = owner("projectcalico.org/v3", "Tier", UID);
    let inner = json!({"ownerReferences": [settings, kubernetes, tier]});
    let policy = moved(
        "NetworkPolicy",
        annotated(&kind("NetworkPolicy"), "p", inner, json!({})),
    );
    let v3 = |kind: &str| owner("projectcalico.org/v3", kind, REVERSED);
    assert_eq!(
        policy.owners,
        [v3("IPAMConfiguration"), kubernetes, v3("Tier")]
    );
    assert_eq!(policy.body["metadata"].get("ownerReferences"), None);

    // kubectl stores references in the resource, with the uid of the API server.
    let references = json!([owner("crd.projectcalico.org/v1", "Tier", UID)]);
    let metadata = json!({"name": "p", "ownerReferences": references});
    let policy = moved(
        "GlobalNetworkPolicy",
        json!({"metadata": metadata, "spec": {}}),
    );
    assert_eq!(policy.owners, [v3("Tier")]);
    assert_eq!(policy.body["metadata"].get("ownerReferences"), None);
}

/// Another program puts them on a resource, where they have an effect, and Calico's clients keep
/// them there.
#[test]
fn finalizers_and_owners_beside_the_annotation_are_copied() {
    let owner = |version: &str, kind: &str, uid: &str| {
        json!({
            "apiVersion": version, "kind": kind, "name": "o", "uid": uid,
        })
    };
    let (shared, other) = (
        owner("apps/v1", "Deployment", "a"),
        owner("example.org/v1", "Shop", "b"),
    );
    let kind = kind("NetworkPolicy");
    // Two references to the same tier.
    let tier = [
        owner("projectcalico.org/v3", "Tier", UID),
        owner("crd.projectcalico.org/v1", "Tier", UID),
    ];
    // The collector has not seen this name beside the uid of the resource's reference.
    let mut renamed = other.clone();
    renamed["name"] = "renamed".into();
    let inner = json!({"finalizers": ["f"], "ownerReferences": [shared, renamed, tier[0]]});
    let mut policy = annotated(&kind, "p", inner, json!({}));
    policy["metadata"]["finalizers"] = json!(["f", "g"]);
    policy["metadata"]["ownerReferences"] = json!([other, shared, tier[1]]);
    let policy = to_v3(&kind, policy).unwrap();
    assert_eq!(policy.body["metadata"]["finalizers"], json!(["f", "g"]));
    assert_eq!(
        policy.body["metadata"]["ownerReferences"],
        json!([shared, other])
    );
    assert_eq!(
        policy.owners,
        [renamed, owner("projectcalico.org/v3", "Tier", REVERSED)]
    );

    let mut bare = annotated(&kind, "p", json!({}), json!({}));
    bare["metadata"]["finalizers"] = json!(["g"]);
    assert_eq!(
        moved("NetworkPolicy", bare).body["metadata"]["finalizers"],
        json!(["g"])
    );
}

#[test]
fn unmovable_objects_have_a_reason() {
    for (kind, v1, expected) in [
        ("Tier", json!("t"), "not a JSON object"),
        (
            "Tier",
            json!({"metadata": {"name": "t", "uid": "u"}}),
            "invalid uid \"u\"",
        ),
        (
            "Tier",
            json!({"metadata": {"name": ""}}),
            "\"\" is not a valid name",
        ),
        (
            "Tier",
            json!({"metadata": {"name": "t", "annotations": {ANNOTATION: "{"}}}),
            "cannot parse the annotation",
        ),
        (
            "NetworkSet",
            json!({"metadata": {"name": "t"}}),
            "metadata.namespace is missing",
        ),
        (
            "IPAMBlock",
            json!({"metadata": {"name": "t"}, "spec": {"cidr": "10.0.0.0"}}),
            "spec.cidr",
        ),
        (
            "IPAMHandle",
            json!({"metadata": {"name": "t"}, "spec": {}}),
            "spec.handleID is missing",
        ),
        (
            "BlockAffinity",
            json!({"metadata": {"name": "t"}}),
            "spec.node is missing",
        ),
    ] {
        let reason = reason(kind, v1);
        assert!(reason.contains(expected), "{expected}: {reason}");
    }
    let named = |name: &str| {
        json!({
            "metadata": {
                "name": "p", "annotations": {ANNOTATION: json!({"name": name}).to_string()},
            }
        })
    };
    for name in ["Policy", "a b\n", "-a", &"n".repeat(254)] {
        let refused = to_v3(&kind("GlobalNetworkPolicy"), named(name)).unwrap_err();
        assert_eq!(refused, Unmovable::NoName(name.chars().take(253).collect()));
        assert!(!refused.to_string().contains('\n'));
    }
}

#[test]
fn object_being_deleted_is_unmovable() {
    let metadata =
        json!({"name": "t", "deletionTimestamp": "2026-08-22T06:33:20Z", "finalizers": ["f"]});
    let refused = to_v3(&kind("Tier"), json!({"metadata": metadata, "spec": {}})).unwrap_err();
    assert_eq!(refused, Unmovable::BeingDeleted);
}

/// A client writes the annotation without any check by the API server, which then refuses the copy.
#[test]
fn odd_metadata_in_the_annotation_is_copied_without_a_panic() {
    let inner = json!({
        "annotations": 5, "labels": [1], "ownerReferences": "x", "finalizers": 7, "name": null,
    });
    let tier = moved("Tier", annotated(&kind("Tier"), "t", inner, json!({})));
    let expected = json!({"name": "t", "labels": {"projectcalico.org/a": "1"},
            "annotations": {"foo": "bar"},
        "ownerReferences": "x", "finalizers": 7});
    assert_eq!((&tier.body["metadata"], tier.owners.len()), (&expected, 0));
    let copy = marked_copy(&tier, "migration");
    assert_eq!((is_copy(&copy), judge(&copy, &tier)), (true, Found::Same));

    let owners =
        json!({"ownerReferences": [1, {"apiVersion": 2}, {"apiVersion": "projectcalico.org"}]});
    let tier = moved(
        "Tier",
        annotated(&kind("Tier"), "t", owners.clone(), json!({})),
    );
    assert_eq!(json!(tier.owners), owners["ownerReferences"]);
    assert_eq!(tier.body["metadata"].get("ownerReferences"), None);
}

/// Returns the stored pair of an object, without the metadata that the API server sets.
fn decoded(group: ApiGroup, kind: &MovedKind, object: Value) -> Option<(String, Value, bool)> {
    let range = Range {
        kind: kind.v3.kind,
        path: "/calico/".into(),
        is_prefix: true,
        keys_only: false,
        freshness: Freshness::Latest,
    };
    let DecodedObject {
        entry,
        is_tombstone,
    } = Codec::new(group).decode(&range, object)?;
    let mut value = entry.value.json().unwrap().into_owned();
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|key, _| !SET_BY_SERVER.contains(&key.as_str()));
    }
    Some((entry.path, value, is_tombstone))
}

#[test]
fn v1_and_its_copy_decode_to_the_same_stored_value() {
    let mut counts = std::collections::BTreeMap::<&str, usize>::new();
    for (at, state) in states("kdd1") {
        for (name, object) in &state {
            let plural = name.split('/').next().unwrap();
            let Some(kind) = moved_kinds()
                .into_iter()
                .find(|kind| kind.v1.plural == plural)
            else {
                continue;
            };
            let moved = to_v3(&kind, object.clone())
                .unwrap_or_else(|error| panic!("{at}: {name}: {error}"));
            let copy = decoded(ApiGroup::V3, &kind, moved.body.clone());
            assert_eq!(
                copy,
                decoded(ApiGroup::CrdV1, &kind, object.clone()),
                "{at}: {name}"
            );
            assert_eq!(name, &format!("{plural}/{}", moved.location.name), "{at}");
            *counts.entry(kind.v3.kind).or_default() += 1;
        }
    }
    for kind in ["IPAMBlock", "IPAMHandle", "BlockAffinity", "IPPool"] {
        assert!(
            counts.get(kind).is_some_and(|count| *count >= 40),
            "{counts:?}"
        );
    }
}
