//! The definitions accept the objects that upstream and we write, and keep all their fields.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::api_server::{dropped, refusals};
use super::schema;
use crate::api::{
    ClusterInformation, HostEndpoint, IpPool, IpReservation, KubeControllersConfiguration,
    NetworkPolicy, StagedGlobalNetworkPolicy, Tier,
};
use crate::ipam::{Block, BlockAffinity, Handle, IpamConfig};
use crate::kubernetes::golden::{GROUPS, states};
use crate::kubernetes::{Codec, Request};
use crate::store::{Kind, Write};

#[test]
fn every_recorded_object_is_accepted_unpruned_by_the_schema() {
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

fn is_kept<K: Kind>(path: &str, stored: Value) {
    let key = K::parse_path(path).unwrap();
    let value = K::decode(stored.to_string().as_bytes()).unwrap();
    for (_, group) in GROUPS {
        let write = Write::create(&key, &value).unwrap();
        let Request::Create { location, body } = Codec::new(group).request(&write).unwrap() else {
            panic!()
        };
        let schema = schema(group, location.resource.plural);
        assert_eq!(refusals(&schema, &body), [""; 0], "{body}");
        assert_eq!(dropped(&schema, &body), [""; 0], "{body}");
    }
}

#[test]
fn every_field_written_by_this_code_is_in_the_schema() {
    is_kept::<Block>(
        "/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-30",
        json!({
            "cidr": "10.244.1.0/30", "affinity": "virtual:load-balancer",
            "affinity_claim_time": "2026-08-22T06:33:20Z",
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
        json!({
            "cidr": "fd00::/122", "affinity": null, "allocations": [], "unallocated": [],
            "attributes": null,
        }),
    );
    is_kept::<BlockAffinity>(
        "/calico/ipam/v2/host/node-1/ipv4/block/10.244.1.0-29",
        json!({"state": "pendingDeletion", "deleted": true}),
    );
    is_kept::<BlockAffinity>(
        "/calico/ipam/v2/virtual/lb/ipv4/block/10.244.1.0-29",
        json!({}),
    );
    is_kept::<Handle>(
        "/calico/ipam/v2/handle/Net.C1",
        json!({"block": {"10.244.1.0/29": 2}, "deleted": true}),
    );
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
                "cidr": "10.244.0.0/16", "vxlanMode": "CrossSubnet", "ipipMode": "Never",
                "natOutgoing": true,
                "disabled": true, "disableBGPExport": true, "blockSize": 26,
                "nodeSelector": "all()",
                "namespaceSelector": "has(a)", "allowedUses": ["Workload"],
                "assignmentMode": "Manual",
            },
        }),
    );
    is_kept::<IpReservation>(
        "/calico/resources/v3/projectcalico.org/ipreservations/few",
        json!({"spec": {"reservedCIDRs": ["10.244.0.0/30", "10.244.0.9/32"]}}),
    );
    is_kept::<HostEndpoint>(
        "/calico/resources/v3/projectcalico.org/hostendpoints/node-1-auto-hep",
        json!({
            "spec": {
                "node": "node-1", "interfaceName": "*", "expectedIPs": ["10.0.0.1", "fd00::1"],
                "profiles": ["p"],
                "ports": [
                    {"name": "ssh", "protocol": "TCP", "port": 22},
                    {"name": "s", "protocol": 6, "port": 23},
                ],
            },
        }),
    );
    is_kept::<ClusterInformation>(
        "/calico/resources/v3/projectcalico.org/clusterinformations/default",
        json!({
            "spec": {
                "clusterGUID": "3fa2c0de9b7746d5a1e0c4b86f21d90a", "clusterType": "k8s,kdd",
                "calicoVersion": "v3.33.0",
                "datastoreReady": false, "variant": "Calico",
            },
        }),
    );
    let controllers = json!({
        "node": {
            "reconcilerPeriod": "5m0s", "syncLabels": "Enabled", "leakGracePeriod": "15m0s",
            "hostEndpoint": {
                "autoCreate": "Enabled", "createDefaultHostEndpoint": "Disabled",
                "templates": [{
                    "generateName": "web", "interfaceCIDRs": ["10.0.0.0/8"],
                    "interfacePattern": "eth.*",
                    "labels": {"a": "b"}, "annotations": {"c": "d"}, "nodeSelector": "all()",
                }],
            },
        },
        "policy": {"reconcilerPeriod": "5m0s"}, "workloadEndpoint": {}, "serviceAccount": {},
        "namespace": {},
        "loadBalancer": {"assignIPs": "RequestedServicesOnly"},
        "migration": {"policyNameMigrator": "Disabled"},
    });
    let spec = json!({
        "logSeverityScreen": "Info", "healthChecks": "Disabled", "etcdV3CompactionPeriod": "10m0s",
        "prometheusMetricsPort": 9094, "debugProfilePort": 9095, "controllers": controllers,
    });
    is_kept::<KubeControllersConfiguration>(
        "/calico/resources/v3/projectcalico.org/kubecontrollersconfigurations/default",
        json!({
            "spec": spec,
            "status": {"runningConfig": spec, "environmentVars": {"LOG_LEVEL": "info"}},
        }),
    );
    is_kept::<Tier>(
        "/calico/resources/v3/projectcalico.org/tiers/default",
        json!({"spec": {"order": 1_000_000, "defaultAction": "Deny"}}),
    );
    is_kept::<NetworkPolicy>(
        "/calico/resources/v3/projectcalico.org/networkpolicies/ns/allow",
        json!({"metadata": {"name": "allow", "namespace": "ns"}, "spec": policy()}),
    );
    let mut staged = policy();
    staged.as_object_mut().unwrap().extend(
        json!({"doNotTrack": true, "preDNAT": false, "applyOnForward": true,
                "namespaceSelector": "all()",
            "stagedAction": "Set"})
        .as_object()
        .unwrap()
        .clone(),
    );
    is_kept::<StagedGlobalNetworkPolicy>(
        "/calico/resources/v3/projectcalico.org/stagedglobalnetworkpolicies/allow",
        json!({"metadata": {"name": "allow"}, "spec": staged}),
    );
}

fn policy() -> Value {
    let side = json!({
        "nets": ["10.0.0.0/8"], "selector": "a == 'b'", "namespaceSelector": "all()",
        "services": {"name": "s", "namespace": "n"}, "ports": [80, "81:82", "http"],
        "notNets": ["10.1.0.0/16"],
        "notSelector": "has(c)", "notPorts": [443],
        "serviceAccounts": {"names": ["x"], "selector": "all()"},
    });
    json!({
        "tier": "default", "order": 12.5, "selector": "all()", "types": ["Ingress", "Egress"],
        "serviceAccountSelector": "all()", "performanceHints": ["AssumeNeededOnEveryNode"],
        "ingress": [
            {
                "action": "Allow", "ipVersion": 4, "protocol": "TCP",
                "icmp": {"type": 8, "code": 0},
                "notProtocol": 17, "notICMP": {"type": 0}, "source": side, "destination": side,
                "http": {"methods": ["GET"], "paths": [{"exact": "/a"}, {"prefix": "/b"}]},
                "metadata": {"annotations": {"a": "b"}},
            },
        ],
        "egress": [{"action": "Deny"}],
    })
}
