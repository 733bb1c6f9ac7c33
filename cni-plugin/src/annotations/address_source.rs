use std::net::IpAddr;

use libcalico::kubernetes::{Pod, parse_text_list};
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
    /// The pod chooses the addresses, at most one of each family, and IPAM does not record them.
    Fixed(Vec<IpAddr>),
}

impl AddressSource {
    /// Returns the source that the pod's annotations select.
    pub(super) fn of_pod(pod: &Pod, conf: &NetConf) -> Result<Self, CniError> {
        let annotation = |key| pod.metadata.annotations.get(key).filter(|text| !text.is_empty());
        match (annotation(IP_ADDRS), annotation(IP_ADDRS_NO_IPAM)) {
            (None, None) => Ok(AddressSource::Allocated),
            (Some(_), Some(_)) => Err(invalid(
                "can't have both annotations: 'ipAddrs' and 'ipAddrsNoIpam' in use at the same time".into(),
            )),
            (Some(text), None) => {
                ensure_calico_ipam(conf, "ipAddrs")?;
                parse_addresses(pod, IP_ADDRS, text).map(AddressSource::Requested)
            }
            (None, Some(text)) => {
                ensure_calico_ipam(conf, "ipAddrsNoIpam")?;
                ensure_enabled(conf.feature_control.ip_addrs_no_ipam, "ip_addrs_no_ipam", IP_ADDRS_NO_IPAM)?;
                parse_addresses(pod, IP_ADDRS_NO_IPAM, text).map(AddressSource::Fixed)
            }
        }
    }
}

/// Returns true if the pod has the annotation `ipAddrsNoIpam` and the configuration permits it. Does not validate the
/// addresses.
pub fn has_fixed_addresses(pod: &Pod, conf: &NetConf) -> bool {
    conf.policy.policy_type == KUBERNETES_POLICY
        && conf.feature_control.ip_addrs_no_ipam
        && pod.metadata.annotations.get(IP_ADDRS_NO_IPAM).is_some_and(|text| !text.is_empty())
}

fn ensure_calico_ipam(conf: &NetConf, annotation: &str) -> Result<(), CniError> {
    if conf.ipam.is_calico() {
        return Ok(());
    }
    let ipam = &conf.ipam.ipam_type;
    Err(invalid(format!("{annotation} is not compatible with configured IPAM: {ipam}"))
        .with_details("$.ipam.type: only calico-ipam assigns the addresses that a pod requests"))
}

fn parse_addresses(pod: &Pod, key: &'static str, text: &str) -> Result<Vec<IpAddr>, CniError> {
    let texts = parse_text_list(&pod.metadata.annotations, key).map_err(|problem| {
        CniError::new(Code::DECODE, format!("failed to parse IPs {text} for annotation \"{key}\": {problem}"))
            .with_details("use a JSON list of at most one address of each family, such as [\"10.65.3.3\"]")
    })?;
    if texts.is_empty() {
        return Err(invalid(format!("annotation \"{key}\" specified but empty")));
    }
    let mut addresses: Vec<IpAddr> = Vec::with_capacity(texts.len());
    for text in texts {
        let address: IpAddr = text.parse().map_err(|_| {
            invalid(format!("invalid IP format: {text}"))
                .with_details(format!("annotation {key}: use an address without a prefix length"))
        })?;
        let address = address.to_canonical();
        let version = IpVersion::of(address);
        if addresses.iter().any(|other| IpVersion::of(*other) == version) {
            return Err(invalid(format!("cannot have more than one IPv{version} address for \"{key}\" annotation")));
        }
        addresses.push(address);
    }
    Ok(addresses)
}
