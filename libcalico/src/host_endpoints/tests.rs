//! The cases of upstream's functional test `auto_hep_fv_test`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::api::Node;

fn node(labels: Value, spec: Value) -> HostNode {
    let mut node = Node::new("node-1", serde_json::from_value(spec).unwrap());
    node.metadata.labels = serde_json::from_value(labels).unwrap();
    HostNode::of(&node)
}

fn plain() -> HostNode {
    node(
        json!({"rack": "r1"}),
        json!({
            "bgp": {"ipv4Address": "172.16.1.1/24"},
            "addresses": [{"address": "not an address", "type": "InternalIP"}],
            "interfaces": [
                {"name": "eth0", "addresses": ["172.16.1.1"]},
                {"name": "eth1", "addresses": ["192.168.0.1", "fd00::1"]},
            ],
        }),
    )
}

fn templates(templates: Value) -> AutoHostEndpoints {
    let templates = serde_json::from_value(templates).unwrap();
    AutoHostEndpoints {
        enabled: true,
        templates,
        ..AutoHostEndpoints::default()
    }
}

/// Stands for a regular expression.
fn is_match(pattern: &str, interface: &str) -> Result<bool, String> {
    match pattern {
        "(" => Err("unclosed group".into()),
        _ => Ok(pattern.split('|').any(|part| interface.contains(part))),
    }
}

fn made(node: &HostNode, wanted: &AutoHostEndpoints) -> Vec<(String, String, Vec<String>)> {
    let endpoints = desired(node, wanted, is_match).endpoints.into_iter();
    endpoints
        .map(|e| (e.metadata.name, e.spec.interface_name, e.spec.expected_ips))
        .collect()
}

fn line(name: &str, interface: &str, addresses: &[&str]) -> (String, String, Vec<String>) {
    (
        name.into(),
        interface.into(),
        addresses.iter().map(|ip| (*ip).to_owned()).collect(),
    )
}

/// The order is part of the stored endpoint, and upstream compares it (KC-486).
#[test]
fn host_endpoint_addresses_are_in_upstreams_order() {
    let node = node(
        json!({}),
        json!({
            "bgp": {
                "ipv4Address": "172.100.2.3/32", "ipv6Address": "fe80::1",
                "ipv4IPIPTunnelAddr": "10.10.20.1",
            },
            "ipv6VXLANTunnelAddr": "dead:beef::1",
            "wireguard": {
                "interfaceIPv4Address": "192.168.100.1", "interfaceIPv6Address": "dead:beef::100:1",
            },
            "addresses": [
                {"address": "192.168.200.1", "type": "InternalIP"},
                {"address": "192.168.200.2", "type": "ExternalIP"},
                {"address": "172.100.2.3", "type": "InternalIP"},
            ],
            "interfaces": [
                {"name": "eth0", "addresses": ["192.168.200.3"]},
                {"name": "eth1", "addresses": ["192.168.200.4"]},
                {"name": "eth2", "addresses": ["192.168.200.5"]},
                {"name": "eth3", "addresses": ["192.168.200.1"]},
            ],
        }),
    );
    let address_texts: Vec<String> = node.addresses.iter().map(ToString::to_string).collect();
    let expected = "172.100.2.3, fe80::1, 10.10.20.1, dead:beef::1, 192.168.100.1, \
                    dead:beef::100:1, 192.168.200.1, 192.168.200.3, 192.168.200.4, 192.168.200.5";
    assert_eq!(address_texts.join(", "), expected);
}

#[test]
fn default_host_endpoint_has_the_nodes_labels_and_addresses() {
    let wanted = AutoHostEndpoints {
        enabled: true,
        default_endpoint: true,
        ..AutoHostEndpoints::default()
    };
    let made = desired(&plain(), &wanted, is_match);
    assert_eq!(
        serde_json::to_value(&made.endpoints).unwrap(),
        json!([{
            "kind": "HostEndpoint", "apiVersion": "projectcalico.org/v3",
            "metadata": {
                "name": "node-1-auto-hep", "creationTimestamp": null,
                "labels": {"rack": "r1", "projectcalico.org/created-by": "calico-kube-controllers"},
            },
            "spec": {
                "node": "node-1", "interfaceName": "*",
                "expectedIPs": ["172.16.1.1", "192.168.0.1", "fd00::1"],
                "profiles": ["projectcalico-default-allow"],
            },
        }])
    );
    assert!(is_ours(&made.endpoints[0]));
    let off = AutoHostEndpoints {
        enabled: false,
        ..wanted
    };
    assert!(desired(&plain(), &off, is_match).endpoints.is_empty());
}

#[test]
fn template_cidrs_select_the_nodes_addresses() {
    let t = json!([{
        "generateName": "t", "interfaceCIDRs": ["192.168.0.7/24", "fd00::/8", "192.168.0.0/16"],
    }]);
    assert_eq!(
        made(&plain(), &templates(t)),
        [line("node-1-t-auto-hep", "", &["192.168.0.1", "fd00::1"])]
    );
    let none = json!([{"generateName": "t", "interfaceCIDRs": ["10.0.0.0/8"]}]);
    assert_eq!(made(&plain(), &templates(none)), []);
}

