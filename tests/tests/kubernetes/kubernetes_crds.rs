//! A real API server accepts the definitions in `deploy/crds` and stores recorded objects of
//! upstream completely.

use std::collections::BTreeSet;
use std::fs;

use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::golden::marks::{Concrete, Places};
use integration_tests::golden::recording;
use integration_tests::kubernetes::{ApiServer, Client, on_prepared_kubernetes, program};
use integration_tests::manifests::deploy;
use integration_tests::skip::skipped;
use serde_json::{Value, json};

/// Group and version, and the folder of the recordings.
const GROUPS: [(&str, &str); 2] = [
    ("crd.projectcalico.org/v1", "kdd1"),
    ("projectcalico.org/v3", "kdd3"),
];

/// Runs a test on an API server with all definitions.
fn on(test: impl FnOnce(&ApiServer) + Send) {
    let prepare = |api: &ApiServer| {
        define(api);
        Ok(())
    };
    on_prepared_kubernetes("all definitions", prepare, |_, servers| test(&servers.api));
}

/// Creates the definitions, and asserts that the API server accepts and stores each completely.
fn define(api: &ApiServer) {
    for (folder, number) in [("v1", 14), ("v3", 14), ("migration", 1)] {
        let folder = deploy("crds").join(folder);
        let mut count = 0;
        let files = fs::read_dir(&folder)
            .unwrap()
            .map(|file| file.unwrap().path());
        for file in files.filter(|file| {
            file.extension()
                .is_some_and(|extension| extension == "yaml")
        }) {
            let definition: Value =
                serde_norway::from_str(&fs::read_to_string(file).unwrap()).unwrap();
            let kept = api.admin().apply_object(&definition).unwrap();
            let name = definition["metadata"]["name"].as_str().unwrap();
            let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
            let now = api.admin().get(&path).unwrap().success();
            let conditions = now["status"]["conditions"].as_array().unwrap();
            // A non-structural schema is accepted too, but results in another condition.
            let types: BTreeSet<_> = conditions
                .iter()
                .map(|condition| condition["type"].as_str().unwrap())
                .collect();
            assert_eq!(
                types,
                BTreeSet::from(["Established", "NamesAccepted"]),
                "{conditions:?}"
            );
            assert_eq!(
                kept["spec"]["versions"], definition["spec"]["versions"],
                "{name}"
            );
            count += 1;
        }
        assert_eq!(count, number, "{}", folder.display());
    }
}

/// Returns every recorded Calico object, once, with its plural and without the fields that an API
/// server sets.
fn recorded(folder: &str) -> Vec<(String, Value)> {
    let places = Places::default();
    let mut seen = BTreeSet::new();
    let mut objects = Vec::new();
    for name in recording::names(folder).unwrap() {
        let file = recording::directory()
            .join(folder)
            .join(format!("{name}.json"));
        let recording: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let states = recording["steps"]
            .as_array()
            .unwrap()
            .iter()
            .map(|step| &step["after"]["store"]);
        for state in states.chain([&recording["initial"]]) {
            for (name, object) in state.as_object().unwrap() {
                let plural = name.split('/').next().unwrap();
                if plural == "pods" {
                    continue;
                }
                let mut object = Concrete::new(&places).value(object);
                for key in [
                    "uid",
                    "resourceVersion",
                    "creationTimestamp",
                    "generation",
                    "managedFields",
                ] {
                    object["metadata"].as_object_mut().unwrap().remove(key);
                }
                if seen.insert(object.to_string()) {
                    objects.push((plural.to_owned(), object));
                }
            }
        }
    }
    objects
}

#[test]
fn definitions_store_recorded_objects_completely() {
    on(|api| {
        let admin = api.admin();
        for (version, folder) in GROUPS {
            let objects = recorded(folder);
            assert!(objects.len() > 50, "{folder}: {}", objects.len());
            for (plural, object) in objects {
                let collection = format!("/apis/{version}/{plural}");
                let mut kept = admin.create(&collection, &object).unwrap().success();
                for key in [
                    "uid",
                    "resourceVersion",
                    "creationTimestamp",
                    "generation",
                    "managedFields",
                ] {
                    kept["metadata"].as_object_mut().unwrap().remove(key);
                }
                assert_eq!(kept, object, "{folder}");
                let name = object["metadata"]["name"].as_str().unwrap();
                admin
                    .delete(&format!("{collection}/{name}"))
                    .unwrap()
                    .success();
            }
        }
    });
}

