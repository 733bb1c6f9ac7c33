//! The addresses of a pod, and whether it still needs them (DS-77, DS-78).

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::pod_patch::{POD_IP, POD_IPS};
use crate::net::{Cidr, CidrParseError};

/// Addresses as Amazon's plugin writes them.
const AWS_POD_IPS: &str = "vpc.amazonaws.com/pod-ips";

/// Where a pod says which addresses it has. Whoever keeps less than a whole pod can ask too.
#[derive(Debug, Clone, Copy)]
pub struct PodAddresses<'a> {
    /// `status.phase`.
    pub phase: &'a str,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// `status.podIP`, empty for none.
    pub pod_ip: &'a str,
    /// `status.podIPs`.
    pub pod_ips: &'a [&'a str],
    /// `metadata.annotations`, or those of them that tell addresses.
    pub annotations: &'a BTreeMap<String, String>,
}

impl<'a> PodAddresses<'a> {
    /// The annotations that tell addresses.
    pub const ANNOTATIONS: [&'static str; 3] = [POD_IPS, POD_IP, AWS_POD_IPS];

    /// Whether the addresses are free again, although the pod is still there (DS-78).
    pub fn is_finished(&self) -> bool {
        let ended = matches!(self.phase, "Failed" | "Succeeded" | "Completed");
        let emptied = [POD_IP, AWS_POD_IPS].into_iter().any(|key| self.annotation(key) == Some(""));
        ended || (self.deleting && emptied)
    }

    /// The addresses from the first source that has any (DS-77).
    pub fn parse(&self) -> impl Iterator<Item = Result<Cidr, CidrParseError>> + use<'a> {
        self.texts().into_iter().map(|text| match text.parse::<IpAddr>() {
            Ok(address) => Ok(Cidr::host(address)),
            Err(_) => text.parse::<Cidr>(),
        })
    }

    fn texts(&self) -> Vec<&'a str> {
        let listed = |key| self.annotation(key).filter(|list| !list.is_empty()).map(|list| list.split(',').collect());
        if !self.pod_ips.is_empty() {
            return self.pod_ips.to_vec();
        }
        if !self.pod_ip.is_empty() {
            return vec![self.pod_ip];
        }
        listed(POD_IPS)
            .or_else(|| self.annotation(POD_IP).filter(|ip| !ip.is_empty()).map(|ip| vec![ip]))
            .or_else(|| listed(AWS_POD_IPS))
            .unwrap_or_default()
    }

    fn annotation(&self, key: &str) -> Option<&'a str> {
        self.annotations.get(key).map(String::as_str)
    }
}
