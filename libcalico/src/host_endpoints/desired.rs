//! [`desired`]: computes the HostEndpoints that a node should have.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use super::{AutoHostEndpoints, CREATED_BY, HostNode, PROFILE, auto_host_endpoint_name};
use crate::api::{HostEndpoint, HostEndpointSpec, HostEndpointTemplate};
use crate::failure::{Failure, OrFail};
use crate::net::{Cidr, CidrParseError};
use crate::selector::Selector;

/// The interface name of an endpoint that covers all interfaces of the node.
const ALL_INTERFACES: &str = "*";

/// The HostEndpoints that a node should have.
#[derive(Debug, Default)]
pub struct DesiredEndpoints {
    /// The endpoints.
    pub endpoints: Vec<HostEndpoint>,
    /// True if no endpoint of the node may be deleted, because part of the configuration could not
    /// be read or applied.
    pub keep: bool,
    /// The templates that cannot be applied.
    pub problems: Vec<TemplateProblem>,
}

/// A template that cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("skipping the host endpoint template {template:?}: {reason}")]
pub struct TemplateProblem {
    /// The template's `generateName`.
    pub template: String,
    /// The invalid field, with the reason.
    pub reason: String,
}

/// Returns the endpoints that `node` should have. `is_match` gets an interface pattern and the name
/// of an interface.
pub fn desired<E: fmt::Display>(
    node: &HostNode,
    wanted: &AutoHostEndpoints,
    is_match: impl Fn(&str, &str) -> Result<bool, E>,
) -> DesiredEndpoints {
    let mut desired = DesiredEndpoints {
        keep: wanted.keep,
        ..DesiredEndpoints::default()
    };
    if !wanted.enabled {
        return desired;
    }
    if wanted.default_endpoint {
        let name = auto_host_endpoint_name(&node.name, None, None);
        desired
            .endpoints
            .push(endpoint(node, name, ALL_INTERFACES, &node.addresses, None));
    }
    for template in &wanted.templates {
        match template_endpoints(node, template, &is_match) {
            Ok(endpoints) => desired.endpoints.extend(endpoints),
            Err(field) => {
                desired.keep = true;
                let (template, reason) = (template.generate_name.clone(), field.to_string());
                desired.problems.push(TemplateProblem { template, reason });
            }
        }
    }
    desired
}

fn template_endpoints<E: fmt::Display>(
    node: &HostNode,
    template: &HostEndpointTemplate,
    is_match: impl Fn(&str, &str) -> Result<bool, E>,
) -> Result<Vec<HostEndpoint>, Failure> {
    let selector = Selector::parse(&template.node_selector).or_fail("nodeSelector")?;
    if !selector.matches(&node.labels) {
        return Ok(Vec::new());
    }
    let addresses = addresses_in(node, &template.interface_cidrs).or_fail("interfaceCIDRs")?;
    if template.interface_pattern.is_empty() {
        let name = auto_host_endpoint_name(&node.name, Some(&template.generate_name), None);
        // No policy could apply to an endpoint that has neither an interface nor an address.
        let endpoint =
            (!addresses.is_empty()).then(|| endpoint(node, name, "", &addresses, Some(template)));
        return Ok(endpoint.into_iter().collect());
    }
    let mut endpoints = Vec::new();
    for interface in &node.interfaces {
        let found = is_match(&template.interface_pattern, &interface.name);
        if !found.or_fail("interfacePattern")? {
            continue;
        }
        let mut addresses = addresses.clone();
        addresses.extend(
            interface
                .addresses
                .iter()
                .filter(|ip| !addresses.contains(ip))
                .copied()
                .collect::<Vec<_>>(),
        );
        let name = auto_host_endpoint_name(
            &node.name,
            Some(&template.generate_name),
            Some(&interface.name),
        );
        endpoints.push(endpoint(
            node,
            name,
            &interface.name,
            &addresses,
            Some(template),
        ));
    }
    Ok(endpoints)
}

fn addresses_in(node: &HostNode, ranges: &[String]) -> Result<Vec<IpAddr>, CidrParseError> {
    let parsed: Vec<Cidr> = ranges
        .iter()
        .map(|range| range.parse())
        .collect::<Result<_, _>>()?;
    Ok(node
        .addresses
        .iter()
        .filter(|ip| parsed.iter().any(|range| range.contains(**ip)))
        .copied()
        .collect())
}

fn endpoint(
    node: &HostNode,
    name: String,
    interface: &str,
    addresses: &[IpAddr],
    template: Option<&HostEndpointTemplate>,
) -> HostEndpoint {
    let spec = HostEndpointSpec {
        node: node.name.clone(),
        interface_name: interface.into(),
        expected_ips: addresses.iter().map(IpAddr::to_string).collect(),
        profiles: vec![PROFILE.into()],
        ..HostEndpointSpec::default()
    };
    let mut endpoint = HostEndpoint::new(name, spec);
    let mut labels: BTreeMap<String, String> = node.labels.clone();
    if let Some(template) = template {
        labels.extend(template.labels.clone());
        endpoint.metadata.annotations = template.annotations.clone();
    }
    labels.insert(CREATED_BY.0.into(), CREATED_BY.1.into());
    endpoint.metadata.labels = labels;
    endpoint
}

/// Returns true if `found` must be updated to `wanted`. Profiles and ports are not compared
/// (KC-488).
pub fn differs(found: &HostEndpoint, wanted: &HostEndpoint) -> bool {
    let (old, new) = (&found.metadata, &wanted.metadata);
    let metadata_differs = (&old.labels, &old.annotations) != (&new.labels, &new.annotations);
    let (old, new) = (&found.spec, &wanted.spec);
    metadata_differs
        || (&old.node, &old.interface_name, &old.expected_ips)
            != (&new.node, &new.interface_name, &new.expected_ips)
}
