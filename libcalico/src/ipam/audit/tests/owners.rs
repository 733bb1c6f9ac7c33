//! Tests of the findings about tunnels, Services and virtual machines.

use serde_json::{Value, json};

use super::*;
use crate::api::{Node, NodeSpec};
use crate::ipam::VmiLookup;
use crate::kubernetes::{AssignIps, Service};

fn service(name: &str, ingress: Value) -> Service {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"type": "LoadBalancer"},
        "status": {"loadBalancer": {"ingress": ingress}},
    }))
    .unwrap()
}

/// Returns stored objects in which the block has no address in use.
fn empty() -> StoredObjects {
    let mut stored = StoredObjects {
        endpoints: Vec::new(),
        handles: BTreeMap::new(),
        ..StoredObjects::healthy()
    };
    stored.blocks = vec![
        Block::new(
            cidr("10.0.0.0/30"),
            &AffinityOwner::Host("node1".into()),
            NOW,
        )
        .unwrap(),
    ];
    stored
}

fn tunnels(spec: NodeSpec) -> Owners {
    let mut owners = Owners::default();
    owners.add_tunnels(&Node::new("node2", spec));
    owners
}

#[test]
fn service_address_without_allocation_is_found() {
    let mut stored = empty();
    let services = [
        service("lb", json!([{"ip": "10.0.0.9"}])),
        service("away", json!([{"ip": "192.0.2.1"}])),
    ];
    stored
        .owners
        .set_services(&services, Some(AssignIps::AllServices));
    assert_eq!(
        stored.texts(),
        ["owner without address: Service(ns/lb) has 10.0.0.9, which is not allocated"]
    );
    for assign in [Some(AssignIps::RequestedServicesOnly), None] {
        stored.owners = Owners::default();
        stored.owners.set_services(&services, assign);
        assert_eq!(stored.texts(), NOTHING, "{assign:?}");
    }
}

#[test]
fn service_with_a_host_name_is_skipped() {
    let mut stored = empty();
    let named = service("lb", json!([{"hostname": "lb.example"}, {"ip": ""}]));
    stored
        .owners
        .set_services([&named], Some(AssignIps::AllServices));
    assert_eq!(stored.owners.addresses, []);
    assert_eq!(stored.texts(), NOTHING);
}

#[test]
fn allocation_of_a_missing_service_is_a_leak_if_services_were_read() {
    let of_service = [
        ("namespace", "ns"),
        ("service", "lb"),
        ("type", "LoadBalancer"),
    ];
    let mut stored = empty();
    stored.allocate("lb-x", &of_service);
    assert_eq!(stored.texts(), NOTHING, "Services were not read");
    stored
        .owners
        .set_services([&service("lb", json!([]))], None);
    assert_eq!(stored.texts(), NOTHING);
    stored.owners.set_services(&[], None);
    assert!(matches!(
        stored.findings()[..],
        [Finding::AddressWithoutEndpoint(_)]
    ));
}

#[test]
fn tunnel_address_without_allocation_is_found() {
    let mut stored = empty();
    stored.owners = tunnels(NodeSpec {
        ipv4_vxlan_tunnel_addr: "10.0.0.250".into(),
        ..NodeSpec::default()
    });
    assert_eq!(
        stored.texts(),
        ["owner without address: Node(node2) has 10.0.0.250, which is not allocated"]
    );
}

#[test]
fn ipv6_tunnel_address_is_in_use() {
    let mut stored = empty();
    stored.pools.push(cidr("fd00::/120"));
    stored.blocks = vec![
        Block::new(
            cidr("fd00::/124"),
            &AffinityOwner::Host("node1".into()),
            NOW,
        )
        .unwrap(),
    ];
    stored.affinities = vec![affinity("node1", "fd00::/124", AffinityState::Confirmed)];
    stored.allocate("nobodys", &[]);
    assert!(matches!(
        stored.findings()[..],
        [Finding::AddressWithoutEndpoint(_)]
    ));
    let address = stored.blocks[0].allocated().next().unwrap().ip.to_string();
    stored.owners = tunnels(NodeSpec {
        ipv6_vxlan_tunnel_addr: address,
        ..NodeSpec::default()
    });
    assert_eq!(stored.texts(), NOTHING);
}

#[test]
fn address_of_a_stopped_virtual_machine_is_no_leak() {
    let mut stored = empty();
    stored.allocate(
        "net.vmi.ns.vm",
        &[
            ("namespace", "ns"),
            ("pod", "virt-launcher-vm-x"),
            ("vmi-name", "vm"),
        ],
    );
    let key = || ObjectKey::namespaced("ns", "vm");
    for (lookup, leaks) in [
        (VmiLookup::Present, 0),
        (VmiLookup::Unknown, 0),
        (VmiLookup::Undefined, 1),
        (VmiLookup::Absent, 1),
    ] {
        stored.owners.machines = [(key(), lookup)].into();
        assert_eq!(stored.findings().len(), leaks, "{lookup:?}");
    }
    stored.pods = Pods::from([(
        ObjectKey::namespaced("ns", "virt-launcher-vm-x"),
        Lookup::Unknown,
    )]);
    assert_eq!(
        stored.texts(),
        NOTHING,
        "a pod that cannot be read may have the address"
    );
}
