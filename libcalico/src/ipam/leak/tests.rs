use super::*;
use crate::ipam::Attribute;

fn attribute(handle: &str, active: &[(&str, &str)], alternate: &[(&str, &str)]) -> Attribute {
    let map = |pairs: &[(&str, &str)]| pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
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
    let launcher = [("namespace", "ns"), ("pod", "virt-launcher-vm1"), ("node", "n2"), ("vmi-name", "vm1")];
    let (namespace, name) = ("ns", "vm1");
    let none: &[(&str, &str)] = &[];
    for (handle, active, alternate, expected) in [
        ("net.c1", &pod[..], none, (Claim::Pod { namespace: "ns", name: "p" }, Some("n1"))),
        ("net.c1", &pod[1..], none, (Claim::Unnamed, Some("n1"))),
        ("net.c1", &[("namespace", ""), ("pod", "p")], none, (Claim::Unnamed, None)),
        ("net.vmi.ns.vm1", &launcher, none, (Claim::Machine { namespace, name }, Some("n2"))),
        ("net.vmi.ns.vm1", none, &launcher, (Claim::Machine { namespace, name }, Some("n2"))),
        ("net.vmi.ns.vm1", none, none, (Claim::Machine { namespace, name }, None)),
        ("net.vmi.0123abcd", none, none, (Claim::Machine { namespace: "", name: "" }, None)),
        ("any", &[("vmi-name", "")], none, (Claim::Machine { namespace: "", name: "" }, None)),
        ("any", &[("type", "vxlanV6TunnelAddress"), ("node", "n1")], none, (Claim::Tunnel, Some("n1"))),
        ("ipip-tunnel-addr-n1", none, none, (Claim::Tunnel, None)),
        ("lb-0", none, none, (Claim::Service { namespace: "", name: "" }, None)),
        (
            "lb-0",
            &[("type", "LoadBalancer"), ("namespace", "ns"), ("service", "s")],
            none,
            (Claim::Service { namespace, name: "s" }, None),
        ),
        // A network's name can begin like the handle of a Service.
        ("lb-net.c1", &pod, none, (Claim::Pod { namespace, name: "p" }, Some("n1"))),
        ("any", &[("type", "egress"), ("namespace", "ns"), ("pod", "p")], none, (Claim::Foreign, None)),
        ("Windows-Reserved-IPAM-Handle", &pod, none, (Claim::HostReserved, Some("n1"))),
    ] {
        let attribute = attribute(handle, active, alternate);
        assert_eq!(Claim::of(&attribute), expected, "{handle} {active:?}");
    }
}

/// Returns facts with this pod, this result for every other lookup, and this node.
fn facts_with<'a>(pod: Sight<AddressInPod<'a>>, other: Sight<()>, node: Option<&'a str>) -> OwnerFacts<'a> {
    let (vmi, owner) = (MachineSight::Unknown, OwnerPodsLookup::Absent);
    OwnerFacts { pod, vmi, owner, service: other, tunnel_node: other, unnamed: other, node }
}

/// The rows follow upstream's order of checks, except that a pod with the address keeps it on any node (KC-434).
#[test]
fn pod_retains_addresses_that_are_reported_or_not_yet_reported() {
    use Verdict::{InUse, Leaked};
    let pod = |node, has, ended| Sight::Present(AddressInPod { node, has, ended });
    for (sight, node, expected) in [
        (Sight::Absent, Some("n1"), Leaked(Evidence::PodGone)),
        (Sight::Unknown, Some("n1"), InUse(Keeper::Unseen)),
        (pod("n1", Some(true), None), Some("n1"), InUse(Keeper::Pod)),
        (pod("n1", Some(true), None), None, InUse(Keeper::Pod)),
        (pod("n2", Some(true), None), Some("n1"), InUse(Keeper::Pod)),
        (pod("n2", None, None), Some("n1"), Leaked(Evidence::PodElsewhere)),
        (pod("n2", Some(false), None), Some("n1"), Leaked(Evidence::PodElsewhere)),
        (pod("n2", Some(false), None), None, Leaked(Evidence::OtherAddresses)),
        (pod("", None, None), Some("n1"), InUse(Keeper::PodWithoutAddress)),
        (pod("n1", None, None), Some("n1"), InUse(Keeper::PodWithoutAddress)),
        (pod("n1", None, Some(Ended::Evicted)), Some("n1"), InUse(Keeper::PodWithoutAddress)),
        (pod("n1", Some(false), None), Some("n1"), Leaked(Evidence::OtherAddresses)),
        (pod("n1", Some(true), Some(Ended::Finished)), Some("n1"), Leaked(Evidence::PodFinished)),
        (pod("n1", Some(true), Some(Ended::Evicted)), Some("n1"), Leaked(Evidence::PodEvicted)),
    ] {
        assert_eq!(assess(ClaimKind::Pod, &facts_with(sight, Sight::Unknown, node)), expected, "{sight:?} {node:?}");
    }
}

