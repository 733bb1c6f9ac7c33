//! The cluster's objects in the form in which an API server returns them.

use serde_json::{Value, json};

use crate::cluster::{Block, Cluster, Holder};

pub(crate) const NAMESPACES: usize = 200;

/// managedFields of a pod with one container, as an API server and the kubelet write them.
const MANAGED: &str = r#"{"f:metadata":{"f:annotations":{".":{},"f:cni.projectcalico.org/containerID":{},"f:cni.projectcalico.org/podIP":{},"f:cni.projectcalico.org/podIPs":{}},"f:generateName":{},"f:labels":{".":{},"f:app":{},"f:pod-template-hash":{},"f:team":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"5f3c1a52-6d0c-4d0e-9f57-5d2f7f1f9f11\"}":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{".":{},"f:env":{".":{},"k:{\"name\":\"REGION\"}":{".":{},"f:name":{},"f:value":{}},"k:{\"name\":\"STAGE\"}":{".":{},"f:name":{},"f:value":{}}},"f:image":{},"f:imagePullPolicy":{},"f:livenessProbe":{".":{},"f:failureThreshold":{},"f:httpGet":{".":{},"f:path":{},"f:port":{},"f:scheme":{}},"f:periodSeconds":{},"f:successThreshold":{},"f:timeoutSeconds":{}},"f:name":{},"f:ports":{".":{},"k:{\"containerPort\":8080,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{},"f:name":{},"f:protocol":{}}},"f:resources":{".":{},"f:limits":{".":{},"f:cpu":{},"f:memory":{}},"f:requests":{".":{},"f:cpu":{},"f:memory":{}}},"f:terminationMessagePath":{},"f:terminationMessagePolicy":{}}},"f:dnsPolicy":{},"f:enableServiceLinks":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{},"f:terminationGracePeriodSeconds":{}}}"#;
const MANAGED_STATUS: &str = r#"{"f:status":{"f:conditions":{"k:{\"type\":\"ContainersReady\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Initialized\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Ready\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}}},"f:containerStatuses":{},"f:hostIP":{},"f:hostIPs":{},"f:phase":{},"f:podIP":{},"f:podIPs":{".":{},"k:{\"ip\":\"10.0.0.1\"}":{".":{},"f:ip":{}}},"f:startTime":{}}}"#;

pub(crate) fn namespace(pod: usize) -> String {
    format!("team-{:03}", pod % NAMESPACES)
}

/// Returns the name of a pod, as a Deployment generates it.
pub(crate) fn pod_name(pod: usize) -> String {
    format!(
        "service-{:04}-{:08x}-{:05x}",
        pod % 3000,
        (pod as u32).wrapping_mul(2_654_435_761),
        pod
    )
}

pub(crate) fn node_name(node: usize) -> String {
    format!(
        "ip-10-{}-{}-{}.eu-central-1.compute.internal",
        node / 65_536,
        node / 256 % 256,
        node % 256
    )
}

/// Returns a UID that is unique for each kind and number.
pub(crate) fn uid(kind: u16, number: usize) -> String {
    format!(
        "{:08x}-{kind:04x}-4000-8000-{:012x}",
        (number as u32).wrapping_mul(2_654_435_761),
        number
    )
}

