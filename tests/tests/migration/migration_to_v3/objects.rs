//! [`sources`]: an object of each kind in v1, and the comparison of the objects with their copies.

use std::sync::LazyLock;

use integration_tests::kubernetes::Client;
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::{MIGRATED_BY, SOURCE_REVISION};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::migration_to_v3::migrated_cluster::{at, create};

/// The namespace of policies.
pub(crate) const NAMESPACE: &str = integration_tests::controllers::NAMESPACE;

/// The annotation in which Calico's clients store the metadata of an object in v1.
pub(crate) const CALICO_METADATA: &str = "projectcalico.org/metadata";

/// An object of v1.
pub(crate) struct Source {
    /// The kind in v3.
    pub(crate) kind: &'static str,
    pub(crate) namespace: Option<&'static str>,
    pub(crate) name: &'static str,
    pub(crate) name_in_v3: &'static str,
    pub(crate) spec: Value,
    /// The JSON of Calico's annotation; null for an object without it, as kubectl creates it.
    pub(crate) metadata: Value,
}

fn global(kind: &'static str, name: &'static str, spec: Value) -> Source {
    Source {
        kind,
        namespace: None,
        name,
        name_in_v3: name,
        spec,
        metadata: Value::Null,
    }
}

fn namespaced(kind: &'static str, name: &'static str, spec: Value) -> Source {
    Source {
        namespace: Some(NAMESPACE),
        ..global(kind, name, spec)
    }
}

/// Returns an object of each kind, and of some kinds more than one. The kinds that `deploy/crds`
/// lacks have fields that no type models.
pub(crate) fn sources() -> Vec<Source> {
    let policy =
        json!({ "tier": "default", "selector": "all()", "ingress": [{ "action": "Allow" }] });
    let unknown = json!({ "future": [1, { "a": "b" }], "nested": { "future": true } });
    let controllers = json!({
        "node": {
            "leakGracePeriod": "15m0s", "syncLabels": "Enabled",
            "hostEndpoint": { "autoCreate": "Disabled" },
        },
    });
    // The name that an older Calico gave to the policy (DS-33).
    let old = Source {
        name_in_v3: "old",
        metadata: json!({ "labels": { "team": "a" } }),
        ..namespaced("NetworkPolicy", "default.old", policy.clone())
    };
    let mixed = Source {
        name: "k8s-pod-network.mixed",
        name_in_v3: "k8s-pod-network.mixed",
        ..global("IPAMHandle", "", handle("k8s-pod-network.Mixed"))
    };
    vec![
        global(
            "Tier",
            "security",
            json!({ "order": 100, "defaultAction": "Pass" }),
        ),
        global("BGPConfiguration", "default", unknown.clone()),
        global("FelixConfiguration", "default", unknown.clone()),
        global(
            "KubeControllersConfiguration",
            "default",
            json!({ "prometheusMetricsPort": 9094, "controllers": controllers }),
        ),
        global("BGPFilter", "filter", unknown.clone()),
        global("BGPPeer", "peer", unknown.clone()),
        global("IPPool", "pool4", pool("10.65.0.0/16")),
        global(
            "IPReservation",
            "routers",
            json!({ "reservedCIDRs": ["10.65.0.0/30"] }),
        ),
        global("GlobalNetworkPolicy", "everywhere", policy.clone()),
        namespaced("NetworkPolicy", "web", policy.clone()),
        old,
        global("StagedGlobalNetworkPolicy", "staged", policy.clone()),
        namespaced("StagedKubernetesNetworkPolicy", "staged", unknown.clone()),
        namespaced("StagedNetworkPolicy", "staged", policy),
        global("GlobalNetworkSet", "offices", unknown.clone()),
        global(
            "HostEndpoint",
            "uplink",
            json!({ "node": "node1", "interfaceName": "eth0" }),
        ),
        namespaced("NetworkSet", "partners", unknown.clone()),
        global("BlockAffinity", "node1-10-65-1-0-26", affinity("confirmed")),
        global("IPAMBlock", "10-65-1-0-26", block()),
        global("IPAMConfiguration", "default", ipam_settings()),
        global(
            "IPAMHandle",
            "k8s-pod-network.lower",
            handle("k8s-pod-network.lower"),
        ),
        mixed,
        global("CalicoNodeStatus", "node1", unknown),
    ]
}

pub(crate) fn pool(cidr: &str) -> Value {
    json!({
        "cidr": cidr, "blockSize": 26, "nodeSelector": "all()", "allowedUses": ["Workload"],
        "ipipMode": "Never",
        "vxlanMode": "Never",
    })
}

