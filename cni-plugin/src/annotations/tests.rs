use libcalico::ipam::AnyOf;
use os::node_files::NodeFiles;
use serde_json::{Value, json};

use super::*;
use crate::testing::open;

fn read_both(pod: Value, namespace: Value, conf: Value) -> Result<Annotations, CniError> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "annotations": pod},
        "spec": {"nodeName": "n"}, "status": {"podIPs": [{"ip": "10.0.0.1"}]},
    }))
    .unwrap();
    let namespace: Namespace =
        serde_json::from_value(json!({"metadata": {"name": "ns", "annotations": namespace}}))
            .unwrap();
    let mut whole = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "calico", "ipam": {"type": "calico-ipam"},
        "policy": {"type": "k8s"},
        "feature_control": {"ip_addrs_no_ipam": true, "floating_ips": true},
    });
    whole
        .as_object_mut()
        .unwrap()
        .extend(conf.as_object().unwrap().clone());
    Annotations::read(
        &pod,
        &namespace,
        &NetConf::parse(whole.to_string().as_bytes()).unwrap(),
    )
}

fn read(name: &str, value: &str) -> Result<Annotations, CniError> {
    read_with(name, value, json!({}))
}

fn read_with(name: &str, value: &str, conf: Value) -> Result<Annotations, CniError> {
    read_both(
        json!({format!("cni.projectcalico.org/{name}"): value}),
        json!({}),
        conf,
    )
}

fn refusal(name: &str, value: &str) -> String {
    read(name, value).unwrap_err().msg
}

#[test]
fn pod_without_annotations_gets_the_configured_values() {
    assert_eq!(
        read_both(json!({"other": "x"}), json!({}), json!({})).unwrap(),
        Annotations::default()
    );
}

#[test]
fn pod_annotations_override_namespace_annotations() {
    let namespace = json!({
        "cni.projectcalico.org/ipv4pools": "[\"a\", \"10.0.0.0/8\"]",
        "cni.projectcalico.org/ipv6pools": "[\"c\"]",
        "cni.projectcalico.org/ipFamilies": "[\"IPv6\"]",
    });
    let pod = json!({
        "cni.projectcalico.org/ipv4pools": "[\"b\"]", "cni.projectcalico.org/ipv6pools": "",
        "cni.projectcalico.org/ipFamilies": "[\"IPv4\", \"IPv6\"]",
    });
    let from_both = read_both(pod, namespace.clone(), json!({})).unwrap();
    assert_eq!(from_both.ipv4_pools.unwrap(), ["b"]);
    assert_eq!(
        from_both.ipv6_pools.unwrap(),
        ["c"],
        "an empty annotation says nothing"
    );
    assert_eq!(from_both.families.unwrap(), [IpVersion::V4, IpVersion::V6]);
    let inherited = read_both(json!({}), namespace.clone(), json!({})).unwrap();
    assert_eq!(inherited.ipv4_pools.unwrap(), ["a", "10.0.0.0/8"]);
    assert_eq!(inherited.families.unwrap(), [IpVersion::V6]);
    let foreign = read_both(
        json!({}),
        namespace,
        json!({"ipam": {"type": "host-local"}}),
    )
    .unwrap();
    assert_eq!(
        foreign,
        Annotations::default(),
        "other IPAM plugins get no annotations"
    );
}

#[test]
fn invalid_pool_and_family_annotations_are_rejected() {
    assert_eq!(
        refusal("ipv4pools", "[\"a\""),
        "failed to parse '[\"a\"' as JSON: unexpected end of JSON input"
    );
    let error = read("ipv6pools", "pool6").unwrap_err();
    assert_eq!(
        (
            error.code,
            error.details.contains("cni.projectcalico.org/ipv6pools")
        ),
        (Code::DECODE, true)
    );
    assert_eq!(
        refusal("ipFamilies", "[\"IPv4\",\"ipv6\"]"),
        "error parsing ipFamilies: [\"IPv4\",\"ipv6\"]"
    );
    assert_eq!(
        read("ipFamilies", "[]").unwrap().families,
        Some(Vec::new()),
        "upstream gives such a pod no address"
    );
}

