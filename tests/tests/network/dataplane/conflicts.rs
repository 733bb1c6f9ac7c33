//! ADD with existing interfaces or routes.

use std::net::IpAddr;

use dataplane::{DataplaneError, EndpointPlan};
use integration_tests::command::{ip, ip_json};
use integration_tests::namespaces::isolated;
use serde_json::Value;

use super::{link_names, only, plan, set_up};

#[test]
fn setup_replaces_the_interface_of_an_earlier_sandbox() {
    isolated(|host| {
        let first = set_up(host, "old", &plan("cali1", &["10.65.0.2"])).unwrap();
        set_up(host, "new", &plan("cali1", &["10.65.0.3"])).unwrap();
        assert_eq!(only("route show dev cali1")["dst"], "10.65.0.3");
        assert_eq!(host.in_pod("old", || Ok(link_names())).unwrap(), ["lo"]);
        assert_ne!(
            only("-n new link show dev eth0")["address"],
            first.container_mac.to_string()
        );
    });
}

#[test]
fn repeated_setup_replaces_the_whole_pair() {
    isolated(|host| {
        set_up(host, "pod1", &plan("cali1", &["10.65.0.2"])).unwrap();
        set_up(host, "pod1", &plan("cali1", &["10.65.0.3"])).unwrap();
        let addresses = only("-4 -n pod1 address show dev eth0");
        assert_eq!(addresses["addr_info"].as_array().map(Vec::len), Some(1));
        assert_eq!(addresses["addr_info"][0]["local"], "10.65.0.3");
        assert_eq!(link_names(), ["lo", "cali1"]);
    });
}

#[test]
fn setup_with_a_foreign_pod_interface_fails_without_changes() {
    isolated(|host| {
        set_up(host, "old", &plan("cali1", &["10.65.0.2"])).unwrap();
        host.add_pod("pod1").unwrap();
        ip("link add other type veth peer name eth0 netns pod1").unwrap();
        let error = set_up(host, "pod1", &plan("cali1", &["10.65.0.3"])).unwrap_err();
        assert!(
            matches!(error, DataplaneError::ContainerInterfaceExists { .. }),
            "{error:?}"
        );
        assert_eq!(
            error.to_string(),
            "interface eth0 already exists in /var/run/netns/pod1; delete the interface, or use \
             another CNI_IFNAME"
        );
        assert_eq!(
            only("route show dev cali1")["dst"],
            "10.65.0.2",
            "the earlier sandbox keeps its network"
        );
        assert!(link_names().contains(&"other".to_owned()));
        only("-n old link show dev eth0");
    });
}

/// Interfaces in different network namespaces may have the same index.
#[test]
fn equal_interface_indexes_in_two_namespaces_are_not_the_same_pair() {
    isolated(|host| {
        set_up(host, "old", &plan("cali1", &["10.65.0.2"])).unwrap();
        host.add_pod("pod1").unwrap();
        let stale = only("link show dev cali1")["ifindex"].clone();
        // The peer of eth0 has the index of cali1.
        host.add_pod("third").unwrap();
        ip(&format!(
            "-n third link add other index {stale} type veth peer name eth0 netns pod1"
        ))
        .unwrap();
        let outcome = set_up(host, "pod1", &plan("cali1", &["10.65.0.3"]));
        assert!(
            matches!(
                outcome,
                Err(DataplaneError::ContainerInterfaceExists { .. })
            ),
            "{outcome:?}"
        );
        assert_eq!(only("-n pod1 link show dev eth0")["link_index"], stale);
    });
}

#[test]
fn host_route_of_a_dead_interface_is_replaced_in_each_family() {
    isolated(|host| {
        for (dead, address) in [("dead4", "10.65.0.2/32"), ("dead6", "fd00:65::2/128")] {
            ip(&format!("link add {dead} type veth peer name {dead}p")).unwrap();
            ip(&format!("link set {dead} up")).unwrap();
            ip(&format!("route add {address} dev {dead}")).unwrap();
        }
        set_up(host, "pod1", &plan("cali1", &["10.65.0.2", "fd00:65::2"])).unwrap();
        assert_eq!(only("-4 route show 10.65.0.2")["dev"], "cali1");
        assert_eq!(only("-6 route show fd00:65::2")["dev"], "cali1");
    });
}