pub(crate) fn affinity(state: &str) -> Value {
    json!({
        "cidr": "10.65.1.0/26", "deleted": "false", "node": "node1", "state": state, "type": "host",
    })
}

pub(crate) fn handle(id: &str) -> Value {
    json!({ "block": { "10.65.1.0/26": 1 }, "deleted": false, "handleID": id })
}

/// The longest cooldown, which no test outlasts.
fn ipam_settings() -> Value {
    json!({ "strictAffinity": false, "autoAllocateBlocks": true, "ipCooldownSeconds": 1200 })
}

/// The time of the first use.
static RELEASED_AT: LazyLock<String> = LazyLock::new(|| {
    let now = OffsetDateTime::now_utc()
        .replace_nanosecond(0)
        .expect("0 is a valid number of nanoseconds");
    now.format(&Rfc3339)
        .expect("the time has a year of four digits")
});

/// Returns a block with the addresses of both handles and an address that was released, and is not
/// assigned again for a while.
fn block() -> Value {
    let owner = |pod: &str| json!({ "namespace": NAMESPACE, "node": "node1", "pod": pod });
    let attributes = json!([
        { "handle_id": "k8s-pod-network.lower", "secondary": owner("lower") },
        { "handle_id": "k8s-pod-network.Mixed", "secondary": owner("mixed") },
        { "releasedAt": *RELEASED_AT },
    ]);
    let allocations: Vec<Value> = (0..64)
        .map(|ordinal| {
            if ordinal < 3 {
                json!(ordinal)
            } else {
                Value::Null
            }
        })
        .collect();
    json!({
        "affinity": "host:node1", "allocations": allocations, "attributes": attributes,
        "cidr": "10.65.1.0/26",
        "deleted": false, "sequenceNumber": 1_787_380_400_123_456_789_u64,
        "sequenceNumberForAllocation": { "0": 6, "1": 6, "2": 7 }, "strictAffinity": false,
        "unallocated": (3..64).collect::<Vec<_>>(),
    })
}

impl Source {
    pub(crate) fn create(&self, client: &Client) {
        let annotations = match &self.metadata {
            Value::Null => json!({}),
            metadata => json!({ CALICO_METADATA: metadata.to_string() }),
        };
        create(
            client,
            &at(ApiGroup::CrdV1, self.kind, self.namespace, self.name),
            annotations,
            &self.spec,
        );
    }

    /// Asserts that v3 has a copy of the present object of v1, and that v1 stores each field of the
    /// source. The API server and kube-controllers may have added fields.
    #[track_caller]
    pub(crate) fn assert_copied(&self, client: &Client, migration: &Value) {
        let read = |group, name| {
            client
                .get(&at(group, self.kind, self.namespace, name).url_path())
                .unwrap()
                .success()
        };
        let v1 = read(ApiGroup::CrdV1, self.name);
        let v3 = read(ApiGroup::V3, self.name_in_v3);
        assert_contains(
            &v1["spec"],
            &self.spec,
            &format!("{} {}", self.kind, self.name),
        );
        for (field, value) in v1["spec"].as_object().unwrap() {
            // The mark is a text in v1 only.
            let is_mark = (self.kind, field.as_str()) == ("BlockAffinity", "deleted");
            let expected = if is_mark {
                Value::Bool(false)
            } else {
                value.clone()
            };
            assert_eq!(
                v3["spec"][field], expected,
                "{} {}: {field}",
                self.kind, self.name
            );
        }
        let annotations = &v3["metadata"]["annotations"];
        assert_eq!(
            annotations[MIGRATED_BY], migration["metadata"]["uid"],
            "{v3}"
        );
        assert_eq!(
            annotations[SOURCE_REVISION], v1["metadata"]["resourceVersion"],
            "{v3}"
        );
        assert_eq!(annotations[CALICO_METADATA], Value::Null, "{v3}");
        for (label, value) in self.metadata["labels"].as_object().into_iter().flatten() {
            assert_eq!(v3["metadata"]["labels"][label], *value, "{v3}");
        }
    }
}

/// Asserts that `stored` has each field of `source`. Lists have to be equal.
#[track_caller]
fn assert_contains(stored: &Value, source: &Value, place: &str) {
    let Some(fields) = source.as_object() else {
        return assert_eq!(stored, source, "{place}");
    };
    for (field, value) in fields {
        assert_contains(&stored[field], value, &format!("{place}: {field}"));
    }
}