#[test]
fn addresses_are_taken_from_pod_annotations() {
    let ips = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| text.parse().unwrap())
            .collect::<Vec<IpAddr>>()
    };
    let both = "[\"10.0.0.9\", \"fd00::9\"]";
    assert_eq!(
        read("ipAddrs", both).unwrap().addresses,
        AddressSource::Requested(ips(&["10.0.0.9", "fd00::9"]))
    );
    assert_eq!(
        read("ipAddrsNoIpam", both).unwrap().addresses,
        AddressSource::Fixed(ips(&["10.0.0.9", "fd00::9"]))
    );
    let mapped = read("ipAddrs", "[\"::ffff:10.0.0.9\"]").unwrap();
    assert_eq!(
        mapped.addresses,
        AddressSource::Requested(ips(&["10.0.0.9"]))
    );
    for empty in ["ipAddrs", "ipAddrsNoIpam"] {
        assert_eq!(read(empty, "").unwrap().addresses, AddressSource::Allocated);
    }
}

/// Both annotations have the same validation and the same error texts as in upstream (CNI-123).
#[test]
fn invalid_address_annotations_are_rejected_with_upstreams_text() {
    for name in ["ipAddrs", "ipAddrsNoIpam"] {
        let key = format!("cni.projectcalico.org/{name}");
        for (value, text) in [
            (
                "[\"10.0.0.9\"",
                format!(
                    "failed to parse IPs [\"10.0.0.9\" for annotation \"{key}\": failed to parse \
                     '[\"10.0.0.9\"' as JSON: unexpected end of JSON input"
                ),
            ),
            ("[]", format!("annotation \"{key}\" specified but empty")),
            ("null", format!("annotation \"{key}\" specified but empty")),
            ("[\"10.0.0.9/32\"]", "invalid IP format: 10.0.0.9/32".into()),
            ("[\"10.0.0.09\"]", "invalid IP format: 10.0.0.09".into()),
            (
                "[\"10.0.0.9\", \"::ffff:10.0.0.8\"]",
                format!("cannot have more than one IPv4 address for \"{key}\" annotation"),
            ),
            (
                "[\"fd00::9\", \"fd00::8\"]",
                format!("cannot have more than one IPv6 address for \"{key}\" annotation"),
            ),
        ] {
            assert_eq!(refusal(name, value), text);
        }
        let foreign = read_with(
            name,
            "[\"10.0.0.9\"]",
            json!({"ipam": {"type": "host-local"}}),
        )
        .unwrap_err();
        assert_eq!(
            foreign.msg,
            format!("{name} is not compatible with configured IPAM: host-local")
        );
    }
    let off = read_with(
        "ipAddrsNoIpam",
        "[\"10.0.0.9\"]",
        json!({"feature_control": {}}),
    )
    .unwrap_err();
    assert_eq!(
        off.msg,
        "requested feature is not enabled: ip_addrs_no_ipam"
    );
    let both =
        json!({"cni.projectcalico.org/ipAddrs": "x", "cni.projectcalico.org/ipAddrsNoIpam": "x"});
    assert_eq!(
        read_both(both, json!({}), json!({})).unwrap_err().msg,
        "can't have both annotations: 'ipAddrs' and 'ipAddrsNoIpam' in use at the same time"
    );
}

