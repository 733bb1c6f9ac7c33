use libcalico::names::InterfaceAlias;

use super::*;

fn plan(addresses: &[&str]) -> EndpointPlan {
    EndpointPlan {
        host_ifname: "calic0ffee01000".into(),
        container_ifname: "eth0".into(),
        addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
        mtu: 1410,
        num_queues: 1,
        device: DeviceType::Veth,
        container_mac: None,
        routes: default_routes(),
        ipv4_gateway: DEFAULT_IPV4_GATEWAY,
        allow_ip_forwarding: false,
        host_routes: true,
        replaces_idle_routes: false,
        refuses_addresses_of_pods: false,
        withholds_other_pods: false,
        alias: InterfaceAlias::for_container("c1"),
        prior: PriorInterface::Unknown,
    }
}

fn lines(end: &InterfaceEnd) -> Vec<String> {
    let mut lines = vec![format!("{} mtu {}", end.ifname, end.mtu)];
    lines.extend(end.mac.map(|mac| format!("mac {mac}")));
    lines.extend(end.sysctls.iter().map(|s| {
        format!(
            "{}{}={}",
            if s.is_required { "" } else { "?" },
            s.key,
            s.value
        )
    }));
    lines.extend(end.routes.iter().map(|route| format!("route {route}")));
    lines.extend(
        end.addresses
            .iter()
            .map(|address| format!("address {address}")),
    );
    lines
}

#[test]
fn ipv4_plan_lists_links_sysctls_routes_and_addresses() {
    let plan = plan(&["10.65.0.2"]);
    assert_eq!(
        lines(&plan.host_end()),
        [
            "calic0ffee01000 mtu 1410",
            "mac ee:ee:ee:ee:ee:ee",
            "net/ipv4/conf/calic0ffee01000/route_localnet=1",
            "?net/ipv4/neigh/calic0ffee01000/proxy_delay=0",
            "net/ipv4/conf/calic0ffee01000/proxy_arp=1",
            "net/ipv4/conf/calic0ffee01000/forwarding=1",
            "?net/ipv6/conf/calic0ffee01000/accept_ra=0",
            "route 10.65.0.2/32 scope link",
        ]
    );
    assert_eq!(
        lines(&plan.container_end()),
        [
            "eth0 mtu 1410",
            "net/ipv4/ip_forward=0",
            "route 169.254.1.1/32 scope link",
            "route 0.0.0.0/0 via 169.254.1.1",
            "address 10.65.0.2/32",
        ]
    );
}

#[test]
fn ipv6_plan_lists_links_sysctls_routes_and_addresses() {
    let plan = plan(&["fd00:65::2"]);
    assert_eq!(
        lines(&plan.host_end()),
        [
            "calic0ffee01000 mtu 1410",
            "mac ee:ee:ee:ee:ee:ee",
            "net/ipv6/conf/calic0ffee01000/accept_dad=0",
            "net/ipv6/conf/calic0ffee01000/disable_ipv6=0",
            "net/ipv6/conf/calic0ffee01000/proxy_ndp=1",
            "net/ipv6/conf/calic0ffee01000/forwarding=1",
            "?net/ipv6/conf/calic0ffee01000/accept_ra=0",
            "route fd00:65::2/128 scope link",
        ]
    );
    assert_eq!(
        lines(&plan.container_end()),
        [
            "eth0 mtu 1410",
            "net/ipv6/conf/eth0/accept_dad=0",
            "net/ipv6/conf/all/disable_ipv6=0",
            "net/ipv6/conf/default/disable_ipv6=0",
            "net/ipv6/conf/lo/disable_ipv6=0",
            "net/ipv6/conf/all/forwarding=0",
            "route ::/0 via the host end's link-local address",
            "address fd00:65::2/128",
        ]
    );
}

