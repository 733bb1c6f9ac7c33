//! [`Annotations`]: the settings that a pod and its namespace request for the pod's network.

mod address_source;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_plugin::cni::IpamRequest;
use libcalico::api::IpNat;
use libcalico::kubernetes::{
    FLOATING_IPS, Namespace, Pod, PodProblem, endpoint_of_pod, floating_ips, parse_text_list,
};
use libcalico::names::DEFAULT_INTERFACE_PREFIX;
use libcalico::net::IpVersion;
use netconf::{CniError, Code, NetConf};

use dataplane::MacAddr;

pub use address_source::{AddressSource, has_fixed_addresses};

/// The `policy.type` with which annotations take effect. With any other value upstream does not
/// even read the pod (CNI-115).
const KUBERNETES_POLICY: &str = "k8s";

const IPV4_POOLS: &str = "cni.projectcalico.org/ipv4pools";
const IPV6_POOLS: &str = "cni.projectcalico.org/ipv6pools";
const FAMILIES: &str = "cni.projectcalico.org/ipFamilies";
const HW_ADDR: &str = "cni.projectcalico.org/hwAddr";

/// The settings that the annotations of a pod and its namespace request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Annotations {
    /// The source of the pod's addresses.
    pub addresses: AddressSource,
    /// Names or CIDRs of the IPv4 pools to assign from, instead of the configured ones.
    pub ipv4_pools: Option<Vec<String>>,
    /// Names or CIDRs of the IPv6 pools to assign from, instead of the configured ones.
    pub ipv6_pools: Option<Vec<String>>,
    /// The families for which annotations name pools or an address that must be available to the
    /// pod's namespace. Empty unless `feature_control.restrict_annotations` is set.
    pub restricted: BTreeSet<IpVersion>,
    /// The families for which annotations name pools that must select the node. Empty unless
    /// `feature_control.pools_respect_node_selector` is set.
    pub node_selected: BTreeSet<IpVersion>,
    /// The families to assign an address of, instead of the configured ones.
    pub families: Option<Vec<IpVersion>>,
    /// The MAC address that the pod requests for its interface.
    pub mac: Option<MacAddr>,
    /// Floating IPs: addresses that are translated to the pod's own address of the same family.
    pub floating_ips: Vec<String>,
    /// Source prefixes that the pod may use in addition to its own addresses.
    pub source_prefixes: Vec<String>,
}

impl Annotations {
    /// Reads and validates the annotations of a pod and its namespace. Returns no settings unless
    /// `policy.type` is `k8s`. Fails for an annotation of a feature that `conf` does not enable.
    pub fn read(pod: &Pod, namespace: &Namespace, conf: &NetConf) -> Result<Self, CniError> {
        if conf.policy.policy_type != KUBERNETES_POLICY {
            return Ok(Annotations::default());
        }
        let source_prefixes = read_source_prefixes(pod)?;
        let sources = [&pod.metadata.annotations, &namespace.metadata.annotations];
        // Pools and families are parameters of calico-ipam only. Upstream ignores them for other
        // IPAM plugins, too.
        let is_calico = conf.ipam.is_calico();
        let mut annotations = Annotations {
            source_prefixes,
            ipv4_pools: if is_calico {
                read_list(sources, IPV4_POOLS)?
            } else {
                None
            },
            ipv6_pools: if is_calico {
                read_list(sources, IPV6_POOLS)?
            } else {
                None
            },
            restricted: BTreeSet::new(),
            node_selected: BTreeSet::new(),
            families: if is_calico {
                read_families(sources)?
            } else {
                None
            },
            addresses: AddressSource::of_pod(pod, conf)?,
            mac: read_mac(pod, conf)?,
            floating_ips: read_floating_ips(pod, conf)?,
        };
        if conf.feature_control.restrict_annotations {
            annotations.restricted =
                &annotations.pool_families() | &annotations.addresses.chosen_families();
        }
        if conf.feature_control.pools_respect_node_selector {
            annotations.node_selected = annotations.pool_families();
        }
        Ok(annotations)
    }

