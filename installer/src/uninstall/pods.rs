//! Finds pods in the API server that report addresses to be released. The kernel of this node does not show such pods
//! if the configuration names another node, or if their interfaces are no longer Calico's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_plugin::cni::LeakedAddresses;
use libcalico::api::ObjectKey;
use libcalico::kubernetes::{AddressAnnotations, Pod, PodAddresses};
use libcalico::store::{ReadBatch, Store};

use super::interfaces::TornDown;
use super::release_error::ReleaseError;

/// Checks that no pod would lose its address.
///
/// # Errors
/// Returns an error with the pods that would, their addresses and the remedy, or if the API server cannot be queried.
pub(super) async fn check_unused<S: Store>(
    api: &S,
    leaked: &LeakedAddresses,
    gone: TornDown<'_>,
) -> Result<(), ReleaseError> {
    let mut leaving = BTreeMap::<ObjectKey, BTreeSet<IpAddr>>::new();
    for (_, address) in leaked.held() {
        if let Some((namespace, name)) = &address.pod {
            leaving.entry(ObjectKey::namespaced(namespace, name)).or_default().insert(address.ip);
        }
    }
    let mut batch = ReadBatch::new();
    let tickets: Vec<_> = leaving.keys().map(|key| batch.get::<Pod>(key)).collect();
    let answers = api.read(&batch).await.map_err(ReleaseError::UnreadablePods)?;
    let mut used = Vec::new();
    for (ticket, (key, addresses)) in tickets.iter().zip(&leaving) {
        let Some(pod) = answers.get(ticket).map_err(ReleaseError::UnreadablePods)? else { continue };
        let Some(has) = addresses_of(&pod.value) else { continue };
        // A running ADD may have assigned the address while the pod reports no address yet, or that of its previous
        // sandbox.
        let is_here = gone.is_of(&pod.value.spec.node_name);
        let may_have = |ip: &IpAddr| is_here || has.is_empty() || has.contains(ip);
        let is_used = |ip: &&IpAddr| may_have(ip) && !gone.has(&pod.value.spec.node_name, ip);
        used.extend(addresses.iter().filter(is_used).map(|ip| format!("{key} ({ip})")));
    }
    if used.is_empty() {
        return Ok(());
    }
    Err(ReleaseError::UsedByPods(used))
}

/// Returns the addresses in the pod's status and annotations. Both are read because kubelet updates the status some
/// time after the ADD. Returns `None` for a pod that has ended.
fn addresses_of(pod: &Pod) -> Option<BTreeSet<IpAddr>> {
    let listed: Vec<&str> = pod.status.pod_ips.iter().map(|address| address.ip.as_str()).collect();
    let addresses = PodAddresses {
        phase: &pod.status.phase,
        deleting: false,
        pod_ip: &pod.status.pod_ip,
        pod_ips: &listed,
        annotations: AddressAnnotations::of(&pod.metadata.annotations),
    };
    let reported = addresses.parse_reported().chain(addresses.parse_noted());
    (!addresses.has_ended()).then(|| reported.flatten().map(|cidr| cidr.network()).collect())
}