#[test]
fn other_owners_retain_addresses_while_present_or_unknown() {
    use Verdict::{InUse, Leaked};
    let ask = |kind, sight| assess(kind, &facts_with(Sight::Unknown, sight, None));
    for (kind, in_use, leaked) in [
        (ClaimKind::Tunnel, Keeper::Tunnel, Evidence::NodeGone),
        (ClaimKind::Service, Keeper::Service, Evidence::ServiceGone),
        (ClaimKind::Unnamed, Keeper::Endpoint, Evidence::NoEndpoint),
    ] {
        assert_eq!(ask(kind, Sight::Present(())), InUse(in_use));
        assert_eq!(ask(kind, Sight::Absent), Leaked(leaked));
        assert!(matches!(ask(kind, Sight::Unknown), InUse(Keeper::Unseen | Keeper::UnknownOwner)));
    }
    assert_eq!(ask(ClaimKind::HostReserved, Sight::Absent), InUse(Keeper::Host));
    assert_eq!(ask(ClaimKind::Foreign, Sight::Absent), InUse(Keeper::UnknownOwner));
}

/// Returns facts about a VMI, and about the pods that its allocation names.
fn vmi_facts<'a>(vmi: MachineSight, pods: &[Sight<AddressInPod<'a>>]) -> OwnerFacts<'a> {
    let absent = facts_with(Sight::Absent, Sight::Absent, None);
    OwnerFacts { vmi, owner: OwnerPodsLookup::of(pods.iter().copied()), ..absent }
}

#[test]
fn vmi_address_is_retained_by_the_vmi_or_a_launcher_with_the_address() {
    use Verdict::{InUse, Leaked};
    let pod = |has, ended| Sight::Present(AddressInPod { node: "n1", has, ended });
    let (gone, unseen) = (Sight::Absent, Sight::Unknown);
    let (runs, silent) = (pod(Some(true), None), pod(None, None));
    let (other, ended) = (pod(Some(false), None), pod(Some(true), Some(Ended::Finished)));
    for (vmi, owners, expected) in [
        (MachineSight::Present, &[][..], InUse(Keeper::Machine)),
        (MachineSight::Present, &[unseen], InUse(Keeper::Machine)),
        (MachineSight::Absent, &[], Leaked(Evidence::MachineGone)),
        (MachineSight::Absent, &[gone, ended], Leaked(Evidence::MachineGone)),
        (MachineSight::Absent, &[other], Leaked(Evidence::MachineGone)),
        (MachineSight::Absent, &[runs], InUse(Keeper::Pod)),
        (MachineSight::Absent, &[gone, runs], InUse(Keeper::Pod)),
        (MachineSight::Absent, &[silent, gone], InUse(Keeper::Pod)),
        (MachineSight::Absent, &[other, unseen], InUse(Keeper::Unseen)),
        (MachineSight::Unknown, &[gone], InUse(Keeper::Unseen)),
        (MachineSight::Unknown, &[runs], InUse(Keeper::Pod)),
        (MachineSight::Undefined, &[], Leaked(Evidence::NoKubeVirt)),
        (MachineSight::Undefined, &[gone, gone], Leaked(Evidence::NoKubeVirt)),
        (MachineSight::Undefined, &[gone, ended], InUse(Keeper::Pod)),
        (MachineSight::Undefined, &[other], InUse(Keeper::Pod)),
        (MachineSight::Undefined, &[unseen], InUse(Keeper::Unseen)),
    ] {
        let facts = vmi_facts(vmi, owners);
        assert_eq!(assess(ClaimKind::Machine, &facts), expected, "{vmi:?} {owners:?}");
    }
}
