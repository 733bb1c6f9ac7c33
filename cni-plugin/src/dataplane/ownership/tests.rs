//! Tests of the decision whether an ADD replaces an interface.

use libcalico::names::InterfaceAlias;

use super::*;
use crate::dataplane::mac::MacAddr;

fn alias(pod: &str, container: &str) -> InterfaceAlias {
    InterfaceAlias::for_pod("net", "ns", pod, container)
}

fn link(alias: Option<InterfaceAlias>, running: bool) -> Link {
    Link {
        index: 7,
        name: "cali1".into(),
        mac: Some(MacAddr::HOST_SIDE),
        mtu: 1500,
        up: running,
        running,
        paired: true,
        peer_index: Some(2),
        peer_netns_id: Some(0),
        addr_gen_mode: None,
        alias,
    }
}

fn judged(found: &Link, other_end: OtherEnd, before: Before) -> Option<Reason> {
    let ours = alias("web", "c2");
    reason_to_stay(found, other_end, &Wanted { host_ifname: "cali1", container_ifname: "eth0", alias: &ours, before })
}

fn proven(index: u32) -> Before {
    Before::Interface { index, is_proven: true }
}

#[test]
fn alias_decides_ownership_despite_carrier_and_ipam() {
    for running in [true, false] {
        for (container, before) in [("c1", Before::Unknown), ("c2", Before::Unknown), ("c1", proven(7))] {
            for other_end in [OtherEnd::Asked, OtherEnd::Elsewhere] {
                let same_pod = link(Some(alias("web", container)), running);
                assert_eq!(judged(&same_pod, other_end.clone(), before), None);
                let other_pod = link(Some(alias("db", container)), running);
                assert_eq!(judged(&other_pod, other_end, before), Some(Reason::OtherPod));
            }
        }
    }
}

#[test]
fn interface_with_carrier_and_no_alias_needs_a_proof_of_ownership() {
    let found = link(None, true);
    assert_eq!(judged(&found, OtherEnd::Elsewhere, Before::Unknown), Some(Reason::Unproven));
    assert_eq!(judged(&found, OtherEnd::Elsewhere, proven(8)), Some(Reason::Unproven), "another interface was proven");
    assert_eq!(judged(&found, OtherEnd::Elsewhere, proven(7)), None);
    assert_eq!(judged(&found, OtherEnd::Asked, Before::Unknown), None, "this sandbox's own interface");
    assert_eq!(judged(&link(None, false), OtherEnd::Elsewhere, Before::Unknown), None);
}

#[test]
fn own_pods_interface_created_during_the_add_is_not_removed() {
    let there = |index| Before::Interface { index, is_proven: false };
    for running in [true, false] {
        let found = link(Some(alias("web", "c1")), running);
        assert_eq!(judged(&found, OtherEnd::Elsewhere, there(7)), None);
        for before in [Before::Nothing, there(6), proven(6)] {
            assert_eq!(judged(&found, OtherEnd::Elsewhere, before), Some(Reason::OtherAdd));
        }
    }
}

#[test]
fn other_sandbox_interfaces_and_links_without_a_peer_are_never_removed() {
    let named = || OtherEnd::Named("net1".into());
    for found in [link(Some(alias("web", "c2")), true), link(None, true), link(None, false)] {
        assert_eq!(judged(&found, named(), proven(7)), Some(Reason::OtherInterface("net1".into())));
        let no_pair = Link { paired: false, ..found };
        assert_eq!(judged(&no_pair, OtherEnd::Elsewhere, proven(7)), Some(Reason::NoPair));
    }
}
