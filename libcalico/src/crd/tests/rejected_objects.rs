//! Tests of the objects that the definitions reject, and of the fields that they drop.

use serde_json::{Value, json};

use super::api_server::{dropped, refusals};
use super::schema;
use crate::kubernetes::ApiGroup;
use crate::kubernetes::golden::GROUPS;

/// Returns the first rejection or else the first dropped field.
fn answer(group: ApiGroup, plural: &str, mut object: Value) -> String {
    object["metadata"] = json!({"name": "x", "unheard": "of"});
    let schema = schema(group, plural);
    let mut answers = refusals(&schema, &object);
    answers.extend(
        dropped(&schema, &object)
            .into_iter()
            .map(|path| format!("{path}: dropped")),
    );
    answers.into_iter().next().unwrap_or_default()
}

/// Objects to which both groups respond alike, mostly by a rejection (DS-55).
#[test]
fn objects_rejected_by_upstreams_schema_are_rejected() {
    let pool = |more: Value| with(json!({"cidr": "10.0.0.0/16"}), more);
    let block = |more: Value| {
        let base = json!({
            "cidr": "10.0.0.0/30", "allocations": [null], "unallocated": [0], "attributes": [],
        });
        with(with(base, json!({"strictAffinity": false})), more)
    };
    let handle = |more: Value| with(json!({"handleID": "h", "block": {}}), more);
    let controllers = |more: Value| json!({"controllers": more});
    let template =
        |more: Value| controllers(json!({"node": {"hostEndpoint": {"templates": [more]}}}));
    let cases = [
        (
            "kubecontrollersconfigurations",
            json!({}),
            ".spec: required",
        ),
        ("kubecontrollersconfigurations", controllers(json!({})), ""),
        (
            "kubecontrollersconfigurations",
            with(
                controllers(json!({})),
                json!({"prometheusMetricsPort": 65536}),
            ),
            ".spec.prometheusMetricsPort: maximum",
        ),
        (
            "kubecontrollersconfigurations",
            with(
                controllers(json!({})),
                json!({"logSeverityScreen": "Trace"}),
            ),
            ".spec.logSeverityScreen: enum",
        ),
        (
            "kubecontrollersconfigurations",
            template(json!({"generateName": "n".repeat(254)})),
            ".spec.controllers.node.hostEndpoint.templates[0].generateName: maxLength",
        ),
        (
            "kubecontrollersconfigurations",
            controllers(json!({"loadBalancer": {"assignIPs": "Some"}})),
            ".spec.controllers.loadBalancer.assignIPs: enum",
        ),
        ("ippools", json!({}), ".spec: required"),
        ("ippools", json!({"cidr": "10.0.0.0"}), ".spec.cidr: format"),
        (
            "ippools",
            json!({"cidr": format!("{}/64", "fd00:".repeat(10))}),
            ".spec.cidr: format",
        ),
        (
            "ippools",
            pool(json!({"vxlanMode": "always"})),
            ".spec.vxlanMode: enum",
        ),
        (
            "ippools",
            pool(json!({"ipipMode": ""})),
            ".spec.ipipMode: enum",
        ),
        (
            "ippools",
            pool(json!({"blockSize": 129})),
            ".spec.blockSize: maximum",
        ),
        (
            "ippools",
            pool(json!({"blockSize": -1})),
            ".spec.blockSize: minimum",
        ),
        (
            "ippools",
            pool(json!({"nodeSelector": "a".repeat(1025)})),
            ".spec.nodeSelector: maxLength",
        ),
        (
            "ippools",
            pool(json!({"namespaceSelector": "a".repeat(1025)})),
            ".spec.namespaceSelector: maxLength",
        ),
        (
            "ippools",
            pool(json!({"allowedUses": ["Gateway"]})),
            ".spec.allowedUses[0]: enum",
        ),
        (
            "ippools",
            pool(json!({"allowedUses": ["Tunnel", "Tunnel"]})),
            ".spec.allowedUses: x-kubernetes-list-type",
        ),
        (
            "ippools",
            pool(json!({"assignmentMode": "OnDemand"})),
            ".spec.assignmentMode: enum",
        ),
        ("ippools", pool(json!({"newer": 1})), ".spec.newer: dropped"),
        (
            "ipreservations",
            json!({"reservedCIDRs": ["10.0.0.1"]}),
            ".spec.reservedCIDRs[0]: format",
        ),
        (
            "ipreservations",
            json!({"reservedCIDRs": ["::/8", "::/8"]}),
            ".spec.reservedCIDRs: x-kubernetes-list-type",
        ),
        (
            "hostendpoints",
            json!({"expectedIPs": ["10.0.0.1", "10.0.0.1"]}),
            ".spec.expectedIPs: x-kubernetes-list-type",
        ),
        (
            "hostendpoints",
            json!({"interfaceName": "sixteen.letters."}),
            ".spec.interfaceName: maxLength",
        ),
        (
            "hostendpoints",
            json!({"ports": [{"name": "a", "protocol": 6}]}),
            ".spec.ports[0]: required",
        ),
        (
            "hostendpoints",
            json!({"ports": [{"name": "a", "protocol": 6, "port": 0}]}),
            ".spec.ports[0].port: minimum",
        ),
        (
            "tiers",
            json!({"defaultAction": "Allow"}),
            ".spec.defaultAction: enum",
        ),
        ("tiers", json!({"order": "1"}), ".spec.order: type"),
        (
            "clusterinformations",
            json!({"datastoreReady": "true"}),
            ".spec.datastoreReady: type",
        ),
        (
            "ipamblocks",
            block(json!({"attributes": null})),
            ".spec: required",
        ),
        (
            "ipamblocks",
            block(json!({"unallocated": null})),
            ".spec: required",
        ),
        (
            "ipamblocks",
            block(json!({"strictAffinity": null})),
            ".spec: required",
        ),
        (
            "ipamblocks",
            block(json!({"unallocated": [null]})),
            ".spec.unallocated[0]: type",
        ),
        (
            "ipamblocks",
            block(json!({"affinityClaimTime": "today"})),
            ".spec.affinityClaimTime: format",
        ),
        (
            "ipamblocks",
            block(json!({"sequenceNumber": "5"})),
            ".spec.sequenceNumber: type",
        ),
        (
            "ipamblocks",
            block(json!({"hostAffinity": "n"})),
            ".spec.hostAffinity: dropped",
        ),
        (
            "ipamblocks",
            block(json!({"attributes": [{"tertiary": {}}]})),
            ".spec.attributes[0].tertiary: dropped",
        ),
        (
            "ipamhandles",
            handle(json!({"handleID": null})),
            ".spec: required",
        ),
        (
            "ipamhandles",
            handle(json!({"block": {"10.0.0.0/30": "1"}})),
            ".spec.block.10.0.0.0/30: type",
        ),
        (
            "ipamhandles",
            handle(json!({"deleted": "false"})),
            ".spec.deleted: type",
        ),
    ];
    for (plural, spec, expected) in cases {
        for (_, group) in GROUPS {
            assert_eq!(
                answer(group, plural, json!({"spec": spec})),
                expected,
                "{plural} {spec}"
            );
        }
    }
    for spec in [
        pool(json!({})),
        pool(json!({"blockSize": 0, "allowedUses": []})),
    ] {
        assert_eq!(
            answer(ApiGroup::CrdV1, "ippools", json!({"spec": spec})),
            ""
        );
    }
}

