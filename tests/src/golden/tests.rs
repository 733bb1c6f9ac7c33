//! Tests of the comparison with the recordings themselves: each recording equals itself, and every
//! changed leaf is reported.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::compare::Difference;
use super::marks::{Bindings, Concrete, LOADED_TIME, Places};
use super::recording::{self, Recording};
use super::replay::Expectation;
use super::wanted::{self, Entry, Wanted};

fn places() -> Places {
    Places {
        bin: "/binaries".into(),
        tmp: "/scratch".into(),
        lab: "/lab".into(),
    }
}

/// Returns a recorded step as our binaries have to produce it.
fn perfect_step(expectation: &mut Expectation, recording: &Recording, index: usize) -> Value {
    let places = places();
    let step = &recording.steps[index];
    let mut after = json!(step.after);
    after["store"] = expectation.bindings.keep_loaded(
        &step.after.store,
        &json!(recording.initial),
        &expectation.loaded,
    );
    let whole = json!({ "exit": step.exit, "stdout": step.stdout, "after": after });
    made_later(&Concrete::new(&places).value(&whole), &whole)
}

/// Gives values that were not loaded a later time and other UIDs.
fn made_later(concrete: &Value, recorded: &Value) -> Value {
    match (concrete, recorded) {
        (Value::Object(fields), Value::Object(recorded)) => fields
            .iter()
            .map(|(name, v)| (name.clone(), made_later(v, &recorded[name])))
            .collect(),
        (Value::Array(items), Value::Array(recorded)) => items
            .iter()
            .zip(recorded)
            .map(|(v, recorded)| made_later(v, recorded))
            .collect(),
        (Value::String(_), Value::String(mark)) if mark == "<time>" => {
            json!("2026-11-21T12:00:00Z")
        }
        (Value::String(uid), Value::String(mark)) if mark.starts_with("<uid") => {
            json!(uid.replace("-8000-", "-9000-"))
        }
        _ => concrete.clone(),
    }
}

const FOLDERS: [&str; 3] = ["etcd", "kdd1", "kdd3"];

fn all_recordings() -> Vec<Recording> {
    let of = |folder: &'static str| {
        let names = recording::names(folder).unwrap().into_iter();
        names.map(move |name| recording::read(folder, &name).unwrap())
    };
    let recordings: Vec<Recording> = FOLDERS.into_iter().flat_map(of).collect();
    assert!(
        recordings.len() > 10 * FOLDERS.len(),
        "{} recordings",
        recordings.len()
    );
    recordings
}

/// Without this test, an entry about a scenario that does not exist would never be reported as
/// unmet.
#[test]
fn every_wanted_difference_names_an_existing_recording() {
    let entries = wanted::read().unwrap();
    assert!(!entries.is_empty());
    for entry in entries {
        let folders = if entry.datastores.is_empty() {
            FOLDERS.map(str::to_owned).into()
        } else {
            entry.datastores.clone()
        };
        let names = folders.iter().map(|datastore| {
            if datastore == "local" {
                "etcd"
            } else {
                datastore.as_str()
            }
        });
        let found: Vec<bool> = names
            .map(|folder| recording::names(folder).unwrap().contains(&entry.scenario))
            .collect();
        // An entry for all datastores need not be recorded on all of them.
        assert!(
            found.contains(&true) && (entry.datastores.is_empty() || !found.contains(&false)),
            "{entry:?}"
        );
    }
}

#[test]
fn comparison_of_each_recording_with_itself_finds_no_difference() {
    for recording in all_recordings() {
        assert!(
            FOLDERS.contains(&recording.datastore.as_str()) && !recording.steps.is_empty(),
            "{}",
            recording.name
        );
        let mut expectation = Expectation::new(&recording, &places());
        for index in 0..recording.steps.len() {
            let ours = perfect_step(&mut expectation, &recording, index);
            let found = expectation.differences(&recording.steps[index], &ours);
            assert_eq!(found, [], "{} step {index}", recording.name);
        }
    }
}

