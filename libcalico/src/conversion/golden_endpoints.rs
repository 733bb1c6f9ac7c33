//! Compares our types and builders with recordings of upstream: every endpoint and profile must be
//! equal.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use serde_json::{Value, json};

use super::{ProfileReach, default_profile};
use crate::api::{Object, Profile, Spec, WorkloadEndpoint};
use crate::net::Cidr;
use crate::store::Kind;
use crate::validation::manifest::{self, Manifest};
use crate::validation::{self, PoolContext};
use crate::workload::{ContainerIdentity, Orchestrator, PodIdentity, WorkloadIdentity};

const ENDPOINTS: &str = "/calico/resources/v3/projectcalico.org/workloadendpoints/";
const PROFILES: &str = "/calico/resources/v3/projectcalico.org/profiles/";
const POOLS: &str = "/calico/resources/v3/projectcalico.org/ippools/";
const NODES: &str = "/calico/resources/v3/projectcalico.org/nodes/";

fn recordings() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/etcd");
    let mut recordings: Vec<(String, Value)> = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (
                name,
                serde_json::from_slice(&fs::read(path).unwrap()).unwrap(),
            )
        })
        .collect();
    recordings.sort_by(|a, b| a.0.cmp(&b.0));
    recordings
}

/// Returns each key under `prefix` with the first step after which it exists and its value after
/// that step.
fn written_objects<'r>(recording: &'r Value, prefix: &str) -> Vec<(&'r Value, &'r str, &'r Value)> {
    let mut found: Vec<(&Value, &str, &Value)> = Vec::new();
    for step in recording["steps"].as_array().unwrap() {
        let store = step["after"]["store"].as_object().unwrap();
        for (key, value) in store.iter().filter(|(key, _)| key.starts_with(prefix)) {
            if !found.iter().any(|(_, seen, _)| seen == key) {
                found.push((step, key.as_str(), value));
            }
        }
    }
    found
}

