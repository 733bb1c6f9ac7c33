//! [`Node`].

use libcalico::api::ObjectKey;
use serde::Deserialize;

use super::projection::{Labels, Projection, ProjectionOptions, StringInterner, Watched};

/// A Kubernetes node.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Name of the node.
    pub name: ObjectKey,
    /// `metadata.uid`, which distinguishes the node from an earlier node with the same name.
    pub uid: String,
    /// `metadata.labels`.
    pub labels: Labels,
}

impl Watched for Node {
    type Key = ObjectKey;
    const KIND: &'static str = "Node";

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
    uid: String,
    #[serde(default)]
    labels: Option<Labels>,
}

impl Projection for Node {
    const COLLECTION: &'static str = "/api/v1/nodes";

    fn project(json: &str, _: &mut StringInterner, _: ProjectionOptions) -> Result<Self, serde_json::Error> {
        let Stored { metadata } = serde_json::from_str(json)?;
        Ok(Node {
            name: ObjectKey::global(metadata.name),
            uid: metadata.uid,
            labels: metadata.labels.unwrap_or_default(),
        })
    }
}
