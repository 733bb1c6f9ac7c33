//! Projections: the fields of each watched object that a controller reads, selected while the object is decoded.

mod machine;
mod namespace;
mod network_policy;
mod node;
mod pod;
mod service;
mod service_account;
mod words;

pub use machine::{Machine, MachineInstance};
pub use namespace::Namespace;
pub use network_policy::NetworkPolicy;
pub use node::Node;
pub use pod::{AddressAnnotations, Pod};
pub use service::Service;
pub use service_account::ServiceAccount;
pub use words::Words;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::hash::Hash;

use libcalico::api::ObjectKey;
use libcalico::store::{Entry, Kind};

/// Labels, from `metadata.labels`.
pub type Labels = BTreeMap<String, String>;

/// An object that a watch delivers.
pub trait Watched: Send + Sync + 'static {
    /// Identifier of an object.
    type Key: Clone + Eq + Hash + Ord + Display + Send + Sync + 'static;
    /// The kind, for logs and metrics.
    const KIND: &'static str;
    /// Returns the key of the object.
    fn key(&self) -> Self::Key;
}

/// A Kubernetes object of which only some fields are kept.
pub trait Projection: Watched<Key = ObjectKey> + Sized {
    /// URL path of the list of all objects.
    const COLLECTION: &'static str;
    /// Reads the projection from an object's JSON.
    fn project(json: &str, words: &mut Words, wanted: Wanted) -> Result<Self, serde_json::Error>;
}

/// Optional parts of the projections, kept only if a controller needs them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Whether to keep labels and service accounts of pods, which are copied to workload endpoints (etcd only).
    pub pod_labels: bool,
}

impl<K: Kind> Watched for Entry<K>
where
    K::Key: Ord + 'static,
{
    type Key = K::Key;
    const KIND: &'static str = K::KIND;

    fn key(&self) -> K::Key {
        self.key.clone()
    }
}