/// Upstream's definitions accept any text as a duration, but upstream's kube-controllers cannot
/// read an object with an invalid duration.
#[test]
fn unreadable_durations_are_rejected_by_the_schema() {
    for (_, group) in GROUPS {
        for (text, refusal) in [
            ("15", "pattern"),
            ("10 m", "pattern"),
            ("", "pattern"),
            ("1h.5m", ""),
            ("0", ""),
            ("-7µs", ""),
        ] {
            let refused = |path: &str| {
                if refusal.is_empty() {
                    String::new()
                } else {
                    format!(".spec.{path}: {refusal}")
                }
            };
            let node = json!({"controllers": {"node": {"leakGracePeriod": text}}});
            let namespace = json!({"controllers": {"namespace": {"reconcilerPeriod": text}}});
            let compaction = json!({"controllers": {}, "etcdV3CompactionPeriod": text});
            for (spec, path) in [
                (node, "controllers.node.leakGracePeriod"),
                (namespace, "controllers.namespace.reconcilerPeriod"),
                (compaction, "etcdV3CompactionPeriod"),
            ] {
                assert_eq!(
                    answer(
                        group,
                        "kubecontrollersconfigurations",
                        json!({"spec": spec})
                    ),
                    refused(path),
                    "{text}"
                );
            }
        }
    }
}

