//! Reads a WorkloadEndpoint from its pod.

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::{FLOATING_IPS, PodProblem, beginning};
use super::pod::Pod;
use super::pod_addresses::PodAddresses;
use super::pod_patch::CONTAINER_ID;
use super::qos::qos_controls;
use crate::api::{IpNat, WorkloadEndpoint};
use crate::names::pod_interface;
use crate::net::{Cidr, IpVersion};
use crate::workload::{Orchestrator, WorkloadIdentity};

/// The annotation with further prefixes that the pod may use as source addresses.
const ALLOWED_SOURCE_PREFIXES: &str = "cni.projectcalico.org/allowedSourcePrefixes";
/// The only annotation of a pod that its endpoint has as an annotation too.
const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// The interface of every pod's endpoint on an API server, independent of `CNI_IFNAME`.
const ENDPOINT: &str = "eth0";

/// An endpoint, and the invalid values on its pod that are left out or changed.
///
/// Upstream returns no endpoint at all for a pod with some invalid values. Then not even DEL
/// succeeds (CNI-245).
#[derive(Debug, Clone, PartialEq)]
pub struct PodEndpoint {
    /// The endpoint.
    pub endpoint: WorkloadEndpoint,
    /// The invalid values.
    pub problems: Vec<PodProblem>,
}

/// Returns the endpoint of `pod`, if it has one. `interface_prefix` is the prefix of host
/// interfaces (CNI-88).
pub fn endpoint_of_pod(pod: &Pod, interface_prefix: &str) -> Option<PodEndpoint> {
    if pod.spec.host_network || pod.spec.node_name.is_empty() {
        return None;
    }
    let facts = WorkloadIdentity {
        node: pod.spec.node_name.clone(),
        container_id: annotation(pod, CONTAINER_ID).unwrap_or_default().into(),
        endpoint: ENDPOINT.into(),
        orchestrator: Orchestrator::Kubernetes(pod.identity()),
    };
    let mut endpoint = facts.create(&[]).ok()?;
    let mut problems = Vec::new();

    let meta = &mut endpoint.metadata;
    meta.uid.clone_from(&pod.metadata.uid);
    meta.creation_timestamp
        .clone_from(&pod.metadata.creation_timestamp);
    meta.resource_version
        .clone_from(&pod.metadata.resource_version);
    meta.annotations
        .extend(annotation(pod, NETWORK_STATUS).map(|value| (NETWORK_STATUS.into(), value.into())));

    let spec = &mut endpoint.spec;
    spec.interface_name = pod_interface(
        interface_prefix,
        &pod.metadata.namespace,
        &pod.metadata.name,
    );
    let addresses = addresses(pod, &mut problems);
    spec.ip_networks = addresses.iter().map(Cidr::to_string).collect();
    if !addresses.is_empty() {
        spec.ip_nats = floating_nats(pod, &addresses, &mut problems);
    }
    spec.allow_spoofed_source_prefixes = source_prefixes(pod, &mut problems);
    spec.qos_controls = qos_controls(&pod.metadata.annotations, &mut problems);
    Some(PodEndpoint { endpoint, problems })
}

/// Returns the floating addresses that a pod requests, as written.
pub fn floating_ips(pod: &Pod) -> Result<Vec<String>, PodProblem> {
    parse_text_list(&pod.metadata.annotations, FLOATING_IPS)
}

fn annotation<'p>(pod: &'p Pod, key: &str) -> Option<&'p str> {
    pod.metadata.annotations.get(key).map(String::as_str)
}

/// Returns the valid addresses of the pod; none if it is finished.
fn addresses(pod: &Pod, problems: &mut Vec<PodProblem>) -> Vec<Cidr> {
    let pod_ips = pod.status.listed_ips();
    let listed = PodAddresses::of(pod, &pod_ips);
    if listed.is_finished() {
        return Vec::new();
    }
    valid_values(
        listed
            .parse()
            .map(|address| address.map_err(PodProblem::from)),
        problems,
    )
}

/// Pairs each floating address with the pod's own address of the same family, if it has one. If one
/// of the pod's own addresses is a range, there are no pairs.
fn floating_nats(pod: &Pod, addresses: &[Cidr], problems: &mut Vec<PodProblem>) -> Vec<IpNat> {
    let external = texts(pod, FLOATING_IPS, problems);
    if external.is_empty() {
        return Vec::new();
    }
    if let Some(network) = addresses.iter().find(|address| address.size() != 1) {
        problems.push(PodProblem::NotSingleAddress(*network));
        return Vec::new();
    }
    let nat = |external_ip: String| {
        let version = if external_ip.contains(':') {
            IpVersion::V6
        } else {
            IpVersion::V4
        };
        let internal = addresses
            .iter()
            .find(|address| address.version() == version)?;
        Some(IpNat {
            internal_ip: internal.network().to_string(),
            external_ip,
            ..IpNat::default()
        })
    };
    external.into_iter().filter_map(nat).collect()
}

fn source_prefixes(pod: &Pod, problems: &mut Vec<PodProblem>) -> Vec<String> {
    let prefixes = texts(pod, ALLOWED_SOURCE_PREFIXES, problems);
    let problem = |cause| PodProblem::Prefix {
        annotation: ALLOWED_SOURCE_PREFIXES,
        cause,
    };
    let parsed = prefixes.iter().map(|text| {
        text.parse::<Cidr>()
            .map(|prefix| prefix.to_string())
            .map_err(problem)
    });
    valid_values(parsed, problems)
}

fn texts(pod: &Pod, key: &'static str, problems: &mut Vec<PodProblem>) -> Vec<String> {
    parse_text_list(&pod.metadata.annotations, key).unwrap_or_else(|problem| {
        problems.push(problem);
        Vec::new()
    })
}

/// Parses an annotation that is a JSON array of texts, or missing or empty.
pub fn parse_text_list(
    annotations: &BTreeMap<String, String>,
    key: &'static str,
) -> Result<Vec<String>, PodProblem> {
    let Some(value) = annotations.get(key).filter(|value| !value.is_empty()) else {
        return Ok(Vec::new());
    };
    let parsed = serde_json::from_str::<Option<Vec<String>>>(value);
    parsed
        .map(Option::unwrap_or_default)
        .map_err(|error| PodProblem::Json {
            annotation: key,
            value: beginning(value),
            // Upstream's text, which recordings contain.
            reason: if error.is_eof() {
                "unexpected end of JSON input".into()
            } else {
                beginning(&error.to_string())
            },
        })
}

fn valid_values<T>(
    parsed: impl Iterator<Item = Result<T, PodProblem>>,
    problems: &mut Vec<PodProblem>,
) -> Vec<T> {
    parsed
        .filter_map(|one| one.map_err(|problem| problems.push(problem)).ok())
        .collect()
}

pub(super) fn written_fields(endpoint: &Value) -> (String, Vec<String>) {
    let container = endpoint
        .pointer("/spec/containerID")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let networks = endpoint
        .pointer("/spec/ipNetworks")
        .and_then(Value::as_array);
    let texts = networks
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned);
    (container.into(), texts.collect())
}

#[cfg(test)]
mod tests;
