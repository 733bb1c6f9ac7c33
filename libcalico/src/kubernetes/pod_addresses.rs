//! The addresses of a pod, according to its status and annotations.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::pod::Pod;
use super::pod_patch::{POD_IP, POD_IPS};
use crate::net::{Cidr, CidrParseError};

/// The annotation with the addresses that Amazon's VPC CNI plugin assigned.
const AWS_POD_IPS: &str = "vpc.amazonaws.com/pod-ips";

/// The fields of a pod that determine its addresses, for callers that cache only these.
#[derive(Debug, Clone, Copy)]
pub struct PodAddresses<'a> {
    /// `status.phase`.
    pub phase: &'a str,
    /// True if `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// `status.podIP`; empty for none.
    pub pod_ip: &'a str,
    /// `status.podIPs`.
    pub pod_ips: &'a [&'a str],
    /// The annotations that list addresses.
    pub annotations: AddressAnnotations<'a>,
}

/// The annotations that list addresses. An empty one in most cases means that the addresses were
/// released.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AddressAnnotations<'a> {
    /// `cni.projectcalico.org/podIP`.
    pub pod_ip: Option<&'a str>,
    /// `cni.projectcalico.org/podIPs`.
    pub pod_ips: Option<&'a str>,
    /// `vpc.amazonaws.com/pod-ips`.
    pub aws_pod_ips: Option<&'a str>,
}

impl<'a> AddressAnnotations<'a> {
    /// Returns the annotations that list addresses, from `metadata.annotations`.
    pub fn of(annotations: &'a BTreeMap<String, String>) -> Self {
        let [pod_ip, pod_ips, aws_pod_ips] =
            [POD_IP, POD_IPS, AWS_POD_IPS].map(|key| annotations.get(key).map(String::as_str));
        AddressAnnotations {
            pod_ip,
            pod_ips,
            aws_pod_ips,
        }
    }
}

impl<'a> PodAddresses<'a> {
    /// Returns the fields of `pod` that determine its addresses. `pod_ips` comes from
    /// [`PodStatus::listed_ips`](super::PodStatus::listed_ips).
    pub fn of(pod: &'a Pod, pod_ips: &'a [&'a str]) -> Self {
        PodAddresses {
            phase: &pod.status.phase,
            deleting: pod.metadata.deletion_timestamp.is_some(),
            pod_ip: &pod.status.pod_ip,
            pod_ips,
            annotations: AddressAnnotations::of(&pod.metadata.annotations),
        }
    }

    /// Returns true if, according to the phase, all containers have terminated for good.
    pub fn has_ended(&self) -> bool {
        matches!(self.phase, "Failed" | "Succeeded" | "Completed")
    }

    /// Returns true if the endpoint has no addresses any more (DS-78). The result depends on
    /// annotations, which a tenant can write, so do not use it to decide that an address is free.
    pub fn is_finished(&self) -> bool {
        let has_empty_annotation =
            [self.annotations.pod_ip, self.annotations.aws_pod_ips].contains(&Some(""));
        self.has_ended() || (self.deleting && has_empty_annotation)
    }

    /// Returns the addresses from the first source that lists any, the status before annotations
    /// (DS-77).
    pub fn parse(&self) -> impl Iterator<Item = Result<Cidr, CidrParseError>> + use<'a> {
        self.texts().into_iter().map(parse)
    }

    /// Returns the addresses in the pod's status, which the kubelet writes.
    pub fn parse_reported(&self) -> impl Iterator<Item = Result<Cidr, CidrParseError>> + use<'a> {
        let first =
            Some(self.pod_ip).filter(|first| !first.is_empty() && !self.pod_ips.contains(first));
        self.pod_ips.iter().copied().chain(first).map(parse)
    }

    /// Returns the addresses in the annotations, which may be newer than those in the status.
    pub fn parse_annotated(&self) -> impl Iterator<Item = Result<Cidr, CidrParseError>> + use<'a> {
        let AddressAnnotations {
            pod_ip,
            pod_ips,
            aws_pod_ips,
        } = self.annotations;
        let lists = [pod_ip, pod_ips, aws_pod_ips]
            .into_iter()
            .flatten()
            .filter(|list| !list.is_empty());
        lists.flat_map(|list| list.split(',')).map(parse)
    }

    fn texts(&self) -> Vec<&'a str> {
        if !self.pod_ips.is_empty() {
            return self.pod_ips.to_vec();
        }
        if !self.pod_ip.is_empty() {
            return vec![self.pod_ip];
        }
        let nonempty = |text: Option<&'a str>| text.filter(|text| !text.is_empty());
        let AddressAnnotations {
            pod_ip,
            pod_ips,
            aws_pod_ips,
        } = self.annotations;
        let listed = nonempty(pod_ips)
            .or_else(|| nonempty(pod_ip))
            .or_else(|| nonempty(aws_pod_ips));
        listed
            .map(|list| list.split(',').collect())
            .unwrap_or_default()
    }
}

fn parse(text: &str) -> Result<Cidr, CidrParseError> {
    text.parse::<IpAddr>()
        .map(Cidr::host)
        .or_else(|_| text.parse())
}
