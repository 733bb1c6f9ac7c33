//! Rules for HostEndpoints.

use super::metadata::check_metadata;
use super::syntax;
use super::workload_endpoint::has_ports;
use crate::api::{HostEndpoint, HostEndpointPort};
use crate::validation_error::{FieldError, ValidationError};

/// Checks that the endpoint may be written.
pub fn validate_host_endpoint(endpoint: &HostEndpoint) -> Result<(), ValidationError> {
    let mut findings = check_metadata(endpoint);
    let spec = &endpoint.spec;
    if spec.node.is_empty() {
        findings.push(FieldError::missing("Node", "field should be assigned"));
    }
    syntax::NAME.check_if_set("Node", &spec.node, &mut findings);
    syntax::INTERFACE.check_if_set("InterfaceName", &spec.interface_name, &mut findings);
    syntax::IP.check_each("ExpectedIPs", &spec.expected_ips, &mut findings);
    syntax::NAME.check_each("Profiles", &spec.profiles, &mut findings);
    spec.ports
        .iter()
        .for_each(|port| check_port(port, &mut findings));
    if spec.interface_name.is_empty() && spec.expected_ips.is_empty() {
        let reason = "no interface or expected IPs have been specified";
        findings.push(FieldError::missing("InterfaceName", reason));
    }
    ValidationError::from_findings(findings)
}

fn check_port(port: &HostEndpointPort, findings: &mut Vec<FieldError>) {
    syntax::PORT_NAME.check("Name", &port.name, findings);
    if port.port == 0 {
        findings.push(FieldError::new(
            "EndpointPort.Port",
            port.port,
            "port must be at least 1",
        ));
    }
    if !has_ports(&port.protocol) {
        findings.push(FieldError::new(
            "EndpointPort.Protocol",
            &port.protocol,
            "protocol does not support ports",
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(spec: Value) -> Vec<String> {
        let endpoint = HostEndpoint::new("node-1-eth0", serde_json::from_value(spec).unwrap());
        let findings = validate_host_endpoint(&endpoint);
        findings
            .err()
            .iter()
            .flat_map(ValidationError::fields)
            .map(|field| field.name.clone())
            .collect()
    }

    #[test]
    fn typical_host_endpoints_are_valid() {
        assert_eq!(
            check(json!({"node": "node-1", "interfaceName": "*"})),
            [""; 0]
        );
        let ports = json!([{"name": "ssh", "protocol": "TCP", "port": 22}]);
        let full = json!({
            "node": "node-1", "interfaceName": "eth0.1", "expectedIPs": ["10.0.0.1", "fd00::1"],
            "profiles": ["p"],
            "ports": ports,
        });
        assert_eq!(check(full), [""; 0]);
    }

    #[test]
    fn each_invalid_host_endpoint_field_is_named() {
        for (spec, field) in [
            (json!({"interfaceName": "*"}), "Node"),
            (json!({"node": "Node", "interfaceName": "*"}), "Node"),
            (json!({"node": "n"}), "InterfaceName"),
            (
                json!({"node": "n", "interfaceName": "an-interface-name"}),
                "InterfaceName",
            ),
            (
                json!({"node": "n", "expectedIPs": ["10.0.0.1", "10.0.0.0/8"]}),
                "ExpectedIPs[1]",
            ),
            (
                json!({"node": "n", "interfaceName": "*", "profiles": ["P"]}),
                "Profiles[0]",
            ),
        ] {
            assert_eq!(check(spec.clone()), [field], "{spec}");
        }
        for (port, field) in [
            (json!({"name": "UP", "protocol": "TCP", "port": 1}), "Name"),
            (
                json!({"name": "up", "protocol": "ICMP", "port": 1}),
                "EndpointPort.Protocol",
            ),
            (
                json!({"name": "up", "protocol": "TCP", "port": 0}),
                "EndpointPort.Port",
            ),
        ] {
            assert_eq!(
                check(json!({"node": "n", "interfaceName": "*", "ports": [port]})),
                [field]
            );
        }
    }
}
