//! [`Namespace`].

use libcalico::api::ObjectKey;
use serde::Deserialize;

use super::{Labels, Projection, Wanted, Watched, Words};

/// A namespace.
#[derive(Debug, Clone, PartialEq)]
pub struct Namespace {
    /// Its name.
    pub name: ObjectKey,
    /// `metadata.uid` (KC-242).
    pub uid: String,
    /// `metadata.labels`.
    pub labels: Labels,
    /// `status.phase`, `Terminating` near the end.
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

    fn project(json: &str, _: &mut Words, _: Wanted) -> Result<Self, serde_json::Error> {
        let Stored { metadata, status } = serde_json::from_str(json)?;
        Ok(Namespace {
            name: ObjectKey::global(metadata.name),
            uid: metadata.uid,
            labels: metadata.labels.unwrap_or_default(),
            phase: status.phase,
        })
    }
}
