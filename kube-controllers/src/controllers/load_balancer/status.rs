//! Addresses in the status of a Service.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{LoadBalancerIngress, Service as KubernetesService};

/// Publishes exactly these addresses. Other fields of an entry that stays, and entries with host names, are kept;
/// upstream discards them (KC-512).
pub(super) fn show(service: &mut KubernetesService, addresses: &[IpAddr]) {
    let entries = take(service);
    let (mut shown, others): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| entry.ip.is_some());
    shown.retain(|entry| address(entry).is_some_and(|ip| addresses.contains(&ip)));
    for ip in addresses {
        if !shown.iter().any(|entry| address(entry) == Some(*ip)) {
            shown.push(LoadBalancerIngress { ip: Some(ip.to_string()), ..LoadBalancerIngress::default() });
        }
    }
    shown.sort_by_key(address);
    shown.extend(others);
    put(service, shown);
}

/// Removes these addresses. All other entries stay as they are.
pub(super) fn hide(service: &mut KubernetesService, addresses: &[IpAddr]) {
    let mut entries = take(service);
    entries.retain(|entry| address(entry).is_none_or(|ip| !addresses.contains(&ip)));
    put(service, entries);
}

fn address(entry: &LoadBalancerIngress) -> Option<IpAddr> {
    entry.ip.as_deref()?.parse().ok()
}

fn take(service: &mut KubernetesService) -> Vec<LoadBalancerIngress> {
    let reconciler = service.status.as_mut().and_then(|status| status.load_balancer.as_mut());
    reconciler.and_then(|reconciler| reconciler.ingress.take()).unwrap_or_default()
}

fn put(service: &mut KubernetesService, entries: Vec<LoadBalancerIngress>) {
    let status = service.status.get_or_insert_default();
    status.load_balancer.get_or_insert_default().ingress = (!entries.is_empty()).then_some(entries);
}