#[test]
fn template_patterns_select_interfaces_and_merge_addresses() {
    let eth0 = line("node-1-t-eth0-auto-hep", "eth0", &["172.16.1.1"]);
    let t = |more: Value| {
        let mut template = json!({"generateName": "t"});
        template
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        templates(json!([template]))
    };
    assert_eq!(
        made(&plain(), &t(json!({"interfacePattern": "eth0"}))),
        [eth0]
    );
    assert_eq!(
        made(&plain(), &t(json!({"interfacePattern": "eth0|eth1"}))).len(),
        2,
        "and narrowing takes one away"
    );
    let merged =
        t(json!({"interfacePattern": "eth1", "interfaceCIDRs": ["172.16.0.0/16", "fd00::/8"]}));
    let expected = line(
        "node-1-t-eth1-auto-hep",
        "eth1",
        &["172.16.1.1", "fd00::1", "192.168.0.1"],
    );
    assert_eq!(made(&plain(), &merged), [expected]);
    assert_eq!(made(&plain(), &t(json!({"interfacePattern": "ens"}))), []);
}

#[test]
fn template_node_selector_selects_nodes() {
    for (selector, count) in [("rack == 'r1'", 1), ("", 1), ("rack == 'r2'", 0)] {
        let t = json!([{
            "generateName": "t", "interfaceCIDRs": ["0.0.0.0/0"], "nodeSelector": selector,
        }]);
        assert_eq!(made(&plain(), &templates(t)).len(), count, "{selector}");
    }
}

#[test]
fn template_labels_override_node_labels_and_annotations_are_added() {
    let t = json!([{
        "generateName": "t", "interfaceCIDRs": ["0.0.0.0/0"], "labels": {"rack": "mine", "a": "b"},
        "annotations": {"why": "because"},
    }]);
    let made = desired(&plain(), &templates(t), is_match)
        .endpoints
        .remove(0);
    let labels = [
        ("a", "b"),
        ("projectcalico.org/created-by", "calico-kube-controllers"),
        ("rack", "mine"),
    ];
    assert_eq!(
        made.metadata.labels,
        labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    );
    assert_eq!(
        made.metadata.annotations,
        BTreeMap::from([("why".into(), "because".into())])
    );
    let mut found = made.clone();
    found.spec.profiles.push("own".into());
    assert!(!differs(&found, &made));
    found.metadata.annotations.clear();
    assert!(differs(&found, &made));
}

#[test]
fn invalid_template_does_not_block_other_templates() {
    let good = json!({"generateName": "good", "interfaceCIDRs": ["0.0.0.0/0"]});
    for (broken, field) in [
        (
            json!({"generateName": "bad", "interfaceCIDRs": ["0.0.0.0"]}),
            "interfaceCIDRs: ",
        ),
        (
            json!({"generateName": "bad", "interfacePattern": "("}),
            "interfacePattern: unclosed group",
        ),
        (
            json!({"generateName": "bad", "nodeSelector": "has("}),
            "nodeSelector: ",
        ),
    ] {
        let made = desired(&plain(), &templates(json!([broken, good])), is_match);
        assert_eq!(made.endpoints.len(), 1);
        assert_eq!(made.endpoints[0].metadata.name, "node-1-good-auto-hep");
        assert!(
            made.keep && made.problems[0].reason.starts_with(field),
            "{:?}",
            made.problems
        );
    }
}

#[test]
fn host_endpoint_name_joins_node_template_and_interface() {
    assert_eq!(
        auto_host_endpoint_name("node-1", None, None),
        "node-1-auto-hep"
    );
    assert_eq!(
        auto_host_endpoint_name("node-1", Some("t"), None),
        "node-1-t-auto-hep"
    );
    assert_eq!(
        auto_host_endpoint_name("node-1", Some("t"), Some("eth0")),
        "node-1-t-eth0-auto-hep"
    );
}

#[test]
fn long_or_invalid_host_endpoint_names_are_hashed() {
    let of_length =
        |n: usize| auto_host_endpoint_name(&"n".repeat(n - "-auto-hep".len()), None, None);
    assert_eq!(of_length(253).len(), 253);
    assert!(of_length(253).starts_with("nnn"));
    // Computed with Python's hashlib and base64.
    assert_eq!(
        of_length(254),
        "ewp5m34lkguin2xxvhr9f29ne8lioon3aplebjdzam-auto-hep"
    );
    assert_eq!(
        auto_host_endpoint_name("node-1", Some("t"), Some("Eth_0")),
        "iidumfvwx1agemp3jluvyh125p7n8ijohjlelorwg-auto-hep"
    );
}
