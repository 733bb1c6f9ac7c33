//! The dataplane's part of an ADD.

use std::fs;
use std::sync::Barrier;
use std::thread;

use dataplane::{DeviceType, EndpointPlan, NetnsFd, setup};
use integration_tests::command::{ip, ip_json, run};
use integration_tests::kernel::sysctl;
use integration_tests::namespaces::isolated;

use super::{link_names, only, open, plan, set_up};

#[test]
fn setup_result_agrees_with_the_kernel() {
    isolated(|host| {
        let wanted = EndpointPlan {
            mtu: 1400,
            num_queues: 2,
            container_mac: Some("0a:58:0a:41:00:02".parse().unwrap()),
            ..plan("cali1", &["10.65.0.2", "fd00:65::2"])
        };
        let attached = set_up(host, "pod1", &wanted).unwrap();
        assert_eq!(
            (attached.host_ifname.as_str(), attached.mtu, attached.device),
            ("cali1", 1400, DeviceType::Veth)
        );
        assert_eq!(
            attached.stages.iter().map(|s| s.name).collect::<Vec<_>>(),
            ["create_pair", "host_sysctls", "host_link", "pod"]
        );

        let outside = only("link show dev cali1");
        assert_eq!(outside["address"], attached.host_mac.to_string());
        assert_eq!(
            (&outside["mtu"], &outside["num_tx_queues"]),
            (&1400.into(), &2.into())
        );
        assert_eq!(
            outside["txqlen"], 1000,
            "upstream's host end has no transmit queue"
        );
        let inside = only("-n pod1 link show dev eth0");
        assert_eq!(inside["address"], "0a:58:0a:41:00:02");
        assert_eq!(inside["address"], attached.container_mac.to_string());
        assert_eq!(
            (&inside["mtu"], &inside["num_rx_queues"]),
            (&1400.into(), &2.into())
        );
    });
}

#[test]
fn setup_without_mac_and_mtu_uses_the_kernels_values() {
    isolated(|host| {
        let attached = set_up(host, "pod1", &plan("cali1", &["10.65.0.2"])).unwrap();
        assert_eq!(attached.mtu, 1500);
        assert_eq!(
            only("-n pod1 link show dev eth0")["address"],
            attached.container_mac.to_string()
        );
        assert!(attached.container_mac.is_assignable());
    });
}

#[test]
fn pods_and_host_reach_each_other() {
    isolated(|host| {
        // The host answers ARP for 169.254.1.1 only if it has a route to that address.
        host.add_uplink().unwrap();
        set_up(host, "pod1", &plan("cali1", &["10.65.0.2", "fd00:65::2"])).unwrap();
        set_up(host, "pod2", &plan("cali2", &["10.65.0.3", "fd00:65::3"])).unwrap();
        for (pod, target) in [
            ("pod1", "10.65.0.3"),
            ("pod2", "10.65.0.2"),
            ("pod1", "fd00:65::3"),
            ("pod2", "fd00:65::2"),
        ] {
            run("ip", &["netns", "exec", pod, "ping", "-c1", "-w10", target]).unwrap();
        }
        for target in ["10.65.0.2", "fd00:65::3"] {
            run("ping", &["-c1", "-w10", target]).unwrap();
        }
    });
}

#[test]
fn configured_gateway_replaces_169_254_1_1() {
    isolated(|host| {
        host.add_uplink().unwrap();
        let gateway = "10.65.0.1".parse().unwrap();
        set_up(
            host,
            "pod1",
            &EndpointPlan {
                ipv4_gateway: gateway,
                ..plan("cali1", &["10.65.0.2"])
            },
        )
        .unwrap();
        let route = only("-n pod1 route show default");
        assert_eq!(route["gateway"], "10.65.0.1");
        run(
            "ip",
            &["netns", "exec", "pod1", "ping", "-c1", "-w10", "192.0.2.2"],
        )
        .unwrap();
    });
}

#[test]
fn custom_routes_replace_the_default_routes() {
    isolated(|host| {
        let routes = ["10.1.0.0/16", "fd01::/48"]
            .iter()
            .map(|cidr| cidr.parse().unwrap())
            .collect();
        set_up(
            host,
            "pod1",
            &EndpointPlan {
                routes,
                ..plan("cali1", &["10.65.0.2", "fd00:65::2"])
            },
        )
        .unwrap();
        assert_eq!(
            only("-n pod1 route show 10.1.0.0/16")["gateway"],
            "169.254.1.1"
        );
        assert_eq!(
            only("-n pod1 -6 route show fd01::/48")["gateway"],
            "fe80::ecee:eeff:feee:eeee"
        );
        assert_eq!(
            ip_json("-n pod1 route show default").unwrap(),
            serde_json::json!([])
        );
        assert_eq!(
            ip_json("-n pod1 -6 route show default").unwrap(),
            serde_json::json!([])
        );
    });
}

