//! Writes a Node: its annotations, by a strategic merge patch of `nodes/status`. Upstream replaces the whole status
//! (DS-89); a patch does not overwrite a concurrent change of the kubelet.

use serde_json::{Map, Value, json};

use super::revision::ObjectRevision;

/// The name of each annotation, and the JSON pointer to its value in the v3 node.
const TEXTS: [(&str, &str); 11] = [
    ("IPv4Address", "/spec/bgp/ipv4Address"),
    ("IPv6Address", "/spec/bgp/ipv6Address"),
    ("RouteReflectorClusterID", "/spec/bgp/routeReflectorClusterID"),
    ("IPv4IPIPTunnelAddr", "/spec/bgp/ipv4IPIPTunnelAddr"),
    ("IPv4VXLANTunnelAddr", "/spec/ipv4VXLANTunnelAddr"),
    ("VXLANTunnelMACAddr", "/spec/vxlanTunnelMACAddr"),
    ("IPv6VXLANTunnelAddr", "/spec/ipv6VXLANTunnelAddr"),
    ("VXLANTunnelMACAddrV6", "/spec/vxlanTunnelMACAddrV6"),
    ("IPv4WireguardInterfaceAddr", "/spec/wireguard/interfaceIPv4Address"),
    ("IPv6WireguardInterfaceAddr", "/spec/wireguard/interfaceIPv6Address"),
    ("ASNumber", "/spec/bgp/asNumber"),
];

/// Returns the patch that sets the annotations to the values in `node` and deletes those without a value. Labels,
/// interfaces and keys are not changed. The patch fails if the node has changed since it was read.
pub(super) fn update(node: &Value, revision: &ObjectRevision) -> Value {
    let mut annotations = Map::new();
    for (name, pointer) in TEXTS {
        let said = match node.pointer(pointer) {
            Some(Value::String(text)) if !text.is_empty() => Value::from(text.as_str()),
            Some(Value::Number(number)) => number.to_string().into(),
            _ => Value::Null,
        };
        annotations.insert(format!("projectcalico.org/{name}"), said);
    }
    let mut metadata = Map::new();
    metadata.insert("annotations".into(), annotations.into());
    metadata.insert("resourceVersion".into(), revision.resource_version.as_str().into());
    json!({ "metadata": metadata })
}

#[cfg(test)]
mod tests {
    use super::super::node::from_kubernetes;
    use super::*;

    #[test]
    fn what_is_read_is_what_is_written() {
        let read = json!({
            "projectcalico.org/IPv4Address": "192.168.0.11/24", "projectcalico.org/IPv4IPIPTunnelAddr": "10.244.1.1",
            "projectcalico.org/IPv4VXLANTunnelAddr": "10.244.1.0", "projectcalico.org/ASNumber": "64512",
            "projectcalico.org/VXLANTunnelMACAddr": "66:4e:2a:00:00:01", "other": "stays",
        });
        let object = json!({ "metadata": { "name": "n", "annotations": read } });
        let v3 = Value::Object(from_kubernetes(object.as_object().unwrap().clone()));
        let revision = ObjectRevision { resource_version: "7".into(), ..ObjectRevision::default() };
        let patch = update(&v3, &revision);
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        let written = patch["metadata"]["annotations"].as_object().unwrap();
        for (key, value) in read.as_object().unwrap().iter().filter(|(key, _)| *key != "other") {
            assert_eq!(written.get(key), Some(value), "{key}");
        }
        assert_eq!(written.get("other"), None);
        assert_eq!(written["projectcalico.org/IPv6Address"], Value::Null);
    }
}
