//! CHECK reports each item that is broken alone, and accepts what a later plugin of the chain may
//! change.

use dataplane::{CheckedItem, Difference, EndpointPlan, verify};
use integration_tests::command::run;
use integration_tests::kernel;
use integration_tests::namespaces::{Host, isolated};

use super::{link_names, open, plan, set_up};

/// Sets up a dual-stack endpoint. Returns its plan.
fn endpoint(host: &Host) -> EndpointPlan {
    let wanted = EndpointPlan {
        mtu: 1400,
        ..plan("cali1", &["10.65.0.2", "fd00:65::2"])
    };
    set_up(host, "pod1", &wanted).unwrap();
    wanted
}

fn differences(host: &Host, plan: &EndpointPlan) -> Vec<Difference> {
    verify(plan, &open(host, "pod1")).unwrap()
}

/// Breaks a new endpoint with shell commands. Returns the differences that CHECK reports.
fn after(commands: &str) -> Vec<String> {
    let mut said = Vec::new();
    isolated(|host| {
        let plan = endpoint(host);
        // The kernel computes the link-local address from the MAC address, some time after the
        // interface came up.
        kernel::host().unwrap();
        assert_eq!(differences(host, &plan), [], "before it is broken");
        run("sh", &["-ec", commands]).unwrap();
        said = differences(host, &plan)
            .iter()
            .map(Difference::to_string)
            .collect();
    });
    said
}

#[test]
fn verify_of_an_intact_endpoint_finds_no_differences() {
    isolated(|host| {
        let wanted = endpoint(host);
        assert_eq!(differences(host, &wanted), []);
    });
}

/// `tuning` changes the first five, `sbr` moves and deletes routes, and `route-override` changes
/// them.
#[test]
fn verify_accepts_each_change_that_a_later_plugin_may_make_in_the_pod() {
    for commands in [
        "ip -n pod1 link set eth0 mtu 1300",
        "ip link set cali1 mtu 9000; ip -n pod1 link set eth0 mtu 9000; ip link set cali1 mtu 1400",
        "ip -n pod1 link set eth0 address 02:00:00:00:00:07",
        "ip -n pod1 link set eth0 promisc on; ip -n pod1 link set eth0 txqueuelen 7",
        "for key in ipv4/ip_forward ipv6/conf/all/forwarding ipv6/conf/eth0/accept_dad; do
             ip netns exec pod1 sh -c \"echo 1 > /proc/sys/net/$key\"
         done",
        "ip -n pod1 rule add from 10.65.0.2 table 100; ip -n pod1 route add 169.254.1.1 dev eth0 table 100
         ip -n pod1 route del default; ip -n pod1 route del 169.254.1.1",
        "ip -n pod1 -6 route flush dev eth0",
        "ip -n pod1 route add 169.254.1.2 dev eth0; ip -n pod1 route replace default via \
         169.254.1.2",
        "ip -n pod1 -6 route replace default via fe80::7 dev eth0",
        "ip -n pod1 route del 169.254.1.1; ip -n pod1 route add 169.254.1.1 dev eth0 scope global",
        "ip -n pod1 address add 192.0.2.1/24 dev eth0",
    ] {
        assert_eq!(after(commands), [] as [String; 0], "{commands}");
    }
}

#[test]
fn verify_reports_a_missing_host_end() {
    isolated(|host| {
        let wanted = endpoint(host);
        let other = EndpointPlan {
            host_ifname: "cali2".into(),
            ..wanted
        };
        let found = differences(host, &other);
        let missing = Difference {
            item: CheckedItem::Link("cali2".into()),
            expected: "present".into(),
            found: "none".into(),
        };
        assert_eq!(found, [missing]);
    });
}

#[test]
fn verify_reports_a_missing_pod_end() {
    let said = after("ip -n pod1 link set eth0 down; ip -n pod1 link set eth0 name eth7");
    assert!(
        said.contains(&"interface eth0: expected present, found none".to_owned()),
        "{said:#?}"
    );
}

#[test]
fn verify_reports_both_ends_of_a_deleted_pair() {
    assert_eq!(
        after("ip link del cali1"),
        [
            "interface cali1: expected present, found none",
            "interface eth0: expected present, found none"
        ]
    );
}

#[test]
fn verify_reports_a_pod_end_of_another_pair() {
    let said = after(
        "ip -n pod1 link show eth0 | grep -o 'link/ether [0-9a-f:]*' | cut -d' ' -f2 > /run/mac
         ip netns add aside; ip -n pod1 link set eth0 netns aside
         ip link add cali2 type veth peer name eth0 mtu 1400 address $(cat /run/mac) netns pod1",
    );
    let peer = said
        .iter()
        .find(|line| line.starts_with("peer of interface cali1: expected eth0 in the pod"));
    assert!(peer.is_some(), "{said:#?}");
}

#[test]
fn verify_reports_a_link_that_is_down() {
    assert_eq!(
        after("ip -n pod1 link set lo down; ip link set cali1 down")[0],
        "state of interface cali1: expected up, found down"
    );
    let said = after("ip -n pod1 link set eth0 down");
    assert!(
        said.contains(&"state of interface eth0: expected up, found down".to_owned()),
        "{said:#?}"
    );
    assert!(
        said.contains(
            &"state of interface cali1: expected up, found up without carrier: its peer is down"
                .to_owned()
        ),
        "{said:#?}"
    );
}

#[test]
fn verify_reports_a_changed_mac_address_of_the_host_end() {
    assert_eq!(
        after("ip link set cali1 address 02:00:00:00:00:07"),
        ["MAC address of interface cali1: expected ee:ee:ee:ee:ee:ee, found 02:00:00:00:00:07"]
    );
}

