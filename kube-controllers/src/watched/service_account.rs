//! [`ServiceAccount`].

use libcalico::api::ObjectKey;
use serde::Deserialize;

use super::projection::{Labels, Projection, ProjectionOptions, StringInterner, Watched};

/// A service account.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceAccount {
    /// Namespace and name.
    pub name: ObjectKey,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.labels`.
    pub labels: Labels,
}

impl Watched for ServiceAccount {
    type Key = ObjectKey;
    const KIND: &'static str = "ServiceAccount";

    fn key(&self) -> ObjectKey {
        self.name.clone()
    }
}

#[derive(Deserialize)]
struct Stored {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    #[serde(default)]
    labels: Option<Labels>,
}

impl Projection for ServiceAccount {
    const COLLECTION: &'static str = "/api/v1/serviceaccounts";

    fn project(json: &str, _: &mut StringInterner, _: ProjectionOptions) -> Result<Self, serde_json::Error> {
        let Stored { metadata } = serde_json::from_str(json)?;
        Ok(ServiceAccount {
            name: ObjectKey::namespaced(metadata.namespace, metadata.name),
            uid: metadata.uid,
            labels: metadata.labels.unwrap_or_default(),
        })
    }
}
