use super::*;
use crate::ipam::Attribute;

fn attribute(handle: &str, active: &[(&str, &str)], alternate: &[(&str, &str)]) -> Attribute {
    let map = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    };
    Attribute {
        handle_id: Some(handle.into()),
        active_owner: map(active),
        alternate_owner: map(alternate),
        ..Attribute::default()
    }
}

#[test]
fn allocation_owner_is_derived_from_handle_and_attributes() {
    let pod = [("namespace", "ns"), ("pod", "p"), ("node", "n1")];
    let launcher = [
        ("namespace", "ns"),
        ("pod", "virt-launcher-vm1"),
        ("node", "n2"),
        ("vmi-name", "vm1"),
    ];
    let (namespace, name) = ("ns", "vm1");
    let none: &[(&str, &str)] = &[];
    for (handle, active, alternate, expected) in [
        (
            "net.c1",
            &pod[..],
            none,
            (
                AllocationOwner::Pod {
                    namespace: "ns",
                    name: "p",
                },
                Some("n1"),
            ),
        ),
        (
            "net.c1",
            &pod[1..],
            none,
            (AllocationOwner::Unnamed, Some("n1")),
        ),
        (
            "net.c1",
            &[("namespace", ""), ("pod", "p")],
            none,
            (AllocationOwner::Unnamed, None),
        ),
        (
            "net.vmi.ns.vm1",
            &launcher,
            none,
            (AllocationOwner::Vmi { namespace, name }, Some("n2")),
        ),
        (
            "net.vmi.ns.vm1",
            none,
            &launcher,
            (AllocationOwner::Vmi { namespace, name }, Some("n2")),
        ),
        (
            "net.vmi.ns.vm1",
            none,
            none,
            (AllocationOwner::Vmi { namespace, name }, None),
        ),
        (
            "net.vmi.0123abcd",
            none,
            none,
            (
                AllocationOwner::Vmi {
                    namespace: "",
                    name: "",
                },
                None,
            ),
        ),
        (
            "any",
            &[("vmi-name", "")],
            none,
            (
                AllocationOwner::Vmi {
                    namespace: "",
                    name: "",
                },
                None,
            ),
        ),
        (
            "any",
            &[("type", "vxlanV6TunnelAddress"), ("node", "n1")],
            none,
            (AllocationOwner::Tunnel, Some("n1")),
        ),
        (
            "ipip-tunnel-addr-n1",
            none,
            none,
            (AllocationOwner::Tunnel, None),
        ),
        (
            "lb-0",
            none,
            none,
            (
                AllocationOwner::Service {
                    namespace: "",
                    name: "",
                },
                None,
            ),
        ),
        (
            "lb-0",
            &[
                ("type", "LoadBalancer"),
                ("namespace", "ns"),
                ("service", "s"),
            ],
            none,
            (
                AllocationOwner::Service {
                    namespace,
                    name: "s",
                },
                None,
            ),
        ),
        (
            "lb-net.c1",
            &pod,
            none,
            (
                AllocationOwner::Pod {
                    namespace,
                    name: "p",
                },
                Some("n1"),
            ),
        ),
        (
            "any",
            &[("type", "egress"), ("namespace", "ns"), ("pod", "p")],
            none,
            (AllocationOwner::Foreign, None),
        ),
        (
            "Windows-Reserved-IPAM-Handle",
            &pod,
            none,
            (AllocationOwner::HostReserved, Some("n1")),
        ),
    ] {
        let attribute = attribute(handle, active, alternate);
        assert_eq!(
            AllocationOwner::of(&attribute),
            expected,
            "{handle} {active:?}"
        );
    }
}

fn facts_with<'a>(
    pod: Lookup<AddressInPod<'a>>,
    other: Lookup<()>,
    node: Option<&'a str>,
) -> OwnerFacts<'a> {
    let (vmi, owner) = (VmiLookup::Unknown, OwnerPodsLookup::Absent);
    OwnerFacts {
        pod,
        vmi,
        owner,
        service: other,
        tunnel_node: other,
        unnamed: other,
        node,
    }
}

/// Upstream compares the nodes first, even if the pod has the address (KC-434).
#[test]
fn pod_retains_addresses_that_are_reported_or_not_yet_reported() {
    use Verdict::{InUse, Leaked};
    let pod = |node, has, ended| Lookup::Present(AddressInPod { node, has, ended });
    for (lookup, node, expected) in [
        (Lookup::Absent, Some("n1"), Leaked(LeakReason::PodGone)),
        (Lookup::Unknown, Some("n1"), InUse(InUseReason::NotLookedUp)),
        (
            pod("n1", Some(true), None),
            Some("n1"),
            InUse(InUseReason::Pod),
        ),
        (pod("n1", Some(true), None), None, InUse(InUseReason::Pod)),
        (
            pod("n2", Some(true), None),
            Some("n1"),
            InUse(InUseReason::Pod),
        ),
        (
            pod("n2", None, None),
            Some("n1"),
            Leaked(LeakReason::PodElsewhere),
        ),
        (
            pod("n2", Some(false), None),
            Some("n1"),
            Leaked(LeakReason::PodElsewhere),
        ),
        (
            pod("n2", Some(false), None),
            None,
            Leaked(LeakReason::OtherAddresses),
        ),
        (
            pod("", None, None),
            Some("n1"),
            InUse(InUseReason::PodWithoutAddress),
        ),
        (
            pod("n1", None, None),
            Some("n1"),
            InUse(InUseReason::PodWithoutAddress),
        ),
        (
            pod("n1", None, Some(EndedPod::Evicted)),
            Some("n1"),
            InUse(InUseReason::PodWithoutAddress),
        ),
        (
            pod("n1", Some(false), None),
            Some("n1"),
            Leaked(LeakReason::OtherAddresses),
        ),
        (
            pod("n1", Some(true), Some(EndedPod::Finished)),
            Some("n1"),
            Leaked(LeakReason::PodFinished),
        ),
        (
            pod("n1", Some(true), Some(EndedPod::Evicted)),
            Some("n1"),
            Leaked(LeakReason::PodEvicted),
        ),
    ] {
        assert_eq!(
            assess(OwnerKind::Pod, &facts_with(lookup, Lookup::Unknown, node)),
            expected,
            "{lookup:?} {node:?}"
        );
    }
}