/// Changes each distinct leaf of the steps in turn, except sequence numbers that may have any
/// value.
#[test]
fn every_changed_leaf_is_reported() {
    let mut seen = BTreeSet::new();
    for recording in all_recordings() {
        let mut before = Expectation::new(&recording, &places());
        for (index, step) in recording.steps.iter().enumerate() {
            let ours = perfect_step(&mut before, &recording, index);
            for path in leaves(&ours, String::new()) {
                // Objects that no step changes appear in many steps and recordings.
                let leaf = ours.pointer(&path).unwrap();
                if !seen.insert((path.clone(), leaf.to_string())) {
                    continue;
                }
                if is_lone_sequence_number(&recording, index, &path) {
                    continue;
                }
                let mut mutated = ours.clone();
                *mutated.pointer_mut(&path).unwrap() = other_than(leaf);
                let found = before.clone().differences(step, &mutated);
                assert!(
                    !found.is_empty(),
                    "{} step {index}: {path} changed unnoticed",
                    recording.name
                );
            }
            assert_eq!(before.differences(step, &ours), []);
        }
    }
}

/// Returns true for a first sequence number of a block, which is random, if no other number refers
/// to it.
fn is_lone_sequence_number(recording: &Recording, index: usize, path: &str) -> bool {
    let step = |index: usize| json!({ "after": recording.steps[index].after });
    let here = step(index);
    let Some(mark) = here
        .pointer(path)
        .and_then(Value::as_str)
        .filter(|mark| mark.starts_with("<seq"))
    else {
        return false;
    };
    let family = mark.split(['+', '-']).next().unwrap();
    (0..=index)
        .map(|index| step(index).to_string().matches(family).count())
        .sum::<usize>()
        == 1
}

#[test]
fn every_added_or_removed_member_is_reported() {
    let recording = recording::read("etcd", "v4-add-del").unwrap();
    let ours = perfect_step(&mut Expectation::new(&recording, &places()), &recording, 0);
    for path in objects(&ours, String::new()) {
        let mut more = ours.clone();
        more.pointer_mut(&path).unwrap()["unexpected"] = json!(1);
        let found = Expectation::new(&recording, &places()).differences(&recording.steps[0], &more);
        assert!(!found.is_empty(), "{path}");
        for name in ours.pointer(&path).unwrap().as_object().unwrap().keys() {
            let mut less = ours.clone();
            less.pointer_mut(&path)
                .unwrap()
                .as_object_mut()
                .unwrap()
                .remove(name);
            let found =
                Expectation::new(&recording, &places()).differences(&recording.steps[0], &less);
            assert!(!found.is_empty(), "{path} without {name}");
        }
    }
}

#[test]
fn value_of_one_mark_is_rejected_for_another_mark() {
    let recording = recording::read("etcd", "v4-two-pods").unwrap();
    let mut expectation = Expectation::new(&recording, &places());
    let first = perfect_step(&mut expectation, &recording, 0);
    assert_eq!(expectation.differences(&recording.steps[0], &first), []);
    let second = perfect_step(&mut expectation, &recording, 1);
    let mac = second
        .pointer("/stdout/interfaces/1/mac")
        .unwrap()
        .as_str()
        .unwrap();
    let same_mac = second.to_string().replace(
        mac,
        first
            .pointer("/stdout/interfaces/1/mac")
            .unwrap()
            .as_str()
            .unwrap(),
    );
    let found = expectation.differences(
        &recording.steps[1],
        &serde_json::from_str(&same_mac).unwrap(),
    );
    assert!(!found.is_empty());
}

#[test]
fn changed_uid_or_time_of_a_loaded_object_is_reported() {
    let recording = recording::read("etcd", "v4-add-del").unwrap();
    for leaf in ["uid", "creationTimestamp"] {
        let mut expectation = Expectation::new(&recording, &places());
        let mut ours = perfect_step(&mut expectation, &recording, 0);
        let path = format!(
            "/after/store/~1calico~1resources~1v3~1projectcalico.org~1ippools~1pool4/metadata/{leaf}"
        );
        let other = if leaf == "uid" {
            "ffffffff-0000-4000-8000-000000000000"
        } else {
            "2026-11-21T12:00:00Z"
        };
        *ours.pointer_mut(&path).unwrap() = json!(other);
        let found = expectation.differences(&recording.steps[0], &ours);
        assert_eq!(
            found.iter().map(|d| d.path.as_str()).collect::<Vec<_>>(),
            [path]
        );
    }
    assert!(LOADED_TIME < "2026-11-21T12:00:00Z");
}

fn entry(path: &str, ours: Option<Value>) -> Entry {
    let scenario = "v4-add-del".to_owned();
    Entry {
        scenario,
        step: 0,
        path: path.into(),
        ours,
        reason: "because".into(),
        datastores: Vec::new(),
    }
}

fn wanting(entry: Entry) -> anyhow::Result<Wanted> {
    Wanted::of(
        vec![entry],
        &recording::read("etcd", "v4-add-del").unwrap(),
        "etcd",
    )
}

