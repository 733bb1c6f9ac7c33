//! Rules for WorkloadEndpoints.

use std::net::IpAddr;

use serde_json::Value;

use super::metadata::check_metadata;
use super::syntax::{self, go_list, network};
use crate::api::{EndpointPort, IpNat, WorkloadEndpoint, WorkloadEndpointSpec};
use crate::names::EndpointIdentifiers;
use crate::net::{Cidr, IpVersion};
use crate::validation_error::{FieldError, ValidationError};

/// Checks that the endpoint may be written. A name that does not match the spec is reported alone,
/// because the other fields are not reliable then (CNI-86).
pub fn validate_workload_endpoint(endpoint: &WorkloadEndpoint) -> Result<(), ValidationError> {
    let expected = EndpointIdentifiers::of(&endpoint.spec).name()?;
    if endpoint.metadata.name != expected {
        let reason = format!(
            "the WorkloadEndpoint name does not match the primary identifiers assigned in the \
             Spec: expected name {expected}"
        );
        return Err(FieldError::new("Name", &endpoint.metadata.name, reason).into());
    }
    let mut findings = check_metadata(endpoint);
    check_fields(&endpoint.spec, &mut findings);
    endpoint
        .spec
        .ports
        .iter()
        .enumerate()
        .for_each(|(i, port)| check_port(i, port, &mut findings));
    check_networks(&endpoint.spec, &mut findings);
    ValidationError::from_findings(findings)
}

fn check_fields(spec: &WorkloadEndpointSpec, findings: &mut Vec<FieldError>) {
    syntax::NAME.check_if_set("Orchestrator", &spec.orchestrator, findings);
    syntax::NAME.check_if_set("Workload", &spec.workload, findings);
    syntax::NAME.check_if_set("Node", &spec.node, findings);
    syntax::CONTAINER_ID.check_if_set("ContainerID", &spec.container_id, findings);
    syntax::NAME.check_if_set("Pod", &spec.pod, findings);
    syntax::NAME.check_if_set("Endpoint", &spec.endpoint, findings);
    syntax::NAME.check_if_set("ServiceAccountName", &spec.service_account_name, findings);
    syntax::NET.check_each("IPNetworks", &spec.ip_networks, findings);
    syntax::IPV4.check_if_set("IPv4Gateway", &spec.ipv4_gateway, findings);
    syntax::IPV6.check_if_set("IPv6Gateway", &spec.ipv6_gateway, findings);
    syntax::NAME.check_each("Profiles", &spec.profiles, findings);
    syntax::INTERFACE.check("InterfaceName", &spec.interface_name, findings);
    syntax::MAC.check_if_set("MAC", &spec.mac, findings);
    syntax::CIDR.check_each(
        "AllowSpoofedSourcePrefixes",
        &spec.allow_spoofed_source_prefixes,
        findings,
    );
}

fn check_port(i: usize, port: &EndpointPort, findings: &mut Vec<FieldError>) {
    syntax::PORT_NAME.check_if_set("Name", &port.name, findings);
    if port.port == 0 {
        findings.push(FieldError::tag("Port", port.port, "gt"));
    }
    syntax::NET.check_if_set("HostIP", &port.host_ip, findings);
    if !has_ports(&port.protocol) {
        let reason = format!(
            "WorkloadEndpointPort protocol does not support ports (port {i} of the endpoint)."
        );
        findings.push(FieldError::new(
            "WorkloadEndpointPort.Protocol",
            &port.protocol,
            reason,
        ));
    }
    if port.name.is_empty() && port.host_port == 0 {
        let reason = "WorkloadEndpointPort name must not be empty if no HostPort is specified";
        findings.push(FieldError::new("WorkloadEndpointPort.Name", "", reason));
    }
}

/// Returns true for TCP, UDP or SCTP, by name or number (DS-108).
pub(super) fn has_ports(protocol: &Value) -> bool {
    match protocol {
        Value::Number(number) => matches!(number.as_u64(), Some(6 | 17 | 132)),
        Value::String(name) => {
            ["TCP", "UDP", "SCTP", "6", "17", "132"].contains(&name.to_ascii_uppercase().as_str())
        }
        _ => false,
    }
}

