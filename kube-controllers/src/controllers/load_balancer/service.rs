//! [`LoadBalancerService`]: the parts of a Service of type LoadBalancer on which its addresses
//! depend.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{
    LoadBalancerIngress, LoadBalancerStatus, Service as K8sService, ServiceSpec,
};
use libcalico::api::ObjectKey;
use libcalico::ipam::{HandleId, load_balancer_handle};
use libcalico::kubernetes::{AssignIps, LoadBalancerRequest};

use crate::watched::Service;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LoadBalancerService {
    /// `metadata.uid`.
    pub(super) uid: String,
    /// The handle of its addresses. It depends on the uid, so a later Service with the same name
    /// has another handle.
    pub(super) handle: HandleId,
    /// The pools and addresses that it requests.
    pub(super) request: LoadBalancerRequest,
    /// True if `spec.ipFamilies` contains IPv4.
    pub(super) wants_ipv4: bool,
    /// True if `spec.ipFamilies` contains IPv6.
    pub(super) wants_ipv6: bool,
    /// The addresses in the status, in order.
    pub(super) published: Vec<IpAddr>,
    /// True if the status has an entry, which may be a host name.
    pub(super) has_entry: bool,
}

impl LoadBalancerService {
    /// Reads a watched Service. Returns `None` if it is not of type LoadBalancer.
    pub(super) fn watched(service: &Service) -> Option<Self> {
        let status = service.load_balancer.as_ref();
        Self::from_parts(
            &service.name,
            &service.uid,
            &service.annotations,
            &service.spec,
            status,
        )
    }

    /// Reads a Service that the API server returned. Returns `None` if it is not of type
    /// LoadBalancer.
    pub(super) fn live(service: &K8sService) -> Option<Self> {
        let metadata = &service.metadata;
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let name = ObjectKey::namespaced(text(&metadata.namespace), text(&metadata.name));
        let annotations = metadata.annotations.clone().unwrap_or_default();
        let status = service
            .status
            .as_ref()
            .and_then(|status| status.load_balancer.as_ref());
        Self::from_parts(
            &name,
            &text(&metadata.uid),
            &annotations,
            service.spec.as_ref()?,
            status,
        )
    }

    fn from_parts(
        name: &ObjectKey,
        uid: &str,
        annotations: &BTreeMap<String, String>,
        spec: &ServiceSpec,
        status: Option<&LoadBalancerStatus>,
    ) -> Option<Self> {
        if spec.type_.as_deref() != Some("LoadBalancer") {
            return None;
        }
        let (class, requested) = (
            spec.load_balancer_class.as_deref(),
            spec.load_balancer_ip.as_deref(),
        );
        let wants = |family: &str| {
            spec.ip_families
                .iter()
                .flatten()
                .any(|wanted| wanted == family)
        };
        let mut request = LoadBalancerRequest::new(class, annotations, requested);
        if !request.is_managed(AssignIps::AllServices) {
            // Another implementation reads the texts. Here only their presence matters, and each
            // may have 256 KiB.
            let texts = [
                &mut request.pools4,
                &mut request.pools6,
                &mut request.addresses,
                &mut request.address,
            ];
            texts
                .into_iter()
                .flatten()
                .for_each(|text| *text = String::new());
        }
        let entries = status
            .and_then(|status| status.ingress.as_deref())
            .unwrap_or_default();
        Some(LoadBalancerService {
            uid: uid.to_owned(),
            handle: load_balancer_handle(
                name.namespace.as_deref().unwrap_or_default(),
                &name.name,
                uid,
            ),
            request,
            wants_ipv4: wants("IPv4"),
            wants_ipv6: wants("IPv6"),
            published: entries.iter().filter_map(address).collect(),
            has_entry: !entries.is_empty(),
        })
    }
}

/// Sets exactly these addresses in the status of `service`, which the caller writes. Other fields
/// of an entry that stays, and entries with host names, are kept; upstream discards them (KC-512).
pub(super) fn publish_addresses(service: &mut K8sService, addresses: &[IpAddr]) {
    let entries = take_entries(service);
    let (mut shown, others): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|entry| entry.ip.is_some());
    shown.retain(|entry| address(entry).is_some_and(|ip| addresses.contains(&ip)));
    for ip in addresses {
        if !shown.iter().any(|entry| address(entry) == Some(*ip)) {
            shown.push(LoadBalancerIngress {
                ip: Some(ip.to_string()),
                ..LoadBalancerIngress::default()
            });
        }
    }
    shown.sort_by_key(address);
    shown.extend(others);
    put_entries(service, shown);
}

/// Removes these addresses from the status of `service`, which the caller writes.
pub(super) fn withdraw_addresses(service: &mut K8sService, addresses: &[IpAddr]) {
    let mut entries = take_entries(service);
    entries.retain(|entry| address(entry).is_none_or(|ip| !addresses.contains(&ip)));
    put_entries(service, entries);
}

fn address(entry: &LoadBalancerIngress) -> Option<IpAddr> {
    entry.ip.as_deref()?.parse().ok()
}

fn take_entries(service: &mut K8sService) -> Vec<LoadBalancerIngress> {
    let status = service
        .status
        .as_mut()
        .and_then(|status| status.load_balancer.as_mut());
    status
        .and_then(|status| status.ingress.take())
        .unwrap_or_default()
}

fn put_entries(service: &mut K8sService, entries: Vec<LoadBalancerIngress>) {
    let status = service.status.get_or_insert_default();
    status.load_balancer.get_or_insert_default().ingress = (!entries.is_empty()).then_some(entries);
}

#[cfg(test)]
mod tests {
    use libcalico::kubernetes::{IPV4_POOLS, LOAD_BALANCER_IPS};

    use super::*;

    #[test]
    fn texts_of_a_service_of_another_class_are_not_kept() {
        let annotations = [IPV4_POOLS, LOAD_BALANCER_IPS]
            .map(|name| (name.to_owned(), "x".repeat(1000)))
            .into();
        let length = |class: Option<&str>| {
            let class = class.map(str::to_owned);
            let spec = ServiceSpec {
                type_: Some("LoadBalancer".into()),
                load_balancer_class: class,
                ..Default::default()
            };
            let name = ObjectKey::namespaced("ns", "web");
            let request = LoadBalancerService::from_parts(&name, "u", &annotations, &spec, None)
                .unwrap()
                .request;
            let texts = [request.pools4, request.pools6, request.addresses];
            texts.map(|text| text.map(|text| text.len()))
        };
        assert_eq!(length(Some("other")), [Some(0), None, Some(0)]);
        assert_eq!(
            [length(None), length(Some("calico"))],
            [[Some(1000), None, Some(1000)]; 2]
        );
    }
}