/// An address from another source than IPAM may be in use behind an interface that is down for a
/// moment.
#[test]
fn host_route_of_a_dead_interface_stays_unless_ipam_assigned_the_address() {
    isolated(|host| {
        for (dead, address) in [("dead4", "10.65.0.2/32"), ("dead6", "fd00:65::2/128")] {
            ip(&format!("link add {dead} type veth peer name {dead}p")).unwrap();
            ip(&format!("link set {dead} up")).unwrap();
            ip(&format!("route add {address} dev {dead}")).unwrap();
        }
        for (address, dead) in [("10.65.0.2", "dead4"), ("fd00:65::2", "dead6")] {
            let wanted = EndpointPlan {
                replaces_idle_routes: false,
                ..plan("cali1", &[address])
            };
            let error = set_up(host, "pod1", &wanted).unwrap_err();
            let DataplaneError::BusyRoute(busy) = &error else {
                panic!("{error:?}")
            };
            assert_eq!(
                (busy.address, busy.interface.as_deref()),
                (address.parse().unwrap(), Some(dead))
            );
            assert!(!link_names().contains(&"cali1".to_owned()));
        }
        assert_eq!(only("-4 route show 10.65.0.2")["dev"], "dead4");
        assert_eq!(only("-6 route show fd00:65::2")["dev"], "dead6");
    });
}

/// With several routes to an address, the route in use remains, and the idle one too, because the
/// ADD fails.
#[test]
fn idle_route_beside_a_busy_route_stays() {
    isolated(|host| {
        ip("link add dead type veth peer name deadp").unwrap();
        ip("link set dead up").unwrap();
        ip("route add 10.65.0.2/32 dev dead").unwrap();
        set_up(host, "other", &plan("cali9", &["10.65.0.9"])).unwrap();
        ip("route add 10.65.0.2/32 dev cali9 metric 100").unwrap();
        let error = set_up(host, "pod1", &plan("cali1", &["10.65.0.2"])).unwrap_err();
        assert!(
            error.to_string().contains("through interface cali9"),
            "{error}"
        );
        assert_eq!(
            ip_json("route show 10.65.0.2")
                .unwrap()
                .as_array()
                .map(Vec::len),
            Some(2)
        );
    });
}

/// The ADD fails because of the route to the second address, so the route to the first one remains.
#[test]
fn idle_route_stays_if_the_route_to_the_second_address_is_busy() {
    isolated(|host| {
        ip("link add dead type veth peer name deadp").unwrap();
        ip("link set dead up").unwrap();
        ip("route add 10.65.0.2/32 dev dead metric 100").unwrap();
        set_up(host, "other", &plan("cali9", &["fd00:65::9"])).unwrap();
        ip("-6 route add fd00:65::2/128 dev cali9 metric 100").unwrap();
        let error = set_up(host, "pod1", &plan("cali1", &["10.65.0.2", "fd00:65::2"])).unwrap_err();
        assert!(
            error.to_string().contains("through interface cali9"),
            "{error}"
        );
        assert_eq!(only("route show 10.65.0.2")["dev"], "dead");
    });
}

/// A VM's bridge without ports has no carrier, and nothing restores its route when the carrier
/// returns.
#[test]
fn idle_route_through_a_bridge_is_a_conflict() {
    isolated(|host| {
        ip("link add virbr0 type bridge").unwrap();
        ip("link set virbr0 up").unwrap();
        ip("route add 10.65.0.2/32 dev virbr0 metric 100").unwrap();
        let error = set_up(host, "pod1", &plan("cali1", &["10.65.0.2"])).unwrap_err();
        assert!(
            error.to_string().contains("through interface virbr0"),
            "{error}"
        );
        assert_eq!(only("route show 10.65.0.2")["dev"], "virbr0");
    });
}

/// Shows SEC-50.
#[test]
fn host_route_of_a_live_interface_is_a_conflict_naming_the_interface() {
    let addresses = [("-4", "10.65.0.2"), ("-6", "fd00:65::2")];
    // Felix creates routes to pods with metric 1024, and with metric 512 during the migration of a
    // VM.
    let metrics = ["", "metric 1024", "metric 512"];
    for (family, address, metric) in addresses
        .into_iter()
        .flat_map(|(f, a)| metrics.map(|metric| (f, a, metric)))
    {
        isolated(|host| {
            set_up(host, "other", &plan("cali9", &["10.65.0.9", "fd00:65::9"])).unwrap();
            ip(&format!(
                "{family} route add {address} dev cali9 proto static {metric}"
            ))
            .unwrap();
            let error =
                set_up(host, "pod1", &plan("cali1", &["10.65.0.2", "fd00:65::2"])).unwrap_err();
            let DataplaneError::BusyRoute(busy) = &error else {
                panic!("{error:?}")
            };
            assert_eq!(
                (busy.address, busy.interface.as_deref()),
                (address.parse().unwrap(), Some("cali9"))
            );
            assert!(
                error
                    .to_string()
                    .contains("through interface cali9 (protocol Static)"),
                "{error}"
            );
            assert_eq!(
                only(&format!("{family} route show {address}"))["dev"],
                "cali9"
            );
            assert_eq!(link_names(), ["lo", "cali9"]);
            assert_eq!(host.in_pod("pod1", || Ok(link_names())).unwrap(), ["lo"]);
        });
    }
}

