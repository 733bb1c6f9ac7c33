//! Compares our conversion with recordings of upstream's controllers on etcd: every policy and
//! profile must be equal.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{
    ConvertedProfile, NAMESPACE_PROFILE_PREFIX, POLICY_PREFIX, SERVICE_ACCOUNT_PROFILE_PREFIX,
    namespace_profile, network_policy, service_account_profile,
};
use crate::api::{NetworkPolicy, Object, Profile, ProfileSpec, Spec};
use crate::store::Kind;
use crate::validation::{admit_policy, validate_profile};

const CONVERTED_PATHS: [&str; 2] = ["/networkpolicies/", "/profiles/"];

/// Returns the path and the stored form, with the placeholders that the recordings use for uid and
/// time.
fn stored<S: Spec>(mut object: Object<S>) -> (String, Value) {
    object.metadata.uid = "<uid>".into();
    object.metadata.creation_timestamp = Some("<time>".into());
    let value = serde_json::from_slice(&object.encode().unwrap()).unwrap();
    (Object::<S>::path(&object.key()), value)
}

fn converted_object(object: &Value) -> Option<(String, Value)> {
    let metadata = &object["metadata"];
    let (name, namespace) = (
        metadata["name"].as_str().unwrap(),
        metadata["namespace"].as_str().unwrap_or_default(),
    );
    let labels = || {
        serde_json::from_value::<Option<BTreeMap<String, String>>>(metadata["labels"].clone())
            .unwrap()
    };
    let mut labels = labels().unwrap_or_default();
    match object["kind"].as_str().unwrap() {
        "NetworkPolicy" => {
            let converted =
                network_policy(&serde_json::from_value(object["spec"].clone()).unwrap());
            assert_eq!(converted.rejected_rules, []);
            let mut policy = NetworkPolicy::new(format!("{POLICY_PREFIX}{name}"), converted.spec);
            policy.metadata.namespace = namespace.into();
            Some(stored(admit_policy(policy).unwrap()))
        }
        "Namespace" => {
            // The API server adds this label to each namespace.
            labels.insert("kubernetes.io/metadata.name".into(), name.into());
            let profile_name = format!("{NAMESPACE_PROFILE_PREFIX}{name}");
            Some(checked(Profile::new(
                profile_name,
                whole(namespace_profile(name, &labels)),
            )))
        }
        "ServiceAccount" => {
            let profile_name = format!("{SERVICE_ACCOUNT_PROFILE_PREFIX}{namespace}.{name}");
            Some(checked(Profile::new(
                profile_name,
                whole(service_account_profile(name, &labels)),
            )))
        }
        _ => None,
    }
}

fn whole(converted: ConvertedProfile) -> ProfileSpec {
    assert_eq!(converted.rejected_labels, []);
    converted.spec
}

fn checked(profile: Profile) -> (String, Value) {
    assert_eq!(validate_profile(&profile), Ok(()));
    stored(profile)
}

#[test]
fn converted_objects_match_upstreams_controller_recordings() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/controllers");
    let mut compared = 0;
    for file in fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
    {
        if file.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let recording: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        if recording["datastore"] != "etcd" {
            continue;
        }
        let converted_objects: BTreeMap<_, _> = recording["input"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(converted_object)
            .collect();
        let store = recording["store"].as_object().unwrap();
        let expected = store
            .iter()
            .filter(|(key, _)| CONVERTED_PATHS.iter().any(|part| key.contains(part)));
        let expected: BTreeMap<_, _> = expected
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        assert_eq!(
            json!(converted_objects),
            json!(expected),
            "{}",
            file.display()
        );
        compared += converted_objects.len();
    }
    assert!(compared >= 12, "{compared}");
}
