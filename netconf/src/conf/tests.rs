use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::Code;

fn parse(conf: &Value) -> NetConf {
    NetConf::parse(conf.to_string().as_bytes()).unwrap()
}

#[test]
fn empty_configuration_yields_defaults() {
    for conf in [
        json!({}),
        json!({ "ipam": {}, "policy": {}, "unknown": [1] }),
        json!({ "mtu": null, "ipam": null }),
    ] {
        assert_eq!(parse(&conf), NetConf::default(), "{conf}");
    }
    let conf = NetConf::default();
    assert_eq!(conf.node.nodename_file, "/var/lib/calico/nodename");
    assert_eq!(
        conf.readiness.endpoint_status_dir,
        "/var/run/calico/endpoint-status"
    );
    assert_eq!(
        (
            conf.log.log_file_max_size,
            conf.log.log_file_max_age,
            conf.log.log_file_max_count
        ),
        (100, 30, 10)
    );
    assert_eq!((conf.interface.mtu, conf.interface.num_queues), (0, 1));
    assert!(conf.ipam.assign_ipv4 && !conf.ipam.assign_ipv6);
}

#[test]
fn empty_strings_and_zeros_yield_defaults() {
    let conf = json!({
        "nodename_file": "", "endpoint_status_dir": "", "device_type": "", "datastore_type": "",
        "calico_api_group": "",
        "log_file_max_size": 0, "log_file_max_age": 0, "log_file_max_count": 0, "num_queues": -3,
        "ipam": { "assign_ipv4": "", "assign_ipv6": "" },
    });
    assert_eq!(parse(&conf), NetConf::default());
}

#[test]
fn configuration_written_by_the_installer_is_parsed() {
    let conf = parse(&json!({
        "name": "k8s-pod-network", "cniVersion": "1.0.0", "type": "calico",
        "log_level": "Debug", "log_file_path": "/var/log/calico/cni/cni.log",
        "datastore_type": "kubernetes", "nodename": "node1", "mtu": 1410,
        "ipam": {
            "type": "calico-ipam", "assign_ipv6": "true", "ipv4_pools": ["10.0.0.0/16", "blue"],
        },
        "policy": { "type": "k8s" },
        "kubernetes": { "kubeconfig": "/etc/cni/net.d/calico-kubeconfig" },
        "require_mtu_file": true, "calico_api_group": "ProjectCalico.org/v3",
    }));
    assert_eq!(
        (conf.name.as_str(), conf.cni_version.as_str()),
        ("k8s-pod-network", "1.0.0")
    );
    assert_eq!(conf.log.log_level, LogLevel::Debug);
    assert_eq!(conf.datastore.kind(), DatastoreType::Kubernetes);
    assert_eq!(conf.datastore.calico_api_group, Some(ApiGroup::V3));
    assert_eq!(
        (conf.interface.mtu, conf.interface.require_mtu_file),
        (1410, true)
    );
    assert!(conf.ipam.is_calico() && conf.ipam.assign_ipv6);
    assert_eq!(conf.ipam.ipv4_pools, ["10.0.0.0/16", "blue"]);
    assert_eq!(conf.policy.policy_type, "k8s");
    assert_eq!(
        conf.kubernetes.kubeconfig,
        "/etc/cni/net.d/calico-kubeconfig"
    );
}

#[test]
fn etcd_and_local_datastores_are_parsed() {
    let etcd = parse(&json!({
        "datastore_type": "etcdv3", "etcd_endpoints": "https://a:2379,https://b:2379",
        "etcd_ca_cert_file": "/ca",
        "etcd_key": "KEY", "etcd_cert": "CERT", "etcd_username": "u", "etcd_password": "p",
    }));
    assert_eq!(etcd.datastore.kind(), DatastoreType::Etcdv3);
    assert_eq!(
        (
            etcd.datastore.etcd_key.reveal(),
            etcd.datastore.etcd_cert.as_str()
        ),
        ("KEY", "CERT")
    );
    let local = parse(&json!({ "datastore_type": "local" })).datastore;
    assert_eq!(
        (local.kind(), local.path()),
        (DatastoreType::Local, "/var/lib/calico/calico.db")
    );
    assert_eq!(
        parse(&json!({ "datastore_path": "/tmp/x.db" }))
            .datastore
            .path(),
        "/tmp/x.db"
    );
}

