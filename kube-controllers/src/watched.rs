//! The projections: of each watched object only what a controller reads, taken out while it is decoded.

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

/// `metadata.labels`.
pub type Labels = BTreeMap<String, String>;

/// An object as a feed delivers it.
pub trait Watched: Send + Sync + 'static {
    /// What names one.
    type Key: Clone + Eq + Hash + Ord + Display + Send + Sync + 'static;
    /// The kind, for logs and metrics.
    const KIND: &'static str;
    /// Its name.
    fn key(&self) -> Self::Key;
}

/// A kind of Kubernetes' own, of which a few fields are kept.
pub trait Projection: Watched<Key = ObjectKey> + Sized {
    /// The URL path of all objects.
    const COLLECTION: &'static str;
    /// Reads an object's JSON.
    fn project(json: &str, words: &mut Words, wanted: Wanted) -> Result<Self, serde_json::Error>;
}

/// What is kept only where somebody needs it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Labels and service accounts of pods, with which endpoints are labelled (etcd).
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