    /// Returns the families for which annotations name pools.
    fn pool_families(&self) -> BTreeSet<IpVersion> {
        let pools = [
            (IpVersion::V4, &self.ipv4_pools),
            (IpVersion::V6, &self.ipv6_pools),
        ];
        pools
            .into_iter()
            .filter(|(_, pools)| pools.is_some())
            .map(|(version, _)| version)
            .collect()
    }

    /// Copies the requested pools, families and list, and the limits of their choice, to the IPAM
    /// request.
    pub fn apply_to(&self, call: &mut IpamRequest) {
        call.restricted.clone_from(&self.restricted);
        call.node_selected.clone_from(&self.node_selected);
        if let Some(pools) = &self.ipv4_pools {
            call.ipv4_pools.clone_from(pools);
        }
        if let Some(pools) = &self.ipv6_pools {
            call.ipv6_pools.clone_from(pools);
        }
        if let Some(families) = &self.families {
            call.assign_ipv4 = families.contains(&IpVersion::V4);
            call.assign_ipv6 = families.contains(&IpVersion::V6);
        }
        if let AddressSource::AnyOf(list) = &self.addresses {
            call.assign_ipv4 |= !list.v4.is_empty();
            call.assign_ipv6 |= !list.v6.is_empty();
            call.any_of = Some(list.clone());
            if let Some(ip) = call.ip.take() {
                tracing::error!(
                    %ip, "IP in CNI_ARGS is overridden by the pod's annotation ipAddrsAnyOf",
                );
            }
        }
    }

    /// Returns each floating IP with the pod's own address of the same family. A floating IP of a
    /// family that the pod lacks is an error (CNI-241).
    pub fn nats(&self, addresses: &[IpAddr]) -> Result<Vec<IpNat>, CniError> {
        let nat = |external: &String| {
            let version = if external.contains(':') {
                IpVersion::V6
            } else {
                IpVersion::V4
            };
            let Some(internal) = addresses
                .iter()
                .find(|address| IpVersion::of(**address) == version)
            else {
                let msg = format!(
                    "floating IP {external} needs an IPv{version} address of the pod, which has \
                     none"
                );
                return Err(invalid(msg).with_details(format!(
                    "annotation {FLOATING_IPS}: remove the floating IP, or assign the pod an \
                     address of its family"
                )));
            };
            Ok(IpNat {
                internal_ip: internal.to_string(),
                external_ip: external.clone(),
                ..IpNat::default()
            })
        };
        self.floating_ips.iter().map(nat).collect()
    }
}

/// Returns the allowed source prefixes of the pod's endpoint; none for a pod without an endpoint.
/// Fails for annotations that upstream's conversion rejects, and logs those that upstream ignores
/// (CNI-104).
fn read_source_prefixes(pod: &Pod) -> Result<Vec<String>, CniError> {
    let Some(converted) = endpoint_of_pod(pod, DEFAULT_INTERFACE_PREFIX) else {
        return Ok(Vec::new());
    };
    for problem in converted.problems {
        if problem.is_fatal() {
            return Err(invalid_annotation(&problem));
        }
        tracing::warn!(
            annotation = problem.annotation(), %problem,
            "invalid bandwidth or QoS annotation of the pod"
        );
    }
    Ok(converted.endpoint.spec.allow_spoofed_source_prefixes)
}

/// Returns the MAC address that the pod requests. An annotation that exists but is empty is an
/// error, as in upstream (CNI-170). A gRPC dataplane chooses the address itself, so the annotation
/// has no effect there.
fn read_mac(pod: &Pod, conf: &NetConf) -> Result<Option<MacAddr>, CniError> {
    let Some(text) = pod.metadata.annotations.get(HW_ADDR) else {
        return Ok(None);
    };
    if conf.dataplane_options.grpc_socket().is_some() {
        return Ok(None);
    }
    let mac: MacAddr = text.parse().map_err(|_| {
        let msg = format!(
            "failed to parse MAC address {text} provided via {HW_ADDR}: address {text}: invalid \
             MAC address"
        );
        invalid(msg).with_details("use six bytes, such as 0a:58:0a:41:00:02")
    })?;
    if mac.is_assignable() {
        return Ok(Some(mac));
    }
    Err(invalid(format!(
        "failed to set MAC address {text} provided via {HW_ADDR}"
    ))
    .with_details("use an address that is neither multicast nor all zeros"))
}