#[test]
fn wanted_difference_at_a_fixed_path_is_rejected() {
    let block = "/after/store/~1calico~1ipam~1v2~1assignment~1ipv4~1block~110.65.166.128-26";
    let endpoint = "/after/store/~1calico~1resources~1v3~1projectcalico.org~1workloadendpoints~1default~1x/spec";
    let refused = [
        "",
        "/stdout",
        "/stdout/ips",
        "/stdout/ips/0/address",
        "/stdout/routes",
        "/stdout/interfaces/1/mac",
        "/after",
        "/after/host",
        "/after/host/routes",
        "/after/pods/gold-c0ffee0100/sysctls/eth0/ip_forward",
        "/after/host/links/calic0ffee01000/mtu",
        "/after/store",
        block,
        endpoint,
        "/after/store/~1calico~1ipam~1v2~1handle~1x",
        "/after/store/ipamblocks~110-65-166-128-26/spec",
        "/after/store/ipamhandles~1x",
        "/after/store/blockaffinities~1x",
        "/after/store/pods~1golden~1web-1/annotations",
        "/after/store/~1calico~1ipam~1v2~1host~1node1~1ipv4~1block~1x",
    ];
    for path in refused {
        assert!(
            wanting(entry(path, Some(json!(1)))).is_err(),
            "{path} was accepted"
        );
    }
    for path in [
        "/exit",
        "/stdout/cniVersion",
        "/after/store/~1calico~1resources~1v3~1projectcalico.org~1nodes~1node1",
    ] {
        wanting(entry(path, Some(json!(1)))).unwrap();
    }
    assert!(
        wanting(Entry {
            reason: " ".into(),
            ..entry("/exit", None)
        })
        .is_err(),
        "no reason"
    );
    assert!(
        wanting(Entry {
            step: 99,
            ..entry("/exit", None)
        })
        .is_err(),
        "no such step"
    );
}

#[test]
fn wanted_difference_covers_the_exact_value_only_and_must_occur() {
    let found = || {
        vec![Difference {
            path: "/exit".into(),
            recorded: Some(json!(0)),
            ours: Some(json!(1)),
        }]
    };
    let ours = json!({"exit": 1});
    let mut bindings = Bindings::new(places());

    let mut exact = wanting(entry("/exit", Some(json!(1)))).unwrap();
    assert_eq!(exact.unmet().len(), 1);
    assert_eq!(exact.unexcused(0, found(), &ours, &mut bindings), []);
    assert!(exact.unmet().is_empty());

    let mut other_value = wanting(entry("/exit", Some(json!(2)))).unwrap();
    assert_eq!(
        other_value
            .unexcused(0, found(), &ours, &mut bindings)
            .len(),
        1
    );
    let mut other_step = wanting(Entry {
        step: 1,
        ..entry("/exit", Some(json!(1)))
    })
    .unwrap();
    assert_eq!(
        other_step.unexcused(0, found(), &ours, &mut bindings).len(),
        1
    );
    assert_eq!(other_step.unmet().len(), 1);
}

fn leaves(value: &Value, path: String) -> Vec<String> {
    match value {
        Value::Object(fields) if !fields.is_empty() => fields
            .iter()
            .flat_map(|(name, v)| leaves(v, format!("{path}/{}", name.replace('/', "~1"))))
            .collect(),
        Value::Array(items) if !items.is_empty() => items
            .iter()
            .enumerate()
            .flat_map(|(i, v)| leaves(v, format!("{path}/{i}")))
            .collect(),
        _ => vec![path],
    }
}

fn objects(value: &Value, path: String) -> Vec<String> {
    let mut found = Vec::new();
    if let Value::Object(fields) = value {
        found.push(path.clone());
        for (name, v) in fields {
            found.extend(objects(v, format!("{path}/{}", name.replace('/', "~1"))));
        }
    }
    if let Value::Array(items) = value {
        for (i, v) in items.iter().enumerate() {
            found.extend(objects(v, format!("{path}/{i}")));
        }
    }
    found
}

fn other_than(leaf: &Value) -> Value {
    match leaf {
        Value::Null => json!(0),
        Value::Bool(b) => json!(!b),
        Value::Number(n) => json!(n.as_i64().unwrap() + 1),
        Value::String(text) => json!(format!("{text}x")),
        Value::Array(_) => json!([1]),
        Value::Object(_) => json!({"unexpected": 1}),
    }
}