/// Creates an object in a dry run. Returns the reason for a rejection, or an empty string.
fn rejection(admin: &Client, version: &str, plural: &str, name: &str, spec: &Value) -> String {
    let kind = match plural {
        "ippools" => "IPPool",
        "ipreservations" => "IPReservation",
        _ => "Tier",
    };
    let object =
        json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name }, "spec": spec });
    let answer = admin
        .create(&format!("/apis/{version}/{plural}?dryRun=All"), &object)
        .unwrap();
    match answer.code {
        201 => String::new(),
        422 => answer.reason(),
        other => panic!("{other}: {}", answer.reason()),
    }
}

/// Returns specs of pools, and the reason for the rejection of each; empty if the pool is valid
/// (DS-95).
fn pools() -> Vec<(Value, &'static str)> {
    let v4 = |more: Value| with(json!({ "cidr": "10.0.0.0/16" }), more);
    let v6 = |more: Value| with(json!({ "cidr": "fd00::/112" }), more);
    let balancer = |more: Value| v4(with(json!({ "allowedUses": ["LoadBalancer"] }), more));
    vec![
        (v4(json!({})), ""),
        (v6(json!({})), ""),
        (
            json!({ "cidr": "10.0.0.1/16" }),
            "cidr must have no bits set",
        ),
        (
            json!({ "cidr": "fd00::1/112" }),
            "cidr must have no bits set",
        ),
        (json!({ "cidr": "10.0.0.0" }), "must be of type cidr"),
        (
            json!({ "cidr": "169.254.7.0/24" }),
            "must not overlap the link-local addresses 169.254.0.0/16",
        ),
        (
            json!({ "cidr": "0.0.0.0/0" }),
            "must not overlap the link-local addresses 169.254.0.0/16",
        ),
        (json!({ "cidr": "169.255.0.0/16" }), ""),
        (
            json!({ "cidr": "fe80::/64" }),
            "must not overlap the link-local addresses fe80::/10",
        ),
        (
            json!({ "cidr": "fc00::/6" }),
            "must not overlap the link-local addresses fe80::/10",
        ),
        (v4(json!({ "blockSize": 0 })), ""),
        (v4(json!({ "blockSize": 19 })), "blockSize must be 20 to 32"),
        (v4(json!({ "blockSize": 20 })), ""),
        (v4(json!({ "blockSize": 32 })), ""),
        (v4(json!({ "blockSize": 33 })), "blockSize must be 20 to 32"),
        (v6(json!({ "blockSize": 115 })), "116 to 128 in IPv6 pools"),
        (v6(json!({ "blockSize": 116 })), ""),
        (v6(json!({ "blockSize": 128 })), ""),
        (json!({ "cidr": "10.0.0.0/26", "blockSize": 26 }), ""),
        (
            json!({ "cidr": "10.0.0.0/27", "blockSize": 26 }),
            "must not be less than the prefix length",
        ),
        (
            json!({ "cidr": "10.0.0.0/27", "blockSize": 26, "disabled": true }),
            "",
        ),
        (
            v4(json!({ "ipipMode": "Always", "vxlanMode": "CrossSubnet" })),
            "must not both be on",
        ),
        (
            v4(json!({ "ipipMode": "Always", "vxlanMode": "Never" })),
            "",
        ),
        (
            v6(json!({ "ipipMode": "Always" })),
            "ipipMode must be Never in IPv6 pools",
        ),
        (
            v6(json!({ "ipipMode": "Never", "vxlanMode": "Always" })),
            "",
        ),
        (
            v4(json!({ "nodeSelector": "global()" })),
            "nodeSelector must not use global()",
        ),
        (
            v4(json!({ "namespaceSelector": "a == 'b' && global()" })),
            "namespaceSelector must not use global()",
        ),
        (
            v4(json!({ "namespaceSelector": "all()", "allowedUses": ["Workload"] })),
            "",
        ),
        (
            v4(json!({ "namespaceSelector": "all()", "allowedUses": ["Workload", "Tunnel"] })),
            "must be empty in a pool",
        ),
        (
            v4(json!({ "namespaceSelector": "", "allowedUses": ["Tunnel"] })),
            "",
        ),
        (
            v4(json!({ "allowedUses": ["Tunnel", "Tunnel"] })),
            "Duplicate value",
        ),
        (
            v4(json!({ "allowedUses": ["Gateway"] })),
            "Unsupported value",
        ),
        (balancer(json!({})), ""),
        (
            balancer(json!({ "allowedUses": ["LoadBalancer", "Workload"] })),
            "must have no other allowedUses",
        ),
        (
            balancer(json!({ "ipipMode": "Always" })),
            "must have neither ipipMode nor vxlanMode",
        ),
        (
            balancer(json!({ "vxlanMode": "Always" })),
            "must have neither ipipMode nor vxlanMode",
        ),
        (
            balancer(json!({ "disableBGPExport": true })),
            "must be exported over BGP",
        ),
        (balancer(json!({ "disableBGPExport": false })), ""),
        (
            balancer(json!({ "nodeSelector": "has(rack)" })),
            "must be for all() nodes",
        ),
        (balancer(json!({ "nodeSelector": "all()" })), ""),
    ]
}

