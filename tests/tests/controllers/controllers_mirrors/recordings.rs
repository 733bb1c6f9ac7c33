//! Comparison with the recorded writes of upstream's controllers for the same Kubernetes objects.

use std::collections::BTreeMap;
use std::fs;

use integration_tests::Place;
use integration_tests::golden::recording::directory;
use serde_json::{Value, json};

use crate::controllers_mirrors::mirrored_cluster::{
    MirroredCluster, OBJECTS, becomes, on, only_at_first,
};

const MIRRORED: [&str; 2] = ["networkpolicies/", "profiles/"];

fn recordings() -> Vec<(String, Value)> {
    let folder = directory().join("controllers");
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let mut recordings: Vec<(String, Value)> = files
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .map(|path| {
            (
                path.display().to_string(),
                serde_json::from_slice::<Value>(&fs::read(&path).unwrap()).unwrap(),
            )
        })
        .filter(|(_, recording)| recording["datastore"] == "etcd" && recording["input"].is_array())
        .collect();
    recordings.sort_by(|a, b| a.0.cmp(&b.0));
    recordings
}

/// Replaces an object's UID and creation time by the marks of the recordings.
fn marked(mut object: Value) -> Value {
    let metadata = &mut object["metadata"];
    let is_uid = metadata["uid"].as_str().is_some_and(|uid| uid.len() == 36);
    let is_time = metadata["creationTimestamp"]
        .as_str()
        .is_some_and(|time| time.len() == 20 && time.ends_with('Z'));
    assert!(is_uid && is_time, "{metadata}");
    metadata["uid"] = json!("<uid>");
    metadata["creationTimestamp"] = json!("<time>");
    object
}

/// Returns true if a key belongs to one of these namespaces. The recording lacks other namespaces.
fn is_of(key: &str, namespaces: &[&str]) -> bool {
    namespaces.iter().any(|namespace| {
        key.starts_with(&format!("networkpolicies/{namespace}/"))
            || key == format!("profiles/kns.{namespace}")
            || key.starts_with(&format!("profiles/ksa.{namespace}."))
    })
}

fn written(cluster: &MirroredCluster<'_>, namespaces: &[&str]) -> BTreeMap<String, Value> {
    let all = cluster
        .all()
        .into_iter()
        .filter(|(key, _)| is_of(key, namespaces));
    all.map(|(key, object)| (key, marked(object))).collect()
}

#[test]
fn mirrored_objects_equal_the_recorded_output_of_upstream() {
    let recordings = recordings();
    assert!(!recordings.is_empty());
    for (name, recording) in &recordings {
        on(Place::Etcd, |cluster| {
            let input = recording["input"].as_array().unwrap();
            input
                .iter()
                .for_each(|object| cluster.apply(object.clone()));
            let namespaces = input.iter().filter(|object| object["kind"] == "Namespace");
            let namespaces: Vec<&str> = namespaces
                .map(|object| object["metadata"]["name"].as_str().unwrap())
                .collect();
            let store = recording["store"].as_object().unwrap().iter();
            let expected: BTreeMap<String, Value> = store
                .filter_map(|(key, object)| {
                    Some((key.strip_prefix(OBJECTS)?.to_owned(), object.clone()))
                })
                .filter(|(key, _)| MIRRORED.iter().any(|prefix| key.starts_with(prefix)))
                .collect();
            assert!(!expected.is_empty(), "{name}");
            let _running = cluster.start(only_at_first);
            becomes(expected, || written(cluster, &namespaces));
        });
    }
}
