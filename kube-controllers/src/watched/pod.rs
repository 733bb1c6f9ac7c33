//! [`Pod`].

use std::collections::BTreeMap;

use libcalico::api::ObjectKey;

use super::Watched;

/// A pod: where it is, which addresses it has, and whether it still needs them (KC-267, B-05).
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// Namespace and name.
    pub name: ObjectKey,
    /// Tells it from a namesake.
    pub uid: String,
    /// The node it was scheduled to; empty before.
    pub node: String,
    /// `spec.hostNetwork`.
    pub host_network: bool,
    /// `spec.serviceAccountName`.
    pub service_account: String,
    /// `metadata.labels`; kept only where endpoints are labelled (etcd).
    pub labels: BTreeMap<String, String>,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// `status.phase`.
    pub phase: String,
    /// `status.reason`, such as `Evicted`.
    pub reason: String,
    /// `status.podIP`, if any.
    pub pod_ip: Option<String>,
    /// `status.podIPs`.
    pub pod_ips: Vec<String>,
    /// The annotations that tell addresses (KC-435): `cni.projectcalico.org/podIP`, `…/podIPs`, `vpc.amazonaws.com/pod-ips`.
    pub annotations: BTreeMap<String, String>,
}

impl Watched for Pod {
    type Key = ObjectKey;
    const KIND: &'static str = "Pod";

    fn key(&self) -> ObjectKey {
        self.name.clone()
    }
}
