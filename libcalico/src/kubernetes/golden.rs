//! Passes recorded custom resources of upstream through the codec and our types, and back.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{ApiGroup, Codec, DecodedObject, POD_IPS, Query, Request};
use crate::api::{ClusterInformation, IpPool, ObjectSelect, WorkloadEndpoint};
use crate::ipam::{AffinityOwner, AffinitySelect, Block, BlockAffinity, Handle, HandleId};
use crate::store::{Freshness, Kind, Range, ReadBatch, Write, decode_entry};

/// Returns the value that replaces a placeholder of the recordings, such as `<uid1>` or `<time>`.
fn value_of_mark(mark: &str) -> Option<Value> {
    let inner = mark.strip_prefix('<')?.strip_suffix('>')?;
    if let Some(number) = inner.strip_prefix("uid") {
        let number: u128 = number.parse().ok()?;
        return Some(
            uuid::Builder::from_random_bytes(number.to_be_bytes())
                .into_uuid()
                .to_string()
                .into(),
        );
    }
    if let Some(sequence) = inner.strip_prefix("seq") {
        let at = sequence.find(['+', '-'])?;
        let (family, offset): (i64, i64) =
            (sequence[..at].parse().ok()?, sequence[at..].parse().ok()?);
        return Some((1_787_380_400_123_456_789 + family * 1_000_000_000 + offset).into());
    }
    match inner {
        "time" => Some("2026-08-22T06:33:20Z".into()),
        "go-time" => Some("2026-08-22 06:33:20.123456789 +0000 UTC".into()),
        "rv" => Some("4711".into()),
        _ => None,
    }
}

fn values_for_marks(value: &mut Value) {
    match value {
        Value::String(text) => match value_of_mark(text) {
            Some(found) => *value = found,
            None => *text = text.replace("<time>", "2026-08-22T06:33:20Z"),
        },
        Value::Array(items) => items.iter_mut().for_each(values_for_marks),
        Value::Object(fields) => fields.values_mut().for_each(values_for_marks),
        _ => {}
    }
}

pub(crate) type State = BTreeMap<String, Value>;

/// Returns every recorded state of the datastore, with the names of its recording and its step.
pub(crate) fn states(folder: &str) -> Vec<(String, State)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden")
        .join(folder);
    let mut states = Vec::new();
    for file in fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
    {
        let mut recording: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        values_for_marks(&mut recording);
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let mut keep = |at: String, state: &Value| {
            states.push((
                format!("{name}, {at}"),
                serde_json::from_value(state.clone()).unwrap(),
            ));
        };
        keep("initial".into(), &recording["initial"]);
        for (index, step) in recording["steps"].as_array().unwrap().iter().enumerate() {
            keep(format!("step {index}"), &step["after"]["store"]);
        }
    }
    assert!(states.len() > 30, "{} states", states.len());
    states
}

pub(crate) const GROUPS: [(&str, ApiGroup); 2] =
    [("kdd1", ApiGroup::CrdV1), ("kdd3", ApiGroup::V3)];

fn whole<K: Kind>(select: &K::Select) -> Range {
    let mut batch = ReadBatch::new();
    batch.list::<K>(select);
    batch.ranges()[0].clone()
}

/// Reads the object as part of a list, alone, and from the bytes of its value, writes it back, and
/// checks that it is the same each time.
fn round_trip<K: Kind + PartialEq>(
    codec: &Codec,
    select: &K::Select,
    name: &str,
    object: &Value,
) -> K::Key {
    let DecodedObject {
        entry,
        is_tombstone,
    } = codec.decode(&whole::<K>(select), object.clone()).unwrap();
    assert!(!is_tombstone);
    let of_bytes = K::decode(&entry.value.bytes()).unwrap();
    assert_eq!(entry.value.decode::<K>().unwrap(), of_bytes, "{name}");
    let read = decode_entry::<K>(&entry).unwrap();
    let alone = Range {
        kind: K::KIND,
        path: K::path(&read.key),
        is_prefix: false,
        keys_only: false,
        freshness: Freshness::Latest,
    };
    assert_eq!(codec.decode(&alone, object.clone()).unwrap().entry, entry);
    let Query::Get(location) = codec.query(&alone).unwrap() else {
        panic!("{alone:?}")
    };
    assert_eq!(
        format!("{}/{}", location.resource.plural, location.name),
        name
    );

    let write = Write::update(&read.key, &read.value, &read.revision).unwrap();
    let Request::Replace {
        location: written_at,
        body,
    } = codec.request(&write).unwrap()
    else {
        panic!()
    };
    assert_eq!(written_at, location);
    assert_eq!(
        without_servers_own(body),
        without_servers_own(with_own_annotation(object, K::KIND)),
        "{name}"
    );
    assert_eq!(codec.revision(K::KIND, object), read.revision);
    read.key
}

/// Adds the annotation to a ClusterInformation that only kubectl wrote, as a v1 writer does.
fn with_own_annotation(object: &Value, kind: &str) -> Value {
    let mut object = object.clone();
    let annotations = object
        .pointer("/metadata/annotations")
        .and_then(Value::as_object);
    let is_kubectls = annotations
        .is_some_and(|annotations| !annotations.contains_key("projectcalico.org/metadata"));
    if kind == "ClusterInformation"
        && object["apiVersion"] == "crd.projectcalico.org/v1"
        && is_kubectls
    {
        let text = r#"{"creationTimestamp":"2026-08-22T06:33:20Z"}"#;
        object["metadata"]["annotations"]["projectcalico.org/metadata"] = text.into();
    }
    object
}