#[test]
fn unknown_log_level_means_info() {
    for (text, level) in [
        ("ERROR", LogLevel::Error),
        ("warning", LogLevel::Info),
        ("", LogLevel::Info),
    ] {
        assert_eq!(
            parse(&json!({ "log_level": text })).log.log_level,
            level,
            "{text}"
        );
    }
}

#[test]
fn mesos_labels_are_parsed() {
    let labels = json!([{ "key": "a", "value": "1" }, { "key": "b" }]);
    let conf = parse(&json!({
        "args": { "org.apache.mesos": { "network_info": { "labels": { "labels": labels } } } }
    }));
    let labels = conf.args.mesos.network_info.labels.labels;
    let pairs: Vec<_> = labels
        .iter()
        .map(|label| (label.key.as_str(), label.value.as_str()))
        .collect();
    assert_eq!(pairs, [("a", "1"), ("b", "")]);
}

#[test]
fn dataplane_options_yield_the_grpc_socket_and_string_options() {
    assert_eq!(
        parse(&json!({ "dataplane_options": {} }))
            .dataplane_options
            .grpc_socket(),
        None
    );
    let grpc = json!({
        "type": "grpc", "socket": "unix:///s", "colour": "blue", "number": 1, "Type": "x",
        "gone": null,
    });
    let options = parse(&json!({ "dataplane_options": grpc })).dataplane_options;
    assert_eq!(options.grpc_socket(), Some("unix:///s"));
    let sent = [
        ("Type", "x"),
        ("colour", "blue"),
        ("socket", "unix:///s"),
        ("type", "grpc"),
    ];
    assert_eq!(
        options.options,
        BTreeMap::from(sent.map(|(key, value)| (key.to_owned(), value.to_owned())))
    );
    for missing in [
        json!({ "type": "grpc" }),
        json!({ "type": "grpc", "socket": "" }),
    ] {
        let conf = json!({ "dataplane_options": missing }).to_string();
        let error = NetConf::parse(conf.as_bytes()).unwrap_err();
        assert_eq!(error.code, Code::INVALID_CONFIG);
        assert!(
            error.msg.contains("$.dataplane_options.socket: missing"),
            "{error}"
        );
    }
}

#[test]
fn host_local_routes_and_ranges_are_parsed() {
    let ipam = |kind: &str| {
        json!({
            "ipam": {
                "type": kind, "routes": [{ "dst": "10.1.2.3/8" }, {}],
                "ranges": [[{ "subnet": "usePodCidr" }]],
            }
        })
    };
    let ours = parse(&ipam("host-local")).ipam;
    assert!(ours.is_host_local());
    assert_eq!(
        ours.routes,
        [
            IpamRoute {
                dst: Some("10.1.2.3/8".parse().unwrap())
            },
            IpamRoute { dst: None }
        ]
    );
    assert_eq!(
        ours.ranges,
        [[IpamRange {
            subnet: "usePodCidr".to_owned()
        }]]
    );
}

#[test]
fn keys_of_another_ipam_plugin_are_ignored() {
    let conf = parse(&json!({ "ipam": { "type": "whereabouts", "routes": "all", "ranges": 7 } }));
    assert!(conf.ipam.routes.is_empty() && conf.ipam.ranges.is_empty());
}