/// The differences between the groups (DS-54).
#[test]
fn differences_between_the_group_schemas_match_upstreams() {
    let (v1, v3) = (ApiGroup::CrdV1, ApiGroup::V3);
    let block = |affinity: &str, cidr: &str| {
        let lists = json!({
            "allocations": [], "unallocated": [], "attributes": [], "strictAffinity": false,
        });
        json!({"spec": with(lists, json!({"affinity": affinity, "cidr": cidr}))})
    };
    let affinity = |more: Value| {
        json!({
            "spec": with(json!({"state": "confirmed", "node": "n", "cidr": "10.0.0.0/30"}), more)
        })
    };
    for (plural, object, in_v1, in_v3) in [
        (
            "ipamblocks",
            block("node-1", "10.0.0.0/30"),
            "",
            ".spec.affinity: pattern",
        ),
        (
            "ipamblocks",
            block("host:node-1", "10.0.0.0"),
            "",
            ".spec.cidr: format",
        ),
        (
            "blockaffinities",
            affinity(json!({"deleted": "false"})),
            "",
            ".spec.deleted: type",
        ),
        (
            "blockaffinities",
            affinity(json!({"deleted": false})),
            ".spec.deleted: type",
            "",
        ),
        (
            "blockaffinities",
            affinity(json!({})),
            ".spec: required",
            "",
        ),
        ("tiers", json!({}), "", ": required"),
    ] {
        assert_eq!(
            answer(v1, plural, object.clone()),
            in_v1,
            "{plural} {object}"
        );
        assert_eq!(
            answer(v3, plural, object.clone()),
            in_v3,
            "{plural} {object}"
        );
    }
    for (state, cidr, expected) in [
        ("", "10.0.0.0/30", ""),
        ("claimed", "10.0.0.0/30", ".spec.state: enum"),
        ("", "all", ".spec.cidr: format"),
    ] {
        let object = affinity(json!({"state": state, "cidr": cidr, "deleted": true}));
        assert_eq!(answer(v3, "blockaffinities", object), expected);
        let object = affinity(json!({"state": state, "cidr": cidr, "deleted": "true"}));
        assert_eq!(answer(v1, "blockaffinities", object), "");
    }
    let config = |more: Value| {
        json!({
            "spec": with(json!({"strictAffinity": true, "autoAllocateBlocks": true}), more)
        })
    };
    let most = |n: u64| config(json!({"maxBlocksPerHost": n}));
    assert_eq!(answer(v1, "ipamconfigs", most(2_147_483_647)), "");
    assert_eq!(
        answer(v1, "ipamconfigs", most(2_147_483_648)),
        ".spec.maxBlocksPerHost: maximum"
    );
    assert_eq!(answer(v3, "ipamconfigurations", most(1_000_000)), "");
    assert_eq!(
        answer(v3, "ipamconfigurations", most(1_000_001)),
        ".spec.maxBlocksPerHost: maximum"
    );
    assert_eq!(
        answer(v1, "ipamconfigs", json!({"spec": {"strictAffinity": true}})),
        ".spec: required"
    );
    assert_eq!(answer(v3, "ipamconfigurations", json!({"spec": {}})), "");
    for (group, plural) in [(v1, "ipamconfigs"), (v3, "ipamconfigurations")] {
        let cooldown =
            |seconds: i64| answer(group, plural, config(json!({"ipCooldownSeconds": seconds})));
        assert_eq!(
            [-1, 0, 1200, 1201].map(cooldown),
            [
                ".spec.ipCooldownSeconds: minimum",
                "",
                "",
                ".spec.ipCooldownSeconds: maximum",
            ]
        );
        let mode = config(json!({"kubeVirtVMAddressPersistence": "Maybe"}));
        assert_eq!(
            answer(group, plural, mode),
            ".spec.kubeVirtVMAddressPersistence: enum"
        );
    }
}

fn with(mut base: Value, more: Value) -> Value {
    base.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    base
}
