//! [`Node`].

use std::collections::BTreeMap;

use libcalico::api::ObjectKey;

use super::Watched;

/// A node of Kubernetes.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Its name.
    pub name: ObjectKey,
    /// Tells it from a namesake.
    pub uid: String,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
}

impl Watched for Node {
    type Key = ObjectKey;
    const KIND: &'static str = "Node";

    fn key(&self) -> ObjectKey {
        self.name.clone()
    }
}