/// Removes some metadata that the API server sets, and from a block the record of field managers,
/// which a write discards.
fn without_servers_own(mut object: Value) -> Value {
    let server_fields = if object["kind"] == "IPAMBlock" {
        &["managedFields"][..]
    } else {
        &[]
    };
    let metadata = object["metadata"].as_object_mut().unwrap();
    for key in ["creationTimestamp", "generation", "uid"]
        .iter()
        .chain(server_fields)
    {
        metadata.remove(*key);
    }
    object
}

#[test]
fn every_recorded_kubernetes_object_round_trips() {
    for (folder, group) in GROUPS {
        let codec = Codec::new(group);
        let mut object_counts: BTreeMap<String, usize> = BTreeMap::new();
        for (at, state) in states(folder) {
            for (name, object) in &state {
                let plural = name.split('/').next().unwrap();
                *object_counts.entry(plural.into()).or_default() += 1;
                let all = ObjectSelect::default();
                match plural {
                    "ipamblocks" => _ = round_trip::<Block>(&codec, &None, name, object),
                    "ipamhandles" => _ = round_trip::<Handle>(&codec, &(), name, object),
                    "ippools" => _ = round_trip::<IpPool>(&codec, &all, name, object),
                    "clusterinformations" => {
                        _ = round_trip::<ClusterInformation>(&codec, &all, name, object)
                    }
                    "blockaffinities" => {
                        let node = object["spec"]["node"].as_str().unwrap();
                        let select = AffinitySelect::of(AffinityOwner::Host(node.into()));
                        round_trip::<BlockAffinity>(&codec, &select, name, object);
                        round_trip::<BlockAffinity>(
                            &codec,
                            &AffinitySelect::default(),
                            name,
                            object,
                        );
                    }
                    "pods" => {}
                    other => panic!("{at}: {other} are not tested"),
                }
            }
        }
        for (plural, least) in [
            ("ipamblocks", 40),
            ("ipamhandles", 40),
            ("blockaffinities", 40),
            ("ippools", 60),
            ("clusterinformations", 60),
        ] {
            assert!(
                object_counts[plural] >= least,
                "{folder}: {object_counts:?}"
            );
        }
    }
}

/// The recorded objects also have fields that the API server added.
#[test]
fn created_objects_match_upstreams_recorded_objects() {
    for (folder, group) in GROUPS {
        let codec = Codec::new(group);
        for (at, state) in states(folder) {
            for (name, object) in &state {
                let write = match name.split('/').next().unwrap() {
                    "ipamblocks" => create_write::<Block>(&codec, &None, object),
                    "ipamhandles" => create_write::<Handle>(&codec, &(), object),
                    "blockaffinities" => {
                        create_write::<BlockAffinity>(&codec, &AffinitySelect::default(), object)
                    }
                    _ => continue,
                };
                let Request::Create { body, .. } = codec.request(&write).unwrap() else {
                    panic!()
                };
                let mut expected = without_servers_own(object.clone());
                expected["metadata"]
                    .as_object_mut()
                    .unwrap()
                    .remove("resourceVersion");
                assert_eq!(body, expected, "{folder}: {at}");
            }
        }
    }
}

fn create_write<K: Kind>(codec: &Codec, select: &K::Select, object: &Value) -> Write {
    let read = decode_entry::<K>(
        &codec
            .decode(&whole::<K>(select), object.clone())
            .unwrap()
            .entry,
    )
    .unwrap();
    Write::create(&read.key, &read.value).unwrap()
}

/// The endpoint of a recorded pod is written or deleted again.
#[test]
fn pod_patches_match_the_recorded_annotations() {
    let (mut added, mut deleted) = (0, 0);
    for (folder, group) in GROUPS {
        let codec = Codec::new(group);
        for (at, state) in states(folder) {
            for (name, recorded) in state.iter().filter(|(name, _)| name.starts_with("pods/")) {
                let [_, namespace, name] = name.split('/').collect::<Vec<_>>()[..] else {
                    panic!("{name}")
                };
                let annotations = &recorded["annotations"];
                let Some(addresses) = annotations.get(POD_IPS).and_then(Value::as_str) else {
                    continue;
                };
                let pod = json!({
                    "metadata": {
                        "name": name, "namespace": namespace, "uid": "u",
                        "annotations": annotations,
                    },
                    "spec": {"nodeName": "node1"},
                });
                let decoded = codec
                    .decode(&whole::<WorkloadEndpoint>(&ObjectSelect::default()), pod)
                    .unwrap();
                let read = decode_entry::<WorkloadEndpoint>(&decoded.entry).unwrap();
                assert_eq!(read.value.spec.ip_networks.join(","), addresses, "{at}");

                let write = if addresses.is_empty() {
                    deleted += 1;
                    Write::delete::<WorkloadEndpoint>(&read.key, None)
                } else {
                    added += 1;
                    Write::update(&read.key, &read.value, &read.revision).unwrap()
                };
                let Request::PatchStatus { body, .. } = codec.request(&write).unwrap() else {
                    panic!()
                };
                for (key, value) in body["metadata"]["annotations"].as_object().unwrap() {
                    assert_eq!(&annotations[key], value, "{at}: {name}: {key}");
                }
            }
        }
    }
    assert!(added > 40 && deleted > 20, "{added} {deleted}");
}

#[test]
fn recorded_handles_are_named_after_their_id() {
    for (folder, _) in GROUPS {
        for (at, state) in states(folder) {
            for (name, handle) in state
                .iter()
                .filter(|(name, _)| name.starts_with("ipamhandles/"))
            {
                let id = HandleId::new(handle["spec"]["handleID"].as_str().unwrap());
                assert_eq!(
                    format!("ipamhandles/{}", super::handle_name(&id)),
                    *name,
                    "{at}"
                );
            }
        }
    }
}