fn check_networks(spec: &WorkloadEndpointSpec, findings: &mut Vec<FieldError>) {
    let networks: Vec<Cidr> = spec
        .ip_networks
        .iter()
        .filter_map(|text| network(text))
        .collect();
    if networks.iter().any(|n| n.prefix() != n.version().bits()) {
        let value = go_list(&spec.ip_networks);
        findings.push(FieldError::new(
            "IPNetworks",
            value,
            "IP network contains multiple addresses",
        ));
    }
    spec.ip_nats.iter().for_each(|nat| check_nat(nat, findings));
    let covered = |nat: &IpNat| {
        nat.internal_ip
            .parse()
            .is_ok_and(|ip| networks.iter().any(|n| n.contains(ip)))
    };
    if !spec.ip_nats.iter().all(covered) {
        let value = go_list(
            spec.ip_nats
                .iter()
                .map(|nat| format!("{{{} {}}}", nat.internal_ip, nat.external_ip)),
        );
        findings.push(FieldError::new(
            "IPNATs",
            value,
            "NAT is not in the endpoint networks",
        ));
    }
}

fn check_nat(nat: &IpNat, findings: &mut Vec<FieldError>) {
    let mut address = |name: &str, text: &str| {
        let parsed: Option<IpAddr> = text.parse().ok();
        if parsed.is_none() {
            findings.push(FieldError::new(name, text, "invalid IP address"));
        }
        parsed.map(IpVersion::of)
    };
    let internal = address("InternalIP", &nat.internal_ip);
    let external = address("ExternalIP", &nat.external_ip);
    if internal.is_some() && external.is_some() && internal != external {
        findings.push(FieldError::new(
            "ExternalIP",
            &nat.external_ip,
            "mismatched IP versions",
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::workload::{ContainerIdentity, Orchestrator, WorkloadIdentity};

    fn endpoint() -> WorkloadEndpoint {
        let facts = WorkloadIdentity {
            node: "node-1".into(),
            container_id: "c0ffee".into(),
            endpoint: "eth0".into(),
            orchestrator: Orchestrator::Cni(ContainerIdentity::new("net1")),
        };
        let mut endpoint = facts
            .create(&["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()])
            .unwrap();
        endpoint.spec.interface_name = "calic0ffee".into();
        endpoint
    }

    fn port(name: &str, host_port: u16) -> EndpointPort {
        EndpointPort {
            name: name.into(),
            protocol: json!("TCP"),
            port: 80,
            host_port,
            ..EndpointPort::default()
        }
    }

    fn nat(internal: &str, external: &str) -> IpNat {
        IpNat {
            internal_ip: internal.into(),
            external_ip: external.into(),
            ..IpNat::default()
        }
    }

    #[test]
    fn complete_endpoint_is_valid() {
        let mut endpoint = endpoint();
        endpoint.spec.mac = "aa:bb:cc:dd:ee:ff".into();
        endpoint.spec.ipv4_gateway = "169.254.1.1".into();
        endpoint.spec.ipv6_gateway = "fe80::1".into();
        endpoint.spec.ports = vec![port("http", 0), port("", 8080)];
        endpoint.spec.ip_nats = vec![nat("10.0.0.1", "192.0.2.1"), nat("fd00::1", "2001:db8::1")];
        endpoint.spec.allow_spoofed_source_prefixes = vec!["10.0.0.7/8".into()];
        assert_eq!(validate_workload_endpoint(&endpoint), Ok(()));
    }

    #[test]
    fn endpoint_name_must_follow_from_the_spec() {
        let mut other = endpoint();
        other.metadata.name = "node--1-cni-c0ffee-eth1".into();
        let error = validate_workload_endpoint(&other).unwrap_err().to_string();
        assert!(error.starts_with(
            "error with field Name = 'node--1-cni-c0ffee-eth1' (the WorkloadEndpoint name"
        ));
        assert!(
            error.ends_with("expected name node--1-cni-c0ffee-eth0)"),
            "{error}"
        );
        other.spec.node.clear();
        let error = validate_workload_endpoint(&other).unwrap_err().to_string();
        assert_eq!(error, "error with field node (field should be assigned)");
    }

    #[test]
    fn each_invalid_endpoint_field_is_named() {
        type Breakage = fn(&mut WorkloadEndpointSpec);
        let cases: [(Breakage, &str, &str); 18] = [
            (
                |s| s.service_account_name = "A".into(),
                "ServiceAccountName",
                "Tag: name ",
            ),
            (|s| s.workload = "a_b".into(), "Workload", "Tag: name "),
            (|s| s.pod = "a/b".into(), "Pod", "Tag: name "),
            (
                |s| s.interface_name = String::new(),
                "InterfaceName",
                "Tag: interface ",
            ),
            (
                |s| s.interface_name = "x".repeat(16),
                "InterfaceName",
                "Tag: interface ",
            ),
            (|s| s.mac = "aa:bb".into(), "MAC", "Tag: mac "),
            (
                |s| s.ip_networks[1] = "x".into(),
                "IPNetworks[1]",
                "Tag: net ",
            ),
            (
                |s| s.ip_networks[0] = "10.0.0.0/24".into(),
                "IPNetworks",
                "multiple addresses",
            ),
            (
                |s| s.profiles.push("Net".into()),
                "Profiles[1]",
                "Tag: name ",
            ),
            (
                |s| s.allow_spoofed_source_prefixes = vec!["x".into()],
                "AllowSpoofedSourcePrefixes[0]",
                "Tag: cidr ",
            ),
            (
                |s| s.ipv4_gateway = "fd00::1".into(),
                "IPv4Gateway",
                "Tag: ipv4 ",
            ),
            (
                |s| s.ipv6_gateway = "10.0.0.1".into(),
                "IPv6Gateway",
                "Tag: ipv6 ",
            ),
            (
                |s| s.ip_nats = vec![nat("10.0.0.2", "192.0.2.1")],
                "IPNATs",
                "not in the endpoint networks",
            ),
            (
                |s| s.ip_nats = vec![nat("10.0.0.1", "2001:db8::1")],
                "ExternalIP",
                "mismatched IP versions",
            ),
            (
                |s| s.ip_nats = vec![nat("10.0.0.1", "x")],
                "ExternalIP",
                "invalid IP address",
            ),
            (
                |s| s.ports = vec![port("", 0)],
                "WorkloadEndpointPort.Name",
                "name must not be empty",
            ),
            (|s| s.ports = vec![port("UP", 0)], "Name", "Tag: portName "),
            (
                |s| {
                    s.ports = vec![EndpointPort {
                        protocol: json!("ICMP"),
                        ..port("p", 0)
                    }]
                },
                "WorkloadEndpointPort.Protocol",
                "does not support ports",
            ),
        ];
        for (break_it, field, reason) in cases {
            let mut endpoint = endpoint();
            break_it(&mut endpoint.spec);
            let error = validate_workload_endpoint(&endpoint).unwrap_err();
            let fields: Vec<&FieldError> = error.fields().collect();
            assert_eq!(fields.len(), 1, "{error}");
            assert_eq!(fields[0].name, field);
            assert!(fields[0].reason.contains(reason), "{error}");
        }
    }

    #[test]
    fn protocols_with_ports_are_recognized() {
        for protocol in [
            json!("TCP"),
            json!("udp"),
            json!("SCTP"),
            json!(6),
            json!("17"),
            json!(132),
        ] {
            assert!(has_ports(&protocol), "{protocol}");
        }
        for protocol in [json!("ICMP"), json!(1), json!(null), json!("")] {
            assert!(!has_ports(&protocol), "{protocol}");
        }
    }

    #[test]
    fn uppercase_container_id_yields_an_invalid_endpoint_name() {
        let mut endpoint = endpoint();
        endpoint.spec.container_id = "C0FFEE".into();
        endpoint.metadata.name = "node--1-cni-C0FFEE-eth0".into();
        let error = validate_workload_endpoint(&endpoint).unwrap_err();
        assert_eq!(
            error.fields().map(|f| f.name.as_str()).collect::<Vec<_>>(),
            ["Metadata.Name"]
        );
    }
}
