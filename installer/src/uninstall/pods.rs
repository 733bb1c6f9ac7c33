//! Pods that the API server knows and that report addresses which are to be given back. The kernel of this node does not show
//! them where the configuration names another node, or where their interfaces are not Calico's any more.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_plugin::cni::Leaked;
use libcalico::api::ObjectKey;
use libcalico::kubernetes::{AddressAnnotations, Pod, PodAddresses};
use libcalico::store::{ReadBatch, Store};

/// Returns whether no pod reports an address that it would lose. Pods of the node `torn_down` had their interfaces deleted.
///
/// # Errors
/// The pods that do, with their addresses and the way out; or the API server cannot be asked.
pub(super) async fn none_reports<S: Store>(api: &S, leaked: &Leaked, torn_down: Option<&str>) -> Result<(), String> {
    let mut leaving = BTreeMap::<ObjectKey, BTreeSet<IpAddr>>::new();
    for (_, address) in leaked.held() {
        if let Some((namespace, name)) = &address.pod {
            leaving.entry(ObjectKey::namespaced(namespace, name)).or_default().insert(address.ip);
        }
    }
    let mut batch = ReadBatch::new();
    let tickets: Vec<_> = leaving.keys().map(|key| batch.get::<Pod>(key)).collect();
    let unanswered = |error: &dyn std::fmt::Display| {
        format!("the API server does not say whether pods still have these addresses: {error}")
    };
    let answers = api.read(&batch).await.map_err(|error| unanswered(&error))?;
    let mut used = Vec::new();
    for (ticket, (key, addresses)) in tickets.iter().zip(&leaving) {
        let Some(pod) = answers.get(ticket).map_err(|error| unanswered(&error))? else { continue };
        if torn_down != Some(pod.value.spec.node_name.as_str()) {
            used.extend(reported(&pod.value, addresses).map(|ip| format!("{key} ({ip})")));
        }
    }
    if used.is_empty() {
        return Ok(());
    }
    let words = "pods report theirs to the API server";
    Err(format!(
        "{words}: {}; delete these pods first, or, if they are on this node, say --tear-down-pods",
        used.join(", ")
    ))
}

/// Returns those of the addresses that the status of the pod has. A pod whose containers ended for good has none.
fn reported(pod: &Pod, addresses: &BTreeSet<IpAddr>) -> impl Iterator<Item = IpAddr> {
    let listed: Vec<&str> = pod.status.pod_ips.iter().map(|address| address.ip.as_str()).collect();
    let status = PodAddresses {
        phase: &pod.status.phase,
        deleting: false,
        pod_ip: &pod.status.pod_ip,
        pod_ips: &listed,
        annotations: AddressAnnotations::default(),
    };
    let reported: BTreeSet<IpAddr> = match status.has_ended() {
        true => BTreeSet::new(),
        false => status.parse_reported().flatten().map(|cidr| cidr.network()).collect(),
    };
    reported.intersection(addresses).copied().collect::<Vec<_>>().into_iter()
}