#[test]
fn list_annotation_selects_its_families() {
    let list = "[\"10.0.0.9\", \"fd00::8/127\", \"10.0.0.9/32\"]";
    let found = read("ipAddrsAnyOf", list).unwrap();
    let texts = ["10.0.0.9", "fd00::8/127"].map(str::to_owned);
    assert_eq!(
        found.addresses,
        AddressSource::AnyOf(AnyOf::parse(&texts).unwrap())
    );
    assert_eq!(
        read("ipAddrsAnyOf", "").unwrap().addresses,
        AddressSource::Allocated
    );
    let of_namespace = read_both(
        json!({}),
        json!({"cni.projectcalico.org/ipAddrsAnyOf": list}),
        json!({}),
    )
    .unwrap();
    assert_eq!(
        of_namespace,
        Annotations::default(),
        "a list is a workload's, not a namespace's"
    );
    let of_families = |list: &str, families: &str| {
        let pod = json!({
            "cni.projectcalico.org/ipAddrsAnyOf": list,
            "cni.projectcalico.org/ipFamilies": families,
        });
        let found = read_both(pod, json!({}), json!({})).unwrap();
        let files = tempfile::tempdir().unwrap();
        let conf = json!({ "datastore_type": "local", "datastore_path": files.path().join("db") });
        let call = open("ADD", "", conf, files.path()).call;
        let mut request = crate::ipam::request(&call, "node1", &NodeFiles::of_this_node()).unwrap();
        request.ip = Some("10.0.0.7".parse().unwrap());
        found.apply_to(&mut request);
        assert!(request.any_of.is_some() && request.ip.is_none());
        (request.assign_ipv4, request.assign_ipv6)
    };
    assert_eq!(of_families("[\"fd00::9\"]", "[\"IPv4\"]"), (true, true));
    assert_eq!(of_families("[\"fd00::9\"]", "[]"), (false, true));
    assert_eq!(of_families("[\"10.0.0.9\"]", "[\"IPv4\"]"), (true, false));
}

#[test]
fn invalid_list_annotations_are_rejected() {
    let key = "cni.projectcalico.org/ipAddrsAnyOf";
    let unparsed = read("ipAddrsAnyOf", "[\"10.0.0.9\"").unwrap_err();
    assert_eq!(unparsed.code, Code::DECODE);
    assert!(unparsed.msg.starts_with(&format!(
        "failed to parse IPs [\"10.0.0.9\" for annotation \"{key}\": "
    )));
    for (value, text) in [
        ("[]", format!("annotation \"{key}\" specified but empty")),
        ("[\"pool4\"]", "invalid IP format: pool4".into()),
        (
            "[\"10.0.0.0/23\"]",
            format!("annotation \"{key}\" names 10.0.0.0/23, which has more than 256 addresses"),
        ),
    ] {
        let error = read("ipAddrsAnyOf", value).unwrap_err();
        assert_eq!((error.msg, error.code), (text, Code::INVALID_CONFIG));
    }
    let foreign = read_with(
        "ipAddrsAnyOf",
        "[\"10.0.0.9\"]",
        json!({"ipam": {"type": "host-local"}}),
    )
    .unwrap_err();
    assert_eq!(
        foreign.msg,
        "ipAddrsAnyOf is not compatible with configured IPAM: host-local"
    );
    for other in ["ipAddrs", "ipAddrsNoIpam"] {
        let both = json!({key: "x", format!("cni.projectcalico.org/{other}"): "x"});
        assert_eq!(
            read_both(both, json!({}), json!({})).unwrap_err().msg,
            format!(
                "can't have both annotations: '{other}' and 'ipAddrsAnyOf' in use at the same time"
            )
        );
    }
}

/// An API server accepts annotations of 256 KiB. The error goes into the node's log and an Event.
/// Shows SEC-14.
#[test]
fn error_about_a_large_annotation_contains_its_beginning() {
    let large = "x".repeat(200_000);
    for name in ["ipAddrs", "ipAddrsAnyOf", "ipAddrsNoIpam"] {
        for value in [
            large.clone(),
            format!("\"{large}\""),
            format!("[{{\"{large}\": 1}}]"),
            format!("[\"{large}\"]"),
        ] {
            let error = read(name, &value).unwrap_err();
            let length = error.msg.len() + error.details.len();
            assert!(
                error.msg.contains("xxx") && length < 2_000,
                "{name}: {length} bytes for {}",
                &value[..9]
            );
        }
    }
    for name in ["ipv4pools", "floatingIPs", "allowedSourcePrefixes"] {
        assert!(refusal(name, &large).len() < 2_000, "{name}");
    }
}