/// Returns tiers by name, and the reason for the rejection of each; empty if the tier is valid
/// (DS-97).
fn tiers() -> Vec<(&'static str, Value, &'static str)> {
    let spec = |action: &str, order: f64| json!({ "defaultAction": action, "order": order });
    vec![
        ("default", spec("Deny", 1_000_000.0), ""),
        ("default", json!({ "order": 1_000_000 }), ""),
        (
            "default",
            spec("Pass", 1_000_000.0),
            "must have the default action Deny",
        ),
        ("default", spec("Deny", 5.5), "must have the order 1000000"),
        ("default", json!({}), "must have the order 1000000"),
        ("kube-admin", spec("Pass", 1_000.0), ""),
        (
            "kube-admin",
            json!({ "order": 1_000 }),
            "must have the default action Pass",
        ),
        ("kube-baseline", spec("Pass", 10_000_000.0), ""),
        (
            "kube-baseline",
            spec("Pass", 1_000.0),
            "must have the order 10000000",
        ),
        ("mine", json!({}), ""),
        ("mine", spec("Pass", 5.5), ""),
        ("mine", spec("Allow", 5.5), "Unsupported value"),
    ]
}

#[test]
fn definitions_enforce_rules_across_fields() {
    on(|api| {
        let admin = api.admin();
        let check = |version: &str, plural: &str, name: &str, spec: &Value, expected: &str| {
            let reason = rejection(admin, version, plural, name, spec);
            assert!(
                reason.is_empty() == expected.is_empty() && reason.contains(expected),
                "{name} {spec}: {reason:?}"
            );
        };
        for (version, _) in GROUPS {
            pools()
                .iter()
                .for_each(|(spec, expected)| check(version, "ippools", "pool", spec, expected));
            tiers()
                .iter()
                .for_each(|(name, spec, expected)| check(version, "tiers", name, spec, expected));
            let reserved = |cidrs: &[&str]| json!({ "reservedCIDRs": cidrs });
            check(
                version,
                "ipreservations",
                "r",
                &reserved(&["10.0.0.1/32", "fd00::/120"]),
                "",
            );
            check(
                version,
                "ipreservations",
                "r",
                &reserved(&["10.0.0.1"]),
                "must be of type cidr",
            );
        }
    });
}

#[test]
fn pools_reject_immutable_changes_and_update_status_separately() {
    on(|api| {
        let admin = api.admin();
        for (version, _) in GROUPS {
            let collection = format!("/apis/{version}/ippools");
            let pool = json!({
                "apiVersion": version, "kind": "IPPool", "metadata": { "name": "pool" },
                "spec": { "cidr": "10.0.0.0/16", "blockSize": 26, "newer": 1 },
                "status": { "conditions": [] },
            });
            let kept = admin.create(&collection, &pool).unwrap().success();
            let filled = json!({
                "assignmentMode": "Automatic", "blockSize": 26, "cidr": "10.0.0.0/16",
                "nodeSelector": "all()",
            });
            assert_eq!((&kept["spec"], kept.get("status")), (&filled, None));

            let path = format!("{collection}/pool");
            let changed = |change: Value| admin.patch(&path, &json!({ "spec": change })).unwrap();
            for (change, refusal) in [
                (json!({ "cidr": "10.1.0.0/16" }), "cidr must not change"),
                (json!({ "blockSize": 27 }), "blockSize must not change"),
            ] {
                let answer = changed(change);
                assert!(
                    answer.code == 422 && answer.reason().contains(refusal),
                    "{}",
                    answer.reason()
                );
            }
            assert_eq!(
                changed(json!({ "disabled": true })).success()["spec"]["disabled"],
                true
            );

            let condition = json!({
                "type": "Allocatable", "status": "True", "reason": "OK", "message": "",
                "lastTransitionTime": "2026-08-22T06:33:20Z", "observedGeneration": 2,
            });
            let conditions = |condition: Value| {
                let status = json!({
                    "spec": { "disabled": false }, "status": { "conditions": [condition] },
                });
                admin.patch(&format!("{path}/status"), &status).unwrap()
            };
            let kept = conditions(condition.clone()).success();
            assert_eq!(
                (&kept["spec"]["disabled"], &kept["status"]["conditions"]),
                (&json!(true), &json!([condition]))
            );
            assert_eq!(
                conditions(with(condition, json!({ "status": "Maybe" }))).code,
                422
            );
        }
    });
}

