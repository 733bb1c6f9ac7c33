//! [`PackedEndpoint`]: the texts of an endpoint in one allocation of memory.

use std::net::IpAddr;

use super::texts::Texts;
use crate::api::ObjectKey;
use crate::ipam::AuditedEndpoint;

/// An [`AuditedEndpoint`] in a fraction of its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedEndpoint {
    /// The texts of `AuditedEndpoint`: name, object, node and container, and namespace and name of the pod.
    texts: Texts<6>,
    addresses: Box<[IpAddr]>,
}

impl PackedEndpoint {
    /// Packs an endpoint.
    pub fn of(endpoint: &AuditedEndpoint) -> Self {
        let AuditedEndpoint { name, object, node, pod, addresses, container_id } = endpoint;
        let pod_namespace = pod.as_ref().and_then(|pod| pod.namespace.as_deref()).unwrap_or_default();
        let pod_name = pod.as_ref().map(|pod| pod.name.as_str()).unwrap_or_default();
        let container = container_id.as_deref().unwrap_or_default();
        PackedEndpoint {
            texts: Texts::of([name, object, node, container, pod_namespace, pod_name]),
            addresses: addresses.as_slice().into(),
        }
    }

    /// Returns [`AuditedEndpoint::name`].
    pub fn name(&self) -> &str {
        self.texts.get(0)
    }

    /// Returns [`AuditedEndpoint::object`].
    pub fn object(&self) -> &str {
        self.texts.get(1)
    }

    /// Returns [`AuditedEndpoint::node`].
    pub fn node(&self) -> &str {
        self.texts.get(2)
    }

    /// Returns [`AuditedEndpoint::container_id`]; `None` if it is empty.
    pub fn container_id(&self) -> Option<&str> {
        Some(self.texts.get(3)).filter(|id| !id.is_empty())
    }

    /// Returns [`AuditedEndpoint::pod`].
    pub fn pod(&self) -> Option<ObjectKey> {
        let [namespace, name] = [4, 5].map(|index| self.texts.get(index));
        (!name.is_empty()).then(|| ObjectKey::namespaced(namespace, name))
    }

    /// Returns [`AuditedEndpoint::addresses`].
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Returns the number of bytes, including those on the heap.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self) + self.texts.heap_bytes() + size_of_val(&*self.addresses)
    }
}
