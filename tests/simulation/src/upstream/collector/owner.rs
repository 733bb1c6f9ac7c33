//! Decides whether an allocation is valid. A doubt makes it valid.

use std::net::IpAddr;

use libcalico::ipam::NETWORK_STATUS;
use libcalico::kubernetes::{POD_IP, Pod};
use libcalico::net::Cidr;
use serde_json::Value;

use super::{Collector, Tracked};

/// The result of the search for a pod.
#[derive(Debug)]
pub(super) enum PodLookup {
    /// The pod.
    Found(Box<Pod>),
    /// There is no such pod.
    Missing,
    /// The search failed.
    Failed,
}

impl Collector {
    /// Returns true if the allocation is valid, with the pods and nodes of the cache.
    pub(super) fn is_valid_by_cache(&self, tracked: &Tracked, ip: IpAddr) -> bool {
        let Some(key) = tracked.pod() else {
            return is_valid(tracked, ip, PodLookup::Failed);
        };
        let cached = match self.pods.get(&key) {
            Some(pod) => PodLookup::Found(Box::new(as_cached(pod))),
            None => PodLookup::Missing,
        };
        is_valid(tracked, ip, cached)
    }
}

/// Returns true if the allocation of `ip` is valid for its pod (KC-434). A tunnel address is valid
/// if its node is a node of Kubernetes. An address of a virtual machine is always valid, because
/// the simulation has no virtual machines (KC-436).
pub(super) fn is_valid(tracked: &Tracked, ip: IpAddr, pod: PodLookup) -> bool {
    if tracked.is_tunnel() {
        return !tracked.kubernetes_node.is_empty();
    }
    if tracked.is_of_machine() || tracked.pod().is_none() {
        return true;
    }
    let pod = match pod {
        PodLookup::Found(pod) => pod,
        PodLookup::Missing => return false,
        PodLookup::Failed => return true,
    };
    let (node, recorded) = (&pod.spec.node_name, &tracked.kubernetes_node);
    if !node.is_empty() && !recorded.is_empty() && node != recorded {
        return false;
    }
    if pod.status.pod_ip.is_empty() || pod.status.pod_ips.is_empty() {
        return true;
    }
    // No endpoint can be computed without a node.
    if node.is_empty() {
        return true;
    }
    addresses(&pod).contains(&ip)
}

/// Returns the addresses of the pod's endpoints; none for a finished pod (KC-435).
fn addresses(pod: &Pod) -> Vec<IpAddr> {
    if is_finished(pod) {
        return Vec::new();
    }
    let listed = pod.status.listed_ips().into_iter();
    let in_status = listed.filter_map(Cidr::parse_or_host);
    let mut found: Vec<IpAddr> = in_status.map(|cidr| cidr.network()).collect();
    let status = pod.metadata.annotations.get(NETWORK_STATUS);
    let networks = status.and_then(|text| serde_json::from_str::<Value>(text).ok());
    for network in networks.iter().filter_map(Value::as_array).flatten() {
        let ips = network.get("ips").and_then(Value::as_array);
        let texts = ips.into_iter().flatten().filter_map(Value::as_str);
        found.extend(texts.filter_map(|text| text.parse::<IpAddr>().ok()));
    }
    found
}

fn is_finished(pod: &Pod) -> bool {
    let has_ended = ["Failed", "Succeeded", "Completed"].contains(&pod.status.phase.as_str());
    let released = |key| {
        pod.metadata
            .annotations
            .get(key)
            .is_some_and(String::is_empty)
    };
    let is_deleted = pod.metadata.deletion_timestamp.is_some();
    has_ended || is_deleted && (released(POD_IP) || released("vpc.amazonaws.com/pod-ips"))
}

/// Returns the pod as upstream's cache has it: without the time of the deletion.
fn as_cached(pod: &Pod) -> Pod {
    let mut cached = pod.clone();
    cached.metadata.deletion_timestamp = None;
    cached
}
