//! [`NetworkPolicy`].

use libcalico::api::ObjectKey;
use libcalico::kubernetes::NetworkPolicySpec;
use serde::Deserialize;

use super::projection::{Projection, ProjectionOptions, StringInterner, Watched};

/// A Kubernetes network policy.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkPolicy {
    /// Namespace and name.
    pub name: ObjectKey,
    /// `metadata.uid`.
    pub uid: String,
    /// `spec`.
    pub spec: NetworkPolicySpec,
}

impl Watched for NetworkPolicy {
    type Key = ObjectKey;
    const KIND: &'static str = "NetworkPolicy";

    fn key(&self) -> ObjectKey {
        self.name.clone()
    }
}

#[derive(Deserialize)]
struct Stored {
    metadata: Metadata,
    #[serde(default)]
    spec: NetworkPolicySpec,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
}

impl Projection for NetworkPolicy {
    const COLLECTION: &'static str = "/apis/networking.k8s.io/v1/networkpolicies";

    fn project(json: &str, _: &mut StringInterner, _: ProjectionOptions) -> Result<Self, serde_json::Error> {
        let Stored { metadata, spec } = serde_json::from_str(json)?;
        Ok(NetworkPolicy { name: ObjectKey::namespaced(metadata.namespace, metadata.name), uid: metadata.uid, spec })
    }
}