fn read_floating_ips(pod: &Pod, conf: &NetConf) -> Result<Vec<String>, CniError> {
    if pod
        .metadata
        .annotations
        .get(FLOATING_IPS)
        .is_none_or(String::is_empty)
    {
        return Ok(Vec::new());
    }
    ensure_enabled(
        conf.feature_control.floating_ips,
        "floating_ips",
        FLOATING_IPS,
    )?;
    let addresses = floating_ips(pod).map_err(|problem| invalid_annotation(&problem))?;
    if let Some(text) = addresses
        .iter()
        .find(|text| text.parse::<IpAddr>().is_err())
    {
        return Err(invalid(format!(
            "error with field ExternalIP = '{text}' (invalid IP address)"
        ))
        .with_details(format!("annotation {FLOATING_IPS}")));
    }
    Ok(addresses)
}

/// The annotations of a pod and of its namespace, in the order of precedence.
type AnnotationSources<'a> = [&'a BTreeMap<String, String>; 2];

/// Returns the pod's annotations if they have a non-empty value for `key`, else the namespace's if
/// those have one.
fn source_with<'a>(
    sources: AnnotationSources<'a>,
    key: &str,
) -> Option<&'a BTreeMap<String, String>> {
    sources
        .into_iter()
        .find(|source| source.get(key).is_some_and(|text| !text.is_empty()))
}

fn read_list(
    sources: AnnotationSources<'_>,
    key: &'static str,
) -> Result<Option<Vec<String>>, CniError> {
    let Some(source) = source_with(sources, key) else {
        return Ok(None);
    };
    parse_text_list(source, key)
        .map(Some)
        .map_err(|problem| invalid_annotation(&problem))
}

fn read_families(sources: AnnotationSources<'_>) -> Result<Option<Vec<IpVersion>>, CniError> {
    let Some(names) = read_list(sources, FAMILIES)? else {
        return Ok(None);
    };
    let version = |name: &String| match name.as_str() {
        "IPv4" => Ok(IpVersion::V4),
        "IPv6" => Ok(IpVersion::V6),
        _ => {
            let text = source_with(sources, FAMILIES).map_or("", |source| &source[FAMILIES]);
            Err(
                invalid(format!("error parsing ipFamilies: {text}")).with_details(format!(
                    "annotation {FAMILIES}: a JSON list of \"IPv4\" and \"IPv6\""
                )),
            )
        }
    };
    names
        .iter()
        .map(version)
        .collect::<Result<_, _>>()
        .map(Some)
}

fn invalid_annotation(problem: &PodProblem) -> CniError {
    let code = if matches!(problem, PodProblem::Json { .. }) {
        Code::DECODE
    } else {
        Code::INVALID_CONFIG
    };
    let details = problem.annotation().map_or_else(
        || "correct the status or the annotations of the pod".into(),
        |annotation| format!("annotation {annotation}; write a list as [\"a\", \"b\"]"),
    );
    CniError::new(code, problem.to_string()).with_details(details)
}

fn ensure_enabled(enabled: bool, feature: &str, annotation: &str) -> Result<(), CniError> {
    if enabled {
        return Ok(());
    }
    Err(
        invalid(format!("requested feature is not enabled: {feature}")).with_details(format!(
            "annotation {annotation} needs \"feature_control\": {{\"{feature}\": true}}"
        )),
    )
}

fn invalid(msg: String) -> CniError {
    CniError::new(Code::INVALID_CONFIG, msg)
}

#[cfg(test)]
mod tests;
