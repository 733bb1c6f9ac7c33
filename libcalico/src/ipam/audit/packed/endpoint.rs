//! [`PackedEndpoint`]: the texts of an endpoint in one allocation of memory.

use std::net::IpAddr;

use super::{Few, Texts};
use crate::api::ObjectKey;
use crate::ipam::AuditedEndpoint;

/// An [`AuditedEndpoint`] in a fraction of its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedEndpoint {
    /// Name, object, node, container, and `namespace/name` of the pod unless the endpoint has the
    /// same name.
    texts: Texts<5>,
    /// The length of the pod's namespace; `None` without a pod.
    pod_namespace: Option<u32>,
    addresses: Few<IpAddr>,
}

impl PackedEndpoint {
    /// Packs an endpoint.
    pub fn of(endpoint: &AuditedEndpoint) -> Self {
        let AuditedEndpoint {
            name,
            object,
            node,
            pod,
            addresses,
            container_id,
        } = endpoint;
        let namespace = pod
            .as_ref()
            .map(|pod| pod.namespace.as_deref().unwrap_or_default());
        let pod = pod
            .as_ref()
            .map(|pod| format!("{}/{}", namespace.unwrap_or_default(), pod.name));
        let pod = pod.as_deref().filter(|pod| pod != name);
        PackedEndpoint {
            texts: Texts::of([
                Some(name),
                Some(object),
                Some(node),
                container_id.as_deref(),
                pod,
            ]),
            pod_namespace: namespace.and_then(|namespace| u32::try_from(namespace.len()).ok()),
            addresses: Few::of(addresses),
        }
    }

    /// Returns [`AuditedEndpoint::name`].
    pub fn name(&self) -> &str {
        self.texts.get(0).unwrap_or_default()
    }

    /// Returns [`AuditedEndpoint::object`].
    pub fn object(&self) -> &str {
        self.texts.get(1).unwrap_or_default()
    }

    /// Returns [`AuditedEndpoint::node`].
    pub fn node(&self) -> &str {
        self.texts.get(2).unwrap_or_default()
    }

    /// Returns [`AuditedEndpoint::container_id`].
    pub fn container_id(&self) -> Option<&str> {
        self.texts.get(3)
    }

    /// Returns [`AuditedEndpoint::pod`].
    pub fn pod(&self) -> Option<ObjectKey> {
        let pod = self.texts.get(4).unwrap_or_else(|| self.name());
        let (namespace, name) = pod.split_at_checked(self.pod_namespace? as usize)?;
        Some(ObjectKey::namespaced(namespace, name.strip_prefix('/')?))
    }

    /// Returns [`AuditedEndpoint::addresses`].
    pub fn addresses(&self) -> &[IpAddr] {
        self.addresses.get()
    }

    /// Returns the number of bytes, including those on the heap.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self) + self.texts.joined.len()
    }
}