#[test]
fn verify_reports_an_mtu_of_the_host_end_below_that_of_the_pod() {
    assert_eq!(
        after("ip link set cali1 mtu 1300"),
        ["MTU of interface cali1: expected 1400, found 1300"]
    );
}

#[test]
fn verify_reports_a_missing_or_changed_address() {
    assert_eq!(
        after("ip -n pod1 address del 10.65.0.2/32 dev eth0"),
        ["address 10.65.0.2 of interface eth0: expected 10.65.0.2/32, found none"]
    );
    assert_eq!(
        after("ip -n pod1 address del fd00:65::2/128 dev eth0"),
        ["address fd00:65::2 of interface eth0: expected fd00:65::2/128, found none"]
    );
    assert_eq!(
        after(
            "ip -n pod1 address del fd00:65::2/128 dev eth0; ip -n pod1 address add fd00:65::2/64 \
             dev eth0"
        ),
        ["address fd00:65::2 of interface eth0: expected fd00:65::2/128, found fd00:65::2/64"]
    );
}

#[test]
fn verify_reports_a_host_route_of_another_scope() {
    assert_eq!(
        after("ip route del 10.65.0.2; ip route add 10.65.0.2 dev cali1 scope global"),
        ["route 10.65.0.2/32 through interface cali1: \
          expected 10.65.0.2/32 scope link, found 10.65.0.2/32 scope universe type unicast"]
    );
}

#[test]
fn verify_reports_a_missing_host_route_unless_left_to_felix() {
    assert_eq!(
        after("ip route del 10.65.0.2"),
        [
            "route 10.65.0.2/32 through interface cali1: expected 10.65.0.2/32 scope link, found \
             none"
        ]
    );
    assert_eq!(
        after("ip -6 route del fd00:65::2"),
        [
            "route fd00:65::2/128 through interface cali1: expected fd00:65::2/128 scope link, \
             found none"
        ]
    );
    isolated(|host| {
        let wanted = endpoint(host);
        run(
            "sh",
            &["-ec", "ip route del 10.65.0.2; ip -6 route del fd00:65::2"],
        )
        .unwrap();
        assert_eq!(
            differences(
                host,
                &EndpointPlan {
                    host_routes: false,
                    ..wanted
                }
            ),
            [],
            "left to Felix"
        );
    });
}

#[test]
fn verify_reports_each_wrong_sysctl_of_the_host_end() {
    for (key, wrong, right) in [
        ("ipv4/conf/cali1/route_localnet", 0, 1),
        ("ipv4/neigh/cali1/proxy_delay", 80, 0),
        ("ipv4/conf/cali1/proxy_arp", 0, 1),
        ("ipv4/conf/cali1/forwarding", 0, 1),
        ("ipv6/conf/cali1/accept_dad", 1, 0),
        ("ipv6/conf/cali1/proxy_ndp", 0, 1),
        ("ipv6/conf/cali1/forwarding", 0, 1),
        ("ipv6/conf/cali1/accept_ra", 2, 0),
    ] {
        let said = after(&format!("echo {wrong} > /proc/sys/net/{key}"));
        assert_eq!(
            said,
            [format!("sysctl net/{key}: expected {right}, found {wrong}")]
        );
    }
    // Disabling IPv6 also removes the IPv6 routes.
    let said = after("echo 1 > /proc/sys/net/ipv6/conf/cali1/disable_ipv6");
    assert!(
        said.contains(&"sysctl net/ipv6/conf/cali1/disable_ipv6: expected 0, found 1".to_owned()),
        "{said:#?}"
    );
}

#[test]
fn verify_reports_a_static_neighbour_with_a_wrong_mac() {
    for gateway in ["169.254.1.1", "fe80::ecee:eeff:feee:eeee"] {
        let said = after(&format!(
            "ip -n pod1 neigh add {gateway} lladdr 02:00:00:00:00:07 dev eth0 nud permanent"
        ));
        assert_eq!(
            said,
            [format!(
                "neighbour {gateway} on interface eth0: expected ee:ee:ee:ee:ee:ee or no static \
                 entry, found static entry 02:00:00:00:00:07"
            )]
        );
    }
    let said = after("ip neigh add 10.65.0.2 lladdr 02:00:00:00:00:07 dev cali1 nud permanent");
    assert_eq!(said.len(), 1, "{said:#?}");
    assert!(
        said[0].starts_with("neighbour 10.65.0.2 on interface cali1: expected "),
        "{said:#?}"
    );
}

#[test]
fn verify_accepts_a_static_neighbour_with_the_right_mac() {
    assert_eq!(
        after("ip -n pod1 neigh add 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0 nud permanent"),
        [] as [String; 0]
    );
}

#[test]
fn verify_reports_all_of_several_differences() {
    let said =
        after("ip link set cali1 address 02:00:00:00:00:07 mtu 1300; ip route del 10.65.0.2");
    assert_eq!(said.len(), 3, "{said:#?}");
}

#[test]
fn verify_changes_nothing() {
    isolated(|host| {
        let wanted = endpoint(host);
        let state = || (kernel::host().unwrap(), kernel::pods(host).unwrap());
        let before = state();
        differences(
            host,
            &EndpointPlan {
                mtu: 1300,
                allow_ip_forwarding: true,
                ..wanted
            },
        );
        assert_eq!(state(), before);
        assert_eq!(link_names(), ["lo", "cali1"]);
    });
}
