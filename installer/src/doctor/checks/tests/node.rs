//! Tests of the findings about the node itself.

use super::*;

#[test]
fn the_name_of_the_node() {
    only("FAIL nodename: nobody knows", |facts| {
        node(facts).name = Err("nobody knows".into());
        cluster(facts).node_exists = None;
    });
    only("FAIL nodename: the configuration says node1, /var/lib/calico/nodename says node2", |facts| {
        node(facts).written = Some("node2\n".into());
    });
    only("FAIL nodename: /var/lib/calico/nodename does not exist", |facts| node(facts).written = None);
    let optional = wrong(|facts| {
        node(facts).written = None;
        node(facts).optional = true;
    });
    assert!(optional.is_empty(), "{optional:?}");
}

#[test]
fn packets_fit() {
    only("warn MTU: pods have 1501 by the configuration, eth0 has 1500", |facts| facts.configured_mtu = Some(1501));
    only("warn MTU: pods have 1450 by the configuration, eth0 has 1500, of which encapsulation takes 70", |facts| {
        cluster(facts).pools.as_mut().unwrap()[0].overhead = 70;
    });
    only("warn MTU: pods have 9000 by /var/lib/calico/mtu", |facts| {
        (facts.configured_mtu, facts.mtu_file) = (Some(0), Ok(Some("9000".into())));
    });
    only("FAIL MTU: /var/lib/calico/mtu holds no number", |facts| {
        (facts.configured_mtu, facts.mtu_file) = (Some(0), Ok(Some("15oo".into())));
    });
    only("warn MTU: /var/lib/calico/mtu cannot be read: denied", |facts| {
        (facts.configured_mtu, facts.mtu_file) = (Some(0), Err("denied".into()));
    });
    let configured = wrong(|facts| (facts.mtu_file_required, facts.mtu_file) = (true, Err("denied".into())));
    assert!(configured.is_empty(), "{configured:?}");
    only("skipped MTU: 1450 by the configuration; no interface", |facts| facts.uplinks = Ok(Vec::new()));
    only("skipped MTU: 1450 by the configuration; the kernel does not tell its routes: no", |facts| {
        facts.uplinks = Err("no".into());
    });
    only("FAIL MTU: /var/lib/calico/mtu does not exist and require_mtu_file is true", |facts| {
        facts.mtu_file_required = true;
    });
    assert!(wrong(|facts| (facts.mtu_file_required, facts.mtu_file) = (true, Ok(Some("1450".into())))).is_empty());
}

#[test]
fn kernel_settings() {
    only("FAIL kernel settings: net.ipv4.ip_forward is 0", |facts| facts.settings[0] = setting(FORWARD, "0"));
    only("warn kernel settings: net.ipv4.conf.all.rp_filter is 2", |facts| {
        facts.settings[2] = setting(REVERSE_PATH, "2");
    });
    only("FAIL kernel settings: net.ipv6.conf.all.forwarding is 0, and a pool has IPv6", |facts| {
        cluster(facts).pools = Ok(vec![pool("six", "fd65::/48", true)]);
    });
    let elsewhere = wrong(|facts| {
        let six = Pool { selects_node: Ok(false), ..pool("six", "fd65::/48", true) };
        cluster(facts).pools.as_mut().unwrap().push(six);
    });
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
}
