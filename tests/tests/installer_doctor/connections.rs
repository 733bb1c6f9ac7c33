//! The way of packets, with real routes and interfaces: the node's default route, and the host's
//! end of a pod's pair.

use std::fs;

use integration_tests::command::{ip, ip_json};
use integration_tests::etcd::ENDPOINT;
use integration_tests::namespaces::Host;
use integration_tests::plugin::Plugins;
use serde_json::{Value, json};

use crate::etcd::{Node, on_etcd};
use crate::scene::{Break, NODE, is_good};

/// Connects a container with an IPv4 address. Returns its host interface and its address.
fn connect(host: &Host) -> (String, String) {
    let conf: Value = json!({
        "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "log_level": "error",
        "nodename": NODE,
        "nodename_file_optional": true, "ipam": { "type": "calico-ipam" },
        "datastore_type": "etcdv3",
        "etcd_endpoints": ENDPOINT,
    });
    let netns = host.add_pod("pod1").unwrap();
    let result = Plugins::locate()
        .unwrap()
        .verb("calico", "ADD", "pod1", &netns, &conf)
        .run()
        .unwrap()
        .success();
    let address = result["ips"][0]["address"]
        .as_str()
        .unwrap()
        .split('/')
        .next()
        .unwrap()
        .to_owned();
    (
        result["interfaces"][0]["name"].as_str().unwrap().to_owned(),
        address,
    )
}

#[test]
fn doctor_reports_a_missing_default_route() {
    on_etcd(json!({}), |_, node| {
        let node = &*node;
        is_good(node);
        let restore = || ip("route add default via 192.0.2.1").unwrap();
        let found = ["skipped MTU", "warn default route"];
        let words = (
            "default route",
            "the node has no default route for IPv4: its pods reach only",
        );
        Break {
            found: &found,
            words,
        }
        .and_mend(node, || ip("route delete default").unwrap(), restore);
        // Rules may use a route of another table.
        let move_it = || {
            ip("route delete default").unwrap();
            ip("route add default via 192.0.2.1 table 100").unwrap();
        };
        let words = ("default route", "for IPv4 in another table than main");
        Break {
            found: &["skipped MTU"],
            words,
        }
        .and_mend(node, move_it, || {
            ip("route delete default table 100").unwrap();
            restore();
        });
    });
}

#[test]
fn doctor_reports_changed_routes_and_settings_of_a_pods_interface() {
    on_etcd(json!({}), |host, node| {
        let node = &*node;
        let (interface, address) = connect(host);
        is_good(node);
        let route = |verb: &str, device: &str| {
            ip(&format!(
                "route {verb} {address}/32 dev {device} scope link"
            ))
            .unwrap()
        };
        let words = format!(
            "{address} through {interface} -> ip route add {address} dev {interface} scope link"
        );
        Break {
            found: &["fail host routes of pods"],
            words: ("host routes of pods", &words),
        }
        .and_mend(
            node,
            || route("delete", &interface),
            || route("add", &interface),
        );
        let words = format!("{address} through {interface} (a route leads through uplink0)");
        // The address is allocated, so the other route makes no free address busy.
        Break {
            found: &["fail host routes of pods"],
            words: ("host routes of pods", &words),
        }
        .and_mend(
            node,
            || route("replace", "uplink0"),
            || route("replace", &interface),
        );
        let proxy_arp = format!("/proc/sys/net/ipv4/conf/{interface}/proxy_arp");
        let set = |value: &str| fs::write(&proxy_arp, value).unwrap();
        let words = format!("sysctl -w net/ipv4/conf/{interface}/proxy_arp=1");
        Break {
            found: &["fail settings of interfaces"],
            words: ("settings of interfaces", &words),
        }
        .and_mend(node, || set("0"), || set("1"));
        let mac = |address: &str| ip(&format!("link set {interface} address {address}")).unwrap();
        let words = format!("ip link set {interface} address ee:ee:ee:ee:ee:ee");
        Break {
            found: &["warn settings of interfaces"],
            words: ("settings of interfaces", &words),
        }
        .and_mend(
            node,
            || mac("02:00:00:00:00:01"),
            || mac("ee:ee:ee:ee:ee:ee"),
        );
        assert_eq!(
            ip_json(&format!("route show dev {interface}")).unwrap()[0]["dst"],
            address.as_str()
        );
    });
}

#[test]
fn doctor_reports_a_program_that_manages_interfaces_of_pods() {
    on_etcd(json!({}), |_, node| {
        let node: &Node = node;
        let process = node.container.path("proc/8");
        fs::create_dir_all(&process).unwrap();
        let runs = |name: &str| fs::write(process.join("comm"), format!("{name}\n")).unwrap();
        let ends = || fs::remove_file(process.join("comm")).unwrap();
        let words = ("NetworkManager", "unmanaged-devices+=interface-name:cali*");
        Break {
            found: &["warn NetworkManager"],
            words,
        }
        .and_mend(node, || runs("NetworkManager"), ends);
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
        Break {
            found: &["warn systemd-networkd"],
            words,
        }
        .and_mend(node, manage_all, || fs::remove_file(&network).unwrap());
        ends();
    });
}