/// Returns a pod with the status that its node reports; `tick` makes each report different.
pub(crate) fn pod(cluster: &Cluster, pod: usize, tick: u64) -> Value {
    let place = cluster.places[pod];
    let (address, node) = (place.address.to_string(), node_name(place.node));
    let managed = |text: &str, manager: &str, subresource: &str| {
        let fields: Value = serde_json::from_str(text).expect("a constant");
        let time = "2026-11-20T08:00:00Z";
        json!({"apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields, "manager": manager,
                "operation": "Update",
            "time": time, "subresource": subresource})
    };
    let condition = |kind: &str| {
        json!({
            "lastProbeTime": null, "lastTransitionTime": "2026-11-20T08:00:00Z", "status": "True",
            "type": kind,
        })
    };
    let app = format!("service-{:04}", pod % 3000);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": pod_name(pod), "namespace": namespace(pod), "uid": uid(1, pod),
            "creationTimestamp": "2026-11-20T08:00:00Z", "generateName": format!("{app}-"),
            "labels": {
                "app": app, "pod-template-hash": format!("{:08x}", pod), "team": namespace(pod),
            },
            "annotations": {
                "cni.projectcalico.org/containerID": container(Holder::Pod(pod)),
                "cni.projectcalico.org/podIP": format!("{address}/32"),
                "cni.projectcalico.org/podIPs": format!("{address}/32"),
            },
            "ownerReferences": [{"apiVersion": "apps/v1", "blockOwnerDeletion": true,
                    "controller": true,
                "kind": "ReplicaSet", "name": app, "uid": "5f3c1a52-6d0c-4d0e-9f57-5d2f7f1f9f11"}],
            "managedFields": [
                managed(MANAGED, "kube-controller-manager", ""),
                managed(MANAGED_STATUS, "kubelet", "status"),
            ],
        },
        "spec": {
            "containers": [{
                "env": [
                    {"name": "REGION", "value": "eu-central-1"},
                    {"name": "STAGE", "value": "production"},
                ],
                "image": "registry.example.com/team/service:v1.42.0",
                "imagePullPolicy": "IfNotPresent",
                "livenessProbe": {"failureThreshold": 3,
                    "httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"},
                    "periodSeconds": 10, "successThreshold": 1, "timeoutSeconds": 1},
                "name": "main",
                "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"}],
                "resources": {
                    "limits": {"cpu": "1", "memory": "512Mi"},
                    "requests": {"cpu": "100m", "memory": "128Mi"},
                },
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            }],
            "automountServiceAccountToken": false, "dnsPolicy": "ClusterFirst",
            "enableServiceLinks": true,
            "nodeName": node, "preemptionPolicy": "PreemptLowerPriority", "priority": 0,
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler", "securityContext": {},
            "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 30,
            "tolerations": [
                {
                    "effect": "NoExecute", "key": "node.kubernetes.io/not-ready",
                    "operator": "Exists", "tolerationSeconds": 300,
                },
                {
                    "effect": "NoExecute", "key": "node.kubernetes.io/unreachable",
                    "operator": "Exists", "tolerationSeconds": 300,
                },
            ],
        },
        "status": {
            "conditions": [
                condition("Initialized"), condition("Ready"), condition("ContainersReady"),
                condition("PodScheduled"),
            ],
            "containerStatuses": [{
                "containerID": format!("containerd://{}", container(Holder::Pod(pod))),
                "image": "registry.example.com/team/service:v1.42.0",
                "imageID": "registry.example.com/team/service@sha256:8b5a7c1d2e3f40516273849506a7b8c9d0e1f2031425364758697a8b9cadbecf",
                "lastState": {}, "name": "main", "ready": true, "restartCount": tick,
                "started": true,
                "state": {"running": {"startedAt": "2026-11-20T08:00:00Z"}},
            }],
            "hostIP": "172.16.0.1", "hostIPs": [{"ip": "172.16.0.1"}], "phase": "Running",
            "podIP": address, "podIPs": [{"ip": address}], "qosClass": "Burstable",
            "startTime": "2026-11-20T08:00:00Z",
        },
    })
}

pub(crate) fn node(node: usize) -> Value {
    let name = node_name(node);
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "uid": uid(2, node), "creationTimestamp": "2026-11-20T08:00:00Z",
            "annotations": {"projectcalico.org/IPv4Address": "172.16.0.1/16"},
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux",
                "topology.kubernetes.io/zone": format!("eu-central-1{}", ["a", "b", "c"][node % 3])}},
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}],
            "images": (0..30).map(|n| json!({"names": [format!("registry.example.com/team/image-{n}@sha256:{:064x}", n)], "sizeBytes": 100_000_000 + n}))
                .collect::<Vec<_>>()},
    })
}

pub(crate) fn namespace_object(number: usize) -> Value {
    let name = namespace(number);
    json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "uid": uid(3, number)},
        "status": {"phase": "Active"},
    })
}

pub(crate) fn container(holder: Holder) -> String {
    match holder {
        Holder::Pod(pod) => format!("{:064x}", 0x00ab_cdef_0000_0000_u64 + pod as u64),
        Holder::Leaked(leaked) => format!("{:064x}", 0x00fe_dcba_0000_0000_u64 + leaked as u64),
    }
}