#[test]
fn setup_without_host_routes_leaves_them_to_felix() {
    isolated(|host| {
        set_up(
            host,
            "pod1",
            &EndpointPlan {
                host_routes: false,
                ..plan("cali1", &["10.65.0.2"])
            },
        )
        .unwrap();
        assert_eq!(
            ip_json("route show dev cali1").unwrap(),
            serde_json::json!([])
        );
    });
}

#[test]
fn interface_names_with_dots_get_their_sysctls() {
    isolated(|host| {
        let wanted = EndpointPlan {
            container_ifname: "eth0.100".into(),
            ..plan("cali.1", &["10.65.0.2", "fd00:65::2"])
        };
        set_up(host, "pod1", &wanted).unwrap();
        assert_eq!(sysctl("ipv4/conf/cali.1/proxy_arp").unwrap(), "1");
        assert_eq!(sysctl("ipv6/conf/cali.1/accept_dad").unwrap(), "0");
        let inside = host
            .in_pod("pod1", || sysctl("ipv6/conf/eth0.100/accept_dad"))
            .unwrap();
        assert_eq!(inside, "0");
    });
}

#[test]
fn setup_waits_for_a_random_link_local_address() {
    isolated(|host| {
        fs::write("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "3").unwrap();
        set_up(host, "pod1", &plan("cali1", &["fd00:65::2"])).unwrap();
        let addresses = only("-6 address show dev cali1 scope link");
        let link_local = addresses["addr_info"][0]["local"].as_str().unwrap();
        assert_ne!(
            link_local, "fe80::ecee:eeff:feee:eeee",
            "the kernel was told to make a random one"
        );
        assert_eq!(only("-n pod1 -6 route show default")["gateway"], link_local);
        run(
            "ip",
            &[
                "netns",
                "exec",
                "pod1",
                "ping",
                "-c1",
                "-w10",
                &format!("{link_local}%eth0"),
            ],
        )
        .unwrap();
    });
}

#[test]
fn setup_without_link_local_addresses_fails_and_names_the_sysctl() {
    isolated(|host| {
        fs::write("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "1").unwrap();
        let error = set_up(host, "pod1", &plan("cali1", &["fd00:65::2"])).unwrap_err();
        assert!(error.to_string().contains("addr_gen_mode is 1"), "{error}");
        assert_eq!(link_names(), ["lo"]);
    });
}

/// The test reads the kernel's symbols to distinguish kernels, because Debian 12's `ip` does not
/// support netkit.
#[test]
fn netkit_pair_is_created_if_supported_and_a_veth_pair_otherwise() {
    isolated(|host| {
        let wanted = EndpointPlan {
            device: DeviceType::Netkit,
            mtu: 1400,
            ..plan("cali1", &["10.65.0.2"])
        };
        let attached = set_up(host, "pod1", &wanted).unwrap();
        let has_netkit = fs::read_to_string("/proc/kallsyms")
            .unwrap()
            .contains("netkit_link_ops");
        let (device, kind) = if has_netkit {
            (DeviceType::Netkit, "netkit")
        } else {
            (DeviceType::Veth, "veth")
        };
        assert_eq!(attached.device, device);
        assert_eq!(only("link show dev cali1")["linkinfo"]["info_kind"], kind);
        assert_eq!(only("-n pod1 link show dev eth0")["mtu"], 1400);
        assert_eq!(
            attached.host_mac,
            only("link show dev cali1")["address"]
                .as_str()
                .unwrap()
                .parse()
                .unwrap()
        );
    });
}

#[test]
fn twenty_concurrent_setups_leave_intact_endpoints() {
    isolated(|host| {
        let endpoints: Vec<(EndpointPlan, NetnsFd)> = (1..=20)
            .map(|n| {
                let addresses = [format!("10.65.0.{n}"), format!("fd00:65::{n}")];
                let wanted = plan(&format!("cali{n}"), &[&addresses[0], &addresses[1]]);
                (wanted, open(host, &format!("pod{n}")))
            })
            .collect();
        let start = Barrier::new(endpoints.len());
        thread::scope(|scope| {
            for (wanted, netns) in &endpoints {
                scope.spawn(|| {
                    start.wait();
                    setup(wanted, netns).unwrap();
                });
            }
        });
        for (wanted, netns) in &endpoints {
            let differences = dataplane::verify(wanted, netns).unwrap();
            assert_eq!(differences, [], "{}", wanted.host_ifname);
        }
        assert_eq!(link_names().len(), 21);
        ip("route get 10.65.0.20").unwrap();
    });
}
