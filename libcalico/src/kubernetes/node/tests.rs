use super::*;
use crate::api::Node;

fn v3(node: Value) -> Value {
    Value::Object(from_kubernetes(node.as_object().unwrap().clone()))
}

#[test]
fn node_conversion_matches_upstreams_vector() {
    let node = v3(json!({
        "metadata": {
            "name": "node-1", "uid": "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7",
            "resourceVersion": "815",
            "creationTimestamp": "2026-08-22T06:33:20Z",
            "labels": {"kubernetes.io/hostname": "node-1"},
            "annotations": {
                "projectcalico.org/IPv4Address": "192.168.0.11/24",
                "projectcalico.org/IPv4IPIPTunnelAddr": "10.244.1.1",
                "projectcalico.org/IPv4VXLANTunnelAddr": "10.244.1.0",
                "projectcalico.org/VXLANTunnelMACAddr": "66:4e:2a:00:00:01",
                "projectcalico.org/ASNumber": "64512",
                "projectcalico.org/labels": r#"{"rack":"r1","kubernetes.io/hostname":"stale"}"#,
            },
        },
        "spec": {"podCIDRs": ["10.244.1.0/24"]},
        "status": {"addresses": [
            {"type": "InternalIP", "address": "192.168.0.11"},
            {"type": "Hostname", "address": "node-1"},
        ]},
    }));
    assert_eq!(
        node,
        json!({
            "metadata": {
                "name": "node-1", "uid": "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7",
                "creationTimestamp": "2026-08-22T06:33:20Z",
                "labels": {"kubernetes.io/hostname": "node-1", "rack": "r1"},
                "annotations": {
                    "projectcalico.org/kube-labels": r#"{"kubernetes.io/hostname":"node-1"}"#
                },
            },
            "spec": {
                "bgp": {
                    "asNumber": 64512, "ipv4Address": "192.168.0.11/24",
                    "ipv4IPIPTunnelAddr": "10.244.1.1",
                },
                "ipv4VXLANTunnelAddr": "10.244.1.0", "vxlanTunnelMACAddr": "66:4e:2a:00:00:01",
                "orchRefs": [{"nodeName": "node-1", "orchestrator": "k8s"}],
                "addresses": [
                    {"address": "192.168.0.11/24", "type": "CalicoNodeIP"},
                    {"address": "192.168.0.11", "type": "InternalIP"},
                ],
            },
            "status": {"podCIDRs": ["10.244.1.0/24"]},
        })
    );
    let node: Node = serde_json::from_value(node).unwrap();
    assert!(node.spec.unknown.is_empty());
}

#[test]
fn invalid_node_annotations_count_as_absent() {
    let node = v3(json!({"metadata": {"name": "n", "annotations": {
        "projectcalico.org/IPv4Address": "fd00::1/64",
        "projectcalico.org/IPv6Address": "fd00::1",
        "projectcalico.org/ASNumber": "1.10", "projectcalico.org/labels": "no JSON",
        "projectcalico.org/Interfaces": r#"[{"name":"eth0","addresses":["10.0.0.1","x"]}]"#,
        "projectcalico.org/WireguardPublicKey": "k",
    }}}));
    assert_eq!(
        node["spec"]["bgp"],
        json!({"ipv6Address": "fd00::1", "asNumber": 65_546})
    );
    assert_eq!(
        node["spec"]["interfaces"],
        json!([{"name": "eth0", "addresses": ["10.0.0.1"]}])
    );
    assert_eq!(node["metadata"].get("labels"), None);
    assert_eq!(node["metadata"]["annotations"][KUBE_LABELS], "null");
    assert_eq!(node["status"], json!({"wireguardPublicKey": "k"}));
}

#[test]
fn node_annotations_written_equal_the_annotations_read() {
    let read = json!({
        "projectcalico.org/IPv4Address": "192.168.0.11/24",
        "projectcalico.org/IPv4IPIPTunnelAddr": "10.244.1.1",
        "projectcalico.org/IPv4VXLANTunnelAddr": "10.244.1.0",
        "projectcalico.org/ASNumber": "64512",
        "projectcalico.org/VXLANTunnelMACAddr": "66:4e:2a:00:00:01", "other": "stays",
    });
    let object = json!({ "metadata": { "name": "n", "annotations": read } });
    let v3 = Value::Object(from_kubernetes(object.as_object().unwrap().clone()));
    let revision = ObjectRevision {
        resource_version: "7".into(),
        ..ObjectRevision::default()
    };
    let patch = update_patch(&v3, &revision);
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    let written = patch["metadata"]["annotations"].as_object().unwrap();
    for (key, value) in read
        .as_object()
        .unwrap()
        .iter()
        .filter(|(key, _)| *key != "other")
    {
        assert_eq!(written.get(key), Some(value), "{key}");
    }
    assert_eq!(written.get("other"), None);
    for missing in ["IPv6Address", "labels", "annotations"] {
        assert_eq!(
            written[&format!("projectcalico.org/{missing}")],
            Value::Null,
            "{missing}"
        );
    }
}

#[test]
fn own_labels_and_annotations_of_a_node_are_written_back() {
    let object = json!({"metadata": {
        "name": "n", "labels": {"kubernetes.io/hostname": "n"},
        "annotations": {
            "projectcalico.org/labels": r#"{"kubernetes.io/hostname":"stale","rack":"r1"}"#,
            "projectcalico.org/annotations": r#"{"a":"b"}"#,
        },
    }});
    let v3 = Value::Object(from_kubernetes(object.as_object().unwrap().clone()));
    let patch = update_patch(&v3, &ObjectRevision::default());
    let written = &patch["metadata"]["annotations"];
    assert_eq!(written[LABELS], r#"{"rack":"r1"}"#);
    assert_eq!(written[ANNOTATIONS], r#"{"a":"b"}"#);
    assert_eq!(written.get(KUBE_LABELS), None);
}

#[test]
fn autonomous_system_in_two_halves_is_written_as_a_number() {
    let patch = update_patch(
        &json!({"spec": {"bgp": {"asNumber": "1.10"}}}),
        &ObjectRevision::default(),
    );
    assert_eq!(
        patch["metadata"]["annotations"]["projectcalico.org/ASNumber"],
        "65546"
    );
}
