//! The way of packets, with real routes and interfaces: the node's default route, and the host's
//! end of a pod's pair.

use std::fs;

use integration_tests::cluster::{Cluster, on};
use integration_tests::command::{ip, ip_json};
use serde_json::json;

use crate::installer_doctor::etcd_node::{EtcdNode, add, first_address};
use crate::installer_doctor::report::{assert_good, assert_reported};

#[on(etcd)]
fn doctor_reports_a_missing_default_route(cluster: &mut Cluster<'_>) {
    let node = &EtcdNode::new(cluster, json!({}));
    assert_good(node);
    let restore = || ip("route add default via 192.0.2.1").unwrap();
    let found = ["skipped MTU", "warn default route"];
    let words = (
        "default route",
        "the node has no default route for IPv4: its pods reach only",
    );
    assert_reported(
        node,
        &found,
        words,
        || ip("route delete default").unwrap(),
        restore,
    );
    // Rules may use a route of another table.
    let move_it = || {
        ip("route delete default").unwrap();
        ip("route add default via 192.0.2.1 table 100").unwrap();
    };
    let words = ("default route", "for IPv4 in another table than main");
    assert_reported(node, &["skipped MTU"], words, move_it, || {
        ip("route delete default table 100").unwrap();
        restore();
    });
}

#[on(etcd)]
fn doctor_reports_changed_routes_and_settings_of_a_pods_interface(cluster: &mut Cluster<'_>) {
    let host = cluster.host;
    let node = &EtcdNode::new(cluster, json!({}));
    let result = add(host, "pod1");
    let interface = result["interfaces"][0]["name"].as_str().unwrap();
    let address = first_address(&result);
    assert_good(node);
    let route = |verb: &str, device: &str| {
        ip(&format!(
            "route {verb} {address}/32 dev {device} scope link"
        ))
        .unwrap()
    };
    let words = format!(
        "{address} through {interface} -> ip route add {address} dev {interface} scope link"
    );
    assert_reported(
        node,
        &["fail host routes of pods"],
        ("host routes of pods", &words),
        || route("delete", interface),
        || route("add", interface),
    );
    let words = format!("{address} through {interface} (a route leads through uplink0)");
    // The address is allocated, so the other route makes no free address busy.
    assert_reported(
        node,
        &["fail host routes of pods"],
        ("host routes of pods", &words),
        || route("replace", "uplink0"),
        || route("replace", interface),
    );
    let proxy_arp = format!("/proc/sys/net/ipv4/conf/{interface}/proxy_arp");
    let set = |value: &str| fs::write(&proxy_arp, value).unwrap();
    let words = format!("sysctl -w net/ipv4/conf/{interface}/proxy_arp=1");
    assert_reported(
        node,
        &["fail settings of interfaces"],
        ("settings of interfaces", &words),
        || set("0"),
        || set("1"),
    );
    let mac = |address: &str| ip(&format!("link set {interface} address {address}")).unwrap();
    let words = format!("ip link set {interface} address ee:ee:ee:ee:ee:ee");
    assert_reported(
        node,
        &["warn settings of interfaces"],
        ("settings of interfaces", &words),
        || mac("02:00:00:00:00:01"),
        || mac("ee:ee:ee:ee:ee:ee"),
    );
    assert_eq!(
        ip_json(&format!("route show dev {interface}")).unwrap()[0]["dst"],
        address
    );
}

#[on(etcd)]
fn doctor_reports_a_program_that_manages_interfaces_of_pods(cluster: &mut Cluster<'_>) {
    let node = &EtcdNode::new(cluster, json!({}));
    let process = node.container.path("proc/8");
    fs::create_dir_all(&process).unwrap();
    let runs = |name: &str| fs::write(process.join("comm"), format!("{name}\n")).unwrap();
    let ends = || fs::remove_file(process.join("comm")).unwrap();
    let words = ("NetworkManager", "unmanaged-devices+=interface-name:cali*");
    assert_reported(
        node,
        &["warn NetworkManager"],
        words,
        || runs("NetworkManager"),
        ends,
    );
    let network = node.container.path("etc/systemd/network/50-all.network");
    fs::create_dir_all(network.parent().unwrap()).unwrap();
    let manage_all = || {
        runs("systemd-network");
        fs::write(&network, "[Match]\nName=*\n").unwrap();
    };
    let words = (
        "systemd-networkd",
        "/etc/systemd/network/50-all.network applies to cali*",
    );
    assert_reported(node, &["warn systemd-networkd"], words, manage_all, || {
        fs::remove_file(&network).unwrap()
    });
    ends();
}
