//! What of a node its HostEndpoints are made of.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;

use crate::api::Node;
use crate::net::Cidr;

/// A node, as its HostEndpoints show it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostNode {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// All its addresses, each once, in the order of KC-486.
    pub addresses: Vec<IpAddr>,
    /// Its interfaces.
    pub interfaces: Vec<NodeInterface>,
}

/// An interface of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeInterface {
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

impl HostNode {
    /// Takes it out of a node. What is no address is left out: the others are the node's all the same.
    pub fn of(node: &Node) -> Self {
        let interfaces: Vec<NodeInterface> = node.spec.interfaces.iter().filter_map(interface).collect();
        let mut addresses = Vec::new();
        let of_interfaces = interfaces.iter().flat_map(|interface| interface.addresses.iter().copied());
        for ip in texts(node).filter_map(address).chain(of_interfaces) {
            // Upstream keeps doubles among the tunnels' addresses, and the API server refuses its endpoint then.
            if !addresses.contains(&ip) {
                addresses.push(ip);
            }
        }
        HostNode { name: node.metadata.name.clone(), labels: node.metadata.labels.clone(), addresses, interfaces }
    }
}

/// What may be an address of the node, but for those of interfaces.
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

/// An address with or without the length of its network.
fn address(text: &str) -> Option<IpAddr> {
    let address = Cidr::parse_with_address(text).map(|(_, address)| address).ok();
    address.or_else(|| text.parse().ok()).map(|address: IpAddr| address.to_canonical())
}