#[test]
fn annotated_pools_must_select_the_node_if_configured() {
    let conf = json!({"feature_control": {"pools_respect_node_selector": true}});
    let families = |name, value| read_with(name, value, conf.clone()).unwrap().node_selected;
    assert_eq!(families("ipv4pools", "[\"a\"]"), [IpVersion::V4].into());
    assert_eq!(families("ipv6pools", "[\"a\"]"), [IpVersion::V6].into());
    for name in ["ipAddrs", "ipAddrsAnyOf"] {
        assert_eq!(families(name, "[\"10.0.0.1\"]"), BTreeSet::new(), "{name}");
    }
    let namespace = json!({"cni.projectcalico.org/ipv4pools": "[\"rack1\", \"rack2\"]"});
    let of_namespace = read_both(json!({}), namespace, conf.clone()).unwrap();
    assert_eq!(
        of_namespace.node_selected,
        [IpVersion::V4].into(),
        "one annotation for the nodes of all racks"
    );
    assert_eq!(
        read("ipv4pools", "[\"a\"]").unwrap().node_selected,
        BTreeSet::new(),
        "off by default"
    );
}

#[test]
fn mac_annotation_is_parsed_and_an_invalid_mac_rejected() {
    for text in ["CA:fe:ca:fe:ca:fe", "ca-fe-ca-fe-ca-fe", "cafe.cafe.cafe"] {
        assert_eq!(
            read("hwAddr", text).unwrap().mac.unwrap().to_string(),
            "ca:fe:ca:fe:ca:fe"
        );
    }
    for text in ["", "ca:fe", "not a mac"] {
        assert_eq!(
            refusal("hwAddr", text),
            format!(
                "failed to parse MAC address {text} provided via cni.projectcalico.org/hwAddr: \
                 address {text}: invalid MAC address"
            )
        );
    }
    for text in ["00:00:00:00:00:00", "01:00:5e:00:00:01"] {
        assert!(refusal("hwAddr", text).contains(text));
    }
    let grpc = json!({"dataplane_options": {"type": "grpc", "socket": "/s"}});
    assert_eq!(
        read_with("hwAddr", "ca:fe:ca:fe:ca:fe", grpc).unwrap().mac,
        None
    );
}

#[test]
fn floating_ip_annotation_requires_a_pod_address_of_its_family() {
    let found = read("floatingIPs", "[\"1.1.1.1\", \"fd11::1\"]").unwrap();
    let own: Vec<IpAddr> = vec!["10.0.0.9".parse().unwrap(), "fd00::9".parse().unwrap()];
    let nats: Vec<_> = found
        .nats(&own)
        .unwrap()
        .into_iter()
        .map(|nat| (nat.internal_ip, nat.external_ip))
        .collect();
    assert_eq!(
        nats,
        [
            ("10.0.0.9".into(), "1.1.1.1".into()),
            ("fd00::9".into(), "fd11::1".into())
        ]
    );
    let error = found.nats(&own[..1]).unwrap_err();
    assert!(
        error.msg.contains("fd11::1 needs an IPv6 address"),
        "{error}"
    );

    let off = read_with(
        "floatingIPs",
        "[\"1.1.1.1\"]",
        json!({"feature_control": {}}),
    )
    .unwrap_err();
    assert_eq!(off.msg, "requested feature is not enabled: floating_ips");
    assert_eq!(
        refusal("floatingIPs", "["),
        "failed to parse '[' as JSON: unexpected end of JSON input"
    );
    assert_eq!(
        refusal("floatingIPs", "[\"1.1.1\"]"),
        "error with field ExternalIP = '1.1.1' (invalid IP address)"
    );
}

