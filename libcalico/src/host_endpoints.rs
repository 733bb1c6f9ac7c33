//! Computes the HostEndpoints that kube-controllers creates for a node, from the node and the
//! settings.
//!
//! The label [`CREATED_BY`] distinguishes them from the ones that people create. Start with
//! `desired`.

mod desired;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;

use data_encoding::BASE64URL_NOPAD;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::api::{HostEndpoint, HostEndpointTemplate, Node};
use crate::net::Cidr;

pub use desired::{DesiredEndpoints, TemplateProblem, desired, differs};

/// The label of endpoints that kube-controllers creates.
pub const CREATED_BY: (&str, &str) = ("projectcalico.org/created-by", "calico-kube-controllers");

/// The profile of endpoints that kube-controllers creates. It allows all traffic of endpoints that
/// no policy selects.
pub const PROFILE: &str = "projectcalico-default-allow";

/// Returns true if the endpoint has the label of endpoints that kube-controllers creates.
pub fn is_ours(endpoint: &HostEndpoint) -> bool {
    endpoint
        .metadata
        .labels
        .get(CREATED_BY.0)
        .is_some_and(|creator| creator == CREATED_BY.1)
}

/// The settings of the HostEndpoints that kube-controllers creates for nodes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AutoHostEndpoints {
    /// True if nodes get any endpoints (`autoCreate`).
    pub enabled: bool,
    /// True if each node gets an endpoint for all its interfaces (`createDefaultHostEndpoint`).
    pub default_endpoint: bool,
    /// The templates of further endpoints.
    pub templates: Vec<HostEndpointTemplate>,
    /// True if no endpoint may be deleted, because part of the configuration could not be read.
    pub keep: bool,
}

/// The longest name that Kubernetes accepts, in bytes.
const MAX_NAME: usize = 253;
const SUFFIX: &str = "auto-hep";

/// Returns `NODE-auto-hep`, with the names of the template and the interface before the suffix. A
/// name that is too long or has a character that Kubernetes rejects is replaced by a hash and the
/// suffix (KC-485, KC-489).
pub fn auto_host_endpoint_name(
    node: &str,
    template: Option<&str>,
    interface: Option<&str>,
) -> String {
    let parts = [Some(node), template, interface, Some(SUFFIX)];
    let name = parts.into_iter().flatten().collect::<Vec<_>>().join("-");
    let is_valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
    // The first and the last character are those of the node's name and of the suffix.
    if name.len() <= MAX_NAME && name.bytes().all(is_valid) {
        return name;
    }
    let mut hash = BASE64URL_NOPAD.encode(&Sha256::digest(&name));
    hash.retain(|c| !matches!(c, '-' | '_' | '.'));
    format!("{hash}-{SUFFIX}").to_lowercase()
}

/// The data of a node that its HostEndpoints contain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostNode {
    /// The node's name.
    pub name: String,
    /// The node's labels.
    pub labels: BTreeMap<String, String>,
    /// The addresses of the node, its tunnels and its interfaces, in upstream's order (KC-486).
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
    /// Extracts the data from a node; skips invalid addresses, and interfaces without a name.
    pub fn of(node: &Node) -> Self {
        let interfaces: Vec<NodeInterface> =
            node.spec.interfaces.iter().filter_map(interface).collect();
        let mut addresses = Vec::new();
        let of_interfaces = interfaces
            .iter()
            .flat_map(|interface| interface.addresses.iter().copied());
        for ip in address_texts(node).filter_map(address).chain(of_interfaces) {
            // Upstream keeps duplicates; the API server then rejects the endpoint.
            if !addresses.contains(&ip) {
                addresses.push(ip);
            }
        }
        HostNode {
            name: node.metadata.name.clone(),
            labels: node.metadata.labels.clone(),
            addresses,
            interfaces,
        }
    }
}

/// Returns the texts of the node's addresses, which may be empty or invalid.
fn address_texts(node: &Node) -> impl Iterator<Item = &str> {
    let spec = &node.spec;
    let bgp = spec.bgp.iter().flat_map(|bgp| {
        [
            &bgp.ipv4_address,
            &bgp.ipv6_address,
            &bgp.ipv4_ipip_tunnel_addr,
        ]
    });
    let vxlan = [&spec.ipv4_vxlan_tunnel_addr, &spec.ipv6_vxlan_tunnel_addr];
    let wireguard = spec
        .wireguard
        .iter()
        .flat_map(|dev| [&dev.interface_ipv4_address, &dev.interface_ipv6_address]);
    let internal = spec
        .addresses
        .iter()
        .filter(|address| address.kind == "InternalIP")
        .map(|address| &address.address);
    bgp.chain(vxlan)
        .chain(wireguard)
        .chain(internal)
        .map(String::as_str)
}

fn interface(value: &Value) -> Option<NodeInterface> {
    let name = value["name"].as_str()?.to_owned();
    let listed = value["addresses"].as_array().into_iter().flatten();
    Some(NodeInterface {
        name,
        addresses: listed.filter_map(|text| address(text.as_str()?)).collect(),
    })
}

/// Parses an address with or without a prefix length.
fn address(text: &str) -> Option<IpAddr> {
    let address = Cidr::parse_with_address(text)
        .map(|(_, address)| address)
        .ok();
    address
        .or_else(|| text.parse().ok())
        .map(|address: IpAddr| address.to_canonical())
}
