//! Tests of the findings about the node itself.

use super::*;

#[test]
fn missing_or_mismatched_node_name_is_reported() {
    only("FAIL nodename: nobody knows", |snapshot| {
        node(snapshot).name = Err("nobody knows".into());
        answers(cluster(snapshot)).node_exists = None;
    });
    only(
        "FAIL nodename: the configuration has the node name node1, but /var/lib/calico/nodename \
         has node2",
        |snapshot| {
            node(snapshot).written = Ok(Some("node2\n".into()));
        },
    );
    only(
        "FAIL nodename: /var/lib/calico/nodename does not exist",
        |snapshot| node(snapshot).written = Ok(None),
    );
    let optional = wrong(|snapshot| {
        node(snapshot).written = Ok(None);
        node(snapshot).optional = true;
    });
    assert!(optional.is_empty(), "{optional:?}");
}

#[test]
fn unreadable_nodename_file_is_reported_only_if_the_configuration_has_no_name() {
    let unreadable = |snapshot: &mut NodeSnapshot| node(snapshot).written = Err("denied".into());
    assert_eq!(wrong(unreadable), Vec::<String>::new());
    only(
        "warn nodename: /var/lib/calico/nodename cannot be read: denied; if the plugins cannot",
        |snapshot| {
            unreadable(snapshot);
            node(snapshot).configured = String::new();
        },
    );
}

#[test]
fn mismatched_mtu_is_reported() {
    only(
        "warn MTU: pods have MTU 1501 from the configuration, eth0 has 1500",
        |snapshot| snapshot.configured_mtu = Some(1501),
    );
    only(
        "warn MTU: pods have MTU 1450 from the configuration, eth0 has 1500, of which \
         encapsulation uses 70",
        |snapshot| {
            answers(cluster(snapshot)).pools.as_mut().unwrap()[0].overhead = 70;
        },
    );
    only(
        "warn MTU: pods have MTU 9000 from /var/lib/calico/mtu",
        |snapshot| {
            (snapshot.configured_mtu, snapshot.mtu_file) = (Some(0), Ok(Some("9000".into())));
        },
    );
    only(
        "FAIL MTU: /var/lib/calico/mtu does not contain a number",
        |snapshot| {
            (snapshot.configured_mtu, snapshot.mtu_file) = (Some(0), Ok(Some("15oo".into())));
        },
    );
    only(
        "warn MTU: /var/lib/calico/mtu cannot be read: denied",
        |snapshot| {
            (snapshot.configured_mtu, snapshot.mtu_file) = (Some(0), Err("denied".into()));
        },
    );
    let configured = wrong(|snapshot| {
        (snapshot.mtu_file_required, snapshot.mtu_file) = (true, Err("denied".into()))
    });
    assert!(configured.is_empty(), "{configured:?}");
    only(
        "skipped MTU: 1450 from the configuration; no interface",
        |snapshot| snapshot.uplinks = Ok(Vec::new()),
    );
    only(
        "skipped MTU: 1450 from the configuration; the routes of the kernel cannot be read: no",
        |snapshot| {
            snapshot.uplinks = Err("no".into());
        },
    );
    only(
        "FAIL MTU: /var/lib/calico/mtu does not exist and require_mtu_file is true",
        |snapshot| {
            snapshot.mtu_file_required = true;
        },
    );
    assert!(
        wrong(|snapshot| (snapshot.mtu_file_required, snapshot.mtu_file) =
            (true, Ok(Some("1450".into()))))
        .is_empty()
    );
}

#[test]
fn wrong_kernel_settings_are_reported() {
    only(
        "FAIL kernel settings: net.ipv4.ip_forward is 0",
        |snapshot| snapshot.settings[0] = setting(FORWARD, "0"),
    );
    only(
        "warn kernel settings: net.ipv4.conf.all.rp_filter is 2",
        |snapshot| {
            snapshot.settings[2] = setting(REVERSE_PATH, "2");
        },
    );
    only(
        "FAIL kernel settings: net.ipv6.conf.all.forwarding is 0, but a pool has IPv6",
        |snapshot| {
            answers(cluster(snapshot)).pools = Ok(vec![pool("six", "fd65::/48", true)]);
        },
    );
    let elsewhere = wrong(|snapshot| {
        let six = Pool {
            selects_node: Ok(false),
            ..pool("six", "fd65::/48", true)
        };
        answers(cluster(snapshot)).pools.as_mut().unwrap().push(six);
    });
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
}
