//! Tests of the findings about the way of packets.

use std::collections::BTreeSet;

use libcalico::net::IpVersion::{self, V4, V6};

use super::*;
use crate::network_managers::{ConfigFile, ManagingProgram, NetworkManager};
use dataplane::host_network::{LinkChange, LinkItem};

fn default_routes(main: &[IpVersion], any: &[IpVersion]) -> Observed<DefaultRoutes> {
    let families = |list: &[IpVersion]| list.iter().copied().collect::<BTreeSet<_>>();
    Ok(DefaultRoutes {
        main: families(main),
        any: families(any),
    })
}

#[test]
fn missing_default_route_is_reported_for_the_families_of_pods() {
    only(
        "warn default route: the node has no default route for IPv6: its pods reach only",
        |snapshot| {
            snapshot.default_routes = default_routes(&[V4], &[V4]);
        },
    );
    only(
        "warn default route: the node has no default route for IPv4 and IPv6: ",
        |snapshot| {
            snapshot.default_routes = default_routes(&[], &[]);
        },
    );
    only("skipped default route: denied", |snapshot| {
        snapshot.default_routes = Err("denied".into())
    });
    // The pods of the node have IPv6 alone.
    let of_ipv6 = wrong(|snapshot| {
        let answers = answers(cluster(snapshot));
        answers.pools = Ok(vec![pool("default", "fd65::/64", true)]);
        answers.interfaces = Ok(Vec::new());
        snapshot.settings = vec![setting(FORWARD, "1"), setting(FORWARD_IPV6, "1")];
        snapshot.default_routes = default_routes(&[V6], &[V6]);
    });
    assert_eq!(of_ipv6, Vec::<String>::new());
}

#[test]
fn default_route_in_another_table_is_accepted_and_named() {
    let mut snapshot = good();
    snapshot.default_routes = default_routes(&[V4], &[V4, V6]);
    let found = run_all(&snapshot)
        .into_iter()
        .find(|finding| finding.name == "default route")
        .unwrap();
    assert_eq!(found.state, Severity::Ok);
    assert!(
        found
            .observation
            .starts_with("for IPv4 and IPv6; for IPv6 in another table than main"),
        "{found:?}"
    );
}

#[test]
fn default_route_without_a_known_family_may_be_of_any() {
    let without_answers =
        |snapshot: &mut NodeSnapshot| cluster(snapshot).reached = Err("refused".into());
    let named = |routes: Observed<DefaultRoutes>| {
        let found = wrong(|snapshot| {
            without_answers(snapshot);
            snapshot.default_routes = routes;
        });
        found
            .iter()
            .filter(|finding| finding.contains("default route"))
            .count()
    };
    assert_eq!(
        (
            named(default_routes(&[V6], &[V6])),
            named(default_routes(&[], &[]))
        ),
        (0, 1)
    );
}

fn with_interface(change: impl FnOnce(&mut PodInterface)) -> impl FnOnce(&mut NodeSnapshot) {
    move |snapshot| change(&mut answers(cluster(snapshot)).interfaces.as_mut().unwrap()[0])
}

#[test]
fn missing_host_route_is_reported_with_the_route_in_its_place() {
    let unrouted = |other: Option<&[&str]>| {
        let other_route = other.map(|names| names.iter().map(|&name| name.to_owned()).collect());
        let missing = Unrouted {
            address: "10.65.0.1".parse().unwrap(),
            other_route,
        };
        with_interface(|interface| interface.unrouted = vec![missing])
    };
    let begins = "FAIL host routes of pods: 1 addresses of pods have no host route, so their pods \
                  get no packets: 10.65.0.1 through cali1";
    only(begins, unrouted(None));
    only(
        &format!("{begins} (a route drops its packets)"),
        unrouted(Some(&[])),
    );
    only(
        &format!("{begins} (a route leads through tun0)"),
        unrouted(Some(&["tun0"])),
    );
}

#[test]
fn changed_settings_of_an_interface_are_reported() {
    let change = |item, expected: &str, found: &str| LinkChange {
        item,
        expected: expected.to_owned(),
        found: found.to_owned(),
    };
    let mac = change(LinkItem::Mac, "ee:ee:ee:ee:ee:ee", "02:00:00:00:00:01");
    let only_mac = vec![mac.clone()];
    only(
        "warn settings of interfaces: 1 items of pods' interfaces are not as the ADD set them: the \
         MAC address of cali1 is 02:00:00:00:00:01 instead of ee:ee:ee:ee:ee:ee",
        with_interface(|interface| interface.changes = only_mac),
    );
    let setting = change(
        LinkItem::Setting("net/ipv4/conf/cali1/proxy_arp".into()),
        "1",
        "0",
    );
    let both = vec![mac, setting, change(LinkItem::State, "up", "down")];
    let mut snapshot = good();
    with_interface(|interface| interface.changes = both)(&mut snapshot);
    let found = run_all(&snapshot)
        .into_iter()
        .find(|finding| finding.name == "settings of interfaces")
        .unwrap();
    assert_eq!(found.state, Severity::Fail);
    assert!(
        found
            .observation
            .ends_with("net/ipv4/conf/cali1/proxy_arp is 0 instead of 1, cali1 is down"),
        "{found:?}"
    );
    assert!(
        found
            .remedy
            .starts_with("sysctl -w net/ipv4/conf/cali1/proxy_arp=1; "),
        "{found:?}"
    );
}

#[test]
fn program_that_manages_interfaces_of_pods_is_reported() {
    let manager = |program, text: &str| {
        let files = vec![ConfigFile {
            path: "/etc/x.network".into(),
            text: text.to_owned(),
        }];
        let manager = NetworkManager {
            program,
            prefix: "cali".into(),
            files,
        };
        move |snapshot: &mut NodeSnapshot| snapshot.managers = vec![manager]
    };
    only(
        "warn NetworkManager: NetworkManager runs without an exception for cali*",
        manager(ManagingProgram::NetworkManager, ""),
    );
    only(
        "warn systemd-networkd: /etc/x.network applies to cali*",
        manager(ManagingProgram::Networkd, "[Match]\nName=*\n"),
    );
    let exception = "[keyfile]\nunmanaged-devices=interface-name:cali*\n";
    assert_eq!(
        wrong(manager(ManagingProgram::NetworkManager, exception)),
        Vec::<String>::new()
    );
    assert_eq!(
        wrong(manager(ManagingProgram::Networkd, "[Match]\nName=eth0\n")),
        Vec::<String>::new()
    );
}
