use serde_json::json;

use super::*;
use crate::kubernetes::{POD_IP, POD_IPS};

fn pod(more: Value) -> Pod {
    let mut pod = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "4711"},
        "spec": {"nodeName": "n"},
        "status": {"phase": "Running"},
    });
    for (part, fields) in more.as_object().unwrap() {
        pod[part]
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
    }
    serde_json::from_value(pod).unwrap()
}

fn annotated(annotations: Value) -> Pod {
    pod(json!({
        "metadata": {"annotations": annotations},
        "status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
    }))
}

fn endpoint(pod: &Pod) -> WorkloadEndpoint {
    let found = endpoint_of_pod(pod, "cali").unwrap();
    assert_eq!(found.problems, []);
    found.endpoint
}

#[test]
fn endpoint_derivation_matches_upstreams_vector() {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {
            "name": "web-0", "generateName": "web-", "namespace": "default",
            "uid": "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7", "resourceVersion": "4711",
            "creationTimestamp": "2026-08-22T06:33:20Z", "labels": {"app": "web"},
            "annotations": {
                "cni.projectcalico.org/containerID": "9c1e5b7d",
                "cni.projectcalico.org/podIP": "10.244.1.3/32",
                "cni.projectcalico.org/podIPs": "10.244.1.3/32", "other": "x",
            },
        },
        "spec": {
            "nodeName": "node-1", "serviceAccountName": "default",
            "containers": [{"image": "x", "ports": [
                {"name": "http", "containerPort": 8080, "protocol": "TCP"}, {"containerPort": 9090},
            ]}],
        },
    }))
    .unwrap();
    assert_eq!(
        serde_json::to_value(endpoint(&pod)).unwrap(),
        json!({
            "apiVersion": "projectcalico.org/v3", "kind": "WorkloadEndpoint",
            "metadata": {
                "creationTimestamp": "2026-08-22T06:33:20Z", "generateName": "web-",
                "labels": {"app": "web", "projectcalico.org/namespace": "default",
                    "projectcalico.org/orchestrator": "k8s",
                    "projectcalico.org/serviceaccount": "default"},
                "name": "node--1-k8s-web--0-eth0", "namespace": "default",
                "resourceVersion": "4711",
                "uid": "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7",
            },
            "spec": {
                "containerID": "9c1e5b7d", "endpoint": "eth0", "interfaceName": "cali0d7763386da",
                "ipNetworks": ["10.244.1.3/32"], "node": "node-1", "orchestrator": "k8s",
                "pod": "web-0",
                "ports": [{
                    "hostIP": "", "hostPort": 0, "name": "http", "port": 8080, "protocol": "TCP",
                }],
                "profiles": ["kns.default", "ksa.default.default"], "serviceAccountName": "default",
            },
        })
    );
}

#[test]
fn unscheduled_and_host_network_pods_have_no_endpoint() {
    assert_eq!(
        endpoint_of_pod(&pod(json!({"spec": {"nodeName": ""}})), "cali"),
        None
    );
    assert_eq!(
        endpoint_of_pod(&pod(json!({"spec": {"hostNetwork": true}})), "cali"),
        None
    );
}

/// The sources of addresses, from the last to the first (DS-77).
#[test]
fn first_nonempty_source_of_pod_addresses_wins() {
    let annotations = json!({"vpc.amazonaws.com/pod-ips": "10.0.0.5,fd00::5"});
    let mut pod = pod(json!({"metadata": {"annotations": annotations}}));
    assert_eq!(
        endpoint(&pod).spec.ip_networks,
        ["10.0.0.5/32", "fd00::5/128"]
    );
    for (key, value, expected) in [
        (POD_IP, "10.0.0.4/32", vec!["10.0.0.4/32"]),
        (
            POD_IPS,
            "10.0.0.3,fd00::3",
            vec!["10.0.0.3/32", "fd00::3/128"],
        ),
    ] {
        pod.metadata.annotations.insert(key.into(), value.into());
        assert_eq!(endpoint(&pod).spec.ip_networks, expected);
    }
    pod.status.pod_ip = "10.0.0.2".into();
    assert_eq!(endpoint(&pod).spec.ip_networks, ["10.0.0.2/32"]);
    pod.status.pod_ips = vec![super::super::PodIp {
        ip: "10.0.0.1".into(),
    }];
    assert_eq!(endpoint(&pod).spec.ip_networks, ["10.0.0.1/32"]);
}

