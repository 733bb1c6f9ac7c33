use std::collections::BTreeSet;
use std::net::IpAddr;

use libcalico::ipam::{ANY_OF, AnyOf};
use libcalico::kubernetes::{Pod, beginning, parse_text_list};
use libcalico::net::IpVersion;
use netconf::{CniError, Code, NetConf};

use super::{KUBERNETES_POLICY, ensure_enabled, invalid};

const IP_ADDRS: &str = "cni.projectcalico.org/ipAddrs";
const IP_ADDRS_NO_IPAM: &str = "cni.projectcalico.org/ipAddrsNoIpam";

/// The source of a pod's addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AddressSource {
    /// IPAM chooses the addresses.
    #[default]
    Allocated,
    /// The pod chooses the addresses, at most one of each family, and IPAM allocates them.
    Requested(Vec<IpAddr>),
    /// IPAM allocates the first free address of each family in the pod's list, and chooses those of
    /// other families.
    AnyOf(AnyOf),
    /// The pod chooses the addresses, at most one of each family, and IPAM does not record them.
    Fixed(Vec<IpAddr>),
}

impl AddressSource {
    /// Returns the source that the pod's annotations select.
    pub(super) fn of_pod(pod: &Pod, conf: &NetConf) -> Result<Self, CniError> {
        let present: Vec<(&'static str, &String)> = [IP_ADDRS, IP_ADDRS_NO_IPAM, ANY_OF]
            .into_iter()
            .filter_map(|key| {
                Some((
                    key,
                    pod.metadata
                        .annotations
                        .get(key)
                        .filter(|text| !text.is_empty())?,
                ))
            })
            .collect();
        let (key, text) = match present[..] {
            [] => return Ok(AddressSource::Allocated),
            [(key, text)] => (key, text),
            [(first, _), (second, _), ..] => {
                let (first, second) = (short(first), short(second));
                return Err(invalid(format!(
                    "can't have both annotations: '{first}' and '{second}' in use at the same time"
                )));
            }
        };
        ensure_calico_ipam(conf, short(key))?;
        match key {
            IP_ADDRS => parse_addresses(pod, key, text).map(AddressSource::Requested),
            ANY_OF => parse_list(pod, text).map(AddressSource::AnyOf),
            _ => {
                ensure_enabled(
                    conf.feature_control.ip_addrs_no_ipam,
                    "ip_addrs_no_ipam",
                    key,
                )?;
                parse_addresses(pod, key, text).map(AddressSource::Fixed)
            }
        }
    }

    /// Returns the families of which the pod chooses addresses that IPAM allocates.
    pub(super) fn chosen_families(&self) -> BTreeSet<IpVersion> {
        match self {
            AddressSource::Requested(addresses) => {
                addresses.iter().map(|ip| IpVersion::of(*ip)).collect()
            }
            AddressSource::AnyOf(list) => list.families().collect(),
            AddressSource::Allocated | AddressSource::Fixed(_) => BTreeSet::new(),
        }
    }
}

/// Returns the name of an annotation without its domain, as error texts name it.
fn short(key: &'static str) -> &'static str {
    key.rsplit('/').next().unwrap_or(key)
}

/// Returns true if the pod has the annotation `ipAddrsNoIpam` and the configuration permits it.
/// Does not validate the addresses.
pub fn has_fixed_addresses(pod: &Pod, conf: &NetConf) -> bool {
    conf.policy.policy_type == KUBERNETES_POLICY
        && conf.feature_control.ip_addrs_no_ipam
        && pod
            .metadata
            .annotations
            .get(IP_ADDRS_NO_IPAM)
            .is_some_and(|text| !text.is_empty())
}

fn ensure_calico_ipam(conf: &NetConf, annotation: &str) -> Result<(), CniError> {
    if conf.ipam.is_calico() {
        return Ok(());
    }
    let ipam = &conf.ipam.ipam_type;
    Err(invalid(format!(
        "{annotation} is not compatible with configured IPAM: {ipam}"
    ))
    .with_details("$.ipam.type: only calico-ipam assigns the addresses that a pod requests"))
}

fn parse_addresses(pod: &Pod, key: &'static str, text: &str) -> Result<Vec<IpAddr>, CniError> {
    let advice = "use a JSON list of at most one address of each family, such as [\"10.65.3.3\"]";
    let texts = parse_texts(pod, key, text, advice)?;
    if texts.is_empty() {
        return Err(invalid(format!("annotation \"{key}\" specified but empty")));
    }
    let mut addresses: Vec<IpAddr> = Vec::with_capacity(texts.len());
    for text in texts {
        let address: IpAddr = text.parse().map_err(|_| {
            invalid(format!("invalid IP format: {}", beginning(&text))).with_details(format!(
                "annotation {key}: use an address without a prefix length"
            ))
        })?;
        let address = address.to_canonical();
        let version = IpVersion::of(address);
        if addresses
            .iter()
            .any(|other| IpVersion::of(*other) == version)
        {
            return Err(invalid(format!(
                "cannot have more than one IPv{version} address for \"{key}\" annotation"
            )));
        }
        addresses.push(address);
    }
    Ok(addresses)
}

fn parse_list(pod: &Pod, text: &str) -> Result<AnyOf, CniError> {
    let advice =
        "use a JSON list of addresses and ranges, such as [\"10.65.3.3\", \"10.65.3.16/29\"]";
    let texts = parse_texts(pod, ANY_OF, text, advice)?;
    AnyOf::parse(&texts).map_err(|error| {
        invalid(error.to_string()).with_details(format!("annotation {ANY_OF}: {advice}"))
    })
}

fn parse_texts(
    pod: &Pod,
    key: &'static str,
    text: &str,
    advice: &str,
) -> Result<Vec<String>, CniError> {
    parse_text_list(&pod.metadata.annotations, key).map_err(|problem| {
        let text = beginning(text);
        CniError::new(
            Code::DECODE,
            format!("failed to parse IPs {text} for annotation \"{key}\": {problem}"),
        )
        .with_details(advice)
    })
}
