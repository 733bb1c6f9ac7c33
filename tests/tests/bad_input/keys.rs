//! The keys of the network configuration, and the values that each key must reject.

use serde_json::{Value, json};

/// The type that the value of a key must have. `null` is valid for every type.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Text,
    /// A string of a fixed set.
    Word,
    Number,
    Flag,
    Object,
    List,
    Texts,
}

use Kind::{Flag, List, Number, Object, Text, Texts, Word};

/// Every key, as a JSON pointer: upstream's keys and ours.
pub(crate) const KEYS: &[(&str, Kind)] = &[
    ("/cniVersion", Text),
    ("/name", Text),
    ("/type", Text),
    ("/mode", Text),
    ("/vxlan_mac_prefix", Text),
    ("/vxlan_vni", Number),
    ("/ipam", Object),
    ("/ipam/type", Text),
    ("/ipam/name", Text),
    ("/ipam/subnet", Text),
    ("/ipam/assign_ipv4", Text),
    ("/ipam/assign_ipv6", Text),
    ("/ipam/ipv4_pools", Texts),
    ("/ipam/ipv6_pools", Texts),
    ("/ipam/ranges", List),
    ("/ipam/routes", List),
    ("/qps", Number),
    ("/burst", Number),
    ("/args", Object),
    ("/args/org.apache.mesos", Object),
    ("/args/org.apache.mesos/network_info", Object),
    ("/args/org.apache.mesos/network_info/name", Text),
    ("/args/org.apache.mesos/network_info/labels", Object),
    ("/args/org.apache.mesos/network_info/labels/labels", List),
    ("/capabilities", Object),
    ("/cni.dev~1valid-attachments", List),
    ("/prevResult", Object),
    ("/mtu", Number),
    ("/num_queues", Number),
    ("/nodename", Text),
    ("/nodename_file", Text),
    ("/nodename_file_optional", Flag),
    ("/ipam_lock_file", Text),
    ("/datastore_type", Word),
    ("/datastore_path", Text),
    ("/etcd_endpoints", Text),
    ("/etcd_discovery_srv", Text),
    ("/etcd_key_file", Text),
    ("/etcd_cert_file", Text),
    ("/etcd_ca_cert_file", Text),
    ("/etcd_key", Text),
    ("/etcd_cert", Text),
    ("/etcd_ca_cert", Text),
    ("/etcd_username", Text),
    ("/etcd_password", Text),
    ("/etcd_scheme", Text),
    ("/etcd_authority", Text),
    ("/hostname", Text),
    ("/log_level", Text),
    ("/log_file_path", Text),
    ("/log_file_max_size", Number),
    ("/log_file_max_age", Number),
    ("/log_file_max_count", Number),
    ("/policy", Object),
    ("/policy/type", Text),
    ("/policy/k8s_api_root", Text),
    ("/policy/k8s_auth_token", Text),
    ("/policy/k8s_client_certificate", Text),
    ("/policy/k8s_client_key", Text),
    ("/policy/k8s_certificate_authority", Text),
    ("/kubernetes", Object),
    ("/kubernetes/kubeconfig", Text),
    ("/kubernetes/k8s_api_root", Text),
    ("/kubernetes/node_name", Text),
    ("/feature_control", Object),
    ("/feature_control/ip_addrs_no_ipam", Flag),
    ("/feature_control/floating_ips", Flag),
    ("/feature_control/restrict_annotations", Flag),
    ("/feature_control/gc_running_containers", Flag),
    ("/container_settings", Object),
    ("/container_settings/allow_ip_forwarding", Flag),
    ("/include_default_routes", Flag),
    ("/dataplane_options", Object),
    ("/dataplane_options/type", Word),
    ("/dataplane_options/socket", Text),
    ("/device_type", Word),
    ("/readiness_gates", Texts),
    ("/policy_setup_timeout_seconds", Number),
    ("/endpoint_status_dir", Text),
    ("/require_mtu_file", Flag),
    ("/calico_api_group", Word),
    ("/runtimeConfig", Object),
    ("/runtimeConfig/dns", Object),
    ("/runtimeConfig/dns/domain", Text),
    ("/runtimeConfig/dns/servers", Texts),
    ("/runtimeConfig/dns/searches", Texts),
    ("/runtimeConfig/dns/options", Texts),
    ("/windows_pod_deletion_timestamp_timeout", Number),
    ("/windows_use_single_network", Flag),
    ("/windows_disable_default_deny_all_policy", Flag),
    ("/windows_loopback_DSR", Flag),
];

/// Returns the values that a key of this kind must reject.
pub(crate) fn wrong_values(kind: Kind) -> Vec<Value> {
    let mut values =
        vec![json!(true), json!("x"), json!(1), json!(1.5), json!([]), json!({}), json!([{}]), json!(["x"])];
    values.retain(|value| match kind {
        Text => !value.is_string(),
        Word => true,
        Number => value.as_i64().is_none(),
        Flag => !value.is_boolean(),
        Object => !value.is_object(),
        // Not every CNI command reads the items of these lists, so a list with items of a wrong type need not be
        // rejected.
        List => !value.is_array(),
        Texts => !value.is_array() || *value == json!([{}]),
    });
    values
}
