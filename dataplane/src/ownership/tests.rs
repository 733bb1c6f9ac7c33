use libcalico::names::InterfaceAlias;

use super::*;
use crate::mac::MacAddr;

fn alias(pod: &str, container: &str) -> InterfaceAlias {
    InterfaceAlias::for_pod("net", "ns", pod, container)
}

fn link(alias: Option<InterfaceAlias>, has_carrier: bool) -> Link {
    Link {
        index: 7,
        name: "cali1".into(),
        mac: Some(MacAddr::HOST_SIDE),
        mtu: 1500,
        is_up: has_carrier,
        has_carrier,
        is_paired: true,
        peer_index: Some(2),
        peer_netns_id: Some(0),
        addr_gen_mode: None,
        alias,
    }
}

fn conflict(
    found: &Link,
    peer_location: PeerLocation,
    prior: PriorInterface,
) -> Option<ConflictReason> {
    let ours = alias("web", "c2");
    conflict_reason(
        found,
        peer_location,
        &DesiredInterface {
            host_ifname: "cali1",
            container_ifname: "eth0",
            alias: &ours,
            prior,
        },
    )
}

fn proven(index: u32) -> PriorInterface {
    PriorInterface::Present {
        index,
        is_proven: true,
    }
}

#[test]
fn alias_decides_ownership_despite_carrier_and_ipam() {
    for has_carrier in [true, false] {
        for (container, prior) in [
            ("c1", PriorInterface::Unknown),
            ("c2", PriorInterface::Unknown),
            ("c1", proven(7)),
        ] {
            for peer_location in [PeerLocation::RequestedName, PeerLocation::Elsewhere] {
                let same_pod = link(Some(alias("web", container)), has_carrier);
                assert_eq!(conflict(&same_pod, peer_location.clone(), prior), None);
                let other_pod = link(Some(alias("db", container)), has_carrier);
                assert_eq!(
                    conflict(&other_pod, peer_location, prior),
                    Some(ConflictReason::OtherPod)
                );
            }
        }
    }
}

#[test]
fn interface_with_carrier_and_no_alias_needs_a_proof_of_ownership() {
    let found = link(None, true);
    assert_eq!(
        conflict(&found, PeerLocation::Elsewhere, PriorInterface::Unknown),
        Some(ConflictReason::Unproven)
    );
    assert_eq!(
        conflict(&found, PeerLocation::Elsewhere, proven(8)),
        Some(ConflictReason::Unproven),
        "another interface was proven"
    );
    assert_eq!(conflict(&found, PeerLocation::Elsewhere, proven(7)), None);
    assert_eq!(
        conflict(&found, PeerLocation::RequestedName, PriorInterface::Unknown),
        None,
        "this sandbox's own interface"
    );
    assert_eq!(
        conflict(
            &link(None, false),
            PeerLocation::Elsewhere,
            PriorInterface::Unknown
        ),
        None
    );
}

#[test]
fn own_pods_interface_created_during_the_add_is_not_removed() {
    let there = |index| PriorInterface::Present {
        index,
        is_proven: false,
    };
    for has_carrier in [true, false] {
        let found = link(Some(alias("web", "c1")), has_carrier);
        assert_eq!(conflict(&found, PeerLocation::Elsewhere, there(7)), None);
        for prior in [PriorInterface::Missing, there(6), proven(6)] {
            assert_eq!(
                conflict(&found, PeerLocation::Elsewhere, prior),
                Some(ConflictReason::OtherAdd)
            );
        }
    }
}

#[test]
fn other_sandbox_interfaces_and_links_without_a_peer_are_never_removed() {
    let named = || PeerLocation::OtherName("net1".into());
    for found in [
        link(Some(alias("web", "c2")), true),
        link(None, true),
        link(None, false),
    ] {
        assert_eq!(
            conflict(&found, named(), proven(7)),
            Some(ConflictReason::OtherInterface("net1".into()))
        );
        let no_pair = Link {
            is_paired: false,
            ..found
        };
        assert_eq!(
            conflict(&no_pair, PeerLocation::Elsewhere, proven(7)),
            Some(ConflictReason::NotAPair)
        );
    }
}