pub(crate) fn handle_id(holder: Holder) -> String {
    format!("k8s-pod-network.{}", container(holder))
}

pub(crate) fn block(number: usize, block: &Block) -> Value {
    let node = node_name(block.node);
    let attribute = |holder: &Holder| {
        let (namespace, pod) = match *holder {
            Holder::Pod(pod) => (namespace(pod), pod_name(pod)),
            Holder::Leaked(leaked) => (namespace(leaked), format!("gone-{leaked}")),
        };
        json!({"handle_id": handle_id(*holder), "secondary": {
            "namespace": namespace, "node": node, "pod": pod,
            "timestamp": "2026-11-20 08:00:00.000000000 +0000 UTC"}})
    };
    let sequence = 1_787_380_400_123_456_789_u64;
    let taken = block.holders.len();
    let numbers: serde_json::Map<String, Value> = (0..taken)
        .map(|n| (n.to_string(), sequence.into()))
        .collect();
    let allocations: Vec<Value> = (0..block.size)
        .map(|n| if n < taken { n.into() } else { Value::Null })
        .collect();
    json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock",
        "metadata": {
            "name": block.name(), "uid": uid(4, number),
            "creationTimestamp": "2026-11-20T08:00:00Z",
        },
        "spec": {
            "cidr": block.cidr(), "affinity": format!("host:{node}"), "allocations": allocations,
            "attributes": block.holders.iter().map(attribute).collect::<Vec<_>>(), "deleted": false,
            "sequenceNumber": sequence, "sequenceNumberForAllocation": numbers,
            "strictAffinity": false,
            "unallocated": (taken..block.size).collect::<Vec<_>>(),
        },
    })
}

pub(crate) fn affinity(number: usize, block: &Block) -> Value {
    let node = node_name(block.node);
    json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": "BlockAffinity",
        "metadata": {"name": format!("{node}-{}", block.name()), "uid": uid(5, number)},
        "spec": {
            "cidr": block.cidr(), "deleted": "false", "node": node, "state": "confirmed",
            "type": "host",
        },
    })
}

pub(crate) fn handle(number: usize, holder: Holder, block: &Block) -> Value {
    let id = handle_id(holder);
    json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMHandle",
        "metadata": {
            "name": id, "uid": uid(6, number), "creationTimestamp": "2026-11-20T08:00:00Z",
        },
        "spec": {"block": {(block.cidr()): 1}, "deleted": false, "handleID": id},
    })
}

/// Returns the singletons.
pub(crate) fn single_objects(grace: &str) -> [(&'static str, Value); 3] {
    let object = |kind: &str, name: &str, number, spec: Value| {
        json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": kind,
            "metadata": {"name": name, "uid": uid(7, number)}, "spec": spec,
        })
    };
    [
        (
            "ippools",
            object(
                "IPPool",
                "default-ipv4-ippool",
                0,
                json!({"cidr": "10.0.0.0/8", "blockSize": 26, "vxlanMode": "Never",
            "ipipMode": "Never", "natOutgoing": true, "nodeSelector": "all()",
            "allowedUses": ["Workload", "Tunnel"]}),
            ),
        ),
        (
            "clusterinformations",
            object(
                "ClusterInformation",
                "default",
                1,
                json!({"clusterGUID": "0123456789abcdef0123456789abcdef",
            "clusterType": "k8s,kdd", "datastoreReady": true}),
            ),
        ),
        (
            "kubecontrollersconfigurations",
            object(
                "KubeControllersConfiguration",
                "default",
                2,
                json!({
            "logSeverityScreen": "Info", "healthChecks": "Enabled", "prometheusMetricsPort": 9094,
            "controllers": {"node": {"leakGracePeriod": grace, "reconcilerPeriod": "5m0s",
                    "syncLabels": "Enabled",
                "hostEndpoint": {"autoCreate": "Disabled"}}}}),
            ),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Size;

    #[test]
    fn generated_pod_has_four_to_eight_kilobytes() {
        let size = Size {
            nodes: 1,
            pods: 1,
            blocks: None,
            leaked: 0,
            leaking_blocks: 0,
            leaking_size: 0,
        };
        let text = pod(&Cluster::generate(size), 0, 0).to_string();
        assert!((4_000..8_000).contains(&text.len()), "{}", text.len());
    }
}
