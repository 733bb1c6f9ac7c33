//! [`Tunnel`]: the tunnel devices of nodes, for which calico-node allocates addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{HandleId, RecordedOwner};
use crate::api::Node;

/// A kind of tunnel device, as its allocations record it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel {
    /// The attribute `type`.
    kind: &'static str,
    /// The handle's prefix before the name of the node.
    handle: &'static str,
}

impl Tunnel {
    /// The IPIP device, which has only an IPv4 address.
    pub const IPIP: Tunnel = Tunnel {
        kind: "ipipTunnelAddress",
        handle: "ipip-tunnel-addr-",
    };
    /// The VXLAN device for IPv4.
    pub const VXLAN: Tunnel = Tunnel {
        kind: "vxlanTunnelAddress",
        handle: "vxlan-tunnel-addr-",
    };
    /// The VXLAN device for IPv6.
    pub const VXLAN_V6: Tunnel = Tunnel {
        kind: "vxlanV6TunnelAddress",
        handle: "vxlan-v6-tunnel-addr-",
    };
    /// The WireGuard device for IPv4.
    pub const WIREGUARD: Tunnel = Tunnel {
        kind: "wireguardTunnelAddress",
        handle: "wireguard-tunnel-addr-",
    };
    /// The WireGuard device for IPv6.
    pub const WIREGUARD_V6: Tunnel = Tunnel {
        kind: "wireguardV6TunnelAddress",
        handle: "wireguard-v6-tunnel-addr-",
    };
    /// All kinds.
    pub const ALL: [Tunnel; 5] = [
        Self::IPIP,
        Self::VXLAN,
        Self::VXLAN_V6,
        Self::WIREGUARD,
        Self::WIREGUARD_V6,
    ];

    /// Returns the handle of the device's address on a node.
    pub fn handle_of(&self, node: &str) -> HandleId {
        HandleId::new(format!("{}{node}", self.handle))
    }

    /// Returns the node in the handle of a tunnel's address, and the kind of the tunnel.
    pub(crate) fn of_handle(handle: &str) -> Option<(Tunnel, &str)> {
        Self::ALL
            .into_iter()
            .find_map(|tunnel| Some((tunnel, handle.strip_prefix(tunnel.handle)?)))
    }

    /// Returns the attributes of the device's address on a node.
    pub fn attributes_of(&self, node: &str) -> BTreeMap<String, String> {
        [("node", node), ("type", self.kind)]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    }

    /// Returns true if an allocation with this `type` attribute belongs to a tunnel.
    pub(super) fn is_type(text: &str) -> bool {
        Self::ALL.iter().any(|tunnel| tunnel.kind == text)
    }

    /// Returns true if an allocation under this handle belongs to a tunnel.
    pub(super) fn is_handle(text: &str) -> bool {
        Self::of_handle(text).is_some()
    }
}

/// Returns the addresses of a node's tunnel devices, each with the owner that its allocation has to
/// record.
pub fn tunnels_of(node: &Node) -> impl Iterator<Item = (IpAddr, RecordedOwner)> {
    let (name, spec) = (node.metadata.name.as_str(), &node.spec);
    let ipip = spec
        .bgp
        .as_ref()
        .map(|bgp| bgp.ipv4_ipip_tunnel_addr.as_str())
        .unwrap_or_default();
    let [wireguard, wireguard_v6] = match &spec.wireguard {
        Some(device) => [
            device.interface_ipv4_address.as_str(),
            device.interface_ipv6_address.as_str(),
        ],
        None => [""; 2],
    };
    let devices = [
        (ipip, Tunnel::IPIP),
        (&spec.ipv4_vxlan_tunnel_addr, Tunnel::VXLAN),
        (&spec.ipv6_vxlan_tunnel_addr, Tunnel::VXLAN_V6),
        (wireguard, Tunnel::WIREGUARD),
        (wireguard_v6, Tunnel::WIREGUARD_V6),
    ];
    devices.into_iter().filter_map(move |(address, tunnel)| {
        let address = address.split('/').next()?.parse().ok()?;
        Some((
            address,
            RecordedOwner {
                handle: Some(tunnel.handle_of(name)),
                attributes: tunnel.attributes_of(name),
            },
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{NodeBgp, NodeSpec, NodeWireguard};
    use crate::ipam::{AllocationOwner, Attribute};

    #[test]
    fn each_tunnel_address_of_a_node_maps_to_its_ipam_handle() {
        let spec = NodeSpec {
            bgp: Some(NodeBgp {
                ipv4_ipip_tunnel_addr: "10.0.0.1".into(),
                ..NodeBgp::default()
            }),
            ipv4_vxlan_tunnel_addr: "10.0.0.2".into(),
            ipv6_vxlan_tunnel_addr: "fd00::2".into(),
            wireguard: Some(NodeWireguard {
                interface_ipv4_address: "10.0.0.3/32".into(),
                ..NodeWireguard::default()
            }),
            ..NodeSpec::default()
        };
        let tunnels: Vec<_> = tunnels_of(&Node::new("n1", spec)).collect();
        let handles: Vec<_> = tunnels
            .iter()
            .map(|(ip, owner)| format!("{ip} {}", owner.handle.as_ref().unwrap()))
            .collect();
        let expected = [
            "10.0.0.1 ipip-tunnel-addr-n1",
            "10.0.0.2 vxlan-tunnel-addr-n1",
            "fd00::2 vxlan-v6-tunnel-addr-n1",
            "10.0.0.3 wireguard-tunnel-addr-n1",
        ];
        assert_eq!(handles, expected);
        for (_, RecordedOwner { handle, attributes }) in tunnels {
            let handle_id = handle.map(|handle| handle.to_string());
            let attribute = Attribute {
                handle_id,
                active_owner: attributes,
                ..Attribute::default()
            };
            assert_eq!(
                AllocationOwner::of(&attribute),
                (AllocationOwner::Tunnel, Some("n1"))
            );
        }
        assert_eq!(tunnels_of(&Node::new("n2", NodeSpec::default())).count(), 0);
    }
}
