//! The definitions are published as they are, structural, and fit what upstream and we write.
//!
//! Rules in CEL need a real API server: `tests/tests/kubernetes_crds.rs`.

mod api_server;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{definitions, published};
use crate::api::{ClusterInformation, IpPool, IpReservation, Tier};
use crate::ipam::{Block, BlockAffinity, Handle, IpamConfig};
use crate::kubernetes::recordings::{GROUPS, states};
use crate::kubernetes::{ApiGroup, Request, Transcoder};
use crate::store::{Kind, Write};
use api_server::{dropped, refusals};

/// The schema of a plural.
fn schema(group: ApiGroup, plural: &str) -> Value {
    let definition = definitions(group).into_iter().find(|definition| definition["spec"]["names"]["plural"] == plural);
    definition.unwrap_or_else(|| panic!("no {plural}"))["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

#[test]
fn the_published_files_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    let mut there: Vec<String> = Vec::new();
    for group in fs::read_dir(&folder).unwrap() {
        for file in fs::read_dir(group.unwrap().path()).unwrap() {
            there.push(file.unwrap().path().strip_prefix(&folder).unwrap().display().to_string());
        }
    }
    there.sort();
    let mut made = published().unwrap();
    made.sort();
    assert_eq!(there, made.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(), "make generate");
    for (path, text) in made {
        assert!(fs::read_to_string(folder.join(&path)).unwrap() == text, "deploy/crds/{path} is old: make generate");
    }
}

/// Short names, columns and status of each kind (DS-53, INST-96).
#[test]
fn what_kubectl_shows() {
    let shown = |group| {
        let shown = definitions(group).into_iter().map(|definition| {
            let (names, version) = (&definition["spec"]["names"], &definition["spec"]["versions"][0]);
            let list = |value: &Value, key: Option<&str>| {
                let items = value.as_array().into_iter().flatten();
                items.map(|item| key.map_or(item, |key| &item[key]).as_str().unwrap().to_owned()).collect::<Vec<_>>()
            };
            let mut line = vec![names["kind"].as_str().unwrap().to_owned()];
            line.extend(list(&names["shortNames"], None));
            line.extend(list(&version["additionalPrinterColumns"], Some("name")));
            line.extend(version.pointer("/subresources/status").map(|_| "status".to_owned()));
            line.join(" ")
        });
        shown.collect::<Vec<_>>()
    };
    assert_eq!(
        shown(ApiGroup::CrdV1),
        [
            "BlockAffinity",
            "ClusterInformation",
            "IPAMBlock",
            "IPAMConfig",
            "IPAMHandle",
            "IPPool status",
            "IPReservation",
            "Tier status",
        ]
    );
    assert_eq!(
        shown(ApiGroup::V3),
        [
            "BlockAffinity affinity affinities CIDR Node Type",
            "ClusterInformation clusterinfo clusterinfos",
            "IPAMBlock CIDR Affinity ClaimTime",
            "IPAMConfiguration ipamconfig ipamconfigs StrictAffinity MaxBlocksPerHost AutoAllocateBlocks",
            "IPAMHandle ID",
            "IPPool CIDR VXLAN IPIP NAT Allocatable Age status",
            "IPReservation",
            "Tier Order DefaultAction Status status",
        ]
    );
}

/// The rules of structural schemas, and that each field says what it is.
#[test]
fn schemas_are_structural() {
    const KEYWORDS: [&str; 20] = [
        "additionalProperties",
        "default",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maximum",
        "minLength",
        "minimum",
        "nullable",
        "pattern",
        "properties",
        "required",
        "type",
        "x-kubernetes-list-type",
        "x-kubernetes-validations",
        "maxProperties",
        "minItems",
    ];
    fn check(schema: &Value, path: &str, is_field: bool) {
        let keywords = schema.as_object().unwrap();
        assert!(schema["type"].is_string(), "{path} has no type");
        for keyword in keywords.keys() {
            assert!(KEYWORDS.contains(&keyword.as_str()), "{path}: {keyword}");
        }
        assert!(!(keywords.contains_key("properties") && keywords.contains_key("additionalProperties")), "{path}");
        let description = schema["description"].as_str().unwrap_or_default();
        assert!(!is_field || path == ".metadata" || description.ends_with('.'), "{path}: {description:?}");
        assert!(!["DS-", "IPAM-", "CNI-", "](", "::"].iter().any(|mark| description.contains(mark)), "{description}");
        let properties = schema["properties"].as_object();
        for name in schema["required"].as_array().into_iter().flatten() {
            assert!(properties.unwrap().contains_key(name.as_str().unwrap()), "{path}: {name}");
        }
        properties.into_iter().flatten().for_each(|(key, field)| check(field, &format!("{path}.{key}"), true));
        for each in ["items", "additionalProperties"].iter().filter_map(|key| keywords.get(*key)) {
            check(each, &format!("{path}[]"), false);
        }
    }
    for (_, group) in GROUPS {
        for definition in definitions(group) {
            check(&definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "", true);
        }
    }
}

#[test]
fn every_recorded_object_stays_whole() {
    for (folder, group) in GROUPS {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for (at, state) in states(folder) {
            for (name, object) in &state {
                let plural = name.split('/').next().unwrap();
                if plural == "pods" {
                    continue;
                }
                *seen.entry(plural.into()).or_default() += 1;
                let schema = schema(group, plural);
                assert_eq!(refusals(&schema, object), [""; 0], "{folder}, {at}: {name}");
                assert_eq!(dropped(&schema, object), [""; 0], "{folder}, {at}: {name}");
            }
        }
        assert_eq!(seen.len(), 5, "{seen:?}");
        assert!(seen.values().all(|count| *count >= 40), "{seen:?}");
    }
}

/// What the transcoder makes of a stored value of ours is neither refused nor cut short.
fn is_kept<K: Kind>(path: &str, stored: Value) {
    let key = K::parse_path(path).unwrap();
    let value = K::decode(stored.to_string().as_bytes()).unwrap();
    for (_, group) in GROUPS {
        let write = Write::create(&key, &value).unwrap();
        let Request::Create { location, body } = Transcoder::new(group).request(&write).unwrap() else { panic!() };
        let schema = schema(group, location.resource.plural);
        assert_eq!(refusals(&schema, &body), [""; 0], "{body}");
        assert_eq!(dropped(&schema, &body), [""; 0], "{body}");
    }
}

#[test]
fn every_field_that_we_write_is_known() {
    is_kept::<Block>(
        "/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-30",
        json!({
            "cidr": "10.244.1.0/30", "affinity": "virtual:load-balancer", "affinity_claim_time": "2026-08-22T06:33:20Z",
            "allocations": [0, null, 1, null], "unallocated": [1, 3],
            "attributes": [
                {"handle_id": "h", "secondary": {"pod": "a"}, "alternateOwnerAttrs": {"pod": "b"}},
                {"releasedAt": "2026-08-22T06:33:20Z"},
            ],
            "sequenceNumber": 1_787_380_400_123_456_789_u64,
            "sequenceNumberForAllocation": {"0": 1_787_380_400_123_456_789_u64}, "deleted": true,
            "hostAffinity": "old",
        }),
    );
    is_kept::<Block>(
        "/calico/ipam/v2/assignment/ipv6/block/fd00::-122",
        json!({"cidr": "fd00::/122", "affinity": null, "allocations": [], "unallocated": [], "attributes": null}),
    );
    is_kept::<BlockAffinity>(
        "/calico/ipam/v2/host/node-1/ipv4/block/10.244.1.0-29",
        json!({"state": "pendingDeletion", "deleted": true}),
    );
    is_kept::<BlockAffinity>("/calico/ipam/v2/virtual/lb/ipv4/block/10.244.1.0-29", json!({}));
    is_kept::<Handle>("/calico/ipam/v2/handle/Net.C1", json!({"block": {"10.244.1.0/29": 2}, "deleted": true}));
    is_kept::<IpamConfig>(
        "/calico/ipam/v2/config",
        json!({
            "strict_affinity": true, "auto_allocate_blocks": true, "maxBlocksPerHost": 20,
            "kubeVirtVMAddressPersistence": "Enabled", "ipCooldownSeconds": 1200,
        }),
    );
    is_kept::<IpamConfig>("/calico/ipam/v2/config", json!({}));
    is_kept::<IpPool>(
        "/calico/resources/v3/projectcalico.org/ippools/all",
        json!({
            "spec": {
                "cidr": "10.244.0.0/16", "vxlanMode": "CrossSubnet", "ipipMode": "Never", "natOutgoing": true,
                "disabled": true, "disableBGPExport": true, "blockSize": 26, "nodeSelector": "all()",
                "namespaceSelector": "has(a)", "allowedUses": ["Workload"], "assignmentMode": "Manual",
            },
        }),
    );
    is_kept::<IpReservation>(
        "/calico/resources/v3/projectcalico.org/ipreservations/few",
        json!({"spec": {"reservedCIDRs": ["10.244.0.0/30", "10.244.0.9/32"]}}),
    );
    is_kept::<ClusterInformation>(
        "/calico/resources/v3/projectcalico.org/clusterinformations/default",
        json!({
            "spec": {
                "clusterGUID": "3fa2c0de9b7746d5a1e0c4b86f21d90a", "clusterType": "k8s,kdd", "calicoVersion": "v3.33.0",
                "datastoreReady": false, "variant": "Calico",
            },
        }),
    );
    is_kept::<Tier>(
        "/calico/resources/v3/projectcalico.org/tiers/default",
        json!({"spec": {"order": 1_000_000, "defaultAction": "Deny"}}),
    );
}

/// The first refusal, or the first field that is dropped.
fn answer(group: ApiGroup, plural: &str, mut object: Value) -> String {
    object["metadata"] = json!({"name": "x", "unheard": "of"});
    let schema = schema(group, plural);
    let mut answers = refusals(&schema, &object);
    answers.extend(dropped(&schema, &object).into_iter().map(|path| format!("{path}: dropped")));
    answers.into_iter().next().unwrap_or_default()
}

/// What both groups refuse (DS-55, DS-95, DS-96, DS-97, DS-107).
#[test]
fn what_upstream_refuses_is_refused() {
    let pool = |more: Value| with(json!({"cidr": "10.0.0.0/16"}), more);
    let block = |more: Value| {
        let base = json!({"cidr": "10.0.0.0/30", "allocations": [null], "unallocated": [0], "attributes": []});
        with(with(base, json!({"strictAffinity": false})), more)
    };
    let handle = |more: Value| with(json!({"handleID": "h", "block": {}}), more);
    let cases = [
        ("ippools", json!({}), ".spec: required"),
        ("ippools", json!({"cidr": "10.0.0.0"}), ".spec.cidr: format"),
        ("ippools", json!({"cidr": format!("{}/64", "fd00:".repeat(10))}), ".spec.cidr: format"),
        ("ippools", pool(json!({"vxlanMode": "always"})), ".spec.vxlanMode: enum"),
        ("ippools", pool(json!({"ipipMode": ""})), ".spec.ipipMode: enum"),
        ("ippools", pool(json!({"blockSize": 129})), ".spec.blockSize: maximum"),
        ("ippools", pool(json!({"blockSize": -1})), ".spec.blockSize: minimum"),
        ("ippools", pool(json!({"nodeSelector": "a".repeat(1025)})), ".spec.nodeSelector: maxLength"),
        ("ippools", pool(json!({"namespaceSelector": "a".repeat(1025)})), ".spec.namespaceSelector: maxLength"),
        ("ippools", pool(json!({"allowedUses": ["Gateway"]})), ".spec.allowedUses[0]: enum"),
        ("ippools", pool(json!({"allowedUses": ["Tunnel", "Tunnel"]})), ".spec.allowedUses: x-kubernetes-list-type"),
        ("ippools", pool(json!({"assignmentMode": "OnDemand"})), ".spec.assignmentMode: enum"),
        ("ippools", pool(json!({"newer": 1})), ".spec.newer: dropped"),
        ("ipreservations", json!({"reservedCIDRs": ["10.0.0.1"]}), ".spec.reservedCIDRs[0]: format"),
        ("ipreservations", json!({"reservedCIDRs": ["::/8", "::/8"]}), ".spec.reservedCIDRs: x-kubernetes-list-type"),
        ("tiers", json!({"defaultAction": "Allow"}), ".spec.defaultAction: enum"),
        ("tiers", json!({"order": "1"}), ".spec.order: type"),
        ("clusterinformations", json!({"datastoreReady": "true"}), ".spec.datastoreReady: type"),
        ("ipamblocks", block(json!({"attributes": null})), ".spec: required"),
        ("ipamblocks", block(json!({"unallocated": null})), ".spec: required"),
        ("ipamblocks", block(json!({"strictAffinity": null})), ".spec: required"),
        ("ipamblocks", block(json!({"unallocated": [null]})), ".spec.unallocated[0]: type"),
        ("ipamblocks", block(json!({"affinityClaimTime": "today"})), ".spec.affinityClaimTime: format"),
        ("ipamblocks", block(json!({"sequenceNumber": "5"})), ".spec.sequenceNumber: type"),
        ("ipamblocks", block(json!({"hostAffinity": "n"})), ".spec.hostAffinity: dropped"),
        ("ipamblocks", block(json!({"attributes": [{"tertiary": {}}]})), ".spec.attributes[0].tertiary: dropped"),
        ("ipamhandles", handle(json!({"handleID": null})), ".spec: required"),
        ("ipamhandles", handle(json!({"block": {"10.0.0.0/30": "1"}})), ".spec.block.10.0.0.0/30: type"),
        ("ipamhandles", handle(json!({"deleted": "false"})), ".spec.deleted: type"),
    ];
    for (plural, spec, expected) in cases {
        for (_, group) in GROUPS {
            assert_eq!(answer(group, plural, json!({"spec": spec})), expected, "{plural} {spec}");
        }
    }
    for spec in [pool(json!({})), pool(json!({"blockSize": 0, "allowedUses": []}))] {
        assert_eq!(answer(ApiGroup::CrdV1, "ippools", json!({"spec": spec})), "");
    }
}

/// Where the groups differ (DS-54).
#[test]
fn the_groups_refuse_different_things() {
    let (v1, v3) = (ApiGroup::CrdV1, ApiGroup::V3);
    let block = |affinity: &str, cidr: &str| {
        let lists = json!({"allocations": [], "unallocated": [], "attributes": [], "strictAffinity": false});
        json!({"spec": with(lists, json!({"affinity": affinity, "cidr": cidr}))})
    };
    let affinity =
        |more: Value| json!({"spec": with(json!({"state": "confirmed", "node": "n", "cidr": "10.0.0.0/30"}), more)});
    for (plural, object, in_v1, in_v3) in [
        ("ipamblocks", block("node-1", "10.0.0.0/30"), "", ".spec.affinity: pattern"),
        ("ipamblocks", block("host:node-1", "10.0.0.0"), "", ".spec.cidr: format"),
        ("blockaffinities", affinity(json!({"deleted": "false"})), "", ".spec.deleted: type"),
        ("blockaffinities", affinity(json!({"deleted": false})), ".spec.deleted: type", ""),
        ("blockaffinities", affinity(json!({})), ".spec: required", ""),
        ("tiers", json!({}), "", ": required"),
    ] {
        assert_eq!(answer(v1, plural, object.clone()), in_v1, "{plural} {object}");
        assert_eq!(answer(v3, plural, object.clone()), in_v3, "{plural} {object}");
    }
    for (state, cidr, expected) in
        [("", "10.0.0.0/30", ""), ("claimed", "10.0.0.0/30", ".spec.state: enum"), ("", "all", ".spec.cidr: format")]
    {
        let object = affinity(json!({"state": state, "cidr": cidr, "deleted": true}));
        assert_eq!(answer(v3, "blockaffinities", object), expected);
        let object = affinity(json!({"state": state, "cidr": cidr, "deleted": "true"}));
        assert_eq!(answer(v1, "blockaffinities", object), "");
    }
    let config = |more: Value| json!({"spec": with(json!({"strictAffinity": true, "autoAllocateBlocks": true}), more)});
    let most = |n: u64| config(json!({"maxBlocksPerHost": n}));
    assert_eq!(answer(v1, "ipamconfigs", most(2_147_483_647)), "");
    assert_eq!(answer(v1, "ipamconfigs", most(2_147_483_648)), ".spec.maxBlocksPerHost: maximum");
    assert_eq!(answer(v3, "ipamconfigurations", most(1_000_000)), "");
    assert_eq!(answer(v3, "ipamconfigurations", most(1_000_001)), ".spec.maxBlocksPerHost: maximum");
    assert_eq!(answer(v1, "ipamconfigs", json!({"spec": {"strictAffinity": true}})), ".spec: required");
    assert_eq!(answer(v3, "ipamconfigurations", json!({"spec": {}})), "");
    for (group, plural) in [(v1, "ipamconfigs"), (v3, "ipamconfigurations")] {
        let cooldown = |seconds: i64| answer(group, plural, config(json!({"ipCooldownSeconds": seconds})));
        assert_eq!(
            [-1, 0, 1200, 1201].map(cooldown),
            [".spec.ipCooldownSeconds: minimum", "", "", ".spec.ipCooldownSeconds: maximum",]
        );
        let mode = config(json!({"kubeVirtVMAddressPersistence": "Maybe"}));
        assert_eq!(answer(group, plural, mode), ".spec.kubeVirtVMAddressPersistence: enum");
    }
}

fn with(mut base: Value, more: Value) -> Value {
    base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    base
}
