//! The names of Calico's policies. A resource may still have the name that an older Calico gave it, with the tier
//! before the policy's name (DS-33). In `crd.projectcalico.org/v1`, the annotation contains the policy's name.

use serde_json::{Value, json};

use super::group::ApiGroup;
use super::json::{Fields, put_object, take_object, text};
use crate::api::{DEFAULT_TIER, NAME_ANNOTATION, without_tier};

/// Returns true if a v1 annotation exists without a name. The policy then has the resource's name, without the tier
/// (DS-57).
pub(super) fn is_named_by_resource(group: ApiGroup, resource: &Fields) -> bool {
    let annotation = resource.get("annotations").and_then(|annotations| annotations[NAME_ANNOTATION].as_str());
    let inner = annotation.and_then(|json| serde_json::from_str::<Value>(json).ok());
    group == ApiGroup::CrdV1 && inner.is_some_and(|inner| inner["name"].as_str().unwrap_or_default().is_empty())
}

/// Stores the name in the v3 metadata, in both places of the stored form: `name` and the annotation.
pub(super) fn note_name(metadata: &mut Fields, by_resource: bool, spec: Option<&Value>) {
    let tier = spec.and_then(|spec| spec["tier"].as_str()).unwrap_or_default();
    let is_default = tier.is_empty() || tier == DEFAULT_TIER;
    let name = text(metadata, "name").unwrap_or_default();
    let name = if by_resource && is_default { without_tier(name) } else { name }.to_owned();
    let mut annotations = take_object(metadata, "annotations");
    annotations.insert(NAME_ANNOTATION.into(), json!({ "name": name }).to_string().into());
    put_object(metadata, "annotations", annotations);
    metadata.insert("name".into(), name.into());
}

/// Removes the annotation from stored metadata and returns the policy's name.
pub(super) fn take_name(metadata: &mut Fields) -> String {
    let mut annotations = take_object(metadata, "annotations");
    annotations.remove(NAME_ANNOTATION);
    put_object(metadata, "annotations", annotations);
    text(metadata, "name").unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{GlobalNetworkPolicy, NetworkPolicy, ObjectKey, ObjectSelect};
    use crate::kubernetes::{Query, Request, Transcoder};
    use crate::store::{Entry, Kind, ReadBatch, Write, decode_entry};

    /// Returns the policy that a list in `group` yields for a resource.
    fn listed<K: Kind<Select = ObjectSelect>>(group: ApiGroup, resource: Value) -> Entry<K> {
        let mut batch = ReadBatch::new();
        batch.list::<K>(&ObjectSelect::default());
        let decoded = Transcoder::new(group).decode(&batch.ranges()[0], resource).unwrap();
        decode_entry(&decoded.entry).unwrap()
    }

    fn resource(name: &str, annotation: Option<&str>, tier: &str) -> Value {
        let mut metadata = json!({"name": name, "namespace": "ns", "resourceVersion": "7",
            "uid": "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7"});
        if let Some(annotation) = annotation {
            metadata["annotations"] = json!({NAME_ANNOTATION: annotation});
        }
        json!({"metadata": metadata, "spec": {"tier": tier, "serviceAccountSelector": "a == 'b'"}})
    }

    /// Includes upstream's example of a policy of an older Calico.
    #[test]
    fn names() {
        use ApiGroup::{CrdV1, V3};
        for (group, name, annotation, tier, expected) in [
            (CrdV1, "default.allow", Some(r#"{"creationTimestamp":null}"#), "default", "allow"),
            (CrdV1, "default.allow", None, "default", "default.allow"),
            (CrdV1, "default.allow", Some(r#"{"name":"default.allow"}"#), "default", "default.allow"),
            (CrdV1, "default.allow", Some(r#"{"name":"allow"}"#), "", "allow"),
            (CrdV1, "default.allow", Some("{}"), "other", "default.allow"),
            (V3, "default.allow", None, "default", "default.allow"),
        ] {
            let entry = listed::<NetworkPolicy>(group, resource(name, annotation, tier));
            assert_eq!(entry.key, ObjectKey::namespaced("ns", name), "{annotation:?}");
            assert_eq!(entry.value.key(), ObjectKey::namespaced("ns", expected), "{annotation:?}");
            assert!(entry.value.metadata.annotations.is_empty());
        }
        let mut global = resource("g", None, "");
        global["metadata"].as_object_mut().unwrap().remove("namespace");
        assert_eq!(listed::<GlobalNetworkPolicy>(V3, global).key, ObjectKey::global("g"));
    }

    #[test]
    fn what_is_written_back_is_what_was_read() {
        let read = resource("allow", Some(r#"{"name":"allow","labels":{"a":"b"}}"#), "default");
        let entry = listed::<NetworkPolicy>(ApiGroup::CrdV1, read.clone());
        let write = Write::update(&entry.key, &entry.value, &entry.revision).unwrap();
        let Request::Replace { location, body } = Transcoder::new(ApiGroup::CrdV1).request(&write).unwrap() else {
            panic!("{write:?}")
        };
        let path = "/apis/crd.projectcalico.org/v1/namespaces/ns/networkpolicies/allow";
        assert_eq!(location.url_path(), path);
        assert_eq!(body["spec"], read["spec"], "and what is not known");
        assert_eq!(body["metadata"], read["metadata"]);
        assert_eq!((&body["kind"], &body["apiVersion"]), (&json!("NetworkPolicy"), &json!("crd.projectcalico.org/v1")));

        let Request::Replace { body, .. } = Transcoder::new(ApiGroup::V3).request(&write).unwrap() else { panic!() };
        assert_eq!(body["metadata"]["labels"], json!({"a": "b"}));
        assert!(body["metadata"].get("annotations").is_none(), "in v3 the resource has the name");
    }

    #[test]
    fn lists_of_one_namespace() {
        let mut batch = ReadBatch::new();
        batch.list::<NetworkPolicy>(&ObjectSelect { namespace: Some("ns".into()), name_prefix: String::new() });
        batch.list_keys::<NetworkPolicy>(&ObjectSelect::default());
        let transcoder = Transcoder::new(ApiGroup::V3);
        let paths = batch.ranges().iter().map(|range| match transcoder.query(range).unwrap() {
            Query::List(list) => list.url_path(),
            other => panic!("{other:?}"),
        });
        let root = "/apis/projectcalico.org/v3";
        let expected = [format!("{root}/namespaces/ns/networkpolicies"), format!("{root}/networkpolicies")];
        assert_eq!(paths.collect::<Vec<_>>(), expected);
        let metadata = json!({"metadata": {"name": "a", "namespace": "ns"}});
        let decoded = transcoder.decode(&batch.ranges()[1], metadata).unwrap();
        assert_eq!(NetworkPolicy::parse_path(&decoded.entry.path), Some(ObjectKey::namespaced("ns", "a")));
    }
}
