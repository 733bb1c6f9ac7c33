//! The projections: of each watched object only what a controller reads, taken out while it is decoded.

mod namespace;
mod network_policy;
mod node;
mod pod;
mod service;
mod service_account;

pub use namespace::Namespace;
pub use network_policy::NetworkPolicy;
pub use node::Node;
pub use pod::Pod;
pub use service::Service;
pub use service_account::ServiceAccount;

use std::fmt::Display;
use std::hash::Hash;

use libcalico::store::{Entry, Kind};

/// An object as a feed delivers it.
pub trait Watched: Send + Sync + 'static {
    /// What names one.
    type Key: Clone + Eq + Hash + Ord + Display + Send + Sync + 'static;
    /// The kind, for logs and metrics.
    const KIND: &'static str;
    /// Its name.
    fn key(&self) -> Self::Key;
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
