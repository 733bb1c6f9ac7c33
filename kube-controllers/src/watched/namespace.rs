//! [`Namespace`].

use libcalico::api::ObjectKey;
use serde::Deserialize;

use super::projection::{Labels, Projection, ProjectionOptions, StringInterner, Watched};

/// A namespace.
#[derive(Debug, Clone, PartialEq)]
pub struct Namespace {
    /// Name of the namespace.
    pub name: ObjectKey,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.labels`.
    pub labels: Labels,
    /// `status.phase`: `Active`, or `Terminating` while the namespace is being deleted.
    pub phase: String,
}

impl Watched for Namespace {
    type Key = ObjectKey;
    const KIND: &'static str = "Namespace";

    fn key(&self) -> ObjectKey {
        self.name.clone()
    }
}

#[derive(Deserialize)]
struct Stored {
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    uid: String,
    #[serde(default)]
    labels: Option<Labels>,
}

#[derive(Deserialize, Default)]
struct Status {
    #[serde(default)]
    phase: String,
}

impl Projection for Namespace {
    const COLLECTION: &'static str = "/api/v1/namespaces";

    fn project(json: &str, _: &mut StringInterner, _: ProjectionOptions) -> Result<Self, serde_json::Error> {
        let Stored { metadata, status } = serde_json::from_str(json)?;
        Ok(Namespace {
            name: ObjectKey::global(metadata.name),
            uid: metadata.uid,
            labels: metadata.labels.unwrap_or_default(),
            phase: status.phase,
        })
    }
}