#[test]
fn other_owners_retain_addresses_while_present_or_unknown() {
    use Verdict::{InUse, Leaked};
    let ask = |kind, lookup| assess(kind, &facts_with(Lookup::Unknown, lookup, None));
    for (kind, in_use, leaked) in [
        (OwnerKind::Tunnel, InUseReason::Tunnel, LeakReason::NodeGone),
        (
            OwnerKind::Service,
            InUseReason::Service,
            LeakReason::ServiceGone,
        ),
        (
            OwnerKind::Unnamed,
            InUseReason::Endpoint,
            LeakReason::NoEndpoint,
        ),
    ] {
        assert_eq!(ask(kind, Lookup::Present(())), InUse(in_use));
        assert_eq!(ask(kind, Lookup::Absent), Leaked(leaked));
        assert!(matches!(
            ask(kind, Lookup::Unknown),
            InUse(InUseReason::NotLookedUp | InUseReason::UnknownOwner)
        ));
    }
    assert_eq!(
        ask(OwnerKind::HostReserved, Lookup::Absent),
        InUse(InUseReason::Host)
    );
    assert_eq!(
        ask(OwnerKind::Foreign, Lookup::Absent),
        InUse(InUseReason::UnknownOwner)
    );
}

fn vmi_facts<'a>(vmi: VmiLookup, pods: &[Lookup<AddressInPod<'a>>]) -> OwnerFacts<'a> {
    let absent = facts_with(Lookup::Absent, Lookup::Absent, None);
    OwnerFacts {
        vmi,
        owner: OwnerPodsLookup::of(pods.iter().copied()),
        ..absent
    }
}

#[test]
fn vmi_address_is_retained_by_the_vmi_or_a_launcher_with_the_address() {
    use Verdict::{InUse, Leaked};
    let pod = |has, ended| {
        Lookup::Present(AddressInPod {
            node: "n1",
            has,
            ended,
        })
    };
    let (gone, unseen) = (Lookup::Absent, Lookup::Unknown);
    let (runs, silent) = (pod(Some(true), None), pod(None, None));
    let (other, ended) = (
        pod(Some(false), None),
        pod(Some(true), Some(EndedPod::Finished)),
    );
    for (vmi, owners, expected) in [
        (VmiLookup::Present, &[][..], InUse(InUseReason::Vmi)),
        (VmiLookup::Present, &[unseen], InUse(InUseReason::Vmi)),
        (VmiLookup::Absent, &[], Leaked(LeakReason::VmiGone)),
        (
            VmiLookup::Absent,
            &[gone, ended],
            Leaked(LeakReason::VmiGone),
        ),
        (VmiLookup::Absent, &[other], Leaked(LeakReason::VmiGone)),
        (VmiLookup::Absent, &[runs], InUse(InUseReason::Pod)),
        (VmiLookup::Absent, &[gone, runs], InUse(InUseReason::Pod)),
        (VmiLookup::Absent, &[silent, gone], InUse(InUseReason::Pod)),
        (
            VmiLookup::Absent,
            &[other, unseen],
            InUse(InUseReason::NotLookedUp),
        ),
        (VmiLookup::Unknown, &[gone], InUse(InUseReason::NotLookedUp)),
        (VmiLookup::Unknown, &[runs], InUse(InUseReason::Pod)),
        (VmiLookup::Undefined, &[], Leaked(LeakReason::NoKubeVirt)),
        (
            VmiLookup::Undefined,
            &[gone, gone],
            Leaked(LeakReason::NoKubeVirt),
        ),
        (
            VmiLookup::Undefined,
            &[gone, ended],
            InUse(InUseReason::Pod),
        ),
        (VmiLookup::Undefined, &[other], InUse(InUseReason::Pod)),
        (
            VmiLookup::Undefined,
            &[unseen],
            InUse(InUseReason::NotLookedUp),
        ),
    ] {
        let facts = vmi_facts(vmi, owners);
        assert_eq!(
            assess(OwnerKind::Vmi, &facts),
            expected,
            "{vmi:?} {owners:?}"
        );
    }
}

#[test]
fn reason_of_a_service_covers_one_that_has_another_type() {
    assert_eq!(
        LeakReason::ServiceGone.to_string(),
        "its service is gone or is not of type LoadBalancer"
    );
}
