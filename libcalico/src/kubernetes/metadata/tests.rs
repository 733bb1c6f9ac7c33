use proptest::prelude::*;
use serde_json::json;

use super::super::resource::Resource;
use super::*;

const UID: &str = "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7";
const REVERSED: &str = "fe392417-dc50-4cba-9ef8-45cd23ab67ef";

fn fields(value: Value) -> Fields {
    value.as_object().unwrap().clone()
}

fn pool(group: ApiGroup) -> Location {
    let resource = Resource {
        api_version: group.api_version(),
        kind: "IPPool",
        plural: "ippools",
        namespaced: false,
    };
    Location::global(resource, "p")
}

fn annotated(metadata: &Fields) -> Value {
    serde_json::from_str(metadata["annotations"][ANNOTATION].as_str().unwrap()).unwrap()
}

/// Reads `resource` and writes it back at the revision as read.
fn rewritten(group: ApiGroup, resource: &Value) -> Value {
    let given = fields(resource.clone());
    let (metadata, preserved) = read(group, given.clone()).unwrap();
    let revision = ObjectRevision::of(&given, preserved);
    Value::Object(write(group, &pool(group), metadata, Some(&revision)).unwrap())
}

#[test]
fn resource_without_the_annotation_has_the_objects_metadata() {
    let (metadata, _) = read(
        ApiGroup::CrdV1,
        fields(
            json!({"name": "p", "uid": UID, "resourceVersion": "9", "generation": 3,
                    "labels": {"x": "y"},
            "creationTimestamp": "2026-08-22T06:33:21Z",
            "managedFields": [{"manager": "kubectl"}]}),
        ),
    )
    .unwrap();
    assert_eq!(
        Value::Object(metadata),
        json!({
            "name": "p", "uid": REVERSED, "creationTimestamp": "2026-08-22T06:33:21Z",
            "labels": {"x": "y"},
        })
    );
}

/// Returns the metadata of upstream's own example.
fn annotated_resource() -> Value {
    json!({
        "name": "p", "uid": UID, "resourceVersion": "9", "generation": 3,
        "creationTimestamp": "2026-08-22T06:33:21Z", "deletionTimestamp": "2026-08-22T07:00:00Z",
        "finalizers": ["f"], "labels": {"x": "y", "projectcalico.org/a": "1"},
        "annotations": {
            "foo": "bar",
            ANNOTATION: json!({
                "creationTimestamp": "2026-08-22T06:33:20Z", "labels": {"x": "z", "q": "r"},
                "annotations": {"k": "v"},
                "ownerReferences": [{"apiVersion": "crd.projectcalico.org/v1", "kind": "Tier",
                        "name": "t",
                    "uid": REVERSED}],
            }).to_string(),
        },
    })
}

#[test]
fn annotation_metadata_overrides_the_resource_metadata() {
    let (metadata, _) = read(ApiGroup::CrdV1, fields(annotated_resource())).unwrap();
    assert_eq!(
        Value::Object(metadata),
        json!({
            "name": "p", "uid": REVERSED, "creationTimestamp": "2026-08-22T06:33:20Z",
            "labels": {"projectcalico.org/a": "1", "q": "r", "x": "z"},
            "annotations": {"foo": "bar", "k": "v"},
            "ownerReferences": [{
                "apiVersion": "projectcalico.org/v3", "kind": "Tier", "name": "t", "uid": UID,
            }],
        })
    );
}

#[test]
fn foreign_metadata_of_a_resource_is_preserved() {
    let written = fields(rewritten(ApiGroup::CrdV1, &annotated_resource()));
    assert_eq!(written["annotations"]["foo"], "bar");
    assert_eq!(written["finalizers"], json!(["f"]));
    assert_eq!(
        written["labels"],
        json!({"projectcalico.org/a": "1"}),
        "x is in the annotation, whose value counts"
    );
    assert_eq!(
        (&written["uid"], &written["resourceVersion"]),
        (&json!(UID), &json!("9"))
    );
    assert!(!written.contains_key("creationTimestamp") && !written.contains_key("generation"));
    assert_eq!(
        annotated(&written),
        json!({
            "creationTimestamp": "2026-08-22T06:33:20Z",
            "labels": {"projectcalico.org/a": "1", "q": "r", "x": "z"},
            "annotations": {"k": "v"},
            "ownerReferences": [{"apiVersion": "crd.projectcalico.org/v1", "kind": "Tier",
                    "name": "t",
                "uid": REVERSED}],
        })
    );
}