/// Shows SEC-77.
#[test]
fn secrets_are_in_no_error_or_debug_output() {
    for key in ["etcd_password", "etcd_key"] {
        let error = NetConf::parse(json!({ key: 424242 }).to_string().as_bytes()).unwrap_err();
        assert_eq!(
            error.msg,
            format!("failed to load netconf: $.{key}: found a number, want a string")
        );
        let conf = parse(&json!({ key: "hunter2" }));
        assert!(!format!("{conf:?}").contains("hunter2"));
    }
    let error = NetConf::parse(br#"{"policy":{"k8s_auth_token":["hunter2"]}}"#).unwrap_err();
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

#[test]
fn smallest_and_largest_mtu_are_accepted() {
    for mtu in [0, 68, 65_535] {
        assert_eq!(parse(&json!({ "mtu": mtu })).interface.mtu, mtu);
    }
}

#[test]
fn decode_errors_name_path_value_and_allowed_values() {
    let table = [
        (
            json!({ "mtu": "x" }),
            Code::DECODE,
            r#"$.mtu: found the string "x", want 0 or an integer from 68 to 65535"#,
        ),
        (
            json!({ "MTU": -1 }),
            Code::INVALID_CONFIG,
            "$.MTU: found the number -1, want 0 or an integer from 68 to 65535",
        ),
        (
            json!({ "mtu": 67 }),
            Code::INVALID_CONFIG,
            "$.mtu: found the number 67, want 0 or an integer from 68 to 65535",
        ),
        (
            json!({ "ipam": { "ipv4_pools": ["10.0.0.0/16", 7] } }),
            Code::DECODE,
            "$.ipam.ipv4_pools[1]: found the number 7, want an IPv4 CIDR or the name of a pool",
        ),
        (
            json!({ "ipam": { "assign_ipv4": true } }),
            Code::DECODE,
            r#"$.ipam.assign_ipv4: found the boolean true, want the string "true" or "false""#,
        ),
        (
            json!({ "datastore_type": "etcd" }),
            Code::INVALID_CONFIG,
            r#"$.datastore_type: found the string "etcd", want the string "kubernetes" or "etcdv3" or "local""#,
        ),
        (
            json!({ "device_type": "tap" }),
            Code::INVALID_CONFIG,
            r#"$.device_type: found the string "tap", want the string "veth" or "netkit""#,
        ),
    ];
    for (conf, code, msg) in table {
        let error = NetConf::parse(conf.to_string().as_bytes()).unwrap_err();
        assert_eq!(
            (error.code, error.msg),
            (code, format!("failed to load netconf: {msg}"))
        );
    }
}

#[test]
fn configuration_list_is_rejected_for_the_connection_test_too() {
    let error = NetConf::parse(br#"{"name":"n","plugins":[]}"#).unwrap_err();
    assert_eq!(error.code, Code::INVALID_CONFIG);
    assert!(error.details.contains("jq '.plugins[0]"), "{error}");
}

#[test]
fn ignored_windows_keys_are_listed() {
    assert_eq!(NetConf::default().windows.ignored().count(), 0);
    let text = br#"{"mode": "vxlan", "vxlan_mac_prefix": "0e", "vxlan_vni": 4096, "windows_use_single_network": true,
        "windows_pod_deletion_timestamp_timeout": 60, "windows_disable_default_deny_all_policy": true,
        "windows_loopback_DSR": true}"#;
    let windows = NetConf::parse(text).unwrap().windows;
    let ignored: Vec<_> = windows.ignored().collect();
    assert_eq!(
        ignored,
        [
            "mode",
            "vxlan_mac_prefix",
            "vxlan_vni",
            "windows_pod_deletion_timestamp_timeout",
            "windows_disable_default_deny_all_policy",
            "windows_loopback_DSR",
        ]
    );
}

/// Returns the JSON pointers of all keys below a value, except those in lists.
fn keys_of(value: &Value) -> Vec<String> {
    let keys = value.as_object().into_iter().flatten();
    keys.flat_map(|(key, value)| {
        let pointer = format!("/{}", key.replace('/', "~1"));
        let below = keys_of(value);
        let below = below.iter().map(|rest| format!("{pointer}{rest}"));
        below.chain([pointer.clone()]).collect::<Vec<_>>()
    })
    .collect()
}

/// The file has every key of 0.1.0, each with another value than the default. A node keeps its
/// configuration while the programs are replaced.
#[test]
fn configuration_of_0_1_0_has_no_key_without_effect() {
    let stored = include_str!("../../../tests/formats/0.1.0/network-configuration.json");
    let stored: Value = serde_json::from_str(stored).unwrap();
    let conf = Some(parse(&stored));
    for key in keys_of(&stored) {
        let mut without = stored.clone();
        let (parent, name) = key.rsplit_once('/').unwrap();
        let parent = without.pointer_mut(parent).unwrap().as_object_mut();
        parent.unwrap().remove(&name.replace("~1", "/")).unwrap();
        let without = NetConf::parse(without.to_string().as_bytes()).ok();
        assert_ne!(without, conf, "{key}");
    }
}