/// Terminated pods and pods whose addresses were released (DS-78).
#[test]
fn finished_pod_has_no_addresses() {
    let mut pod = pod(json!({
        "metadata": {"annotations": {POD_IP: ""}}, "status": {"podIPs": [{"ip": "10.0.0.1"}]},
    }));
    assert_eq!(
        endpoint(&pod).spec.ip_networks,
        ["10.0.0.1/32"],
        "it is not being deleted"
    );
    pod.metadata.deletion_timestamp = Some("2026-08-22T06:33:20Z".into());
    assert!(endpoint(&pod).spec.ip_networks.is_empty());
    pod.metadata
        .annotations
        .insert(POD_IP.into(), "10.0.0.1/32".into());
    assert_eq!(
        endpoint(&pod).spec.ip_networks,
        ["10.0.0.1/32"],
        "it keeps them through its grace period"
    );
    for phase in ["Failed", "Succeeded", "Completed"] {
        pod.status.phase = phase.into();
        assert!(endpoint(&pod).spec.ip_networks.is_empty(), "{phase}");
    }
}

#[test]
fn pod_annotations_set_endpoint_fields() {
    let pod = annotated(json!({
        FLOATING_IPS: r#"["1.2.3.4","fd01::1"]"#,
        ALLOWED_SOURCE_PREFIXES: r#"["8.8.8.8/32","1.1.1.7/24"]"#,
        NETWORK_STATUS: "[]", "kubernetes.io/egress-bandwidth": "1M",
    }));
    let endpoint = endpoint(&pod);
    let nat = |internal: &str, external: &str| IpNat {
        internal_ip: internal.into(),
        external_ip: external.into(),
        ..IpNat::default()
    };
    assert_eq!(
        endpoint.spec.ip_nats,
        [nat("10.0.0.1", "1.2.3.4"), nat("fd00::1", "fd01::1")]
    );
    assert_eq!(
        endpoint.spec.allow_spoofed_source_prefixes,
        ["8.8.8.8/32", "1.1.1.0/24"]
    );
    assert_eq!(
        endpoint.metadata.annotations,
        [(NETWORK_STATUS.to_owned(), "[]".to_owned())].into()
    );
    assert_eq!(
        endpoint.spec.qos_controls.unwrap()["egressBandwidth"],
        1_000_000
    );
}

#[test]
fn floating_ips_need_a_pod_address_of_their_family() {
    let mut pod = annotated(json!({FLOATING_IPS: r#"["fd01::1"]"#}));
    pod.status.pod_ips.truncate(1);
    assert!(endpoint(&pod).spec.ip_nats.is_empty());
    pod.status.pod_ips.clear();
    assert!(
        endpoint(&pod).spec.ip_nats.is_empty(),
        "without addresses the annotation is not even looked at"
    );
}

#[test]
fn invalid_pod_annotations_are_dropped_and_reported() {
    let found = endpoint_of_pod(
        &annotated(json!({FLOATING_IPS: "1.2.3.4", ALLOWED_SOURCE_PREFIXES: r#"["8.8.8.8","1.1.1.0/24"]"#})),
        "cali",
    )
    .unwrap();
    assert!(found.endpoint.spec.ip_nats.is_empty());
    assert_eq!(
        found.endpoint.spec.allow_spoofed_source_prefixes,
        ["1.1.1.0/24"]
    );
    assert!(
        matches!(
            &found.problems[..],
            [PodProblem::Json { .. }, PodProblem::Prefix { .. }]
        ),
        "{found:?}"
    );

    let bad = pod(json!({
        "metadata": {"annotations": {POD_IPS: "10.0.0.0/24,x", FLOATING_IPS: r#"["1.2.3.4"]"#}}
    }));
    let found = endpoint_of_pod(&bad, "cali").unwrap();
    assert_eq!(found.endpoint.spec.ip_networks, ["10.0.0.0/24"]);
    assert!(
        matches!(
            &found.problems[..],
            [PodProblem::Address(_), PodProblem::NotSingleAddress(_)]
        ),
        "{found:?}"
    );
}

/// Endpoints list ports with a name or a host port (CNI-116).
#[test]
fn endpoint_lists_named_ports_and_host_ports() {
    let pod = pod(json!({"spec": {
        "initContainers": [{"ports": [{"name": "init", "containerPort": 1, "protocol": "SCTP"}]}],
        "containers": [{"ports": [
            {"containerPort": 2, "hostPort": 3, "hostIP": "10.0.0.9", "protocol": "UDP"},
            {"name": "odd", "containerPort": 4, "protocol": "DCCP"}, {"name": "none"},
        ]}],
    }}));
    let ports = serde_json::to_value(pod.identity().ports).unwrap();
    assert_eq!(
        ports,
        json!([
            {"name": "", "protocol": "UDP", "port": 2, "hostPort": 3, "hostIP": "10.0.0.9"},
            {"name": "init", "protocol": "SCTP", "port": 1, "hostPort": 0, "hostIP": ""},
        ])
    );
}