fn assert_round_trip<S: Spec>(scenario: &str, key: &str, stored: &Value) {
    let object: Object<S> = serde_json::from_value(stored.clone()).unwrap();
    assert_eq!(<Object<S> as Kind>::path(&object.key()), key, "{scenario}");
    assert_eq!(
        &serde_json::to_value(&object).unwrap(),
        stored,
        "{scenario}: {key}"
    );
    let encoded: Value = serde_json::from_slice(&object.encode().unwrap()).unwrap();
    assert_eq!(&encoded, stored, "{scenario}: {key}");
    assert!(
        object.unknown.is_empty() && object.metadata.unknown.is_empty(),
        "{scenario}: {key}"
    );
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Returns the workload of the call. A pod's data come from the pod that was created before the
/// step.
fn workload(step: &Value) -> WorkloadIdentity {
    let network = text(step, "/stdin/name");
    let orchestrator = match step.pointer("/before/create_pod") {
        Some(pod) => Orchestrator::Kubernetes(PodIdentity {
            namespace: text(pod, "/namespace").into(),
            name: text(pod, "/name").into(),
            labels: serde_json::from_value(pod["labels"].clone()).unwrap(),
            service_account: "default".into(),
            ..PodIdentity::default()
        }),
        None => Orchestrator::Cni(ContainerIdentity::new(network)),
    };
    WorkloadIdentity {
        node: text(step, "/stdin/nodename").into(),
        container_id: text(step, "/env/CNI_CONTAINERID").into(),
        endpoint: text(step, "/env/CNI_IFNAME").into(),
        orchestrator,
    }
}

/// Returns the addresses in the result, which has one key per family before version 0.3.0.
fn result_addresses(step: &Value) -> Vec<IpAddr> {
    let result = &step["stdout"];
    let listed = result["ips"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|ip| text(ip, "/address"));
    let by_family = ["/ip4/ip", "/ip6/ip"]
        .into_iter()
        .map(|pointer| text(result, pointer));
    listed
        .chain(by_family)
        .filter(|address| !address.is_empty())
        .map(|address| Cidr::parse_with_address(address).unwrap().1)
        .collect()
}

#[test]
fn recorded_endpoints_and_profiles_round_trip() {
    let (mut endpoints, mut profiles) = (0, 0);
    for (scenario, recording) in recordings() {
        for (_, key, stored) in written_objects(&recording, ENDPOINTS) {
            assert_round_trip::<crate::api::WorkloadEndpointSpec>(&scenario, key, stored);
            endpoints += 1;
        }
        for (_, key, stored) in written_objects(&recording, PROFILES) {
            assert_round_trip::<crate::api::ProfileSpec>(&scenario, key, stored);
            profiles += 1;
        }
    }
    assert!(
        endpoints >= 20 && profiles >= 10,
        "{endpoints} endpoints, {profiles} profiles"
    );
}

#[test]
fn built_endpoints_match_upstreams_recordings() {
    for (scenario, recording) in recordings() {
        for (step, key, stored) in written_objects(&recording, ENDPOINTS) {
            let workload = workload(step);
            let mut built: WorkloadEndpoint = workload.create(&result_addresses(step)).unwrap();
            assert_eq!(
                WorkloadEndpoint::path(&workload.key().unwrap()),
                key,
                "{scenario}"
            );
            built.spec.interface_name = workload.host_interface(None);
            // These values depend on the kernel, the clock or randomness, so they come from the
            // recording.
            built.spec.mac = text(stored, "/spec/mac").into();
            built.metadata.uid = text(stored, "/metadata/uid").into();
            built.metadata.creation_timestamp =
                Some(text(stored, "/metadata/creationTimestamp").into());
            assert_eq!(
                &serde_json::to_value(&built).unwrap(),
                stored,
                "{scenario}: {key}"
            );
        }
    }
}

#[test]
fn recorded_objects_pass_validation() {
    for (scenario, recording) in recordings() {
        for (_, key, stored) in written_objects(&recording, ENDPOINTS) {
            let mut endpoint: WorkloadEndpoint = serde_json::from_value(stored.clone()).unwrap();
            endpoint.spec.mac = "aa:bb:cc:dd:ee:ff".into();
            assert_eq!(
                validation::validate_workload_endpoint(&endpoint),
                Ok(()),
                "{scenario}: {key}"
            );
        }
        for (_, key, stored) in written_objects(&recording, PROFILES) {
            let profile: Profile = serde_json::from_value(stored.clone()).unwrap();
            assert_eq!(
                validation::validate_profile(&profile),
                Ok(()),
                "{scenario}: {key}"
            );
        }
        for (_, key, stored) in written_objects(&recording, POOLS) {
            let Ok(Manifest::IpPool(pool)) = manifest::decode(stored.clone()) else {
                panic!("{scenario}: {key}")
            };
            let admitted = validation::admit_ip_pool(pool.clone(), &PoolContext::default());
            assert_eq!(admitted, Ok(pool), "{scenario}: {key}");
        }
        for (_, key, stored) in written_objects(&recording, NODES) {
            let Ok(Manifest::Node(node)) = manifest::decode(stored.clone()) else {
                panic!("{scenario}: {key}")
            };
            assert_eq!(
                validation::validate_node(&node),
                Ok(()),
                "{scenario}: {key}"
            );
        }
    }
}

#[test]
fn built_profiles_match_upstreams_recordings() {
    for (scenario, recording) in recordings() {
        for (step, key, stored) in written_objects(&recording, PROFILES) {
            let built: Profile =
                default_profile(text(step, "/stdin/name"), ProfileReach::SameNetwork);
            assert_eq!(Profile::path(&built.key()), key, "{scenario}");
            let built = json!({"name": built.metadata.name, "spec": built.spec});
            assert_eq!(
                built,
                json!({"name": stored["metadata"]["name"], "spec": stored["spec"]}),
                "{scenario}"
            );
        }
    }
}
