//! [`ServiceAccount`].

use std::collections::BTreeMap;

use libcalico::api::ObjectKey;

use super::Watched;

/// A service account.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceAccount {
    /// Namespace and name.
    pub name: ObjectKey,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
}

impl Watched for ServiceAccount {
    type Key = ObjectKey;
    const KIND: &'static str = "ServiceAccount";

    fn key(&self) -> ObjectKey {
        self.name.clone()
    }
}
