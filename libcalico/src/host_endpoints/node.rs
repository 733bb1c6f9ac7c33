//! The data of a node from which its HostEndpoints are computed.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;

use crate::api::Node;
use crate::net::Cidr;

/// The data of a node that its HostEndpoints contain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostNode {
    /// The node's name.
    pub name: String,
    /// The node's labels.
    pub labels: BTreeMap<String, String>,
    /// All addresses of the node, without duplicates, in upstream's order (KC-486).
    pub addresses: Vec<IpAddr>,
    /// The node's interfaces.
    pub interfaces: Vec<NodeInterface>,
}

/// An interface of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeInterface {
    /// The interface's name.
    pub name: String,
    /// The interface's addresses.
    pub addresses: Vec<IpAddr>,
}

impl HostNode {
    /// Extracts the data from a node. Entries that are not addresses are skipped, because the others remain valid.
    pub fn of(node: &Node) -> Self {
        let interfaces: Vec<NodeInterface> = node.spec.interfaces.iter().filter_map(interface).collect();
        let mut addresses = Vec::new();
        let of_interfaces = interfaces.iter().flat_map(|interface| interface.addresses.iter().copied());
        for ip in texts(node).filter_map(address).chain(of_interfaces) {
            // Upstream keeps duplicates among the addresses of tunnels; the API server then rejects the endpoint.
            if !addresses.contains(&ip) {
                addresses.push(ip);
            }
        }
        HostNode { name: node.metadata.name.clone(), labels: node.metadata.labels.clone(), addresses, interfaces }
    }
}

/// Returns the texts that may be addresses of the node, except those of interfaces.
fn texts(node: &Node) -> impl Iterator<Item = &str> {
    let spec = &node.spec;
    let bgp = spec.bgp.iter().flat_map(|bgp| [&bgp.ipv4_address, &bgp.ipv6_address, &bgp.ipv4_ipip_tunnel_addr]);
    let vxlan = [&spec.ipv4_vxlan_tunnel_addr, &spec.ipv6_vxlan_tunnel_addr];
    let wireguard =
        spec.wireguard.iter().flat_map(|device| [&device.interface_ipv4_address, &device.interface_ipv6_address]);
    let internal = spec.addresses.iter().filter(|address| address.kind == "InternalIP").map(|address| &address.address);
    bgp.chain(vxlan).chain(wireguard).chain(internal).map(String::as_str)
}

fn interface(value: &Value) -> Option<NodeInterface> {
    let name = value["name"].as_str()?.to_owned();
    let listed = value["addresses"].as_array().into_iter().flatten();
    Some(NodeInterface { name, addresses: listed.filter_map(|text| address(text.as_str()?)).collect() })
}

/// Parses an address with or without a prefix length.
fn address(text: &str) -> Option<IpAddr> {
    let address = Cidr::parse_with_address(text).map(|(_, address)| address).ok();
    address.or_else(|| text.parse().ok()).map(|address: IpAddr| address.to_canonical())
}
