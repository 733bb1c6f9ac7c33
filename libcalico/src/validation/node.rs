//! Rules for Nodes. Upstream never applies its rules for the elements of `addresses`, `interfaces`
//! and `orchRefs`, so these are not checked (DS-103).

use super::metadata::check_metadata;
use super::syntax;
use crate::api::{Node, NodeBgp};
use crate::validation_error::{FieldError, ValidationError};

/// Checks that the node may be written.
pub fn validate_node(node: &Node) -> Result<(), ValidationError> {
    let mut findings = check_metadata(node);
    let spec = &node.spec;
    if let Some(bgp) = &spec.bgp {
        check_bgp(bgp, &mut findings);
    }
    syntax::IPV4.check_if_set(
        "IPv4VXLANTunnelAddr",
        &spec.ipv4_vxlan_tunnel_addr,
        &mut findings,
    );
    syntax::MAC.check_if_set(
        "VXLANTunnelMACAddr",
        &spec.vxlan_tunnel_mac_addr,
        &mut findings,
    );
    syntax::IPV6.check_if_set(
        "IPv6VXLANTunnelAddr",
        &spec.ipv6_vxlan_tunnel_addr,
        &mut findings,
    );
    syntax::MAC.check_if_set(
        "VXLANTunnelMACAddrV6",
        &spec.vxlan_tunnel_mac_addr_v6,
        &mut findings,
    );
    if let Some(wireguard) = &spec.wireguard {
        syntax::IPV4.check_if_set(
            "InterfaceIPv4Address",
            &wireguard.interface_ipv4_address,
            &mut findings,
        );
        syntax::IPV6.check_if_set(
            "InterfaceIPv6Address",
            &wireguard.interface_ipv6_address,
            &mut findings,
        );
    }
    ValidationError::from_findings(findings)
}

fn check_bgp(bgp: &NodeBgp, findings: &mut Vec<FieldError>) {
    if *bgp == NodeBgp::default() {
        findings.push(FieldError::missing("BGP", "Spec.BGP should not be empty"));
    }
    syntax::CIDR_V4.check_if_set("IPv4Address", &bgp.ipv4_address, findings);
    syntax::CIDR_V6.check_if_set("IPv6Address", &bgp.ipv6_address, findings);
    syntax::IPV4.check_if_set("IPv4IPIPTunnelAddr", &bgp.ipv4_ipip_tunnel_addr, findings);
    syntax::IPV4.check_if_set(
        "RouteReflectorClusterID",
        &bgp.route_reflector_cluster_id,
        findings,
    );
    if let Some(number) = bgp
        .as_number
        .as_ref()
        .filter(|number| !is_as_number(number))
    {
        let reason =
            "must be a number up to 4294967295, or two numbers up to 65535 with a dot between them";
        findings.push(FieldError::new("ASNumber", number, reason));
    }
}

/// Returns true for a number of 32 bits, or two of 16 bits with a dot between them (DS-108).
fn is_as_number(value: &serde_json::Value) -> bool {
    if let Some(number) = value.as_u64() {
        return u32::try_from(number).is_ok();
    }
    value
        .as_str()
        .is_some_and(|text| match text.split_once('.') {
            Some((high, low)) => high.parse::<u16>().is_ok() && low.parse::<u16>().is_ok(),
            None => text.parse::<u32>().is_ok(),
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(spec: Value) -> Vec<String> {
        let node = Node::new("node-1", serde_json::from_value(spec).unwrap());
        validate_node(&node)
            .err()
            .iter()
            .flat_map(ValidationError::fields)
            .map(|f| f.name.clone())
            .collect()
    }

    #[test]
    fn typical_nodes_are_valid() {
        assert_eq!(check(json!({})), [""; 0]);
        let full = json!({
            "bgp": {
                "asNumber": "1.10", "ipv4Address": "192.168.0.11/24", "ipv6Address": "fd00::b",
                "ipv4IPIPTunnelAddr": "10.0.0.1", "routeReflectorClusterID": "1.0.0.1",
            },
            "ipv4VXLANTunnelAddr": "10.0.0.2", "vxlanTunnelMACAddr": "66:4e:2a:00:00:01",
            "ipv6VXLANTunnelAddr": "fd00::2", "vxlanTunnelMACAddrV6": "66:4e:2a:00:00:02",
            "wireguard": {"interfaceIPv4Address": "10.0.0.3", "interfaceIPv6Address": "fd00::3"},
            "addresses": [{"address": "anything"}],
        });
        assert_eq!(check(full), [""; 0]);
    }

    #[test]
    fn each_invalid_node_field_is_named() {
        for (spec, field) in [
            (json!({"bgp": {}}), "BGP"),
            (json!({"bgp": {"asNumber": -1}}), "ASNumber"),
            (json!({"bgp": {"asNumber": "1.70000"}}), "ASNumber"),
            (json!({"bgp": {"ipv4Address": "fd00::1/64"}}), "IPv4Address"),
            (json!({"bgp": {"ipv6Address": "10.0.0.1"}}), "IPv6Address"),
            (
                json!({"bgp": {"ipv4IPIPTunnelAddr": "10.0.0.1/32"}}),
                "IPv4IPIPTunnelAddr",
            ),
            (
                json!({"bgp": {"routeReflectorClusterID": "1"}}),
                "RouteReflectorClusterID",
            ),
            (json!({"ipv4VXLANTunnelAddr": "x"}), "IPv4VXLANTunnelAddr"),
            (
                json!({"ipv6VXLANTunnelAddr": "10.0.0.1"}),
                "IPv6VXLANTunnelAddr",
            ),
            (json!({"vxlanTunnelMACAddr": "x"}), "VXLANTunnelMACAddr"),
            (json!({"vxlanTunnelMACAddrV6": "x"}), "VXLANTunnelMACAddrV6"),
            (
                json!({"wireguard": {"interfaceIPv4Address": "fd00::1"}}),
                "InterfaceIPv4Address",
            ),
            (
                json!({"wireguard": {"interfaceIPv6Address": "10.0.0.1"}}),
                "InterfaceIPv6Address",
            ),
        ] {
            assert_eq!(check(spec), [field]);
        }
    }

    #[test]
    fn uppercase_node_name_is_rejected() {
        let node = Node::new("Node-1", Default::default());
        assert!(validate_node(&node).is_err());
    }
}
