//! [`NetworkPolicy`].

use libcalico::api::ObjectKey;

use super::Watched;

/// A network policy of Kubernetes.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkPolicy {
    /// Namespace and name.
    pub name: ObjectKey,
    /// `metadata.uid`.
    pub uid: String,
    /// `spec`.
    pub spec: libcalico::kubernetes::NetworkPolicySpec,
}

impl Watched for NetworkPolicy {
    type Key = ObjectKey;
    const KIND: &'static str = "NetworkPolicy";

    fn key(&self) -> ObjectKey {
        self.name.clone()
    }
}