#[test]
fn invalid_source_prefixes_fail_the_add_and_invalid_limits_are_logged() {
    let found = read("allowedSourcePrefixes", "[\"8.8.8.8/32\", \"1.1.1.7/24\"]").unwrap();
    assert_eq!(found.source_prefixes, ["8.8.8.8/32", "1.1.1.0/24"]);
    assert_eq!(
        refusal("allowedSourcePrefixes", "[\"8.8.8.8\"]"),
        "failed to parse '8.8.8.8' as a CIDR: invalid CIDR address: 8.8.8.8"
    );
    assert_eq!(
        refusal("allowedSourcePrefixes", "["),
        "failed to parse '[' as JSON: unexpected end of JSON input"
    );
    for key in [
        "qos.projectcalico.org/egressBandwidth",
        "kubernetes.io/ingress-bandwidth",
        "qos.projectcalico.org/dscp",
    ] {
        let limited = read_both(json!({key: "much"}), json!({}), json!({})).unwrap();
        assert_eq!(
            limited,
            Annotations::default(),
            "{key} is only warned about"
        );
    }
}

#[test]
fn annotations_are_ignored_without_kubernetes_policy() {
    for policy in [json!({}), json!({"type": "other"})] {
        for name in [
            "ipAddrs",
            "ipAddrsAnyOf",
            "hwAddr",
            "floatingIPs",
            "ipv4pools",
            "allowedSourcePrefixes",
        ] {
            let found = read_with(name, "nonsense", json!({"policy": policy})).unwrap();
            assert_eq!(found, Annotations::default());
        }
    }
}

#[test]
fn check_skips_ipam_for_fixed_addresses() {
    let conf = |policy: &str, enabled: bool| {
        let conf = json!({
            "name": "net", "policy": {"type": policy},
            "feature_control": {"ip_addrs_no_ipam": enabled},
        });
        NetConf::parse(conf.to_string().as_bytes()).unwrap()
    };
    let mut pod = Pod::default();
    assert!(!has_fixed_addresses(&pod, &conf("k8s", true)));
    pod.metadata
        .annotations
        .insert("cni.projectcalico.org/ipAddrsNoIpam".into(), "[]".into());
    assert!(has_fixed_addresses(&pod, &conf("k8s", true)));
    assert!(
        !has_fixed_addresses(&pod, &conf("", true))
            && !has_fixed_addresses(&pod, &conf("k8s", false))
    );
}

#[test]
fn annotated_pools_and_addresses_are_restricted_if_configured() {
    let conf = json!({"feature_control": {"restrict_annotations": true}});
    let families = |name, value, conf| {
        read_with(name, value, conf)
            .unwrap()
            .restricted
            .into_iter()
            .collect::<Vec<_>>()
    };
    for (name, value, expected) in [
        ("ipv4pools", "[\"a\"]", vec![IpVersion::V4]),
        ("ipv6pools", "[\"a\"]", vec![IpVersion::V6]),
        (
            "ipAddrs",
            "[\"fd00::1\", \"10.0.0.1\"]",
            vec![IpVersion::V4, IpVersion::V6],
        ),
        (
            "ipAddrsAnyOf",
            "[\"fd00::1\", \"fd00::2\"]",
            vec![IpVersion::V6],
        ),
        ("ipFamilies", "[\"IPv4\"]", vec![]),
    ] {
        assert_eq!(families(name, value, conf.clone()), expected, "{name}");
        assert_eq!(
            families(name, value, json!({})),
            [],
            "{name}: off by default"
        );
    }
    let space = json!({"cni.projectcalico.org/ipv4pools": "[\"a\"]"});
    assert_eq!(
        read_both(json!({}), space, conf).unwrap().restricted,
        [IpVersion::V4].into()
    );
}
