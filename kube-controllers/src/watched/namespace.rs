//! [`Namespace`].

use std::collections::BTreeMap;

use libcalico::api::ObjectKey;

use super::Watched;

/// A namespace.
#[derive(Debug, Clone, PartialEq)]
pub struct Namespace {
    /// Its name.
    pub name: ObjectKey,
    /// `metadata.uid` (KC-242).
    pub uid: String,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations` that Calico reads.
    pub annotations: BTreeMap<String, String>,
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