#[test]
fn dual_stack_plan_has_both_families_in_address_order() {
    let plan = plan(&["fd00:65::2", "10.65.0.2"]);
    let host = plan.host_end();
    assert_eq!(host.sysctls.len(), 9);
    let destinations: Vec<_> = host
        .routes
        .iter()
        .map(|route| route.destination.to_string())
        .collect();
    assert_eq!(destinations, ["fd00:65::2/128", "10.65.0.2/32"]);
    assert_eq!(plan.container_end().routes.len(), 3);
    assert_eq!(plan.container_end().sysctls.len(), 6);
}

#[test]
fn plan_applies_custom_routes_gateway_and_settings() {
    let plan = EndpointPlan {
        routes: ["10.1.0.0/16", "fd01::/48", "10.1.0.0/16"]
            .iter()
            .map(|cidr| cidr.parse().unwrap())
            .collect(),
        ipv4_gateway: "10.65.0.1".parse().unwrap(),
        allow_ip_forwarding: true,
        host_routes: false,
        mtu: 0,
        container_mac: Some("0a:58:0a:41:00:02".parse().unwrap()),
        ..plan(&["10.65.0.2"])
    };
    assert_eq!(
        lines(&plan.container_end()),
        [
            "eth0 mtu 1500",
            "mac 0a:58:0a:41:00:02",
            "net/ipv4/ip_forward=1",
            "route 10.65.0.1/32 scope link",
            "route 10.1.0.0/16 via 10.65.0.1",
            "address 10.65.0.2/32",
        ],
        "the IPv6 route is skipped, the repeated one kept once"
    );
    assert_eq!(plan.host_end().routes, []);
}

#[test]
fn mapped_ipv4_address_is_planned_as_ipv4() {
    let plan = plan(&["::ffff:10.65.0.2", "10.65.0.2"]);
    assert!(plan.has_family(IpVersion::V4) && !plan.has_family(IpVersion::V6));
    assert_eq!(
        plan.container_end().addresses,
        ["10.65.0.2/32".parse().unwrap()]
    );
}

#[test]
fn sysctl_of_an_interface_with_a_dot_retains_the_dot() {
    let plan = EndpointPlan {
        container_ifname: "eth0.100".into(),
        ..plan(&["fd00:65::2"])
    };
    assert_eq!(
        plan.container_end().sysctls[0].key.to_string(),
        "net/ipv6/conf/eth0.100/accept_dad"
    );
}

#[test]
fn host_link_local_address_is_the_eui_64_of_the_host_mac() {
    let [a, b, c, d, e, f] = MacAddr::HOST_SIDE.bytes();
    let interface_id = [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    let mut address = [0; 16];
    address[..2].copy_from_slice(&[0xfe, 0x80]);
    address[8..].copy_from_slice(&interface_id);
    assert_eq!(HOST_LINK_LOCAL, Ipv6Addr::from(address));
}

#[test]
fn invalid_plan_is_rejected() {
    let good = plan(&["10.65.0.2"]);
    assert_eq!(good.validate(), Ok(()));
    for name in [
        "",
        "sixteen-bytes-xx",
        "a/b",
        "..",
        ".",
        "a b",
        "a:b",
        "a\0",
        "../../etc",
    ] {
        let bad = EndpointPlan {
            container_ifname: name.into(),
            ..good.clone()
        };
        let error = bad.validate().unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("invalid interface name {name:?}: ")),
            "{error}"
        );
        let bad = EndpointPlan {
            host_ifname: name.into(),
            ..good.clone()
        };
        let error = bad.validate().unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("invalid interface name {name:?}: ")),
            "{error}"
        );
    }
    let mac = MacAddr::from_slice(&[1, 0, 0, 0, 0, 0]).unwrap();
    let multicast = EndpointPlan {
        container_mac: Some(mac),
        ..good.clone()
    };
    let bare = EndpointPlan {
        addresses: vec![],
        ..good.clone()
    };
    let without_queue = EndpointPlan {
        num_queues: 0,
        ..good
    };
    for (bad, text) in [
        (multicast, "invalid MAC address"),
        (bare, "no address to assign to interface eth0"),
        (without_queue, "interface eth0 needs at least one queue"),
    ] {
        let error = bad.validate().unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    }
}