#[test]
fn metadata_set_with_kubectl_stays_in_place() {
    let kubectl = json!({"name": "p", "uid": UID, "resourceVersion": "9", "labels": {"x": "y"},
            "finalizers": ["f"],
        "creationTimestamp": "2026-08-22T06:33:21Z", "annotations": {"applied": "{}"}});
    let written = fields(rewritten(ApiGroup::CrdV1, &kubectl));
    assert_eq!(
        (&written["labels"], &written["finalizers"]),
        (&json!({"x": "y"}), &json!(["f"]))
    );
    assert_eq!(written["annotations"]["applied"], "{}");
    assert_eq!(
        annotated(&written),
        json!({"creationTimestamp": "2026-08-22T06:33:21Z", "finalizers": ["f"]})
    );
}

#[test]
fn removed_labels_are_deleted_from_the_resource() {
    let given = fields(json!({
        "name": "p", "labels": {"x": "y"},
        "annotations": {ANNOTATION: r#"{"labels":{"q":"r"}}"#},
    }));
    let (mut metadata, preserved) = read(ApiGroup::CrdV1, given).unwrap();
    metadata.remove("labels");
    let revision = ObjectRevision {
        preserved,
        ..ObjectRevision::default()
    };
    let written = write(
        ApiGroup::CrdV1,
        &pool(ApiGroup::CrdV1),
        metadata,
        Some(&revision),
    )
    .unwrap();
    assert!(!written.contains_key("labels"));
    assert_eq!(annotated(&written), json!({}));
}

#[test]
fn created_object_has_upstreams_annotation_and_body() {
    let metadata = fields(
        json!({"name": "p", "uid": REVERSED, "resourceVersion": "", "labels": {"l": "1"},
        "creationTimestamp": "2026-08-22T06:33:20Z", "generateName": "g", "finalizers": null}),
    );
    let v1 = write(
        ApiGroup::CrdV1,
        &pool(ApiGroup::CrdV1),
        metadata.clone(),
        None,
    )
    .unwrap();
    assert_eq!(
        Value::Object(v1),
        json!({"name": "p", "uid": UID, "annotations": {
            ANNOTATION: r#"{"generateName":"g","creationTimestamp":"2026-08-22T06:33:20Z","labels":{"l":"1"}}"#,
        }})
    );
    let v3 = write(ApiGroup::V3, &pool(ApiGroup::V3), metadata, None).unwrap();
    assert_eq!(
        Value::Object(v3),
        json!({"name": "p", "uid": REVERSED, "generateName": "g",
                "creationTimestamp": "2026-08-22T06:33:20Z",
            "labels": {"l": "1"}})
    );
}

#[test]
fn v3_metadata_is_the_resource_metadata_unchanged() {
    let given = json!({"name": "p", "uid": UID, "resourceVersion": "9", "labels": {"x": "y"},
            "finalizers": ["f"],
        "deletionTimestamp": "2026-08-22T07:00:00Z", "future": {"a": 1}});
    let (metadata, preserved) = read(ApiGroup::V3, fields(given.clone())).unwrap();
    assert_eq!(metadata["deletionTimestamp"], "2026-08-22T07:00:00Z");
    assert!(preserved.is_empty());
    assert_eq!(rewritten(ApiGroup::V3, &given), given);
}

#[test]
fn foreign_metadata_of_ipam_objects_is_preserved() {
    let label = ("projectcalico.org/ip-version", "4".to_owned());
    let given = json!({
        "name": "p", "uid": UID, "resourceVersion": "9", "generation": 1,
        "creationTimestamp": "2026-08-22T06:33:20Z",
        "labels": {"team": "a", label.0: "4"}, "finalizers": ["f"],
        "annotations": {
            "note": "n", ANNOTATION: r#"{"labels":{"projectcalico.org/ip-version":"4"}}"#,
        },
    });
    let preserved = read_ipam(ApiGroup::CrdV1, fields(given.clone()), &[label.0]).unwrap();
    let revision = ObjectRevision::of(given.as_object().unwrap(), preserved);
    let written = write_ipam(
        ApiGroup::CrdV1,
        &pool(ApiGroup::CrdV1),
        &[label],
        Some(&revision),
    )
    .unwrap();
    let mut expected = fields(given);
    remove_keys(&mut expected, &["uid", "generation", "creationTimestamp"]);
    assert_eq!(written, expected);
}

/// Old releases wrote a null (IPAM-84).
#[test]
fn old_and_new_ipam_annotations_are_read() {
    for (given, written) in [
        (r#"{"creationTimestamp":null}"#, "{}"),
        ("null", "{}"),
        (
            r#"{"creationTimestamp":"2026-08-22T06:33:20Z"}"#,
            r#"{"creationTimestamp":"2026-08-22T06:33:20Z"}"#,
        ),
    ] {
        let metadata = fields(
            json!({"name": "p", "resourceVersion": "9", "annotations": {ANNOTATION: given}}),
        );
        let preserved = read_ipam(ApiGroup::CrdV1, metadata.clone(), &[]).unwrap();
        let revision = ObjectRevision::of(&metadata, preserved);
        let again = write_ipam(
            ApiGroup::CrdV1,
            &pool(ApiGroup::CrdV1),
            &[],
            Some(&revision),
        )
        .unwrap();
        assert_eq!(again["annotations"][ANNOTATION], written);
    }
}

#[test]
fn invalid_metadata_is_rejected() {
    let bad_annotation = fields(json!({"name": "p", "annotations": {ANNOTATION: "{"}}));
    assert!(read(ApiGroup::CrdV1, bad_annotation.clone()).is_err());
    assert!(read_ipam(ApiGroup::CrdV1, bad_annotation.clone(), &[]).is_err());
    assert!(
        read(ApiGroup::V3, bad_annotation).is_ok(),
        "v3 has no such annotation"
    );
    assert!(read(ApiGroup::CrdV1, fields(json!({"name": "p", "uid": "1"}))).is_err());
    assert!(
        write(
            ApiGroup::CrdV1,
            &pool(ApiGroup::CrdV1),
            fields(json!({"uid": "1"})),
            None
        )
        .is_err()
    );
}

fn pairs() -> impl Strategy<Value = Fields> {
    let key = prop::sample::select(vec![
        "a",
        "b",
        "c",
        "projectcalico.org/x",
        "operator.tigera.io/y",
    ]);
    let pair = (key, "[a-z]{0,2}").prop_map(|(key, value)| (key.to_owned(), Value::from(value)));
    prop::collection::vec(pair, 0..5).prop_map(Fields::from_iter)
}

prop_compose! {
    fn some_metadata()(
        labels in pairs(), annotations in pairs(), finalizers in prop::option::of("[a-z]"),
        stamped in any::<bool>(),
    ) -> Fields {
        let mut metadata = Fields::new();
        put_object(&mut metadata, "labels", labels);
        put_object(&mut metadata, "annotations", annotations);
        metadata.extend(finalizers.map(|finalizer| ("finalizers".to_owned(), json!([finalizer]))));
        if stamped {
            metadata.insert("creationTimestamp".into(), "2026-08-22T06:33:20Z".into());
        }
        metadata
    }
}

proptest! {
    #[test]
    fn created_metadata_reads_back_unchanged(mut metadata in some_metadata()) {
        metadata.insert("name".into(), "p".into());
        for group in [ApiGroup::CrdV1, ApiGroup::V3] {
            let written = write(group, &pool(group), metadata.clone(), None).unwrap();
            prop_assert_eq!(&read(group, written).unwrap().0, &metadata);
        }
    }

    #[test]
    fn metadata_rewrite_is_idempotent(mut resource in some_metadata(), inner in prop::option::of(some_metadata())) {
        resource.insert("name".into(), "p".into());
        if let Some(inner) = inner {
            put_annotation(&mut resource, &inner).unwrap();
        }
        let mut once = rewritten(ApiGroup::CrdV1, &Value::Object(resource.clone()));
        let stamp = resource.remove("creationTimestamp");
        once.as_object_mut().unwrap().extend(
            stamp
                .clone()
                .map(|stamp| ("creationTimestamp".to_owned(), stamp)),
        );
        resource.extend(stamp.map(|stamp| ("creationTimestamp".to_owned(), stamp)));
        let seen = |resource: &Value| read(ApiGroup::CrdV1, fields(resource.clone())).unwrap().0;
        prop_assert_eq!(seen(&once), seen(&Value::Object(resource.clone())));
        prop_assert_eq!(once.get("finalizers"), resource.get("finalizers"));

        let twice = rewritten(ApiGroup::CrdV1, &once);
        once.as_object_mut().unwrap().remove("creationTimestamp");
        prop_assert_eq!(twice, once);
    }
}

mod policy_names {
    use super::*;
    use crate::api::{GlobalNetworkPolicy, NetworkPolicy, ObjectKey, ObjectSelect};
    use crate::kubernetes::{Codec, Query, Request};
    use crate::store::{Entry, Kind, ReadBatch, Write, decode_entry};

    fn listed<K: Kind<Select = ObjectSelect>>(group: ApiGroup, resource: Value) -> Entry<K> {
        let mut batch = ReadBatch::new();
        batch.list::<K>(&ObjectSelect::default());
        let decoded = Codec::new(group)
            .decode(&batch.ranges()[0], resource)
            .unwrap();
        decode_entry(&decoded.entry).unwrap()
    }

    fn resource(name: &str, annotation: Option<&str>, tier: &str) -> Value {
        let mut metadata = json!({"name": name, "namespace": "ns", "resourceVersion": "7",
            "uid": "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7"});
        if let Some(annotation) = annotation {
            metadata["annotations"] = json!({ANNOTATION: annotation});
        }
        json!({"metadata": metadata, "spec": {"tier": tier, "serviceAccountSelector": "a == 'b'"}})
    }

    #[test]
    fn policy_names_map_between_v1_and_v3() {
        use ApiGroup::{CrdV1, V3};
        for (group, name, annotation, tier, expected) in [
            (
                CrdV1,
                "default.allow",
                Some(r#"{"creationTimestamp":null}"#),
                "default",
                "allow",
            ),
            (CrdV1, "default.allow", None, "default", "default.allow"),
            (
                CrdV1,
                "default.allow",
                Some(r#"{"name":"default.allow"}"#),
                "default",
                "default.allow",
            ),
            (
                CrdV1,
                "default.allow",
                Some(r#"{"name":"allow"}"#),
                "",
                "allow",
            ),
            (CrdV1, "default.allow", Some("{}"), "other", "default.allow"),
            (V3, "default.allow", None, "default", "default.allow"),
        ] {
            let entry = listed::<NetworkPolicy>(group, resource(name, annotation, tier));
            assert_eq!(
                entry.key,
                ObjectKey::namespaced("ns", name),
                "{annotation:?}"
            );
            assert_eq!(
                entry.value.key(),
                ObjectKey::namespaced("ns", expected),
                "{annotation:?}"
            );
            assert!(entry.value.metadata.annotations.is_empty());
        }
        let mut global = resource("g", None, "");
        global["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("namespace");
        assert_eq!(
            listed::<GlobalNetworkPolicy>(V3, global).key,
            ObjectKey::global("g")
        );
    }

    #[test]
    fn policy_is_written_back_as_read() {
        let read = resource(
            "allow",
            Some(r#"{"name":"allow","labels":{"a":"b"}}"#),
            "default",
        );
        let entry = listed::<NetworkPolicy>(ApiGroup::CrdV1, read.clone());
        let write = Write::update(&entry.key, &entry.value, &entry.revision).unwrap();
        let Request::Replace { location, body } =
            Codec::new(ApiGroup::CrdV1).request(&write).unwrap()
        else {
            panic!("{write:?}")
        };
        let path = "/apis/crd.projectcalico.org/v1/namespaces/ns/networkpolicies/allow";
        assert_eq!(location.url_path(), path);
        assert_eq!(body["spec"], read["spec"], "and what is not known");
        assert_eq!(body["metadata"], read["metadata"]);
        assert_eq!(
            (&body["kind"], &body["apiVersion"]),
            (&json!("NetworkPolicy"), &json!("crd.projectcalico.org/v1"))
        );

        let Request::Replace { body, .. } = Codec::new(ApiGroup::V3).request(&write).unwrap()
        else {
            panic!()
        };
        assert_eq!(body["metadata"]["labels"], json!({"a": "b"}));
        assert!(
            body["metadata"].get("annotations").is_none(),
            "in v3 the resource has the name"
        );
    }

    #[test]
    fn policy_list_of_a_namespace_uses_a_namespaced_url() {
        let mut batch = ReadBatch::new();
        batch.list::<NetworkPolicy>(&ObjectSelect {
            namespace: Some("ns".into()),
            name_prefix: String::new(),
        });
        batch.list_keys::<NetworkPolicy>(&ObjectSelect::default());
        let codec = Codec::new(ApiGroup::V3);
        let paths = batch
            .ranges()
            .iter()
            .map(|range| match codec.query(range).unwrap() {
                Query::List(list) => list.url_path(),
                other => panic!("{other:?}"),
            });
        let root = "/apis/projectcalico.org/v3";
        let expected = [
            format!("{root}/namespaces/ns/networkpolicies"),
            format!("{root}/networkpolicies"),
        ];
        assert_eq!(paths.collect::<Vec<_>>(), expected);
        let metadata = json!({"metadata": {"name": "a", "namespace": "ns"}});
        let decoded = codec.decode(&batch.ranges()[1], metadata).unwrap();
        assert_eq!(
            NetworkPolicy::parse_path(&decoded.entry.path),
            Some(ObjectKey::namespaced("ns", "a"))
        );
    }
}