#[test]
fn definitions_fill_in_defaults_of_missing_fields() {
    on(|api| {
        let admin = api.admin();
        let (v1, v3) = (GROUPS[0].0, GROUPS[1].0);
        let lists = json!({ "cidr": "10.0.0.0/30", "allocations": [null], "unallocated": [0],
                "attributes": [],
            "strictAffinity": false, "sequenceNumberForAllocation": null });
        let mut block = lists.clone();
        block
            .as_object_mut()
            .unwrap()
            .remove("sequenceNumberForAllocation");
        let block = with(block, json!({ "sequenceNumber": 0 }));
        let affinity = json!({ "state": "", "node": "n", "cidr": "10.0.0.0/30" });
        for (version, kind, plural, sent, expected) in [
            (v1, "IPAMBlock", "ipamblocks", lists.clone(), block.clone()),
            (v3, "IPAMBlock", "ipamblocks", lists, block),
            (
                v1,
                "Tier",
                "tiers",
                json!({}),
                json!({ "defaultAction": "Deny" }),
            ),
            (
                v3,
                "Tier",
                "tiers",
                json!({}),
                json!({ "defaultAction": "Deny" }),
            ),
            (
                v3,
                "BlockAffinity",
                "blockaffinities",
                affinity.clone(),
                with(affinity, json!({ "deleted": false })),
            ),
            (
                v3,
                "IPAMConfiguration",
                "ipamconfigurations",
                json!({}),
                json!({
                    "autoAllocateBlocks": true, "maxBlocksPerHost": 0, "strictAffinity": false,
                }),
            ),
        ] {
            let object = json!({
                "apiVersion": version, "kind": kind, "metadata": { "name": "x" }, "spec": sent,
            });
            let kept = admin
                .create(&format!("/apis/{version}/{plural}"), &object)
                .unwrap()
                .success();
            assert_eq!(kept["spec"], expected, "{version} {kind}");
        }
    });
}

#[test]
fn kubectl_shows_columns_and_descriptions_of_the_definitions() {
    if let Err(missing) = program("kubectl") {
        return skipped(&missing.to_string());
    }
    on(|api| {
        let tier = json!({ "apiVersion": "projectcalico.org/v3", "kind": "Tier",
                "metadata": { "name": "mine" },
            "spec": { "order": 7 } });
        api.admin().apply_object(&tier).unwrap();
        // The server updates the list of kinds and the descriptions that kubectl uses later than it
        // serves a kind.
        let kubectl = |args: &[&str]| {
            let mut said = api.kubectl(args);
            _ = await_that(PATIENCE, || {
                if said.is_err() {
                    said = api.kubectl(args);
                }
                Ok(said.is_ok())
            });
            said.unwrap()
        };
        let shown = kubectl(&["get", "tiers.projectcalico.org"]);
        let rows: Vec<Vec<&str>> = shown
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows,
            [
                vec!["NAME", "ORDER", "DEFAULTACTION", "STATUS"],
                vec!["mine", "7", "Deny"]
            ]
        );
        let explained = kubectl(&[
            "explain",
            "ippools.spec.blockSize",
            "--api-version=projectcalico.org/v3",
        ]);
        assert!(
            explained.contains("Prefix length of a block"),
            "{explained}"
        );
    });
}

fn with(mut base: Value, more: Value) -> Value {
    base.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    base
}