/// kubelet writes the error of a pod's ADD into an Event, which a tenant reads. Shows SEC-9.
#[test]
fn error_of_a_pod_names_no_interface_of_another_pod() {
    isolated(|host| {
        set_up(host, "other", &plan("cali9", &["10.65.0.2"])).unwrap();
        for refuses_addresses_of_pods in [false, true] {
            let withheld = EndpointPlan {
                withholds_other_pods: true,
                refuses_addresses_of_pods,
                ..plan("cali1", &["10.65.0.2"])
            };
            let error = set_up(host, "pod1", &withheld).unwrap_err();
            assert_eq!(
                error.to_string(),
                "host route to 10.65.0.2 for cali1 conflicts with the route through the interface \
                 of another pod: the address is in use"
            );
            let DataplaneError::BusyRoute(busy) = &error else {
                panic!("{error:?}")
            };
            assert!(
                busy.route.starts_with("through interface cali9 "),
                "{}",
                busy.route
            );
        }
    });
}

/// A lookup in the kernel would find the block's blackhole route, which BIRD creates.
#[test]
fn idle_host_route_with_a_different_metric_is_replaced() {
    isolated(|host| {
        ip("link add dead type veth peer name deadp").unwrap();
        ip("link set dead up").unwrap();
        ip("route add 10.65.0.2/32 dev dead metric 1024").unwrap();
        ip("route add blackhole 10.65.0.0/26").unwrap();
        set_up(host, "pod1", &plan("cali1", &["10.65.0.2", "10.65.0.3"])).unwrap();
        assert_eq!(only("route show 10.65.0.2")["dev"], "cali1");
        assert_eq!(only("route show 10.65.0.3")["dev"], "cali1");
    });
}

#[test]
fn blackhole_route_is_a_conflict_naming_the_type() {
    isolated(|host| {
        ip("route add blackhole 10.65.0.2/32").unwrap();
        let error = set_up(host, "pod1", &plan("cali1", &["10.65.0.2"])).unwrap_err();
        assert!(error.to_string().contains("of type BlackHole"), "{error}");
        assert_eq!(link_names(), ["lo"]);
        assert_eq!(
            ip_json("route show").unwrap().as_array().map(Vec::len),
            Some(1)
        );
    });
}

/// After a restore of the datastore, IPAM may assign an address of the host.
#[test]
fn address_of_the_host_is_a_conflict() {
    for (family, address, length) in [("-4", "10.65.0.2", 32), ("-6", "fd00:65::2", 128)] {
        isolated(|host| {
            ip("link add own type veth peer name ownp").unwrap();
            ip("link set own up").unwrap();
            let nodad = if length == 128 { "nodad" } else { "" };
            ip(&format!(
                "{family} address add {address}/{length} dev own {nodad}"
            ))
            .unwrap();
            let error =
                set_up(host, "pod1", &plan("cali1", &["10.65.0.2", "fd00:65::2"])).unwrap_err();
            let DataplaneError::BusyRoute(busy) = &error else {
                panic!("{error:?}")
            };
            assert_eq!(busy.address, address.parse::<IpAddr>().unwrap());
            assert!(
                error
                    .to_string()
                    .contains("that is the host's own, on interface own"),
                "{error}"
            );
            assert!(!link_names().contains(&"cali1".to_owned()));
        });
    }
}

#[test]
fn route_to_the_block_of_the_address_is_no_conflict() {
    isolated(|host| {
        ip("route add blackhole 10.65.0.0/26").unwrap();
        set_up(host, "pod1", &plan("cali1", &["10.65.0.0"])).unwrap();
        let devices: Vec<Value> = ip_json("route show root 10.65.0.0/26")
            .unwrap()
            .as_array()
            .unwrap()
            .clone();
        assert_eq!(devices.len(), 2);
    });
}
